"""Moves of stages and candidates: what chains return is legal, fits, is what they say, and beats the least sum."""

from __future__ import annotations

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.instances import vlm
from searcher.reference import slow_evaluate, slow_hold_at_once

from semu.errors import ScheduleError
from semu.searcher import SearchProblem, Solution
from semu.searcher.bounds import lower_bounds
from semu.searcher.memory import choose_candidates
from semu.searcher.orders.interleave import Interleaver, evaluate
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.orders.refine import Chains, compile_chains, has_trades, refine_rounds
from semu.searcher.problem.tables import tables_of


def tight(size: float, **more: object) -> SearchProblem:
    """With memory of so many times what a microbatch holds at most with the leanest candidates."""
    problem = vlm(**more)  # type: ignore[arg-type]
    limit = (size * Interleaver(problem)._limits[1].max(axis=1, initial=0)).astype(np.int64) + 7
    return dataclasses.replace(problem, limit_bytes=limit, static_bytes=np.full_like(limit, 7))


INSTANCES = st.builds(
    tight,
    size=st.floats(1.0, 3.0),
    ranks=st.integers(1, 4),
    microbatches=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    candidates=st.integers(1, 5),
    language_slots=st.integers(1, 2),
    transfer_s=st.sampled_from([(0.0, 0.0), (0.05, 0.3)]),
    audio=st.booleans(),
    frozen=st.booleans(),
    peaks=st.booleans(),
)


def begun(problem: SearchProblem) -> Solution:
    """The heuristic's schedule, which fits."""
    return Interleaver(problem).solution(np.arange(problem.num_groups))


def check(problem: SearchProblem, order: np.ndarray, choice: np.ndarray) -> float:
    """Legal, within memory, by the slow definition; returns the makespan."""
    found = evaluate(problem, order, choice)
    start, end, peaks = slow_evaluate(problem, [own.tolist() for own in found.orders()], choice)
    exists = problem.exists
    assert found.start_s[exists].tolist() == np.array(start)[exists].tolist()
    assert found.makespan_s == np.array(end)[exists].max()
    assert found.peak_bytes.tolist() == peaks
    assert np.all(np.array(peaks) <= problem.limit_bytes)
    return found.makespan_s


@given(INSTANCES, st.integers(1, 10**9), st.sampled_from([0.001, 0.3, 5.0]))
@settings(max_examples=40, deadline=None)
def test_annealing_returns_what_it_says_and_fits(problem: SearchProblem, seed: int, warmth: float) -> None:
    own, chains = begun(problem), Chains(problem)
    order, choice = own.order.copy(), own.choice.copy()
    found, last_order, last_choice = chains.anneal(order, choice, 300, (warmth, 0.1 * warmth), seed)
    assert found == check(problem, order, choice) <= own.makespan_s
    assert found >= lower_bounds(problem, effort=0.0).value_s
    assert check(problem, last_order, last_choice) >= found
    again, choice_again = own.order.copy(), own.choice.copy()
    assert chains.anneal(again, choice_again, 300, (warmth, 0.1 * warmth), seed)[0] == found
    assert np.array_equal(again, order)
    assert np.array_equal(choice_again, choice)


@given(INSTANCES, st.integers(1, 10**9))
@settings(max_examples=15, deadline=None)
def test_tabu_search_returns_what_it_says_and_fits(problem: SearchProblem, seed: int) -> None:
    own = begun(problem)
    order = own.order.copy()
    found = Chains(problem).tabu(order, own.choice, 60, (20, 3), seed)
    assert found == check(problem, order, own.choice) <= own.makespan_s


def brute_force(problem: SearchProblem) -> float:
    """The least makespan over all orders and all candidates that fit."""
    own = [np.flatnonzero(problem.exists & (problem.stage_rank == rank)).tolist() for rank in range(problem.num_ranks)]
    best = np.inf
    for orders in itertools.product(*(itertools.permutations(stages) for stages in own)):
        order = [stage for part in orders for stage in part]
        for choice in itertools.product(*(range(count) for count in problem.num_candidates.tolist())):
            try:
                found = evaluate(problem, order, choice)
            except ScheduleError:  # the order deadlocks
                break
            if np.all(found.peak_bytes <= problem.limit_bytes):
                best = min(best, found.makespan_s)
    return best


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_the_search_finds_the_optimum_of_tiny_instances(seed: int) -> None:
    problem = tight(1.3, ranks=2, microbatches=2, seed=seed, images=(0, 0), language_slots=1, candidates=3)
    found = search_levels(problem, Budget(rollouts=400, workers=2))
    assert found.solution.makespan_s == pytest.approx(brute_force(problem), rel=1e-12)


def test_the_shortest_schedule_is_not_the_least_sum() -> None:
    """Two ranks, A on both, then B on rank 0 alone: of A and B, which overlap there, only one may be fast. B saves more
    by itself, but only A's backward is waited for."""
    one = {"has_backward": True, "module": 0, "part": 0, "slot": 0, "num_candidates": 2}
    pairs = [(0, 0, 0, [4, 1], [0, 10]), (1, 0, 1, [9, 9], [0, 0]), (0, 1, 0, [5, 1], [0, 10])]
    rank, microbatch, chunk, back, held = (list(column) for column in zip(*pairs, strict=True))
    problem = SearchProblem.of(
        rank=rank,
        microbatch=microbatch,
        chunk=chunk,
        group=microbatch,
        segment=[0, 0, 1],
        forward_s=np.ones((3, 2)),
        backward_s=back,
        held_bytes=held,
        forward_peak_bytes=held,
        backward_peak_bytes=np.zeros((3, 2)),
        pred_ptr=[0, 0, 2, 3, 4, 4, 5],
        pred=[0, 3, 0, 2, 4],
        transfer_s=np.zeros(5),
        static_bytes=[0, 0],
        limit_bytes=[15, 15],
        **{name: [value] * 3 for name, value in one.items()},
    )
    order = [0, 4, 5, 1, 2, 3]
    least = choose_candidates(problem, order).choice
    assert least.tolist()[::2] == [0, 1]
    assert evaluate(problem, order, least).makespan_s == 15.0
    own = evaluate(problem, order, least)
    orders, choice = own.order.copy(), own.choice.copy()
    assert Chains(problem).anneal(orders, choice, 50, (1e-9, 1e-9), 1)[0] == 12.0
    assert choice.tolist()[::2] == [1, 0]
    assert search_levels(problem, Budget(rollouts=200)).solution.makespan_s == 12.0


def test_what_a_microbatch_holds_at_once() -> None:
    """As its definition, and no order that its edges allow holds more."""
    for seed in range(6):
        problem = vlm(3, 2, seed=seed, candidates=2, audio=seed % 2 == 0, frozen=seed % 3 == 0, peaks=True)
        problem = dataclasses.replace(problem, limit_bytes=np.full(problem.num_ranks, 1))
        _, need, most, _ = tables_of(problem).limits()
        slow = slow_hold_at_once(problem)
        _, held, peak = problem.costs_of()
        rng = np.random.default_rng(seed)
        for (rank, microbatch), value in slow.items():
            assert most[rank, microbatch] == value <= need[rank, microbatch]
        assert np.any(most < need)
        for _ in range(20):
            keys = rng.random(problem.num_stages)
            waiting = np.diff(problem.pred_ptr).copy()
            open_now = [s for s in np.flatnonzero(problem.exists).tolist() if not waiting[s]]
            level = np.zeros_like(most)
            while open_now:
                stage = min(open_now, key=lambda s: keys[s])
                open_now.remove(stage)
                at = int(problem.stage_rank[stage]), int(problem.microbatch[stage // 2])
                assert level[at] + peak[stage] <= most[at]
                level[at] += -held[stage // 2] if stage % 2 else held[stage // 2]
                for after in problem.edges[1][problem.edges[0] == stage].tolist():
                    waiting[after] -= 1
                    if not waiting[after]:
                        open_now.append(after)


@pytest.mark.parametrize("size", [1.2, 50.0])
def test_rounds_are_the_same_again_and_only_improve(size: float) -> None:
    problem = tight(size, ranks=3, microbatches=4, seed=3, candidates=4, transfer_s=(0.01, 0.1), peaks=True)
    own = begun(problem)
    assert has_trades(problem) == (size < 10)
    compile_chains(problem, own)
    lean = evaluate(problem, own.order)
    results = []
    for _ in range(2):
        left = iter([*[10_000] * 6, 700, 0])
        with ThreadPoolExecutor(2) as pool:
            rounds = list(
                refine_rounds(
                    problem, [own, lean], workers=2, seed=5, pool=pool, moves_left=lambda left=left: next(left)
                )
            )
        values = [one.best.makespan_s for one in rounds]
        assert values == sorted(values, reverse=True)
        assert len(rounds) == 7
        assert rounds[-1].moves - rounds[-2].moves == 700
        assert check(problem, rounds[-1].best.order, rounds[-1].best.choice) == values[-1] < own.makespan_s
        results.append((rounds[-1].best.order.tobytes(), rounds[-1].best.choice.tobytes()))
    assert results[0] == results[1]


@pytest.mark.parametrize("size", [1.2, 50.0])
def test_a_chain_that_began_elsewhere_may_find_the_best(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if chains found nothing from the best schedule, and a better one from any other."""
    problem = tight(size, ranks=3, microbatches=4, seed=3, candidates=4, transfer_s=(0.01, 0.1))
    best, *others = sorted(
        (Interleaver(problem).solution(np.roll(np.arange(problem.num_groups), by)) for by in range(4)),
        key=lambda one: one.makespan_s,
    )
    assert best.makespan_s < others[0].makespan_s

    def moved(order: np.ndarray, choice: np.ndarray) -> float:
        if np.array_equal(order, others[0].order):
            return others[0].makespan_s
        order[:], choice[:] = best.order, best.choice
        return best.makespan_s

    monkeypatch.setattr(Chains, "tabu", lambda self, order, choice, *_: moved(order, choice))
    monkeypatch.setattr(Chains, "anneal", lambda self, order, choice, *_: (moved(order, choice), order, choice))
    with ThreadPoolExecutor(1) as pool:
        rounds = refine_rounds(problem, others, workers=2, seed=7, pool=pool, moves_left=lambda: 1 << 30)
        assert next(rounds).best.makespan_s == best.makespan_s
