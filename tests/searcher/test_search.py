"""The search over orders: strategies, budgets, reproducibility, legality; against brute force and the exact solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.instances import vlm

from semu.errors import ConfigError, MemoryLimitError
from semu.searcher.exact import solve_exact
from semu.searcher.orders.budgeted import SearchResult, search_problem
from semu.searcher.orders.interleave import Interleaver, evaluate
from semu.searcher.orders.loop import Budget
from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategies import STRATEGIES
from semu.searcher.orders.strategy import DepthFirstStrategy, Objective
from semu.searcher.problem.search_problem import SearchProblem, Solution


def small(seed: int = 0, microbatches: int = 3, **options: object) -> SearchProblem:
    return vlm(2, microbatches, seed=seed, images=(1, 2), language_slots=1, transfer_s=(0.01, 0.03), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("refine", [False, True])
def test_the_best_of_the_sequences_is_handed_on_before_stages_move(refine: bool) -> None:
    problem, seen = small(1), list[Solution]()
    found = search_problem(problem, Budget(rollouts=40, workers=1), refine=refine, is_bounded=False, keep=seen.append)
    plain = search_problem(problem, Budget(rollouts=40, workers=1), refine=False, is_bounded=False)
    assert seen[0].makespan_s == plain.solution.makespan_s
    assert np.array_equal(seen[0].order, plain.solution.order)
    assert found.solution.makespan_s <= seen[0].makespan_s
    assert refine or len(seen) == 1


def check_legal(problem: SearchProblem, solution: Solution) -> None:
    """By the definition: ranks run one stage at a time, behind predecessors and transfers, within memory."""
    times = problem.costs_of(solution.choice)[0]
    before, after = problem.edges
    exists = problem.exists
    assert np.array_equal(np.sort(solution.order), np.flatnonzero(exists))
    assert np.allclose((solution.end_s - solution.start_s)[exists], times[exists], rtol=0, atol=1e-11)
    assert np.all(solution.start_s[after] >= solution.end_s[before] + problem.transfer_s)
    _, held, peak = problem.costs_of(solution.choice)
    for rank, order in enumerate(solution.orders()):
        assert np.all(problem.stage_rank[order] == rank)
        assert np.all(solution.start_s[order[1:]] >= solution.end_s[order[:-1]])
        level = int(problem.static_bytes[rank])
        for stage in order.tolist():
            assert level + int(peak[stage]) <= problem.limit_bytes[rank]
            level += int(held[stage // 2]) * (-1 if stage % 2 else 1)
    assert solution.makespan_s == np.nanmax(solution.end_s)
    assert solution.makespan_s >= solution.lower_bound_s


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.sampled(2)
def test_every_strategy_finds_the_best_sequence(strategy: str) -> None:
    """Of all legal sequences, each interleaved: the least makespan."""
    problem = small(3)
    space, own = OrderSpace.of(problem), Interleaver(problem)
    every = DepthFirstStrategy(space).ask(np.random.default_rng(0), 10**6).sequences
    makespans = own.run(*space.orders(every)).makespan_s
    found = search_problem(problem, Budget(rollouts=6000, workers=2), strategy=strategy, refine=False)
    assert found.solution.makespan_s == makespans.min()
    assert found.default.makespan_s == makespans[0]
    check_legal(problem, found.solution)
    worst = search_problem(
        problem, Budget(rollouts=6000, workers=2), strategy=strategy, refine=False, objective=Objective.MAX
    )
    assert worst.solution.makespan_s == makespans.max()


@pytest.mark.parametrize("strategy", ["mcts", "dfs"])
def test_an_exhausted_space_ends_the_search(strategy: str) -> None:
    problem = small(0, 2)
    every = DepthFirstStrategy(OrderSpace.of(problem)).ask(np.random.default_rng(0), 10**6).sequences
    found = search_problem(problem, Budget(rollouts=10**6, workers=1), strategy=strategy, refine=False)
    assert found.ended_by in ("exhausted", "bound")
    assert strategy != "dfs" or found.ended_by == "bound" or found.rollouts == len(every)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    ranks=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    candidates=st.integers(1, 3),
    share=st.floats(0.3, 1.0),
    strategy=st.sampled_from(sorted(STRATEGIES)),
)
def test_what_comes_back_is_legal(
    seed: int, ranks: int, microbatches: int, candidates: int, share: float, strategy: str
) -> None:
    free = vlm(ranks, microbatches, seed=seed, candidates=candidates, transfer_s=(0.01, 0.05), peaks=True)
    every = np.bincount(free.rank, weights=free.held_bytes.max(axis=1), minlength=ranks)
    limit = np.ceil(every * share).astype(np.int64) + 200
    problem = vlm(
        ranks, microbatches, seed=seed, candidates=candidates, transfer_s=(0.01, 0.05), peaks=True, limit_bytes=limit
    )
    try:
        found = search_problem(problem, Budget(rollouts=100, workers=2), strategy=strategy, seed=seed)
    except MemoryLimitError:
        assert share < 1.0
        return
    check_legal(problem, found.solution)
    assert found.solution.makespan_s <= found.default.makespan_s
    again = evaluate(problem, found.solution.order, found.solution.choice)
    assert again.makespan_s == found.solution.makespan_s
    assert np.array_equal(again.start_s, found.solution.start_s, equal_nan=True)


def same(first: SearchResult, second: SearchResult) -> bool:
    return (
        first.solution.makespan_s == second.solution.makespan_s
        and np.array_equal(first.solution.order, second.solution.order)
        and np.array_equal(first.solution.choice, second.solution.choice)
        and [(one.rollouts, one.makespan_s) for one in first.curve]
        == [(one.rollouts, one.makespan_s) for one in second.curve]
        and (first.rollouts, first.moves, first.ended_by) == (second.rollouts, second.moves, second.ended_by)
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_rollouts_are_reproducible(strategy: str, workers: int) -> None:
    problem = vlm(4, 6, seed=1, candidates=2, transfer_s=(0.01, 0.02))
    budget = Budget(rollouts=130, workers=workers)
    first, second = (search_problem(problem, budget, strategy=strategy, seed=7) for _ in range(2))
    assert same(first, second)
    assert first.is_reproducible
    assert first.ended_by in ("rollouts", "bound")
    assert first.rollouts == 130 or first.ended_by == "bound"


def test_other_seeds_search_elsewhere() -> None:
    problem = vlm(4, 8, seed=1)
    orders = {search_problem(problem, Budget(rollouts=64), seed=seed).solution.order.tobytes() for seed in range(4)}
    assert len(orders) > 1


def test_a_budget_of_nothing_is_the_heuristic() -> None:
    problem = vlm(4, 6, seed=2)
    for budget in (Budget(rollouts=0), Budget(time_s=0)):
        found = search_problem(problem, budget)
        assert found.solution.makespan_s == found.default.makespan_s
        assert (found.rollouts, found.moves) == (0, 0)


def test_time_is_a_limit_and_the_curve_falls() -> None:
    found = search_problem(vlm(4, 12, seed=2), Budget(time_s=0.5, workers=2))
    makespans = [one.makespan_s for one in found.curve]
    assert makespans == sorted(makespans, reverse=True)
    assert [one.time_s for one in found.curve] == sorted(one.time_s for one in found.curve)
    assert found.ended_by in ("time", "bound")
    assert not found.is_reproducible
    assert found.curve[-1].makespan_s == found.solution.makespan_s


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupt_keeps_the_best(after: int) -> None:
    problem, seen = vlm(4, 12, seed=2), []

    def stop(one: object) -> None:
        seen.append(one)
        if len(seen) > after:
            raise KeyboardInterrupt

    found = search_problem(problem, Budget(rollouts=10**9, workers=2), progress=stop)
    assert found.ended_by == "interrupt"
    assert found.solution.makespan_s <= found.default.makespan_s
    check_legal(problem, found.solution)


@pytest.mark.parametrize(
    "wrong", [{}, {"rollouts": -1}, {"time_s": -1.0}, {"rollouts": 1, "workers": 0}, {"time_s": float("nan")}]
)
def test_impossible_budgets_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Budget(**wrong)  # type: ignore[arg-type]


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(ConfigError, match="search strategy"):
        search_problem(small(), Budget(rollouts=1), strategy="mtcs")


def brute_force(problem: SearchProblem) -> float:
    """The least makespan over all orders of all ranks, with the fastest candidates."""
    choice = (problem.num_candidates - 1).astype(np.int16)
    exists = problem.exists
    own = [np.flatnonzero(exists & (problem.stage_rank == rank)) for rank in range(problem.num_ranks)]
    best = np.inf
    for orders in itertools.product(*(itertools.permutations(stages.tolist()) for stages in own)):
        order = [stage for part in orders for stage in part]
        try:
            best = min(best, evaluate(problem, order, choice).makespan_s)
        except Exception as error:  # deadlocks
            assert "deadlock" in str(error)
    return best


@pytest.mark.parametrize("seed", range(3))
def test_exact_is_brute_force_on_tiny_instances(seed: int) -> None:
    problem = vlm(2, 1, seed=seed, images=(1, 1), language_slots=1, transfer_s=(0.05, 0.4))
    found = solve_exact(problem, time_s=30, workers=2)
    assert found.is_optimal
    assert found.makespan_s == pytest.approx(brute_force(problem), rel=1e-4)
    order = np.concatenate(found.orders)
    assert evaluate(problem, order, found.choice).makespan_s <= found.makespan_s


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("ranks", "microbatches", "seed"), [(2, 2, 0), (2, 3, 1), (3, 2, 2)])
def test_search_reaches_the_proven_optimum(ranks: int, microbatches: int, seed: int) -> None:
    problem = vlm(ranks, microbatches, seed=seed, images=(1, 1), language_slots=1, transfer_s=(0.01, 0.02))
    exact = solve_exact(problem, time_s=60, workers=2)
    assert exact.is_optimal
    found = search_problem(problem, Budget(rollouts=4000, workers=2))
    assert found.solution.makespan_s == pytest.approx(exact.makespan_s, rel=1e-4)
    assert found.solution.makespan_s >= exact.bound_s * (1 - 1e-4)


def test_exact_minds_memory_and_candidates() -> None:
    """On one rank stage pairs may run one after another, so each has the fastest candidate that fits alone."""
    base = vlm(1, 2, seed=0, images=(0, 0), language_slots=1, candidates=2)
    held = base.held_bytes
    for limit in (int(held.max()), int(held[:, 0].sum()), int(held.sum())):
        problem = vlm(1, 2, seed=0, images=(0, 0), language_slots=1, candidates=2, limit_bytes=limit)
        found = solve_exact(problem, time_s=20)
        assert found.is_optimal
        solution = evaluate(problem, np.concatenate(found.orders), found.choice)
        assert int(solution.peak_bytes.max()) <= limit
        times = np.where(held <= limit, problem.forward_s + problem.backward_s, np.inf)
        assert solution.makespan_s == pytest.approx(float(times.min(axis=1).sum()))


def test_memory_that_nothing_meets() -> None:
    problem = vlm(2, 2, seed=0, limit_bytes=1)
    with pytest.raises(MemoryLimitError, match=r"rank \d"):
        search_problem(problem, Budget(rollouts=10))
    assert solve_exact(problem, time_s=10).orders == ()


@pytest.mark.parametrize(("images", "ranks", "microbatches"), [((0, 0), 4, 3), ((1, 2), 1, 3), ((1, 2), 4, 1)])
def test_no_images_one_rank_one_microbatch(images: tuple[int, int], ranks: int, microbatches: int) -> None:
    problem = vlm(ranks, microbatches, images=images)
    found = search_problem(problem, Budget(rollouts=50))
    check_legal(problem, found.solution)
