"""All-to-all: every rank sends one block to every other, all at once.

Source:
    The shares of the ports: counting peers. Rows that cross once per node: DeepEP's kernels between nodes (2412.19437
    §3.2.2): over the NIC to the rank of the same number in the other node, from there over NVLink, once to every rank.
"""

from __future__ import annotations

from collections.abc import Mapping

from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.algorithm import Algorithm, Links, Route
from semu.hardware.network.group import CommGroup
from semu.hardware.network.ring import FEW_RANKS, few_ranks_gain


def _route(group: CommGroup, links: Links, numbers: Mapping[str, float]) -> Route:
    """n - 1 messages, each a step.

    Over nodes each rank sends (n - g) / (n - 1) of its bytes over its own NIC and the rest inside the node, g ranks in
    the smallest node; the slower of the two decides. Where a row crosses once (``nic_share`` below 1), the node
    forwards what arrives, but for one of g, which is where it should be. Within a node a row that several experts of a
    rank want is sent to it once (``rank_share``).
    """
    peers = group.num_ranks - 1
    if group.num_nodes == 1:
        rate = links.local_bytes_per_s * few_ranks_gain(group, numbers)
        return Route(rate / group.rank_share, peers, {group.port: rate}, peers)
    outside = (group.num_ranks - group.ranks_per_node) / peers
    inside, crossing = 1.0 - outside, outside * group.nic_share
    if group.nic_share < 1.0:
        inside += outside * (1.0 - 1.0 / group.ranks_per_node)
    inside *= group.rank_share
    rate = 1.0 / max(crossing / links.nic_bytes_per_s, inside / links.local_bytes_per_s)
    return Route(rate, peers, {Port.NIC: rate * crossing, group.local_port: rate * inside}, peers)


ALL_TO_ALL = Algorithm("all-to-all", frozenset((OpKind.ALL_TO_ALL,)), _route, (FEW_RANKS,))
