"""``Algorithm``: a line of the table; ``Coefficient``: a number that it reads; ``Links`` in, ``Route`` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.group import CommGroup
from semu.records import dataclass

COLLECTIVES = frozenset((OpKind.ALL_REDUCE, OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER, OpKind.ALL_TO_ALL))
RINGS = COLLECTIVES - {OpKind.ALL_TO_ALL}
COMMUNICATION = COLLECTIVES | {OpKind.P2P}
Tables = tuple[frozenset[OpKind], frozenset[Port]]
"""``[link.PORT.KIND]`` tables of some kinds on some ports."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How ``semu calibrate`` fits a coefficient: where it starts, its bounds, and which measurements determine it.

    Attributes:
        start, low, high: in the coefficient's unit; bounds keep times finite and growing with the bytes.
        min_sizes, min_ranks, min_rows: different message sizes, different numbers of ranks, and rows, at least.
        needs_switch: needs rows of a whole switch beside others, on a device whose switch reduces.
    """

    start: float
    low: float
    high: float
    min_sizes: int = 0
    min_ranks: int = 0
    min_rows: int = 0
    needs_switch: bool = False

    def is_determined(self, num_sizes: int, num_ranks: int, num_rows: int, *, has_switch: bool) -> bool:
        """Whether measurements determine the coefficient, by their counts of message sizes, group sizes and rows."""
        is_many = num_sizes >= self.min_sizes and num_ranks >= self.min_ranks and num_rows >= self.min_rows
        return is_many and (has_switch or not self.needs_switch)


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A number of a ``[link.PORT.KIND]`` table.

    Attributes:
        name: key of the table. neutral: value where nothing is known. meaning: what it is, and its unit.
        check: (value, name) -> the value, or a ConfigError where it is out of range.
        fit: how it is fitted; None: it keeps the value that the profile has.
        within: (kinds, ports) of tables in which ``semu calibrate`` fits it, and writes it even where it is neutral.
    """

    name: str
    neutral: float
    meaning: str
    check: Callable[[object, str], float]
    fit: Fit | None = None
    within: tuple[Tables, ...] = ((COMMUNICATION, frozenset(Port)),)

    def is_in(self, port: Port, kind: OpKind) -> bool:
        """Whether the coefficient is one of the table ``[link.PORT.KIND]`` that ``semu calibrate`` writes."""
        return any(port in ports and kind in kinds for kinds, ports in self.within)


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a communicator's ranks, for one kind of collective.

    Attributes:
        local_bytes_per_s: that a rank reaches to ranks of its node, one direction; infinity: never the limit.
        nic_bytes_per_s: that a rank reaches over its network card, one direction.
        peak_bytes_per_s: peak of the port that the group's coefficients belong to, ``CommGroup.port``.
        is_whole_switch: whether the group is all the GPUs that one NVSwitch joins.
        transfer_s: latency that the host adds to each message [s]. has_trees: whether trees over nodes are built.
        has_aggregated_trees: whether the library has them for groups of one rank in each node.
    """

    local_bytes_per_s: float
    nic_bytes_per_s: float
    peak_bytes_per_s: float
    is_whole_switch: bool = False
    transfer_s: float = 0.0
    has_trees: bool = True
    has_aggregated_trees: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """How an algorithm moves a rank's wire bytes (``wire_factor`` x buffer, whatever the algorithm sends).

    Attributes:
        bytes_per_s: wire bytes of long messages per second.
        steps: how many times a message waits for a hop, in hops of a ring over whole nodes.
        over: port of a GPU -> what crosses it per second meanwhile, one way [byte/s].
        peers: short messages that a rank and, over nodes, the others of its node have under way at once; 0: the
            algorithm has no protocol for short messages.
        latency_s: of an algorithm without hops [s], in place of those of its steps; None: it has hops.
    """

    bytes_per_s: float
    steps: float
    over: Mapping[Port, float]
    peers: int = 1
    latency_s: float | None = None

    def is_beaten_by(self, other: Route) -> bool:
        """Whether ``other``, as fast or faster for long messages, is so for short ones, too."""
        if (self.latency_s is None) != (other.latency_s is None):
            return False
        return self.steps >= other.steps and self.peers <= other.peers


RouteFunction = Callable[[CommGroup, Links, Mapping[str, float]], Route | None]
"""Group of two ranks or more (P2P: or one), links, coefficients by name -> route; None: does not run on this group."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A way to do a collective; of several for one kind the fastest is taken.

    Attributes:
        name: in words of the field. kinds: of collectives that it does. route: its cost function.
        coefficients: that ``route`` reads, beside those of every transfer.
    """

    name: str
    kinds: frozenset[OpKind]
    route: RouteFunction
    coefficients: tuple[Coefficient, ...] = ()
