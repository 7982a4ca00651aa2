"""Two binary trees over the nodes, with a chain in each node.

Source:
    Double binary tree: Sanders, Speck, Traeff, Parallel Computing 35(12), 2009, as NCCL uses it since 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from semu.hardware.kinds import OpKind
from semu.hardware.network.algorithm import Algorithm, Links, Route
from semu.hardware.network.group import CommGroup
from semu.hardware.network.ring import hops, ring_route


def _route(group: CommGroup, links: Links, numbers: Mapping[str, float]) -> Route | None:
    """n/m - 1 + ceil(log2 m) steps over m nodes, at the ring's bandwidth."""
    if group.num_nodes == 1 or not links.has_trees:
        return None
    per_node = -(-group.num_ranks // group.num_nodes)
    steps = hops(per_node - 1, (group.num_nodes - 1).bit_length(), numbers)
    return replace(ring_route(group, links, numbers), steps=steps)


TREE = Algorithm("double binary tree", frozenset((OpKind.ALL_REDUCE,)), _route)
