"""The slow reference's collectives against semu's, on every device, and numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.reference.network import collective_seconds, latency_seconds, wire_bytes

from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup, wire_factor
from semu.hardware.network.cost import collective_cost, collective_latency
from semu.hardware.profile import list_profiles, load_profile

KINDS = [kind for kind in OpKind if kind.is_communication]
GROUPS = [
    *(CommGroup("tp", n) for n in (1, 2, 3, 4, 8)),
    *(CommGroup("tp", n, local_port=Port.PCIE) for n in (2, 4, 8)),
    *(CommGroup("dp", n, n) for n in (2, 3, 8, 64)),
    *(CommGroup("dp", n, m) for n, m in ((4, 2), (16, 2), (24, 3), (64, 8), (1024, 128))),
    *(CommGroup("dp", n, m, g) for n, m, g in ((9, 2, 4), (9, 2, 1), (7, 3, 2), (12, 5, 1), (11, 2, 4))),
    *(CommGroup("dp", n, m, local_port=Port.PCIE) for n, m in ((4, 2), (16, 4), (6, 6))),
]
PAIRS = [
    CommGroup(name, 2, nodes, local_port=port)
    for name in ("pp", "reload")
    for nodes, port in ((1, Port.NVLINK), (1, Port.PCIE), (2, Port.NVLINK))
]
SIZES = [0, 1, 1000, 10**5, 10**7, 10**10]
"""Wire bytes on both sides of where protocols change."""


def devices() -> list[DeviceProfile]:
    """Every shipped profile as it is, and one all of whose coefficients matter, with and without a framework."""
    shipped = [load_profile(name) for name in list_profiles()]
    marked = {"net": 0.37, "t0_s": 5e-6, "hop_s": 3e-7, "c_s": 2e-6, "few_ranks": 0.6, "short_net": 0.02}
    marked |= {"setup_s": 4e-6, "p": 1.7, "switch": 1.4, "switch_s": 3e-5, "between": 2.5, "short_hop": 0.6}
    every = {kind.value: marked for kind in KINDS}
    full = load_profile("h100").override({"link": {port.value: every for port in Port}})
    return [
        *shipped,
        replace(full, name="full"),
        replace(full, name="under a framework", transfer_s=7e-6, has_aggregated_trees=True),
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", devices(), ids=lambda profile: profile.name)
def test_both_agree_on_every_device(device: DeviceProfile) -> None:
    for kind in KINDS:
        for group in PAIRS if kind is OpKind.P2P else GROUPS:
            for size in SIZES:
                expected = collective_seconds(device, kind, group, size)
                found = collective_latency(device, kind, group, size)
                assert found == pytest.approx(expected, rel=1e-12, abs=0), (kind, group, size)
            if group.num_ranks > 1:
                latency = latency_seconds(device, kind, group)
                assert collective_cost(device, kind, group).latency_s == pytest.approx(latency, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 100])
def test_both_agree_on_bytes(kind: OpKind, num_ranks: int) -> None:
    for size in (0, 1, 2, 999, 10**6 + 1):
        assert int(wire_factor(kind, num_ranks) * size) == wire_bytes(kind, num_ranks, size)


def test_numbers_by_hand() -> None:
    """Ports of 100 and 10 GB/s; 1 us a hop."""
    rest = {"t0_s": 0.0, "c_s": 0.0, "few_ranks": 0.0, "short_net": 0.0, "setup_s": 0.0, "p": 1.0, "switch": 1.0}
    rest |= {"switch_s": 0.0, "between": 1.0}
    links = {port.value: {kind.value: {"net": 1.0, "hop_s": 1e-6, **rest} for kind in KINDS} for port in Port}
    numbers = {"nvlink_bytes_per_s": 1e11, "nic_bytes_per_s": 1e10, "link": links}
    profile = load_profile("h100").override(numbers)
    node, nodes, rails = CommGroup("tp", 8), CommGroup("dp", 16, 2), CommGroup("dp", 4, 4)
    cases = [
        (OpKind.ALL_GATHER, node, 7e-6 + 1e-3),  # 100 MB at 100 GB/s
        (OpKind.ALL_GATHER, nodes, 15e-6 + 1e8 / 8e10),  # 8 NICs
        (OpKind.ALL_GATHER, rails, 3e-6 + 1e-2),
        (OpKind.ALL_REDUCE, nodes, 8e-6 + 1e8 / 8e10),  # 7 along the node, 1 between two nodes
        (OpKind.ALL_REDUCE, rails, 2e-6 + 1e-2),  # a tree over 4 nodes
        (OpKind.ALL_TO_ALL, nodes, 15e-6 + 8 / 15 * 1e-2),  # 8 of 15 peers by the NIC
        (OpKind.P2P, CommGroup("pp", 2, 2), 1e-6 + 1e-2),
        (OpKind.P2P, CommGroup("pp", 2), 1e-6 + 1e-3),
    ]
    for kind, group, expected in cases:
        assert collective_seconds(profile, kind, group, 1e8) == pytest.approx(expected, rel=1e-12), (kind, group)
