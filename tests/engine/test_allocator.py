"""The caching allocator: against a slow reference on random traces, and against hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.engine.allocator import AllocationTrace, Reserved, reserve
from semu.engine.kernels.allocator import order_turns
from tests.engine.allocator_reference import MIB, reserve_slowly

SIZES = st.one_of(
    st.integers(1, 4 * 512),
    st.integers(MIB - 1024, MIB + 1024),
    st.integers(MIB, 21 * MIB),
    st.sampled_from([MIB, 10 * MIB - 512, 10 * MIB, 10 * MIB + 1, 19 * MIB, 20 * MIB, 50 * MIB]),
)


def trace_of(events: list[tuple[int, int]], first: int = 0) -> AllocationTrace:
    """(slot, size), size 0: free."""
    table = np.array(events, dtype=np.int64).reshape(-1, 2)
    return AllocationTrace(table[:, 0].copy(), table[:, 1].copy(), first)


@st.composite
def traces(draw: st.DrawFn) -> AllocationTrace:
    """Static allocations, then an iteration that frees all that it allocates, in any order."""
    static = draw(st.lists(SIZES, max_size=4))
    events = [(number, size) for number, size in enumerate(static)]
    first, name = len(events), len(events)
    live: list[int] = []
    for _ in range(draw(st.integers(0, 40))):
        if live and draw(st.booleans()):
            events.append((live.pop(draw(st.integers(0, len(live) - 1))), 0))
        else:
            events.append((name, draw(SIZES)))
            live.append(name)
            name += 1
    return trace_of(events + [(slot, 0) for slot in live], first)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(traces(), st.sampled_from([1 << 50, 64 * MIB, 0]), st.integers(1, 4))
def test_as_the_reference(trace: AllocationTrace, capacity: int, repeats: int) -> None:
    assert reserve(trace, capacity_bytes=capacity, repeats=repeats) == reserve_slowly(
        trace, capacity_bytes=capacity, repeats=repeats
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("capacity", [1 << 50, 300 * MIB])
def test_many_blocks_of_few_sizes_as_the_reference(seed: int, capacity: int) -> None:
    """Free lists are long, and of blocks of equal size the lowest address counts."""
    rng, live, events = np.random.default_rng(seed), list[int](), []
    sizes = [3000, MIB // 3, MIB + 512, 3 * MIB, 3 * MIB + 512, 9 * MIB, 24 * MIB]
    for name in range(250):
        events.append((name, sizes[rng.integers(len(sizes))]))
        live.append(name)
        while live and rng.random() < (0.3 if len(events) < 250 else 0.6):
            events.append((live.pop(rng.integers(len(live))), 0))
    trace = trace_of(events + [(slot, 0) for slot in live], 5)
    expected = reserve_slowly(trace, capacity_bytes=capacity, repeats=2)
    assert reserve(trace, capacity_bytes=capacity, repeats=2) == expected


@pytest.mark.parametrize(
    ("request_bytes", "segment_bytes"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (100 * MIB, 100 * MIB),
    ],
)
def test_the_first_request_makes_a_segment(request_bytes: int, segment_bytes: int) -> None:
    found = reserve(trace_of([(0, request_bytes)]), capacity_bytes=1 << 50, repeats=1)
    assert found == Reserved(segment_bytes, segment_bytes, found.blocks_bytes, 0)


def test_what_is_left_of_a_large_block_is_split_off_only_above_one_mebibyte() -> None:
    one = [(0, 50 * MIB), (0, 0)]
    keeps_whole = reserve(trace_of([*one, (1, 49 * MIB)]), capacity_bytes=1 << 50, repeats=1)
    splits = reserve(trace_of([*one, (1, 49 * MIB - 512)]), capacity_bytes=1 << 50, repeats=1)
    assert keeps_whole.blocks_bytes == 50 * MIB
    assert splits.blocks_bytes == 50 * MIB
    after = reserve(trace_of([*one, (1, 48 * MIB), (2, 2 * MIB)]), capacity_bytes=1 << 50, repeats=1)
    assert after.peak_bytes == 50 * MIB


def test_segments_are_given_back_only_for_want_of_memory() -> None:
    events = [(0, 30 * MIB), (0, 0), (1, 40 * MIB), (1, 0)]
    assert reserve(trace_of(events), capacity_bytes=1 << 50) == Reserved(70 * MIB, 70 * MIB, 40 * MIB, 0)
    tight = reserve(trace_of(events), capacity_bytes=60 * MIB, repeats=1)
    assert tight == Reserved(40 * MIB, 40 * MIB, 40 * MIB, 1)


def test_free_neighbours_join() -> None:
    parts = [(number, 10 * MIB - 512) for number in range(2)]
    frees = [(number, 0) for number in range(2)]
    found = reserve(trace_of([*parts, *frees, (9, 20 * MIB)]), capacity_bytes=1 << 50, repeats=1)
    assert found.peak_bytes == 20 * MIB


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.5, 1.0, np.inf]), st.integers(0, 3))))
def test_turns_are_ordered_as_a_stable_sort_has_them(turns: list[tuple[int, float, int]]) -> None:
    place, time, number = (np.array([turn[k] for turn in turns]) for k in range(3))
    order = np.full(len(turns), -1, dtype=np.int64)
    order_turns(place.astype(np.int64), time.astype(np.float64), number.astype(np.int64), 6, order)
    assert order.tolist() == sorted(range(len(turns)), key=lambda turn: turns[turn])
