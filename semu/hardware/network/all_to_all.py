"""All-to-all: every rank sends one block to every other, all at once.

Source:
    The shares of the ports: counting peers.
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
    the smallest node; the slower of the two decides.
    """
    peers = group.num_ranks - 1
    if group.num_nodes == 1:
        rate = links.local_bytes_per_s * few_ranks_gain(group, numbers)
        return Route(rate, peers, {group.port: rate}, peers)
    outside = (group.num_ranks - group.ranks_per_node) / peers
    rate = 1.0 / max(outside / links.nic_bytes_per_s, (1.0 - outside) / links.local_bytes_per_s)
    return Route(rate, peers, {Port.NIC: rate * outside, group.local_port: rate * (1.0 - outside)}, peers)


ALL_TO_ALL = Algorithm("all-to-all", frozenset((OpKind.ALL_TO_ALL,)), _route, (FEW_RANKS,))
