"""Communicators and the time of collectives on links.

Objects: ``CommGroup``, ``CollectiveCost``; functions ``wire_factor``, ``effective_bandwidth``, ``latency_steps``,
``port_shares``, ``port_capacity``, ``collective_cost``, ``collective_latency``, ``long_times``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_number
from semu.errors import ConfigError
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import OpKind, Port, Provenance

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
    Raises:
        ConfigError: counts that do not fit together.
    """

    name: str
    num_ranks: int
    num_nodes: int = 1
    ranks_per_node: int = 0
    local_port: Port = Port.NVLINK

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


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The closed form of one kind on one communicator: t = latency + T + sqrt(c T), T = net_bytes / bandwidth, or with
    a protocol for short messages what ``CollectiveEfficiency`` says.

    Attributes:
        latency_s: fixed and per-hop latency [s].
        bytes_per_s: bandwidth that a rank's wire bytes see; infinity for a group of one rank.
        c_s: corner between latency and bandwidth [s].
        short_bytes_per_s: bandwidth of the protocol for short messages; 0: one protocol for all.
        setup_s, p: of the protocol for long messages.
    """

    latency_s: float
    bytes_per_s: float
    c_s: float
    short_bytes_per_s: float = 0.0
    setup_s: float = 0.0
    p: float = 1.0

    @property
    def has_protocols(self) -> bool:
        """Whether the form is more than latency + T + sqrt(c T)."""
        return self.short_bytes_per_s > 0 or self.setup_s > 0 or self.p > 1.0

    def time_s(self, net_bytes: float) -> float:
        """Latency [s] of ``net_bytes`` wire bytes per rank; 0 for no bytes, not rounded."""
        if net_bytes == 0:
            return 0.0
        transfer_s = net_bytes / self.bytes_per_s
        if not self.has_protocols:
            return self.latency_s + transfer_s + math.sqrt(self.c_s * transfer_s)
        start, moving = self.latency_s + self.setup_s, transfer_s + math.sqrt(self.c_s * transfer_s)
        longer, shorter = max(start, moving), min(start, moving)  # transfer_s > 0, as net_bytes > 0
        long_s: float = longer * (1.0 + (shorter / longer) ** self.p) ** (1.0 / self.p)
        if self.short_bytes_per_s == 0:
            return long_s
        return min(self.latency_s + net_bytes / self.short_bytes_per_s, long_s)

    def times_s(self, net_bytes: NDArray[np.integer] | NDArray[np.float64]) -> NDArray[np.float64]:
        """``time_s`` of many sizes at once; the latency where there are no bytes."""
        transfer = net_bytes / self.bytes_per_s
        if not self.has_protocols:
            result: NDArray[np.float64] = self.latency_s + transfer + np.sqrt(self.c_s * transfer)
            return result
        result = long_times(self.latency_s + self.setup_s, transfer + np.sqrt(self.c_s * transfer), self.p)
        if self.short_bytes_per_s > 0:
            result = np.minimum(self.latency_s + net_bytes / self.short_bytes_per_s, result)
        return result


def long_times(start: Any, moving: Any, p: Any) -> Any:
    """(start^p + moving^p)^(1/p) of times >= 0, numbers or arrays that broadcast."""
    longer, shorter = np.maximum(start, moving), np.minimum(start, moving)
    return longer * (1.0 + (shorter / np.where(longer > 0.0, longer, 1.0)) ** p) ** (1.0 / p)


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


def effective_bandwidth(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> float:
    """Bandwidth [byte/s] that one rank's wire bytes see, so that T = net_bytes / bandwidth.

    Within a node: the local port's bandwidth times its efficiency. Across nodes a ring enters and leaves each node
    once per NIC, and the g ranks of a node drive g rings or slices of one, so it runs at min(local, g NIC), g of the
    smallest node. In an all-to-all each rank sends (n-g)/(n-1) of its bytes over its own NIC and the rest inside the
    node; the slower of the two decides. P2P crosses one NIC, or one local port.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks n, nodes, smallest node g.
    Returns:
        [byte/s]; infinity for a collective of one rank, which sends nothing.
    Source:
        Ring and its limits: nccl-tests, PERFORMANCE.md; the all-to-all's shares: counting peers.
    """
    if kind is not OpKind.P2P and group.num_ranks == 1:
        return math.inf
    local = _port_bandwidth(profile, kind, group.local_port)
    if group.num_nodes == 1:
        return local * _gain(profile, kind, group)
    nic = _port_bandwidth(profile, kind, Port.NIC)
    if kind is OpKind.P2P:
        return nic
    if kind is OpKind.ALL_TO_ALL:
        outside = (group.num_ranks - group.ranks_per_node) / (group.num_ranks - 1)
        return 1.0 / max(outside / nic, (1.0 - outside) / local)
    return min(local, group.ranks_per_node * nic)


def _gain(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> float:
    """Rate in a node over that of a long ring: NVSwitch adds up the all-reduce of all the GPUs that it joins (NVLink
    SHARP); few ranks fill the links less."""
    if kind is OpKind.P2P:
        return 1.0
    efficiency = profile.links[group.local_port].of(kind)
    is_whole = group.local_port is Port.NVLINK and group.num_ranks == profile.nvlink_gpus.value > 2
    if kind is OpKind.ALL_REDUCE and is_whole and efficiency.switch > 1.0:
        return efficiency.switch
    return 1.0 / (1.0 + efficiency.few_ranks / (group.num_ranks - 1))


def port_shares(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> dict[Port, float]:
    """Share of each port of a GPU that an operator takes while it moves at ``effective_bandwidth``.

    What crosses the port per second over what the port carries at most (``port_capacity``). A ring over nodes with g
    ranks in the smallest puts 1/g of what a rank moves on each NIC, and all of it on the local port where g > 1; an
    all-to-all splits by peers.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
    Returns:
        Port -> share in (0, 1]; nothing for one rank alone.
    """
    rate = effective_bandwidth(profile, kind, group)
    if math.isinf(rate):
        return {}
    if kind is OpKind.P2P or group.num_nodes == 1:
        crosses = {group.port: rate}
    elif kind is OpKind.ALL_TO_ALL:
        outside = (group.num_ranks - group.ranks_per_node) / (group.num_ranks - 1)
        crosses = {Port.NIC: rate * outside, group.local_port: rate * (1.0 - outside)}
    else:
        crosses = {Port.NIC: rate / group.ranks_per_node}
        if group.ranks_per_node > 1:
            crosses[group.local_port] = rate
    return {port: min(rate / port_capacity(profile, port), 1.0) for port, rate in crosses.items() if rate > 0}


def port_capacity(profile: DeviceProfile, port: Port) -> float:
    """What a port carries at most one way [byte/s]: its peak times the best efficiency that any kind reaches on it;
    those that are mere defaults count only where there is no other."""
    efficiencies = [profile.links[port].of(kind) for kind in OpKind if kind.is_communication]
    known = [e.net for e in efficiencies if e.provenance is not Provenance.DEFAULT]
    return _port_peak(profile, port) * max(known or [e.net for e in efficiencies])


def latency_steps(kind: OpKind, group: CommGroup) -> int:
    """How many times a message waits for a hop.

    A ring over n ranks has n - 1 steps; the second round of an all-reduce is in its coefficient. Across m nodes an
    all-reduce may take two trees over the nodes instead, with a chain in each node: n/m - 1 + ceil(log2 m) steps at the
    same bandwidth; the shorter way counts. An all-to-all starts n - 1 messages, P2P one.

    Args:
        kind: a communication kind. group: n ranks on m nodes.
    Source:
        Double binary tree: Sanders, Speck, Traeff, Parallel Computing 35(12), 2009, as NCCL uses it since 2.4.
    """
    if kind is OpKind.P2P:
        return 1
    ring = group.num_ranks - 1
    if kind is OpKind.ALL_REDUCE and group.num_nodes > 1:
        per_node = -(-group.num_ranks // group.num_nodes)
        return min(ring, per_node - 1 + (group.num_nodes - 1).bit_length())
    return ring


def collective_cost(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> CollectiveCost:
    """Coefficients of ``kind`` on ``group``: latency, bandwidth and corner; all zero time for a group of one rank.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
    """
    bandwidth = effective_bandwidth(profile, kind, group)
    if math.isinf(bandwidth):
        return CollectiveCost(0.0, bandwidth, 0.0)
    efficiency = profile.links[group.port].of(kind)
    latency_s = efficiency.t0_s + efficiency.hop_s * latency_steps(kind, group)
    if kind is OpKind.P2P and group.name == PIPELINE:
        latency_s += profile.transfer_s
    peers = group.num_ranks - 1 if kind is OpKind.ALL_TO_ALL else 1
    short = peers * efficiency.short_net * _port_peak(profile, group.port)
    return CollectiveCost(latency_s, bandwidth, efficiency.c_s, short, efficiency.setup_s, efficiency.p)


def collective_latency(profile: DeviceProfile, kind: OpKind, group: CommGroup, net_bytes: float) -> float:
    """Latency [s] of one collective or transfer, not rounded: the scalar reference of the engine's columns.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
        net_bytes: wire bytes per rank, ``wire_factor`` x buffer, >= 0; none take no time.
    Raises:
        ConfigError: negative or non-finite bytes.
    """
    return collective_cost(profile, kind, group).time_s(check_number(net_bytes, "net_bytes"))


def _port_bandwidth(profile: DeviceProfile, kind: OpKind, port: Port) -> float:
    return _port_peak(profile, port) * profile.links[port].of(kind).net


def _port_peak(profile: DeviceProfile, port: Port) -> float:
    peak = {
        Port.NVLINK: profile.nvlink_bytes_per_s,
        Port.NIC: profile.nic_bytes_per_s,
        Port.PCIE: profile.pcie_bytes_per_s,
    }[port]
    return peak.value
