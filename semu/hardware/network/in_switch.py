"""In-switch reduction (NVLink SHARP): NVSwitch adds up the all-reduce of all the GPUs that it joins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from semu.checks import check_number
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.algorithm import Algorithm, Coefficient, Fit, Links, Route
from semu.hardware.network.group import CommGroup

SWITCH = Coefficient(
    "switch",
    1.0,
    "rate of an all-reduce in the switch over that of a ring of very many ranks, >= 1; 1: the switch does not reduce",
    partial(check_number, least=1.0),
    Fit(1.2, 1.0, 2.5, needs_switch=True),
    frozenset((OpKind.ALL_REDUCE,)),
    frozenset((Port.NVLINK,)),
)


def _route(group: CommGroup, links: Links, numbers: Mapping[str, float]) -> Route | None:
    """``switch`` times the rate of a long ring, with the latency of a ring."""
    if not links.is_whole_switch or numbers["switch"] <= 1.0:
        return None
    rate = links.local_bytes_per_s * numbers["switch"]
    return Route(rate, group.num_ranks - 1, {group.port: rate})


IN_SWITCH = Algorithm("in the switch", frozenset((OpKind.ALL_REDUCE,)), _route, (SWITCH,))
