"""Bytes and times of collectives and transfers for the slow reference: what each port of one rank has to carry.

Everything is counted anew, message by message and step by step; what is taken from semu is a profile's numbers and
who is in a group.
"""

from __future__ import annotations

from semu.hardware.capabilities import DeviceProfile
from semu.hardware.efficiency import CollectiveEfficiency
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup


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
    """Latency [s] of one collective or transfer of ``net_bytes`` wire bytes per rank; nothing takes no time."""
    if net_bytes == 0 or (group.num_ranks == 1 and kind is not OpKind.P2P):
        return 0.0
    link = _link(profile, kind, group)
    waits = latency_seconds(profile, kind, group)
    moves = moving_seconds(profile, kind, group, net_bytes)
    moves += (link.c_s * moves) ** 0.5
    long = ((waits + link.setup_s) ** link.p + moves**link.p) ** (1 / link.p)
    if link.short_net == 0:
        return long
    at_once = group.num_ranks - 1 if kind is OpKind.ALL_TO_ALL else 1
    own_port = Port.NIC if group.num_nodes > 1 else group.local_port
    short = waits + net_bytes / at_once / (link.short_net * _peak(profile, own_port))
    return min(short, long)


def latency_seconds(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> float:
    """What passes before the bytes move [s], in the protocol for short messages where there are two."""
    link = _link(profile, kind, group)
    result = link.t0_s
    for _ in range(num_steps(kind, group)):
        result += link.hop_s
    if kind is OpKind.P2P and group.name == "pp":  # what a framework's pipeline adds to each of its transfers
        result += profile.transfer_s
    return result


def num_steps(kind: OpKind, group: CommGroup) -> int:
    """Hops that a message waits for, one after another.

    A transfer is one message; an all-to-all starts one to each peer; a ring passes on n - 1 times. An all-reduce over
    several nodes may go along a chain in each node and a binary tree over the nodes, if that is shorter.
    """
    if kind is OpKind.P2P:
        return 1
    around = len(range(1, group.num_ranks))
    if kind is not OpKind.ALL_REDUCE or group.num_nodes == 1:
        return around
    depth, reached = 0, 1
    while reached < group.num_nodes:
        depth, reached = depth + 1, 2 * reached
    fullest = group.num_ranks // group.num_nodes + (group.num_ranks % group.num_nodes > 0)
    return min(around, fullest - 1 + depth)


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
    """Time over that of a ring of very many ranks: more for few, less where all of a switch let it add up."""
    link = _link(profile, kind, group)
    is_whole = group.num_ranks == profile.nvlink_gpus.value and group.local_port is Port.NVLINK
    if kind is OpKind.ALL_REDUCE and is_whole and group.num_ranks > 2 and link.switch > 1:
        return 1 / link.switch
    return 1 + link.few_ranks / (group.num_ranks - 1)


def _link(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> CollectiveEfficiency:
    """Coefficients of the slowest way between two ranks of the group."""
    return profile.links[Port.NIC if group.num_nodes > 1 else group.local_port].of(kind)


def _peak(profile: DeviceProfile, port: Port) -> float:
    """One way [byte/s]."""
    return getattr(profile, f"{port.value}_bytes_per_s").value  # type: ignore[no-any-return]
