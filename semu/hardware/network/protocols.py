"""From an algorithm's route to time: protocols for long and for short messages, and their coefficients.

A message takes t = ((l + setup)^p + (T + sqrt(c T))^p)^(1/p), T = net_bytes / bandwidth, latency l = t0 + hop x steps.
Where the library has a protocol for short messages (``short_net``) the faster of both counts; that one takes
t0 + short_hop x hop x steps + net_bytes / (peers short_net B), B the peak of the port.

Source:
    The form of the microbenchmark data; it generalises alpha-beta (Hockney 1994) by the corner c. Protocols: NCCL's
    Simple for long messages and, for short ones, LL for sends and LL128 for rings and trees over nodes; NCCL takes the
    one that it estimates to be the faster. Within a node measured rings are told as well by one protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_efficiency, check_number
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.algorithm import RINGS, Coefficient, Fit, Links, Route
from semu.hardware.shape_terms import p_norm
from semu.records import dataclass

Values = NDArray[np.float64]


TRANSFER = (
    Coefficient("net", 1.0, "share of the port's peak for long messages", check_efficiency, Fit(0.75, 0.05, 1.0)),
    Coefficient("t0_s", 0.0, "fixed latency [s]", check_number, Fit(5e-6, 0.0, 5e-5, min_sizes=8)),
    Coefficient(
        "hop_s",
        0.0,
        "latency per step [s]; over nodes the mean of steps between and inside nodes",
        check_number,
        Fit(1e-6, 0.0, 1.9e-5, min_ranks=2),
    ),
    Coefficient("c_s", 0.0, "corner of latency and bandwidth [s]", check_number, Fit(1e-5, 0.0, 9.9e-5, min_sizes=8)),
)
_SENDS = frozenset((OpKind.ALL_TO_ALL,)), frozenset((Port.NVLINK,))
_RINGS = RINGS, frozenset((Port.NIC,))
_WITH_TWO = (_SENDS, _RINGS)
_fit = partial(Fit, min_sizes=8, min_rows=24)
PROTOCOLS = (
    Coefficient(
        "short_net",
        0.0,
        "share of the port's peak that short messages reach, per peer; 0: one protocol",
        partial(check_number, most=1.0),
        _fit(0.013, 1e-3, 0.5),
        within=_WITH_TWO,
    ),
    Coefficient(
        "short_hop",
        1.0,
        "latency of a step of short messages over that of long ones, above 0 to 1",
        check_efficiency,
        _fit(0.7, 0.05, 1.0),
        within=(_RINGS,),
    ),
    Coefficient(
        "setup_s",
        0.0,
        "latency of long messages above that of short ones [s]",
        check_number,
        _fit(6e-6, 0.0, 5e-5),
        within=(_SENDS,),
    ),
    Coefficient(
        "p",
        1.0,
        "how latency and transfer of long messages overlap: 1 one after the other, more where they do",
        partial(check_number, least=1.0),
        _fit(2.0, 1.0, 6.0),
        within=_WITH_TWO,
    ),
)
"""Fitted for all-to-alls within a node and for rings over nodes: (kinds, ports) of either."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to send a message; the formula is the module's.

    Attributes:
        latency_s: l [s]. bytes_per_s: bandwidth that a rank's wire bytes see; infinity for a group of one rank.
        c_s: corner [s]. setup_s: see above [s]. p: softness, >= 1.
    """

    latency_s: float
    bytes_per_s: float
    c_s: float = 0.0
    setup_s: float = 0.0
    p: float = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether the time is l + T + sqrt(c T)."""
        return self.setup_s == 0.0 and self.p == 1.0

    def times_s(self, net_bytes: NDArray[np.integer] | Values) -> Values:
        """Times [s] of messages of ``net_bytes`` wire bytes per rank; without bytes the latency."""
        transfer = net_bytes / self.bytes_per_s
        if self.is_plain:
            plain: Values = self.latency_s + transfer + np.sqrt(self.c_s * transfer)
            return plain
        soft: Values = p_norm(self.latency_s + self.setup_s, transfer + np.sqrt(self.c_s * transfer), self.p)
        return soft


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Time of one kind on one communicator: that of the fastest protocol for the message's size.

    Attributes:
        protocols: at least one; the first is the fastest for the longest messages.
    """

    protocols: tuple[Protocol, ...]

    @property
    def latency_s(self) -> float:
        """Fixed and per-hop latency of long messages [s]."""
        return self.protocols[0].latency_s

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth that a rank's wire bytes see in long messages [byte/s]."""
        return self.protocols[0].bytes_per_s

    @property
    def c_s(self) -> float:
        """Corner between latency and bandwidth of long messages [s]."""
        return self.protocols[0].c_s

    @property
    def is_plain(self) -> bool:
        """Whether the time is latency + T + sqrt(c T) for every size."""
        return len(self.protocols) == 1 and self.protocols[0].is_plain

    def times_s(self, net_bytes: NDArray[np.integer] | Values) -> Values:
        """Times [s] of many sizes at once, not rounded; the latency where there are no bytes."""
        result = self.protocols[0].times_s(net_bytes)
        for other in self.protocols[1:]:
            result = np.minimum(other.times_s(net_bytes), result)
        return result


FREE = CollectiveCost((Protocol(0.0, math.inf),))
"""Of a collective of one rank, which sends nothing."""


def protocols_of(route: Route, links: Links, numbers: Mapping[str, float]) -> tuple[Protocol, ...]:
    """The protocols that a message may take along a route, that for long messages first.

    Args:
        route: of an algorithm. links: that it runs on. numbers: coefficient -> value.
    """
    if route.latency_s is not None:
        return (Protocol(route.latency_s, route.bytes_per_s),)
    fixed_s, hops_s = numbers["t0_s"] + links.transfer_s, numbers["hop_s"] * route.steps
    long = Protocol(fixed_s + hops_s, route.bytes_per_s, numbers["c_s"], numbers["setup_s"], numbers["p"])
    short_bytes_per_s = route.peers * numbers["short_net"] * links.peak_bytes_per_s
    short = Protocol(fixed_s + numbers["short_hop"] * hops_s, short_bytes_per_s)
    return (long, short) if short_bytes_per_s > 0 else (long,)
