"""The ring: each rank passes chunks on to the next one. What each collective sends, 2 (n - 1) / n of a buffer for an
all-reduce, is the same for every algorithm: ``wire_factor`` of ``group``.

Source:
    Patarasuk & Yuan, JPDC 69(2), 2009; over nodes: nccl-tests, PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from semu.checks import check_efficiency, check_number
from semu.hardware.kinds import Port
from semu.hardware.network.algorithm import COLLECTIVES, RINGS, Algorithm, Coefficient, Fit, Links, Route
from semu.hardware.network.group import CommGroup

FEW_RANKS = Coefficient(
    "few_ranks",
    0.0,
    "share of time that a ring of two takes longer per byte than one of very many, as few ranks fill the links less; "
    "n ranks in a node take 1 + few_ranks / (n - 1)",
    check_number,
    Fit(0.1, 0.0, 1.0, min_sizes=8, min_ranks=2),
    within=((COLLECTIVES, frozenset((Port.NVLINK,))),),
)


ACROSS = Coefficient(
    "across",
    1.0,
    "share of the link between a host's sockets that a ring reaches, which crosses it both ways",
    check_efficiency,
    within=((RINGS, frozenset((Port.PCIE,))),),
)


def few_ranks_gain(group: CommGroup, numbers: Mapping[str, float]) -> float:
    """Rate of a group within a node over that of very many ranks."""
    return 1.0 / (1.0 + numbers["few_ranks"] / (group.num_ranks - 1))


BETWEEN = Coefficient(
    "between",
    1.0,
    "latency of a step between nodes over that of the mean step of rings that visit eight ranks in each node, 1 to 8",
    partial(check_number, least=1.0, most=8.0),
    within=((RINGS, frozenset((Port.NIC,))),),
)
_RANKS_OF_HOP = 8


def hops(inside: float, between: float, numbers: Mapping[str, float]) -> float:
    """Steps in hops of ``hop_s``, which is the mean step of rings of eight ranks in each node.

    Args:
        inside, between: steps within nodes and from node to node. numbers: coefficient -> value.
    """
    longer = numbers["between"]
    return between * longer + inside * (_RANKS_OF_HOP - longer) / (_RANKS_OF_HOP - 1)


def ring_route(group: CommGroup, links: Links, numbers: Mapping[str, float]) -> Route:
    """n - 1 steps, m - 1 of them between m nodes; the second round of an all-reduce is in its ``hop_s``.

    Over nodes a ring enters and leaves each node once per NIC, and the g ranks of the smallest node drive g rings or
    slices of one: it runs at min(local, g NIC), 1/g of it over each NIC.
    """
    steps = group.num_ranks - 1
    if group.num_nodes == 1:
        rate = links.local_bytes_per_s * few_ranks_gain(group, numbers)
        return Route(rate, steps, {group.port: rate})
    rate = min(links.local_bytes_per_s, group.ranks_per_node * links.nic_bytes_per_s)
    over = {Port.NIC: rate / group.ranks_per_node}
    if group.ranks_per_node > 1:
        over[group.local_port] = rate
    between = group.num_nodes - 1
    return Route(rate, hops(steps - between, between, numbers), over, group.ranks_per_node)


RING = Algorithm(
    "ring",
    RINGS,
    ring_route,
    (FEW_RANKS, ACROSS, BETWEEN),
)
