"""Unions and overlaps of times, and busy times, against sets of whole ticks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semu.fitting.kernel_names import Family
from semu.validation.traces.gpu_work import GpuWork, busy_times, family_codes
from semu.validation.traces.intervals import length_s, overlap_s, union

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in spans], dtype=np.float64)
    return starts, starts + np.array([length for _, length in spans], dtype=np.float64)


def ticks(spans: list[tuple[int, int]]) -> set[int]:
    return {tick for start, length in spans for tick in range(start, start + length)}


@given(SPANS, SPANS)
def test_lengths_are_those_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    joined, other = union(*columns(a)), union(*columns(b))
    assert length_s(joined) == len(ticks(a))
    assert overlap_s(joined, other) == overlap_s(other, joined) == len(ticks(a) & ticks(b))
    assert (joined[1:, 0] > joined[:-1, 1]).all()


@given(
    st.lists(st.tuples(st.sampled_from(list(Family)), st.integers(0, 60), st.integers(0, 12)), min_size=1, max_size=20)
)
def test_busy_times_are_those_of_sets(kernels: list[tuple[Family, int, int]]) -> None:
    spans = [(start, length) for _, start, length in kernels]
    starts, ends = columns(spans)
    times = busy_times(GpuWork(starts, ends, family_codes([family for family, _, _ in kernels]), 100.0))
    compute = ticks([(start, length) for family, start, length in kernels if family.is_compute])
    network = ticks([(start, length) for family, start, length in kernels if family.is_communication])
    assert times.compute_s == len(compute)
    assert times.communication_s == len(network)
    assert times.overlapped_s == len(compute & network)
    assert times.exposed_s == len(network - compute)
    assert times.idle_s == 100 - len(compute | network)
    assert set(times.families) == {family for family, _, _ in kernels}
    for family, found in times.families.items():
        own = [(start, length) for kind, start, length in kernels if kind is family]
        assert (found.count, found.busy_s) == (len(own), sum(length for _, length in own))
        assert found.exposed_s == (len(ticks(own) - compute) if family.is_communication else None)
