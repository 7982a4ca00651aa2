"""A device as its data sheet has it: the papers' roofline with alpha = 1, worked out by hand."""

from __future__ import annotations

import pytest

from semu.hardware.data_sheets import data_sheet
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_cost
from semu.hardware.profile import list_profiles, load_profile
from semu.hardware.software import Software


@pytest.mark.parametrize("name", list_profiles())
def test_kernels_and_links_run_at_their_peaks(name: str) -> None:
    profile = load_profile(name)
    plain = data_sheet(profile)
    assert (plain.name, plain.memory_bytes, plain.flop_per_s) == (name, profile.memory_bytes, profile.flop_per_s)
    peak, memory = plain.peak_flop_per_s(DType.BF16), plain.mem_bytes_per_s.value
    for kind in OpKind:
        if kind.is_communication:
            for port in Port:
                link = plain.links[port].of(kind)
                assert (link.alpha_net, link.t0_s, link.hop_s, link.c_s) == (1, 0, 0, 0)
            continue
        item = plain.efficiency(kind, dtype=DType.FP8, head_dim=64)
        assert (item.alpha_flop, item.alpha_mem, item.power, item.provenance) == (1, 1, 0, Provenance.SPEC)
        assert item.latency_s(1e12, 1e6, peak, memory) == max(1e12 / peak, 1e6 / memory)
    assert all(plain.under(software) is plain for software in Software)


def test_a_ring_moves_its_bytes_at_the_ports_rate() -> None:
    plain = data_sheet(load_profile("h800"))
    cost = collective_cost(plain, OpKind.ALL_REDUCE, CommGroup("tp", 8, 1))
    assert (cost.bytes_per_s, cost.latency_s, cost.c_s) == (plain.nvlink_bytes_per_s.value, 0, 0)
