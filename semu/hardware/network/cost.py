"""Collectives on a device: coefficients and peaks from its profile, formulas from the table of algorithms."""

from __future__ import annotations

import math

import numpy as np

from semu.checks import check_number
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import OpKind, Port, Provenance
from semu.hardware.network.algorithm import Links, Route
from semu.hardware.network.algorithms import cost_on_links, routes
from semu.hardware.network.group import PIPELINE, CommGroup
from semu.hardware.network.protocols import CollectiveCost


def collective_cost(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> CollectiveCost:
    """Time of ``kind`` on ``group`` as a function of the bytes; none for a group of one rank.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
    """
    return cost_on_links(kind, group, links_of(profile, kind, group), profile.links[group.port].of(kind).numbers)


def collective_latency(profile: DeviceProfile, kind: OpKind, group: CommGroup, net_bytes: float) -> float:
    """Latency [s] of one collective or transfer, not rounded.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
        net_bytes: wire bytes per rank, ``wire_factor`` x buffer, >= 0; none take no time.
    Raises:
        ConfigError: negative or non-finite bytes.
    """
    size = check_number(net_bytes, "net_bytes")
    return float(collective_cost(profile, kind, group).times_s(np.array([size]))[0]) if size else 0.0


def collective_route(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> Route | None:
    """How long messages move; None for a collective of one rank, which sends nothing.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
    """
    numbers = profile.links[group.port].of(kind).numbers
    return next(iter(routes(kind, group, links_of(profile, kind, group), numbers)), None)


def links_of(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> Links:
    """What the ranks of a group reach, with the profile's efficiencies.

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
    """
    local, nic = (port_peak(profile, port) * profile.links[port].of(kind).net for port in (group.local_port, Port.NIC))
    local = min(local, _between_sockets(profile, kind, group))
    is_whole = group.local_port is Port.NVLINK and group.num_ranks == profile.nvlink_gpus.value > 2
    peak = port_peak(profile, group.port) / (group.nic_slowdown if group.port is Port.NIC else 1.0)
    transfer_s = profile.transfer_s if kind is OpKind.P2P and group.name == PIPELINE else 0.0
    return Links(
        local,
        nic / group.nic_slowdown,
        peak,
        is_whole and group.num_nodes == 1,
        transfer_s,
        profile.has_trees,
        profile.has_trees and profile.has_aggregated_trees,
    )


def _between_sockets(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> float:
    """What a rank sends in its node while its group and the node's others cross the link between sockets [byte/s].

    A ring and a message cross it once each way. Of an all-to-all of g ranks in a node, half of them on either side, the
    g/2 send g/2 / (g - 1) of their bytes across.
    """
    if not group.socket_groups:
        return math.inf
    each = profile.socket_bytes_per_s.value / group.socket_groups
    if kind is OpKind.ALL_TO_ALL:
        half = group.ranks_per_node / 2
        return each * (group.ranks_per_node - 1) / (half * half)
    return each * profile.links[group.local_port].of(kind).across


def port_shares(profile: DeviceProfile, kind: OpKind, group: CommGroup) -> dict[Port, float]:
    """Share of each port of a GPU that an operator takes while its long messages move.

    What crosses the port per second over what the port carries at most (``port_capacity``).

    Args:
        profile: peaks and efficiencies. kind: a communication kind. group: ranks and nodes.
    Returns:
        Port -> share in (0, 1]; nothing for one rank alone.
    """
    route = collective_route(profile, kind, group)
    crosses = {} if route is None else route.over
    slower = {Port.NIC: group.nic_slowdown}  # of the upper tiers, which others want too
    shares = {port: rate * slower.get(port, 1.0) / port_capacity(profile, port) for port, rate in crosses.items()}
    return {port: min(share, 1.0) for port, share in shares.items() if share > 0}


def port_capacity(profile: DeviceProfile, port: Port) -> float:
    """What a port carries at most one way [byte/s]: its peak times the best efficiency that any kind reaches on it;
    efficiencies that are mere defaults count only where there is no other."""
    efficiencies = profile.links[port].kinds.values()
    reached = [e.net for e in efficiencies if e.provenance is not Provenance.DEFAULT]
    return port_peak(profile, port) * max(reached or [e.net for e in efficiencies])


def port_peak(profile: DeviceProfile, port: Port) -> float:
    """Peak of a port, one way [byte/s]."""
    peak = {
        Port.NVLINK: profile.nvlink_bytes_per_s,
        Port.NIC: profile.nic_bytes_per_s,
        Port.PCIE: profile.pcie_bytes_per_s,
    }[port]
    return peak.value
