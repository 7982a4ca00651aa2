"""Kernels of assignment against plain Python that looks at every bin and every subset."""

from __future__ import annotations

import numpy as np
import pytest

from semu.searcher.assignment.dealing import sorted_by, summed
from semu.searcher.assignment.kernels.bins import deal, unit_latencies
from semu.searcher.assignment.kernels.pairs import pair_costs
from semu.searcher.assignment.methods.stratified import medians


def plain_deal(order, first_bin, num_bins, load, base, tokens, limit, slowness) -> list[int]:
    """Every item to the bin that is lowest with it, of equals to that with fewer items, then to the first; -1: none."""
    bins = {number: list(base) for number in range(int(first_bin.max()) + num_bins)}
    held, count, found = dict.fromkeys(bins, 0), dict.fromkeys(bins, 0), [-1] * len(load)
    for item in order.tolist():
        first = int(first_bin[item])
        fits = [
            (max(a + b for a, b in zip(bins[n], load[item], strict=True)) * slowness[n - first], count[n], n)
            for n in range(first, first + num_bins)
            if limit < 0 or held[n] + tokens[item] <= limit
        ]
        if fits:
            best = min(fits)[2]
            found[item] = best
            held[best] += tokens[item]
            count[best] += 1
            bins[best] = [a + b for a, b in zip(bins[best], load[item], strict=True)]
    return found


@pytest.mark.parametrize("num_bins", [1, 7, 16, 17, 50, 100])
@pytest.mark.parametrize("columns", [1, 3])
def test_dealing_equals_looking_at_every_bin(num_bins: int, columns: int) -> None:
    """Loads of few values, so that many bins are alike; at last most of them nothing, so that many bins stay empty."""
    generator = np.random.default_rng(num_bins + columns)
    for groups, limit, is_slow in ((1, -1, False), (3, -1, False), (2, 30, False), (1, 30, True), (4, -1, False)):
        n = 5 * num_bins * groups
        load = generator.integers(0, 6, (n, columns)) * generator.integers(1, 4, (n, 1))
        if groups == 4:
            load[generator.random(n) < 0.9] = 0
        tokens, order = generator.integers(1, 9, n), generator.permutation(n)
        first = generator.integers(0, groups, n) * num_bins
        base = generator.integers(0, 3 if groups < 4 else 1, columns)
        slowness = generator.integers(1, 4, num_bins) if is_slow else np.empty(0, np.int64)
        found = np.empty(n, np.int64)
        lost = deal(order, first, num_bins, load, base, tokens, limit, slowness, found)
        factors = slowness.tolist() if is_slow else [1] * num_bins
        plain = plain_deal(order, first, num_bins, load.tolist(), base.tolist(), tokens.tolist(), limit, factors)
        assert found.tolist() == plain
        assert lost == plain.count(-1)


def test_subsets_of_pairs_are_the_best_of_all() -> None:
    """The closest to half of the difference of those that fit, of two the smaller sum, of equal ones the first."""
    generator = np.random.default_rng(3)
    for trial in range(60):
        sizes = generator.integers(1, 8, 6)
        ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        weight, tokens = generator.integers(0, 12, ptr[-1]), generator.integers(1, 10, ptr[-1])
        rooms = np.full(6, -1) if trial % 2 else generator.integers(0, 20, 6)
        total = np.add.reduceat(weight, ptr[:-1])
        order = np.argsort(-total, kind="stable")
        upper, lower = order[:3], order[3:]
        cost, subset = np.empty((3, 3), np.int64), np.empty((3, 3), np.int64)
        pair_costs(ptr, weight, tokens, rooms, upper, lower, 7, cost, subset)
        for row, over in enumerate(upper.tolist()):
            own = slice(ptr[over], ptr[over + 1])
            for column, under in enumerate(lower.tolist()):
                twice = int(total[over] - total[under])
                best = []
                for mask in range(1 << int(sizes[over])):
                    taken = [number for number in range(int(sizes[over])) if mask >> number & 1]
                    moved = int(weight[own][taken].sum())
                    if rooms[under] < 0 or tokens[own][taken].sum() <= rooms[under]:
                        best.append((abs(twice - 2 * moved), moved, mask))
                _, moved, mask = min(best)
                assert (cost[row, column], subset[row, column]) == (
                    max(total[over] - moved, total[under] + moved),
                    mask,
                )


def test_latencies_sums_and_medians_equal_numpy() -> None:
    generator = np.random.default_rng(0)
    table = generator.integers(0, 9, (3, 5, 2)).astype(np.float64)
    table[:, 4] = 0
    column, row = generator.integers(0, 5, 20), generator.integers(0, 4, 20)
    fixed, slope = generator.normal(1, 2, 4), generator.normal(0, 1, (4, 2))
    is_stage, slowdown, latency = generator.integers(0, 2, 20), np.array([1.0, 2.0, 0.5]), np.empty((3, 20))
    unit_latencies(table, column, row, fixed, slope, 3, slowdown, is_stage, latency)
    for replica in range(3):
        for unit in range(20):
            own = table[replica, column[unit]]
            wanted = max(float(own @ slope[row[unit]] + fixed[row[unit]]), 0.0)
            wanted *= slowdown[replica] if is_stage[unit] else 1.0
            wanted *= column[unit] < 3 or bool(own.any())
            assert latency[replica, unit] == pytest.approx(wanted, rel=1e-12, abs=1e-12)
    values, group = generator.integers(0, 99, (60, 2)), generator.integers(0, 7, 60)
    group[group == 3] = 2
    sums, middle = summed(values, group, 7), medians(values[:, 0], group, 7)
    for number in range(7):
        assert sums[number].tolist() == values[group == number].sum(axis=0).tolist()
        assert middle[number] == (np.median(values[group == number, 0]) if (group == number).any() else 0)


@pytest.mark.parametrize("largest", [3, 1 << 40, 1 << 61])
def test_sorting_equals_numpy(largest: int) -> None:
    """Keys with many ties, and keys too large to stand beside a place."""
    generator = np.random.default_rng(7)
    for count in (1, 2, 300):
        keys = [generator.integers(-largest, largest, count) // (largest // 3 + 1) * (largest // 3) for _ in range(3)]
        for number in (1, 2, 3):
            assert sorted_by(*keys[:number]).tolist() == np.lexsort(keys[:number]).tolist()
