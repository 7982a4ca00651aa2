"""In-switch reduction (NVLink SHARP): NVSwitch adds up the all-reduce of all the GPUs that it joins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from semu.checks import check_number
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.algorithm import Algorithm, Coefficient, Fit, Links, Route
from semu.hardware.network.group import CommGroup

_WHOLE_SWITCHES = ((frozenset((OpKind.ALL_REDUCE,)), frozenset((Port.NVLINK,))),)
SWITCH = Coefficient(
    "switch",
    1.0,
    "rate of an all-reduce in the switch over that of a ring of very many ranks, >= 0.5; 1 without ``switch_s``: the "
    "switch does not reduce",
    partial(check_number, least=0.5),
    Fit(1.1, 0.5, 2.5, needs_switch=True),
    within=_WHOLE_SWITCHES,
)
SWITCH_LATENCY = Coefficient(
    "switch_s",
    0.0,
    "latency of an all-reduce in the switch, the fill of its chunks included [s]; read where the switch reduces",
    check_number,
    Fit(5e-5, 0.0, 2e-4, needs_switch=True),
    within=_WHOLE_SWITCHES,
)


def _route(group: CommGroup, links: Links, numbers: Mapping[str, float]) -> Route | None:
    """``switch`` times the rate of a long ring; no hops and no corner, but a latency that short messages avoid."""
    if not links.is_whole_switch or (numbers["switch"] <= 1.0 and numbers["switch_s"] == 0.0):
        return None
    rate = links.local_bytes_per_s * numbers["switch"]
    return Route(rate, 0, {group.port: rate}, latency_s=numbers["switch_s"])


IN_SWITCH = Algorithm("in the switch", frozenset((OpKind.ALL_REDUCE,)), _route, (SWITCH, SWITCH_LATENCY))
