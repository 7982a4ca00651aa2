"""Greedy packing against a loop that anyone can check."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.workload.packing import pack_in_order, pack_similar

items = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=80)
limits = st.tuples(st.integers(20, 60), st.integers(3, 9))


def columns(pairs: list[tuple[int, int]]) -> list[np.ndarray]:
    array = np.array(pairs, np.int64).reshape(-1, 2)
    return [array[:, 0], array[:, 1]]


def reference_bins(pairs: list[tuple[int, int]], capacities: tuple[int, int]) -> list[list[int]]:
    """Items one by one: into the open bin where it fits, else into a new one."""
    bins: list[list[int]] = []
    room = [0, 0]
    for index, pair in enumerate(pairs):
        if bins and all(weight <= left for weight, left in zip(pair, room, strict=True)):
            bins[-1].append(index)
        else:
            bins.append([index])
            room = list(capacities)
        room = [left - weight for weight, left in zip(pair, room, strict=True)]
    return bins


@given(items, limits)
def test_in_order_equals_the_loop(pairs: list[tuple[int, int]], capacities: tuple[int, int]) -> None:
    bounds = pack_in_order(columns(pairs), capacities)
    bins = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
    assert bins == reference_bins(pairs, capacities)


@given(items, limits, st.integers(0, 80))
def test_bins_of_a_prefix_are_a_prefix(pairs: list[tuple[int, int]], capacities: tuple[int, int], cut: int) -> None:
    whole = pack_in_order(columns(pairs), capacities).tolist()
    part = pack_in_order(columns(pairs[:cut]), capacities).tolist()
    assert part[:-1] == whole[: len(part) - 1]


@given(items, limits, st.integers(1, 30), st.integers(0, 3))
def test_similar_packs_each_pool_sorted(
    pairs: list[tuple[int, int]], capacities: tuple[int, int], pool: int, seed: int
) -> None:
    weights = columns(pairs)
    key = weights[0]
    order, bounds = pack_similar(key, weights, capacities, pool, seed)
    assert sorted(order.tolist()) == list(range(len(pairs)))
    got = [order[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    for start in range(0, len(pairs), pool):
        ranked = sorted(range(start, min(start + pool, len(pairs))), key=lambda index: (pairs[index][0], index))
        expected = [[ranked[i] for i in bin_] for bin_ in reference_bins([pairs[i] for i in ranked], capacities)]
        here, got = got[: len(expected)], got[len(expected) :]
        assert sorted(here) == sorted(expected)  # the same bins, in shuffled order
    assert got == []


def test_similar_shuffles_by_seed_and_pools_are_independent() -> None:
    key = np.arange(100, dtype=np.int64) % 10 + 1
    first, _ = pack_similar(key, [key], [10], 50, seed=0)
    again, _ = pack_similar(key, [key], [10], 50, seed=0)
    other, _ = pack_similar(key, [key], [10], 50, seed=1)
    half, _ = pack_similar(key[:50], [key[:50]], [10], 50, seed=0)
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    assert first[:50].tolist() == half.tolist()


def test_no_items() -> None:
    nothing = np.zeros(0, np.int64)
    assert pack_in_order([nothing], [5]).tolist() == [0]
    order, bounds = pack_similar(nothing, [nothing], [5], 4, 0)
    assert order.size == 0 and bounds.tolist() == [0]


def test_an_item_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        pack_in_order([np.array([3, 9, 2])], [8])
    assert (caught.value.where, caught.value.got) == ("item 1", 9)
