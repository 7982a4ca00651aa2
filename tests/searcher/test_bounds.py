"""Lower bounds are below every optimum, and the better ones do not fall short of the simple ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.exact import optimum, whole
from searcher.instances import problem_of_study, vlm

from semu.schedule import SCHEDULES, PipelineShape, PipelineStudy
from semu.searcher import SearchProblem
from semu.searcher import bounds as bounding
from semu.searcher.bounds import lower_bounds
from semu.searcher.kernels import bounds as bound_kernels
from semu.searcher.orders.interleave import Interleaver

INSTANCES = st.builds(
    vlm,
    ranks=st.integers(1, 3),
    microbatches=st.integers(1, 2),
    seed=st.integers(0, 10**6),
    images=st.just((0, 2)),
    language_slots=st.integers(1, 2),
    candidates=st.integers(1, 3),
    transfer_s=st.sampled_from([(0.0, 0.0), (0.1, 0.5)]),
    frozen=st.booleans(),
    audio=st.booleans(),
    peaks=st.booleans(),
)


@pytest.mark.slow
@given(INSTANCES, st.one_of(st.none(), st.floats(1.0, 2.0)))
@settings(max_examples=20, deadline=None)
def test_no_bound_exceeds_the_optimum(problem: SearchProblem, size: float | None) -> None:
    problem = whole(problem)
    if size is not None:
        limit = (size * Interleaver(problem)._limits[1].max(axis=1)).astype(np.int64)
        problem = dataclasses.replace(problem, limit_bytes=limit)
    found = lower_bounds(problem)
    makespan = Interleaver(problem).run(np.arange(problem.num_groups)).makespan_s[0]
    assert found.value_s <= makespan
    least = optimum(problem, seconds=1.0)
    if least is not None:
        for name, value in found.by_name.items():
            assert value <= least + 1e-9, name
        assert least <= makespan
    assert found.by_name["refuted"] == found.value_s
    assert found.by_name["one machine"] >= found.by_name["critical path"]
    assert lower_bounds(problem, effort=0.0).value_s <= found.value_s


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_no_bound_exceeds_a_known_schedule(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, slots = int(rng.integers(1, 5)), 2 if name == "interleaved" else 1
    shape = PipelineShape.chain(ranks, 2 * ranks, slots)
    if name == "interleaved" and ranks == 1:
        return
    size = shape.num_chunks * shape.num_microbatches
    times = {what: rng.uniform(0.1, 2, size) for what in ("forward_s", "input_s", "weight_s")}
    study = PipelineStudy.of(shape, transfer_s=0.05, **times)
    found = lower_bounds(problem_of_study(study), effort=1e7)
    assert found.value_s <= study.evaluate(SCHEDULES[name](shape)).makespan_s
    assert found.value_s >= study.lower_bound_s(split=False) * (1 - 1e-12)


def test_equal_stages_by_hand() -> None:
    """Two ranks, F 1 s, B 2 s, two microbatches, no sends: the last rank works 6 s after 1 s, and 2 s come after it."""
    problem = problem_of_study(PipelineStudy.of(PipelineShape.chain(2, 2)))
    found = lower_bounds(problem)
    assert found.by_name == {"critical path": 6.0, "load": 9.0, "one machine": 9.0, "refuted": 9.0}
    assert found.name == "load"
    assert found.value_s == Interleaver(problem).solution([0, 1]).makespan_s == 9.0


def test_memory_by_hand() -> None:
    """Two ranks, F 1 s, B 2 s, four microbatches, room for one on rank 0: each is there for 6 s."""
    study = PipelineStudy.of(PipelineShape.chain(2, 4))
    free = lower_bounds(problem_of_study(study))
    tight = problem_of_study(study, limit_bytes=1)
    assert "memory" not in free.by_name
    assert lower_bounds(tight).by_name["memory"] == pytest.approx(24.0)
    assert Interleaver(tight).solution(range(4)).makespan_s == 24.0


def test_parts_on_one_rank_come_one_after_another() -> None:
    """The language model's first forward waits for all images of its microbatch, which share the vision ranks."""
    problem = whole(vlm(2, 1, images=(3, 3), language_slots=1, seed=5), 8.0)
    found = lower_bounds(problem, effort=0.0)
    assert found.by_name["one machine"] > max(found.by_name["critical path"], found.by_name["load"])
    assert found.value_s <= optimum(problem)


def test_nothing_takes_no_time() -> None:
    problem = vlm(2, 2, images=(0, 0), language_slots=0)
    assert problem.num_pairs == 0
    assert lower_bounds(problem).value_s == 0.0


# -- edge-finding --------------------------------------------------------------------------------------------------
def one_rank(rng: np.random.Generator, count: int) -> tuple[Any, Any, Any]:
    """Releases, due times and times of a rank's stages, in whole seconds: what just fits is frequent."""
    time = rng.integers(1, 5, count)
    release = rng.integers(0, 8, count)
    due = release + time + rng.integers(0, 2 * count, count)
    return release.astype(float), due.astype(float), time.astype(float)


def edge_finding_by_subsets(release: Any, due: Any, time: Any) -> list[float] | None:
    """The rule by its definition, over all subsets (Nuijten 1994): a stage that does not fit among a subset before the
    last due time of the subset runs after all of it. Releases; None: a subset alone does not fit."""
    stages = range(len(time))
    subsets = [list(own) for size in stages for own in combinations(stages, size + 1)]
    ends = {tuple(own): max(min(release[list(s)]) + sum(time[list(s)]) for s in parts(own)) for own in subsets}
    if any(ends[tuple(own)] > max(due[own]) for own in subsets):
        return None
    raised = release.tolist()
    for own in subsets:
        for stage in set(stages) - set(own):
            if min(release[[*own, stage]]) + sum(time[[*own, stage]]) > max(due[own]):
                raised[stage] = max(raised[stage], ends[tuple(own)])
    return raised


def parts(own: list[int]) -> list[tuple[int, ...]]:
    """All subsets of a set but the empty one."""
    return [part for size in range(len(own)) for part in combinations(own, size + 1)]


def test_edge_finding_is_the_rule_over_all_subsets() -> None:
    rng = np.random.default_rng(0)
    refuted = raised = 0
    for _ in range(300):
        release, due, time = one_rank(rng, int(rng.integers(2, 6)))
        expected = edge_finding_by_subsets(release, due, time)
        found, order = release.copy(), np.argsort(release, kind="stable")
        fits = bound_kernels._edge_find(order, found, due, time, np.zeros(len(time)), np.zeros(len(time)))
        assert fits == (expected is not None)
        if expected is not None:
            assert found.tolist() == expected
        refuted, raised = refuted + (not fits), raised + (fits and found.tolist() != release.tolist())
    assert refuted >= 50
    assert raised >= 50


STAGES = (np.zeros(8), np.zeros(8), np.array([0, 4, 8]), np.arange(8))
ROUND = 3 * 4.0 * (4**2 + 4**2)
"""Of two ranks of four stages each: what a trial without probing costs; with it twelve times as much."""


@pytest.mark.parametrize("most", [1.0, 1.0001, 1.3, 1.9999, 3.7])
@pytest.mark.parametrize("probed", [0.0, 0.25])
def test_refuting_halves_its_steps_down_to_a_two_thousandth(
    most: float, probed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest multiple of 2^-11 of the least makespan that is refuted; where much effort is left, twelve trials
    more with probing."""
    asked: list[int] = []

    def refute(makespan: float, *arguments: object) -> bool:
        probes = arguments[-1]
        assert isinstance(probes, int)
        asked.append(probes)
        return makespan < most + (probed if probes else 0.0)

    monkeypatch.setattr(bound_kernels, "refute", refute)
    reached = max(1.0 + (np.ceil((most - 1.0) * 2**11) - 1) / 2**11, 1.0)
    assert bounding._refuted((), STAGES, 1.0, ROUND * 12 * 50) == pytest.approx(reached, abs=2.0**-30)
    assert not any(asked)
    found = bounding._refuted((), STAGES, 1.0, ROUND * 12 * 200)
    assert max(reached, most + probed - 1 / 64) <= found + 2.0**-30 and found <= max(most + probed, 1.0)
    assert set(asked) == {0, 200}
    monkeypatch.setattr(bound_kernels, "refute", lambda *_: True)
    assert bounding._refuted((), STAGES, 1.0, 5 * ROUND) == 1.0 + 5 / 32
    assert bounding._refuted((), STAGES, 1.0, ROUND / 2) == 1.0
    assert bounding._refuted((), STAGES, 1.0, ROUND * 12 * 51) == 1.0 + (51 * 12 + 12) / 32


def test_the_optimum_of_one_rank_is_not_refuted() -> None:
    """All orders of a rank's stages, each with a way before and after it: the best one is not refuted, and whatever is
    refuted is below it."""
    rng = np.random.default_rng(1)
    nothing = np.zeros(0, dtype=np.int32)
    tight = 0
    for _ in range(100):
        count = int(rng.integers(2, 6))
        time, head, tail = (rng.integers(low, 8, count).astype(float) for low in (1, 0, 0))
        best = np.inf
        for order in permutations(range(count)):
            at, end = 0.0, 0.0
            for stage in order:
                at = max(at, head[stage]) + time[stage]
                end = max(end, at + tail[stage])
            best = min(best, end)
        stages = np.argsort(head, kind="stable")
        graph = (np.arange(count, dtype=np.int32), np.zeros(count + 1, dtype=np.int32), nothing, np.zeros(0), time)
        rank = (head, tail, np.array([0, count]), stages)
        assert not bound_kernels.refute(best, *graph, *rank, 50, 1000)
        tight += bound_kernels.refute(best - 1.0, *graph, *rank, 50, 1000)
    assert tight > 90


class Rules:
    """What ``refute`` concludes, rule by rule in its rounds: edge-finding over all subsets, precedences, probing."""

    def __init__(self, ways: dict[tuple[int, int], float], time: Any, ranks: list[list[int]]) -> None:
        self.ways, self.time, self.ranks = ways, time, ranks
        self.decided: list[tuple[int, int]] = []

    def raise_releases(self, release: Any, pairs: dict[tuple[int, int], float]) -> None:
        """Of the second of every pair, after the first and the way between them; stages in topological order."""
        for second in range(len(release)):
            for first in range(len(release)):
                if (first, second) in pairs:
                    release[second] = max(release[second], release[first] + self.time[first] + pairs[first, second])

    def lower_due_times(self, due: Any, pairs: dict[tuple[int, int], float]) -> None:
        for first in reversed(range(len(due))):
            for second in range(len(due)):
                if (first, second) in pairs:
                    due[first] = min(due[first], due[second] - self.time[second] - pairs[first, second])

    def contradict(self, release: Any, due: Any, decided: list[tuple[int, int]], rounds: int) -> bool:
        for _ in range(rounds):
            before = (release.tolist(), due.tolist())
            self.raise_releases(release, self.ways)
            self.lower_due_times(due, self.ways)
            for pair in decided:
                first, second = pair
                release[second] = max(release[second], release[first] + self.time[first])
                due[first] = min(due[first], due[second] - self.time[second])
            for own in self.ranks:
                if (release[own] + self.time[own] > due[own]).any():
                    return True
                raised = edge_finding_by_subsets(release[own], due[own], self.time[own])
                if raised is None:
                    return True
                release[own] = raised
                mirrored = edge_finding_by_subsets(-due[own], -release[own], self.time[own])
                if mirrored is None:
                    return True
                due[own] = [-value for value in mirrored]
            if before == (release.tolist(), due.tolist()):
                return False
        return False

    def refute(self, release: Any, due: Any, rounds: int) -> bool:
        decided: list[tuple[int, int]] = []
        if self.contradict(release, due, decided, rounds):
            return True
        news = True
        while news:
            news = False
            for own in self.ranks:
                for one, other in combinations(own, 2):
                    for first, second in ((one, other), (other, one)):
                        both = self.time[first] + self.time[second]
                        if release[first] + both > due[second] or release[second] + both > due[first]:
                            continue
                        if (second, first) in decided:
                            continue
                        if self.contradict(release.copy(), due.copy(), [*decided, (first, second)], 3):
                            decided.append((second, first))
                            news = True
                            if self.contradict(release, due, decided, rounds):
                                return True
        return False


def job_shops(number: int) -> Iterator[tuple[Rules, Any, Any, Any]]:
    """Rules, arguments of ``refute`` behind the makespan, heads, tails. Each job runs once per rank, in its order."""
    rng = np.random.default_rng(2)
    for _ in range(number):
        num_ranks, num_jobs = 3, int(rng.integers(3, 5))
        count = num_ranks * num_jobs
        time = rng.integers(1, 6, count).astype(float)
        rank = np.concatenate([rng.permutation(num_ranks) for _ in range(num_jobs)])
        ways = {(one, one + 1): float(rng.integers(0, 3)) for one in range(count - 1) if (one + 1) % num_ranks}
        ranks = [np.flatnonzero(rank == number).tolist() for number in range(num_ranks)]
        rules = Rules(ways, time, ranks)
        head, tail = rng.integers(0, 2, (2, count)).astype(float)
        due = -tail
        rules.raise_releases(head, ways)
        rules.lower_due_times(due, ways)
        after = sorted(ways, key=lambda pair: pair[1])
        graph = (
            np.arange(count, dtype=np.int32),
            np.searchsorted([second for _, second in after], np.arange(count + 1)).astype(np.int32),
            np.array([first for first, _ in after], dtype=np.int32),
            np.array([ways[pair] for pair in after]),
            time,
            head,
            -due,
            np.cumsum([0, *map(len, ranks)]),
            np.array([stage for own in ranks for stage in own], dtype=np.int64),
        )
        yield rules, graph, head, -due


@pytest.mark.slow
def test_refuting_is_edge_finding_precedences_and_probing() -> None:
    by_probing = by_rules = 0
    for rules, graph, head, tail in job_shops(40):
        least = float((head + rules.time + tail).max())
        for makespan in np.arange(least, least + 12.0):
            found = bound_kernels.refute(makespan, *graph, 50, 10_000)
            assert found == rules.refute(head.copy(), makespan - tail, 50), makespan
            plain = bound_kernels.refute(makespan, *graph, 50, 0)
            assert plain == rules.contradict(head.copy(), makespan - tail, [], 50), makespan
            by_rules, by_probing = by_rules + plain, by_probing + (found and not plain)
            if not found:
                break
    assert by_rules > 20
    assert by_probing > 2


def test_releases_and_due_times_of_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The propagation of ``refute``, uncompiled, with the order of one pair of stages of each rank decided."""
    monkeypatch.setattr(bound_kernels, "_sort", bound_kernels._sort.py_func)  # type: ignore[attr-defined]
    rng = np.random.default_rng(3)
    raised = 0
    for rules, graph, head, tail in job_shops(30):
        least = float((head + rules.time + tail).max())
        for makespan, rounds in product((least + 4.0, least + 10.0), (1, 2, 50)):
            decided = [tuple(rng.permutation(own)[:2].tolist()) for own in rules.ranks]
            expected, got = [(head.copy(), makespan - tail) for _ in range(2)]
            contradicts = bound_kernels._contradicts.py_func(  # type: ignore[attr-defined]
                *(*graph[:5], *graph[7:], *np.array(decided).T.copy(), len(decided), *got),
                *(np.stack((graph[8], graph[8])), np.zeros((4, len(head))), rounds),
            )
            assert contradicts == rules.contradict(*expected, decided, rounds)
            if not contradicts:
                assert [one.tolist() for one in got] == [one.tolist() for one in expected]
                raised += bool((got[0] > head).any())
    assert raised > 30


def test_a_refutation_keeps_eight_orders_a_stage_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 stages of a rank every order of two contradicts itself, so 190 would be decided; 160 are."""
    size, kept = 20, []

    def contradicts(*arguments: Any) -> bool:
        decided, rounds = arguments[9], arguments[-1]
        kept.append(decided)
        return bool(rounds == 3)  # of a trial

    monkeypatch.setattr(bound_kernels, "_contradicts", contradicts)
    monkeypatch.setattr(bound_kernels, "zeros", np.zeros)
    stages, nothing = np.arange(size), np.zeros(size)
    graph = (stages, np.zeros(size + 1, np.int64), np.zeros(0, np.int64), np.zeros(0), np.ones(size))
    rank = (nothing, nothing, np.array([0, size]), stages)
    assert not bound_kernels.refute.py_func(1000.0, *graph, *rank, 50, 10_000)
    assert max(kept) == 8 * size
    assert len(kept) == 1 + 2 * 8 * size
