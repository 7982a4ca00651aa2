"""``ALGORITHMS``: the table of collective algorithms; ``cost_on_links``: the fastest of them; ``COEFFICIENTS``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semu.hardware.kinds import OpKind
from semu.hardware.network.aggregated_tree import AGGREGATED_TREE
from semu.hardware.network.algorithm import Algorithm, Coefficient, Links, Route
from semu.hardware.network.all_to_all import ALL_TO_ALL
from semu.hardware.network.group import CommGroup
from semu.hardware.network.in_switch import IN_SWITCH
from semu.hardware.network.p2p import P2P
from semu.hardware.network.protocols import FREE, PROTOCOLS, TRANSFER, CollectiveCost, protocols_of
from semu.hardware.network.ring import RING
from semu.hardware.network.tree import TREE

ALGORITHMS: tuple[Algorithm, ...] = (RING, TREE, AGGREGATED_TREE, IN_SWITCH, ALL_TO_ALL, P2P)
"""All algorithms; each kind of communication has one at least that runs on every group."""

COEFFICIENTS: Mapping[str, Coefficient] = MappingProxyType(
    {
        item.name: item
        for item in (*TRANSFER, *(own for algorithm in ALGORITHMS for own in algorithm.coefficients), *PROTOCOLS)
    }
)
"""Every number of a ``[link.PORT.KIND]`` table by name, in the order in which profiles are written."""


def routes(kind: OpKind, group: CommGroup, links: Links, numbers: Mapping[str, float]) -> list[Route]:
    """Routes of the algorithms that no other is at least as good as, the fastest for long messages first.

    Args:
        kind: of communication. group: ranks and nodes. links: that the group has. numbers: coefficient -> value.
    Returns:
        None for a collective of one rank, which sends nothing.
    """
    if group.num_ranks == 1 and kind is not OpKind.P2P:
        return []
    found = [algorithm.route(group, links, numbers) for algorithm in ALGORITHMS if kind in algorithm.kinds]
    possible = [route for route in found if route is not None]
    kept: list[Route] = []
    for route in sorted(possible, key=lambda item: (-item.bytes_per_s, item.steps)):
        if not any(route.is_beaten_by(other) for other in kept):
            kept.append(route)
    return kept


def cost_on_links(kind: OpKind, group: CommGroup, links: Links, numbers: Mapping[str, float]) -> CollectiveCost:
    """Time of ``kind`` on ``group`` as a function of the bytes: what simulations take and ``semu calibrate`` fits.

    Args:
        kind: of communication. group: ranks and nodes. links: that the group has. numbers: coefficient -> value.
    """
    fastest = routes(kind, group, links, numbers)
    if not fastest:
        return FREE
    return CollectiveCost(tuple(way for route in fastest for way in protocols_of(route, links, numbers)))
