"""P2P: one message over one NIC, or over one local port."""

from __future__ import annotations

from collections.abc import Mapping

from semu.hardware.kinds import OpKind
from semu.hardware.network.algorithm import Algorithm, Links, Route
from semu.hardware.network.group import CommGroup


def _route(group: CommGroup, links: Links, numbers: Mapping[str, float]) -> Route:
    rate = links.local_bytes_per_s if group.num_nodes == 1 else links.nic_bytes_per_s
    return Route(rate, 1, {group.port: rate})


P2P = Algorithm("one message", frozenset((OpKind.P2P,)), _route)
