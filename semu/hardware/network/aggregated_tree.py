"""Parallel aggregated trees (PAT): all-gathers and reduce-scatters of one rank per node in few steps.

Source:
    NCCL 2.23 and later, which has them for groups of one rank in each node; its tuning table gives them 0.75 of the
    ring's rate and a latency of log2(n) / 3.5 steps between nodes and 2.8 us a rank, where a step takes 14 us: not
    measured here. NCCL builds them with its Simple protocol alone, so short messages take a ring's LL128 where that is
    faster.
"""

from __future__ import annotations

from collections.abc import Mapping

from semu.hardware.kinds import OpKind
from semu.hardware.network.algorithm import Algorithm, Links, Route
from semu.hardware.network.group import CommGroup
from semu.hardware.network.ring import hops, ring_route

_RATE = 0.75
_STEPS_OF_LEVEL = 1.0 / 3.5
_STEPS_OF_RANK = 2.8 / 14.0


def _route(group: CommGroup, links: Links, numbers: Mapping[str, float]) -> Route | None:
    """log2(n) / 3.5 + n / 5 steps between nodes, at 0.75 of the ring's rate; without a protocol for short messages."""
    ranks = group.num_ranks
    if ranks != group.num_nodes or not links.has_aggregated_trees:
        return None
    ring = ring_route(group, links, numbers)
    steps = (ranks - 1).bit_length() * _STEPS_OF_LEVEL + ranks * _STEPS_OF_RANK
    over = {port: rate * _RATE for port, rate in ring.over.items()}
    return Route(ring.bytes_per_s * _RATE, hops(0, steps, numbers), over, peers=0)


AGGREGATED_TREE = Algorithm("parallel aggregated trees", frozenset((OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER)), _route)
