"""Collectives with a protocol for short messages: by hand, number by number, on two devices."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.efficiency import CollectiveEfficiency
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_cost, collective_latency
from semu.hardware.network.protocols import CollectiveCost, Protocol
from semu.hardware.profile import load_profile

NUMBERS = {"net": 0.8, "t0_s": 6e-6, "hop_s": 1e-7, "c_s": 0.0, "few_ranks": 0.0, "short_net": 0.01, "setup_s": 8e-6}


def device(name: str, kind: str, **numbers: float) -> DeviceProfile:
    return load_profile(name).override({f"link.nvlink.{kind}": {**NUMBERS, "p": 1.0, "switch": 1.0, **numbers}})


@pytest.mark.parametrize(("name", "port"), [("h100", 450e9), ("a100-80g", 300e9)])
def test_an_all_to_all_of_four_by_hand(name: str, port: float) -> None:
    """Three peers at once: short messages go at 0.01 of the port each; long ones wait 8 us and share 0.8 of it."""
    profile, group = device(name, "all_to_all"), CommGroup("ep", 4)
    start = 6e-6 + 3 * 1e-7
    for per_peer in (1e3, 1e4, 1e5, 1e7):
        short = start + per_peer / (0.01 * port)
        long = start + 8e-6 + 3 * per_peer / (0.8 * port)
        got = collective_latency(profile, OpKind.ALL_TO_ALL, group, 3 * per_peer)
        assert got == pytest.approx(min(short, long), rel=1e-12)
        assert (short < long) == (per_peer < 3e4)


def test_a_ring_has_one_peer() -> None:
    profile, group = device("h100", "all_gather"), CommGroup("tp", 8)
    start = 6e-6 + 7 * 1e-7
    assert collective_latency(profile, OpKind.ALL_GATHER, group, 9e3) == pytest.approx(start + 2e-6, rel=1e-12)
    long = start + 8e-6 + 1e-3
    assert collective_latency(profile, OpKind.ALL_GATHER, group, 360e6) == pytest.approx(long, rel=1e-12)


def test_latency_hides_behind_the_transfer() -> None:
    """p = 2: a latency of 3 and a transfer of 4 are 5."""
    cost = CollectiveCost((Protocol(1.0, 1e9, 0.0, 2.0, 2.0),))
    assert cost.times_s(np.array([4e9])).tolist() == pytest.approx([5.0], rel=1e-12)


def by_hand(latency: float, corner: float, short: float, setup: float, p: float, size: int) -> float:
    """Time of one message over 200 GB/s [s], number by number."""
    transfer = size / 2e11
    start, moving = latency + setup, transfer + math.sqrt(corner * transfer)
    longer, shorter = max(start, moving), min(start, moving)
    long_s = longer * (1.0 + (shorter / longer) ** p) ** (1.0 / p)
    return min(latency + size / short, long_s) if short else long_s


@given(
    latency=st.floats(0.0, 1e-3),
    corner=st.floats(0.0, 1e-4),
    short=st.sampled_from([0.0, 1e8, 1e10]),
    setup=st.floats(0.0, 1e-4),
    p=st.floats(1.0, 6.0),
    size=st.integers(1, 10**11),
    more=st.integers(0, 10**10),
)
def test_growing_and_the_same_for_many_sizes_at_once(
    latency: float, corner: float, short: float, setup: float, p: float, size: int, more: int
) -> None:
    long = Protocol(latency, 2e11, corner, setup, p)
    cost = CollectiveCost((long, Protocol(latency, short)) if short else (long,))
    one, two = by_hand(latency, corner, short, setup, p, size), by_hand(latency, corner, short, setup, p, size + more)
    assert 0.0 < one <= two * (1 + 1e-12) and math.isfinite(two)
    assert cost.times_s(np.array([size, size + more])).tolist() == pytest.approx([one, two], rel=1e-14)


def test_without_a_protocol_nothing_changes() -> None:
    """The form that has always been: latency + T + sqrt(c T)."""
    cost = CollectiveCost((Protocol(5e-6, 3e11, 1e-5),))
    assert cost.is_plain
    for size in (1, 10**6, 10**10):
        transfer = size / 3e11
        assert cost.times_s(np.array([size]))[0] == 5e-6 + transfer + math.sqrt(1e-5 * transfer)


def test_no_such_protocol_over_the_card() -> None:
    cost = collective_cost(load_profile("h100"), OpKind.ALL_TO_ALL, CommGroup("ep", 16, 2))
    assert cost.is_plain


@pytest.mark.parametrize("numbers", [{"short_net": 1.5}, {"short_net": -0.1}, {"setup_s": -1e-6}, {"p": 0.5}])
def test_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        CollectiveEfficiency(**numbers)
