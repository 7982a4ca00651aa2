"""The search from several levels of memory: parts of problems, and what comes back is of the whole one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from searcher.instances import vlm

from semu.errors import MemoryLimitError
from semu.searcher import SearchProblem
from semu.searcher.bounds import lower_bounds
from semu.searcher.orders.interleave import evaluate
from semu.searcher.orders.levels import LEVELS, above, distinct_levels, search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.orders.strategy import Objective


def instance(seed: int, share: float = 1e9) -> SearchProblem:
    """With memory of so many of the largest pairs."""
    free = vlm(3, 4, seed=seed, candidates=5, transfer_s=(0.01, 0.05), peaks=True)
    largest = int(np.maximum(free.forward_peak_bytes, free.held_bytes + free.backward_peak_bytes).max())
    limit = int(min(share * largest, 1 << 50))
    return vlm(3, 4, seed=seed, candidates=5, transfer_s=(0.01, 0.05), peaks=True, limit_bytes=limit)


def test_levels_leave_the_leanest_out() -> None:
    problem = instance(1)
    for level in LEVELS:
        part, first = above(problem, level)
        for pair in range(problem.num_pairs):
            count = int(problem.num_candidates[pair])
            left = list(range(int(level * (count - 1) + 1e-9), count))
            assert first[pair] == left[0]
            assert part.num_candidates[pair] == len(left)
            assert part.forward_s[pair, : len(left)].tolist() == problem.forward_s[pair, left].tolist()
            assert part.held_bytes[pair, : len(left)].tolist() == problem.held_bytes[pair, left].tolist()
            assert (part.held_bytes[pair, len(left) :] == problem.held_bytes[pair, count - 1]).all()
    assert (above(problem, 1.0)[0].num_candidates == 1).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [1e9, 4.0])
def test_what_comes_back_is_of_the_whole_problem(seed: int, share: float) -> None:
    problem = instance(seed, share)
    found = search_levels(problem, Budget(rollouts=120), seed=seed)
    solution = found.solution
    again = evaluate(problem, solution.order, solution.choice)
    assert again.makespan_s == solution.makespan_s
    assert np.array_equal(again.peak_bytes, solution.peak_bytes)
    assert np.all(solution.peak_bytes <= problem.limit_bytes)
    assert solution.lower_bound_s == lower_bounds(problem, effort=0.0).value_s <= solution.makespan_s
    assert solution.makespan_s <= found.default.makespan_s
    assert found.rollouts <= 120
    assert all(a.makespan_s > b.makespan_s and a.time_s <= b.time_s for a, b in pairwise(found.curve))
    assert found.curve[-1].makespan_s == solution.makespan_s
    same = search_levels(problem, Budget(rollouts=120), seed=seed)
    assert np.array_equal(same.solution.order, solution.order)
    assert np.array_equal(same.solution.choice, solution.choice)


def test_levels_that_leave_out_the_same_are_one() -> None:
    levels = [level for level in LEVELS if level > 0.0]
    for seed, share in ((1, 4.0), (2, 6.0)):
        problem = instance(seed, share)
        two = replace(problem, num_candidates=np.minimum(problem.num_candidates, 2))
        assert search_levels(two, Budget(rollouts=40)).rollouts <= 40
        assert len(distinct_levels(two, levels)) == len({above(two, level)[1].tobytes() for level in levels})


def test_where_memory_does_not_bind_the_fastest_candidates_are_all() -> None:
    free, tight = instance(1), instance(1, 4.0)
    assert distinct_levels(free, LEVELS) == [1.0]
    assert distinct_levels(free, LEVELS[:2]) == list(LEVELS[:2])
    assert len(distinct_levels(tight, LEVELS)) > 1
    forward = free.forward_s.copy()
    pair = int(np.flatnonzero(free.num_candidates > 1)[0])
    forward[pair, 0] = forward[pair].min() / 2  # slower in sum, but faster forwards
    assert len(distinct_levels(replace(free, forward_s=forward), LEVELS)) > 1


def test_progress_only_improves() -> None:
    told: list[float] = []
    search_levels(instance(2), Budget(rollouts=60), progress=lambda one: told.append(one.makespan_s))
    assert told == sorted(told, reverse=True)
    assert len(set(told)) == len(told)


def test_the_longest_and_nothing_at_all() -> None:
    problem = instance(0)
    worst = search_levels(problem, Budget(rollouts=60), objective=Objective.MAX)
    best = search_levels(problem, Budget(rollouts=60))
    assert worst.solution.makespan_s > best.solution.makespan_s
    none = search_levels(problem, Budget(rollouts=0))
    assert none.solution.makespan_s == none.default.makespan_s
    assert (none.rollouts, none.moves) == (0, 0)


def test_no_level_fits() -> None:
    with pytest.raises(MemoryLimitError, match="rank"):
        search_levels(instance(0, 0.01), Budget(rollouts=10))
