"""Pairwise deferral against brute force, and against the dissertation's figures."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from semu.searcher.assignment.deferral import FEW, Pairing, Subsets, bottleneck_match, pair_up
from semu.workload.packing import offsets


def brute_subset(weights: np.ndarray, target: float) -> float:
    sums = [int(weights[[i for i in range(len(weights)) if mask >> i & 1]].sum()) for mask in range(1 << len(weights))]
    return min(abs(total - target) for total in sums)


@pytest.mark.parametrize("count", [1, 3, 7, 12, 14])
def test_subsets_equal_brute_force(count):
    generator = np.random.default_rng(count)
    for _ in range(20 if count < 13 else 3):
        weights = generator.integers(0, 500, count)
        target = float(generator.uniform(0, weights.sum() / 2 + 1))
        found = int(weights[Subsets(weights).closest(target)].sum())
        assert abs(found - target) == brute_subset(weights, target)


def test_rounded_subsets_are_within_the_table():
    generator = np.random.default_rng(0)
    weights = generator.integers(10**9, 10**11, FEW + 8)
    for target in (weights.sum() / 3, weights.sum() / 7):
        found = int(weights[Subsets(weights).closest(target)].sum())
        assert abs(found - target) < weights.sum() / 4096


def test_matching_equals_brute_force():
    generator = np.random.default_rng(1)
    for _ in range(300):
        size = int(generator.integers(1, 6))
        cost, alone = generator.integers(1, 30, (size, size)), generator.integers(1, 40, size)
        best = min(
            max(min(int(cost[row, column]), int(alone[row])) for row, column in enumerate(columns))
            for columns in permutations(range(size))
        )
        partner, bound = bottleneck_match(cost, alone)
        assert bound == best
        used = partner[partner >= 0].tolist()
        assert len(set(used)) == len(used)
        assert all(alone[r] <= bound if c < 0 else cost[r, c] <= bound for r, c in enumerate(partner.tolist()))


def test_figure_4_10():
    """V of Fig. 4.10b by overloaded microbatches 1, 2, 5; its sums leave loads of 7, 8, 10 before deferral. T* = 6."""
    cost = np.array([[6, 6, 6], [6, 6, 7], [8, 6, 9]])  # rows MB1, MB2, MB5; columns MB3, MB4, MB6
    partner, bound = bottleneck_match(cost, np.array([7, 8, 10]))
    assert bound == 6
    within = [c for c in permutations(range(3)) if all(cost[row, column] <= 6 for row, column in enumerate(c))]
    assert [tuple(partner.tolist())] == within == [(2, 0, 1)]


def paired(loads: list[np.ndarray]) -> Pairing:
    """Of loads by microbatch."""
    return pair_up(offsets(np.array([len(own) for own in loads])), np.concatenate(loads).astype(np.int64))


def test_pairs_of_a_replica_are_as_good_as_any():
    """Every pairing of six microbatches, with the best subset of each pair."""
    generator = np.random.default_rng(2)
    for _ in range(40):
        loads = [generator.integers(1, 9, int(generator.integers(1, 5))) for _ in range(6)]
        total = np.array([own.sum() for own in loads])
        order = np.argsort(-total, kind="stable")
        best = min(
            max(_pair(loads[order[row]], total[order[3 + column]]) for row, column in enumerate(columns))
            for columns in permutations(range(3))
        )
        found = paired(loads)
        after = total.copy()
        for (over, under), deferred in zip(found.pairs, found.deferred, strict=True):
            moved = loads[over][deferred].sum()
            after[over] -= moved
            after[under] += moved
        assert sorted(number for pair in found.pairs for number in pair) == list(range(6))
        assert after.max() == found.bottleneck == best


def _pair(over: np.ndarray, under: int) -> int:
    sums = [int(over[[i for i in range(len(over)) if mask >> i & 1]].sum()) for mask in range(1 << len(over))]
    return min(max(int(over.sum()) - moved, int(under) + moved) for moved in sums)


def test_the_lightest_of_an_odd_number_stays_alone():
    found = paired([np.array([5, 5]), np.array([1]), np.array([3, 1])])
    assert found.unpaired == 1
    assert found.pairs == ((0, 2),)


def test_no_more_is_deferred_than_has_room():
    loads, tokens = np.array([6, 4, 1]), np.array([60, 40, 10])
    for room, moved in ((100, 40), (39, 0), (40, 40)):
        found = pair_up(np.array([0, 2, 3]), loads, tokens, np.array([0, room]))
        assert tokens[:2][found.deferred[0]].sum() == moved


def test_many_samples_are_paired_by_the_table():
    """More than are listed one by one: as even as two bins of such loads can be."""
    generator = np.random.default_rng(4)
    loads = [generator.integers(1, 300, 30), generator.integers(1, 100, 20)]
    found = paired(loads)
    assert found.bottleneck - np.concatenate(loads).sum() / 2 <= 1
