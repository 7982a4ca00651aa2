"""The dual queue and the times of orders, against plain Python bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.instances import problem_of_study, vlm
from searcher.reference import heap_interleave, slow_evaluate, slow_interleave

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.schedule import SCHEDULES, PipelineShape, PipelineStudy
from semu.searcher import SearchProblem, Solution
from semu.searcher.orders.interleave import Interleaver, evaluate


def instances(**more: object) -> st.SearchStrategy[SearchProblem]:
    return st.builds(
        vlm,
        ranks=st.integers(1, 4),
        microbatches=st.integers(1, 4),
        seed=st.integers(0, 10**6),
        vision_slots=st.integers(1, 2),
        language_slots=st.integers(1, 2),
        transfer_s=st.sampled_from([(0.0, 0.0), (0.01, 0.3), (0.0, 3.0)]),
        frozen=st.booleans(),
        audio=st.booleans(),
        peaks=st.booleans(),
        **more,  # type: ignore[arg-type]
    )


def sequences(problem: SearchProblem, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.permutation(problem.num_groups), rng.permutation(problem.num_groups)


@given(instances(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_without_limits_the_kernel_is_the_heap_version_and_the_definition(problem: SearchProblem, seed: int) -> None:
    forward, backward = sequences(problem, seed)
    chosen, start = heap_interleave(problem, forward, backward)
    again, start_again = slow_interleave(problem, forward, backward)
    assert chosen == again
    assert np.array_equal(start, start_again, equal_nan=True)
    found = Interleaver(problem).solution(forward, backward)
    assert np.array_equal(found.start_s, start, equal_nan=True)
    assert found.order.tolist() == sorted(chosen, key=lambda s: (problem.stage_rank[s], chosen.index(s)))
    assert found.makespan_s == np.nanmax(found.end_s)


def compare(problem: SearchProblem, worker: Interleaver, found: Solution, chosen: list[int]) -> None:
    """Orders are those chosen; times of the kernel and of the solution are the earliest ones that they allow."""
    orders = [[stage for stage in chosen if problem.stage_rank[stage] == r] for r in range(problem.num_ranks)]
    assert [order.tolist() for order in found.orders()] == orders
    start, end, peaks = slow_evaluate(problem, orders, found.choice)
    exists = problem.exists
    for times in (found.start_s, worker._start[0]):
        assert times[exists].tolist() == np.array(start)[exists].tolist()
    assert found.makespan_s == worker._end[0][exists].max() == np.array(end)[exists].max()
    assert found.peak_bytes.tolist() == peaks


@given(instances(candidates=st.just(3)), st.integers(0, 1000), st.floats(0.2, 3.0))
@settings(max_examples=120, deadline=None)
def test_with_limits_the_kernel_is_the_definition(problem: SearchProblem, seed: int, size: float) -> None:
    """Also that it ends wherever every microbatch alone fits with all that it holds at once."""
    forward, backward = sequences(problem, seed)
    need = Interleaver(problem)._limits[1].max(axis=1, initial=0)
    arrays = problem.__getstate__() | {"limit_bytes": (size * need + 7).astype(np.int64), "static_bytes": need * 0 + 7}
    problem = SearchProblem(**arrays)  # type: ignore[arg-type]
    chosen, _ = slow_interleave(problem, forward, backward)
    total = np.count_nonzero(problem.exists)
    if size >= 1:
        assert len(chosen) == total
    worker = Interleaver(problem, choice=np.zeros(problem.num_pairs))
    if len(chosen) < total:
        found = worker.run(forward, backward)
        rank, missing = found.missing[0].tolist()
        assert found.makespan_s[0] == np.inf
        assert 0 <= rank < problem.num_ranks
        assert missing > 0
        with pytest.raises(MemoryLimitError, match=f"rank {rank}"):
            worker.solution(forward, backward)
        return
    found = worker.solution(forward, backward)
    compare(problem, worker, found, chosen)
    assert np.all(found.peak_bytes <= problem.limit_bytes)


@given(instances(candidates=st.integers(1, 4)), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_times_and_memory_of_an_order_are_those_of_the_fixed_point(problem: SearchProblem, seed: int) -> None:
    forward, backward = sequences(problem, seed)
    choice = np.random.default_rng(seed).integers(0, problem.num_candidates)
    order = Interleaver(problem).solution(forward, backward)
    found = evaluate(problem, order.order, choice)
    start, end, peaks = slow_evaluate(problem, [o.tolist() for o in order.orders()], choice)
    exists = problem.exists
    assert found.start_s[exists].tolist() == np.array(start)[exists].tolist()
    assert found.end_s[exists].tolist() == np.array(end)[exists].tolist()
    assert found.peak_bytes.tolist() == peaks


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("slots", [1, 2])
def test_times_and_memory_are_those_of_a_study(name: str, slots: int) -> None:
    """Sends are shorter than stages, so that links are never taken."""
    shape = PipelineShape.chain(4, 8, slots if name == "interleaved" else 1)
    rng = np.random.default_rng(1)
    size = shape.num_chunks * 8
    study = PipelineStudy.of(
        shape,
        forward_s=rng.uniform(1, 2, size),
        input_s=rng.uniform(1, 2, size),
        held_bytes=rng.integers(1, 9, size),
        internal_bytes=rng.integers(0, 20, (4, size)),
        transfer_s=0.3,
    )
    schedule = SCHEDULES[name](shape)
    truth = study.evaluate(schedule)
    problem = problem_of_study(study, static_bytes=5)
    stages = truth.stages // 4 * 2 + truth.stages % 4
    found = evaluate(problem, stages)
    assert found.start_s[stages].tolist() == truth.start_s.tolist()
    assert found.end_s[stages].tolist() == truth.end_s.tolist()
    assert found.makespan_s == truth.makespan_s
    assert found.peak_bytes.tolist() == (truth.peak_bytes + 5).tolist()


def test_one_rank_by_hand() -> None:
    """One rank, two microbatches, F takes 1 s and B 2 s: forward and backward take turns."""
    study = PipelineStudy.of(PipelineShape.chain(1, 3))
    found = Interleaver(problem_of_study(study)).solution([2, 0, 1])
    assert found.order.tolist() == [4, 5, 0, 1, 2, 3]
    assert found.makespan_s == 9.0
    assert found.peak_bytes.tolist() == [1]


def test_two_ranks_by_hand() -> None:
    """Rank 0 runs both forwards, then waits for the gradients; sends of 0.5 s."""
    study = PipelineStudy.of(PipelineShape.chain(2, 2), transfer_s=0.5)
    found = Interleaver(problem_of_study(study)).solution([0, 1])
    # pairs 0, 1 on rank 0; 2, 3 on rank 1
    assert [o.tolist() for o in found.orders()] == [[0, 2, 1, 3], [4, 5, 6, 7]]
    assert found.start_s[[4, 5, 6, 7, 1, 3]].tolist() == [1.5, 2.5, 4.5, 5.5, 5.0, 8.0]
    assert found.makespan_s == 10.0


def test_sends_between_two_ranks_go_one_after_another() -> None:
    """Two forwards of 1 s whose sends take 3 s: the second arrives at 1 + 3 + 3."""
    study = PipelineStudy.of(PipelineShape.chain(2, 2), transfer_s=3.0)
    found = Interleaver(problem_of_study(study)).solution([0, 1])
    assert found.start_s[[4, 6]].tolist() == [4.0, 7.0]


def test_a_limit_delays_forwards() -> None:
    """Two ranks, a byte per forward; with room for one, rank 0 waits for its backward before the next forward."""
    study = PipelineStudy.of(PipelineShape.chain(2, 2))
    free = Interleaver(problem_of_study(study)).solution([0, 1])
    tight = Interleaver(problem_of_study(study, limit_bytes=1)).solution([0, 1])
    assert free.peak_bytes.tolist() == [2, 1]
    assert tight.peak_bytes.tolist() == [1, 1]
    assert tight.makespan_s == 12.0
    with pytest.raises(MemoryLimitError, match=r"rank 0.*3 B are missing"):
        Interleaver(problem_of_study(study, limit_bytes=1, static_bytes=[3, 0])).solution([0, 1])


def test_what_cannot_be_is_refused() -> None:
    problem = vlm(2, 2)
    worker = Interleaver(problem)
    for bad in ([0], [0] * problem.num_groups):
        with pytest.raises(ConfigError):
            worker.run(bad)
    order = worker.solution(np.arange(problem.num_groups)).order
    with pytest.raises(ScheduleError, match="not every stage once"):
        evaluate(problem, order[:-1])
    with pytest.raises(ScheduleError, match="another rank"):
        evaluate(problem, np.roll(order, 1))
    with pytest.raises(ScheduleError, match="deadlocks"):
        evaluate(problem, np.concatenate([half[::-1] for half in np.split(order, problem.rank_ptr[1:-1])]))
    with pytest.raises(ConfigError, match="no such candidate"):
        evaluate(problem, order, np.ones(problem.num_pairs))


def test_many_sequences_in_one_call_are_those_one_by_one() -> None:
    problem = vlm(3, 4, candidates=4, peaks=True, limit_bytes=900)
    worker, rng = Interleaver(problem), np.random.default_rng(0)
    rows = np.array([rng.permutation(problem.num_groups) for _ in range(9)])
    together = worker.run(rows, rows[::-1])
    for row, other, makespan, lean in zip(rows, rows[::-1], together.makespan_s, together.lean_s, strict=True):
        alone = worker.run(row, other)
        assert (alone.makespan_s[0], alone.lean_s[0]) == (makespan, lean)


@pytest.mark.parametrize("seed", [289, 556])
def test_a_forward_may_go_once_its_microbatch_has_a_turn(seed: int) -> None:
    """On a rank it waits behind one of another microbatch that does not fit; then its microbatch begins elsewhere."""
    rng = np.random.default_rng(seed)
    problem = vlm(
        int(rng.integers(2, 5)),
        int(rng.integers(2, 5)),
        seed=seed,
        audio=True,
        language_slots=int(rng.integers(1, 3)),
        transfer_s=(0.0, 0.3) if rng.random() < 0.5 else (0.0, 0.0),
        peaks=bool(rng.integers(2)),
    )
    need = Interleaver(problem)._limits[1].max(axis=1)
    arrays = problem.__getstate__() | {"limit_bytes": (need * rng.uniform(1, 2)).astype(np.int64)}
    problem = SearchProblem(**arrays)  # type: ignore[arg-type]
    forward, backward = rng.permutation(problem.num_groups), rng.permutation(problem.num_groups)
    chosen, _ = slow_interleave(problem, forward, backward)
    worker = Interleaver(problem, choice=np.zeros(problem.num_pairs))
    compare(problem, worker, worker.solution(forward, backward), chosen)


@pytest.mark.parametrize("seed", range(3))
def test_a_forward_runs_where_its_backward_can_follow_at_once(seed: int) -> None:
    """The last rank has no room for a vision backward beside a language pair. It runs a second language pair all the
    same before the first microbatch's vision backward, as that pair is over at once."""
    free = vlm(2, 3, seed=seed, images=(1, 1), language_slots=1)
    language = (free.module == 1)[:, None]
    held, back = np.where(language, 30, 0), np.where(language, 0, 50)
    costs = {"held_bytes": held, "forward_peak_bytes": held, "backward_peak_bytes": back}
    problem = dataclasses.replace(free, **costs, limit_bytes=np.array([1000, 65]))
    forward = np.arange(problem.num_groups)
    chosen, _ = slow_interleave(problem, forward, forward)
    worker = Interleaver(problem, choice=np.zeros(problem.num_pairs))
    found = worker.solution(forward, forward)
    compare(problem, worker, found, chosen)
    assert found.peak_bytes[1] <= 65
    assert any(_overtakes(problem, found.orders()[1].tolist()))


def _overtakes(problem: SearchProblem, order: list[int]) -> Iterator[bool]:
    """Whether a language pair runs as a whole before a vision backward of an earlier microbatch."""
    for at, stage in enumerate(order[:-1]):
        is_pair = problem.module[stage // 2] == 1 and stage % 2 == 0 and order[at + 1] == stage + 1
        later = [s // 2 for s in order[at + 2 :] if s % 2 and problem.module[s // 2] == 0]
        yield is_pair and any(problem.microbatch[i] < problem.microbatch[stage // 2] for i in later)
