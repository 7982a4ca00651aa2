"""``CommGroup``: a communicator; ``wire_factor``: bytes on the wire of a collective, per byte of its buffer."""

from __future__ import annotations

from fractions import Fraction

from semu.errors import ConfigError
from semu.hardware.kinds import OpKind, Port
from semu.records import dataclass

PIPELINE = "pp"
"""Name of the communicators between pipeline ranks."""


@dataclass(frozen=True, slots=True)
class CommGroup:
    """A communicator: some ranks, spread over some nodes.

    Attributes:
        name: name of its stream: ``tp``, ``dp``, ``pp``, ...
        num_ranks: ranks in the group, >= 1.
        num_nodes: nodes that they occupy, 1 to num_ranks.
        ranks_per_node: ranks on the node that has the fewest; 0 (default): num_ranks // num_nodes.
        local_port: what joins the ranks within a node: NVLink, or PCIe where NVLink does not reach.
        nic_share: of what an all-to-all has for other nodes, the share that crosses to them: below 1 where a row that
            several ranks of a node want crosses once and is forwarded within the node.
        nic_slowdown: how many times slower than its card a rank sends to another node, where the way leads over upper
            tiers that have less bandwidth than the cards.
        socket_groups: groups of a node that cross its sockets at once, this one among them; 0: it stays in a socket.
        rank_share: of the rows of an all-to-all, the share that is sent within nodes: below 1 where a row that several
            experts of a rank want is sent once.
    Raises:
        ConfigError: counts that do not fit together.
    """

    name: str
    num_ranks: int
    num_nodes: int = 1
    ranks_per_node: int = 0
    local_port: Port = Port.NVLINK
    nic_share: float = 1.0
    nic_slowdown: float = 1.0
    socket_groups: int = 0
    rank_share: float = 1.0

    def __post_init__(self) -> None:
        where = f"communicator {self.name}"
        if self.num_ranks < 1:
            raise ConfigError("no ranks", where=where, expected="num_ranks >= 1", got=self.num_ranks, nearest=1)
        if not 1 <= self.num_nodes <= self.num_ranks:
            raise ConfigError(
                "more nodes than ranks, or none",
                where=where,
                expected=f"num_nodes in 1..{self.num_ranks}",
                got=self.num_nodes,
                nearest=min(max(self.num_nodes, 1), self.num_ranks),
            )
        even = self.num_ranks // self.num_nodes
        if self.ranks_per_node == 0:
            object.__setattr__(self, "ranks_per_node", even)
        if not 1 <= self.ranks_per_node <= even:
            raise ConfigError(
                "the smallest node cannot hold so many ranks",
                where=where,
                expected=f"ranks_per_node in 1..{even}",
                got=self.ranks_per_node,
                nearest=even,
            )
        if self.local_port is Port.NIC:
            raise ConfigError("ranks of one node do not meet over the NIC", where=where, expected="nvlink or pcie")

    @property
    def port(self) -> Port:
        """The port on whose link devices the group's operators run."""
        return self.local_port if self.num_nodes == 1 else Port.NIC


def wire_factor(kind: OpKind, num_ranks: int) -> Fraction:
    """Wire bytes per rank divided by the buffer, as nccl-tests counts the buffer.

    The buffer is what each rank holds for an all-reduce or all-to-all, the gathered size for an all-gather, the input
    for a reduce-scatter, the message for P2P.

    Args:
        kind: a communication kind.
        num_ranks: n, >= 1.
    Returns:
        2(n-1)/n all-reduce, (n-1)/n all-gather, reduce-scatter and all-to-all, 1 P2P.
    Raises:
        ConfigError: ``kind`` is no communication, or num_ranks < 1.
    Source:
        DESIGN §2; the bus-bandwidth factors of nccl-tests; ring all-reduce of Patarasuk & Yuan, JPDC 69(2), 2009.
    """
    if num_ranks < 1:
        raise ConfigError("no ranks", where="wire_factor", expected="num_ranks >= 1", got=num_ranks, nearest=1)
    if not kind.is_communication:
        raise ConfigError(
            f"{kind.value} has no wire bytes", where="wire_factor", expected="a communication kind", got=kind.value
        )
    if kind is OpKind.P2P:
        return Fraction(1)
    passes = 2 if kind is OpKind.ALL_REDUCE else 1
    return Fraction(passes * (num_ranks - 1), num_ranks)
