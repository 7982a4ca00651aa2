"""``Algorithm``: what a line of the table of algorithms holds; ``Links``: what it runs on; ``Route``: how it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.coefficient import Coefficient
from semu.hardware.network.group import CommGroup


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a communicator's ranks, for one kind of collective.

    Attributes:
        local_bytes_per_s: that a rank reaches to ranks of its node, one direction; infinity: never the limit.
        nic_bytes_per_s: that a rank reaches over its network card, one direction.
        peak_bytes_per_s: peak of the port that the group's coefficients belong to, ``CommGroup.port``.
        is_whole_switch: whether the group is all the GPUs that one NVSwitch joins.
        transfer_s: latency that the host adds to each message [s].
    """

    local_bytes_per_s: float
    nic_bytes_per_s: float
    peak_bytes_per_s: float
    is_whole_switch: bool = False
    transfer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """How an algorithm moves a rank's wire bytes (``wire_factor`` x buffer, whatever the algorithm sends).

    Attributes:
        bytes_per_s: wire bytes of long messages per second.
        steps: how many times a message waits for a hop.
        over: port of a GPU -> what crosses it per second meanwhile, one way [byte/s].
        peers: ranks that a rank sends to at once.
    """

    bytes_per_s: float
    steps: int
    over: Mapping[Port, float]
    peers: int = 1


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
