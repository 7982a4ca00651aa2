"""Bytes and times of collectives and transfers for the slow reference: what each port of one rank has to carry.

Everything is counted anew, message by message and step by step; what is taken from semu is a profile's numbers and
who is in a group.
"""

from __future__ import annotations

from semu.hardware.capabilities import DeviceProfile
from semu.hardware.efficiency import CollectiveEfficiency
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup

RINGS = (OpKind.ALL_REDUCE, OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER)


def wire_bytes(kind: OpKind, num_ranks: int, buffer_bytes: int) -> int:
    """Bytes that one rank sends for a buffer, as nccl-tests counts the buffer; whole bytes.

    In a ring the buffer lies in n parts. A reduce-scatter or an all-gather sends all parts but one; an all-reduce does
    both. An all-to-all keeps its own part; a transfer sends the buffer.
    """
    if kind is OpKind.P2P:
        return buffer_bytes
    rounds = {OpKind.ALL_REDUCE: 2}.get(kind, 1)
    return rounds * (num_ranks - 1) * buffer_bytes // num_ranks


def collective_seconds(profile: DeviceProfile, kind: OpKind, group: CommGroup, net_bytes: float) -> float:
    """Latency [s] of one collective or transfer of ``net_bytes`` wire bytes per rank; nothing takes no time.

    The quickest of what the library can do: the algorithms of this group, each with either protocol, and the switch.
    """
    if net_bytes == 0 or (group.num_ranks == 1 and kind is not OpKind.P2P):
        return 0.0
    link, found = _link(profile, kind, group), []
    at_once = group.num_ranks - 1 if kind is OpKind.ALL_TO_ALL else 1
    if kind in RINGS and group.num_nodes > 1:
        at_once = group.ranks_per_node
    over_nodes = group.num_nodes > 1
    port = _peak(profile, Port.NIC if over_nodes else group.local_port) / (group.nic_slowdown if over_nodes else 1.0)
    for steps, rate in ways(profile, kind, group):
        waits = sum(steps)
        moves = moving_seconds(profile, kind, group, net_bytes) / rate
        moves += (link.c_s * moves) ** 0.5
        fixed = _fixed_seconds(profile, kind, group)
        found.append(((fixed + waits + link.setup_s) ** link.p + moves**link.p) ** (1 / link.p))
        if link.short_net and rate == 1.0:  # aggregated trees have no protocol for short messages
            found.append(fixed + link.short_hop * waits + net_bytes / at_once / (link.short_net * port))
    if _is_reduced_in_switch(profile, kind, group):
        found.append(link.switch_s + net_bytes / (link.switch * link.net * port))
    return min(found)


def latency_seconds(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> float:
    """What passes before the bytes of a long message move [s]."""
    if _is_reduced_in_switch(profile, kind, group):
        return _link(profile, kind, group).switch_s
    steps, _ = min(ways(profile, kind, group), key=lambda way: (-way[1], sum(way[0])))
    return _fixed_seconds(profile, kind, group) + sum(steps)


def _fixed_seconds(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> float:
    is_waited_for = kind is OpKind.P2P and group.name == "pp"  # what a framework's pipeline adds to its transfers
    return _link(profile, kind, group).t0_s + (profile.transfer_s if is_waited_for else 0.0)


def ways(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> list[tuple[list[float], float]]:
    """Latency of each hop that a message waits for [s], one after another, and the rate beside a ring's.

    A transfer is one message; an all-to-all starts one to each peer; a ring passes on n - 1 times, m - 1 times of them
    from node to node. An all-reduce over several nodes may go along a chain in each node and a binary tree over the
    nodes; gathers of one rank a node along aggregated trees.
    """
    link = _link(profile, kind, group)
    if kind not in RINGS or group.num_nodes == 1:
        return [([link.hop_s] * (1 if kind is OpKind.P2P else group.num_ranks - 1), 1.0)]
    between = link.hop_s * link.between
    inside = (8 * link.hop_s - between) / 7  # a node of eight has seven steps inside and one out of it
    nodes = group.num_nodes
    found = [([inside] * (group.num_ranks - nodes) + [between] * (nodes - 1), 1.0)]
    if kind is OpKind.ALL_REDUCE and profile.has_trees:
        depth, reached = 0, 1
        while reached < nodes:
            depth, reached = depth + 1, 2 * reached
        fullest = group.num_ranks // nodes + (group.num_ranks % nodes > 0)
        found.append(([inside] * (fullest - 1) + [between] * depth, 1.0))
    if (
        kind is not OpKind.ALL_REDUCE
        and profile.has_trees
        and profile.has_aggregated_trees
        and nodes == group.num_ranks
    ):
        depth = len(bin(nodes - 1)) - 2
        found.append(([between / 3.5] * depth + [between * 2.8 / 14] * nodes, 0.75))
    return found


def _is_reduced_in_switch(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> bool:
    link = _link(profile, kind, group)
    is_whole = group.num_ranks == profile.nvlink_gpus.value and group.local_port is Port.NVLINK
    is_able = link.switch > 1 or link.switch_s > 0
    return kind is OpKind.ALL_REDUCE and is_whole and group.num_ranks > 2 and group.num_nodes == 1 and is_able


def moving_seconds(profile: DeviceProfile, kind: OpKind, group: CommGroup, net_bytes: float) -> float:
    """How long the busiest port of a rank carries long messages [s], for a rank on the node with the fewest."""
    local, nic = (_peak(profile, port) * profile.links[port].of(kind).net for port in (group.local_port, Port.NIC))
    inside, outside = group.ranks_per_node - 1, group.num_ranks - group.ranks_per_node
    nic /= group.nic_slowdown
    if group.socket_groups:  # all groups of the node, message by message, over the one link between its sockets
        link = profile.socket_bytes_per_s.value
        if kind is OpKind.ALL_TO_ALL:
            half = group.ranks_per_node // 2
            crossing = sum(1 for _ in range(half) for _ in range(half)) * group.socket_groups
            local = min(local, (group.ranks_per_node - 1) * link / crossing)
        else:
            local = min(local, link * profile.links[group.local_port].of(kind).across / group.socket_groups)
    if kind is OpKind.P2P:
        return net_bytes / (local if group.num_nodes == 1 else nic)
    if group.num_nodes == 1:
        return net_bytes * _stretch_in_a_node(profile, kind, group) / local
    if kind is OpKind.ALL_TO_ALL:
        message = net_bytes / (group.num_ranks - 1)
        return max(inside * message / local, outside * message / nic)
    # As many rings as ranks in a node, each of which leaves it by the NIC of another rank.
    return max(net_bytes / local, net_bytes / group.ranks_per_node / nic)


def _stretch_in_a_node(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> float:
    """Time of a ring over that of a ring of very many ranks."""
    return 1 + _link(profile, kind, group).few_ranks / (group.num_ranks - 1)


def _link(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> CollectiveEfficiency:
    """Coefficients of the slowest way between two ranks of the group."""
    return profile.links[Port.NIC if group.num_nodes > 1 else group.local_port].of(kind)


def _peak(profile: DeviceProfile, port: Port) -> float:
    """One way [byte/s]."""
    return getattr(profile, f"{port.value}_bytes_per_s").value  # type: ignore[no-any-return]
