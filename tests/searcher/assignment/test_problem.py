"""``AssignmentProblem`` by hand: which ranks' loads matter, the limit of tokens, slow replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semu.searcher.assignment.problem import AssignmentProblem, Dealt


def problem_of(load: list[list[int]], **options: Any) -> AssignmentProblem:
    n = len(load)
    given: dict[str, Any] = {
        "load": np.array(load, np.int64),
        "fixed": np.arange(len(load[0]), dtype=np.int64),
        "encoder": np.zeros(n, np.int64),
        "backbone": np.ones(n, np.int64),
        "tokens": np.arange(1, n + 1),
        "limit": None,
        "dp": 2,
        "num_microbatches": 2,
        "bounds": np.array([0, n]),
        "seed": 0,
        "slowdown": np.ones(2),
        "ends": lambda dealt, replica=None, samples=None: np.bincount(dealt.bins, minlength=4).reshape(2, 2).sum(1),
        **options,
    }
    return AssignmentProblem(**{name: given[name] for name in AssignmentProblem.__dataclass_fields__})


def test_of_ranks_that_are_alike_the_one_with_the_largest_loads_is_kept() -> None:
    """Rank 1 has twice rank 0's loads, rank 2 others, rank 3 none, rank 4 rank 2's threefold."""
    base, other = np.array([4, 8, 2, 6]), np.array([9, 1, 5, 1])
    problem = problem_of(np.stack((base, 2 * base, other, 0 * base, 3 * other), axis=1).tolist())
    assert problem.kept_ranks == (1, 4)
    assert np.array_equal(problem.columns, np.stack((2 * base, 3 * other), axis=1))
    assert problem.base.tolist() == [1, 4]
    shares = [max(2 * a / 16, 3 * b / 27) for a, b in zip(base.tolist(), other.tolist(), strict=True)]
    assert problem.by_size.tolist() == sorted(range(4), key=lambda item: (-shares[item], item))
    assert problem_of([[0, 0], [0, 0]]).kept_ranks == (0,)


@pytest.mark.parametrize(("limit", "cap"), [(None, -1), (0, 0), (7, 7)])
def test_no_limit_of_tokens_is_a_negative_one_for_kernels(limit: int | None, cap: int) -> None:
    assert problem_of([[1]], limit=limit).cap == cap


def test_slowness_is_in_parts_of_1024_where_replicas_differ() -> None:
    assert problem_of([[1]]).slowness.tolist() == []
    assert problem_of([[1]], slowdown=np.array([1.0, 1.25])).slowness.tolist() == [1024, 1280]
    assert problem_of([[1]], slowdown=np.array([1.25, 1.25])).slowness.tolist() == []


def test_the_problem_of_one_replica_has_its_samples_alone() -> None:
    problem = problem_of([[k, 1] for k in range(6)], slowdown=np.array([1.0, 2.0]))
    dealt = Dealt.together(np.array([0, 1, 0, 1, 1, 0]), np.array([0, 0, 1, 1, 0, 1]), 2)
    alone, own = problem.of_replica(dealt, 1)
    assert alone.load[:, 0].tolist() == [1, 3, 4] and alone.tokens.tolist() == [2, 4, 5]
    assert (alone.dp, alone.slowdown.tolist()) == (1, [2.0])
    assert own.replica.tolist() == [0, 0, 0] and own.microbatch.tolist() == [0, 1, 0]
    assert problem.worst_s(dealt) == 3.0
    assert replace(problem, limit=3).cap == 3
