"""Searches and planners that are given assigned samples: what is deferred stays so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from plan.compiled import check_compiled
from searcher.assignment.jobs import draw_vlm, vlm_assigner, vlm_job

import semu
from semu.baselines import megatron, megatron_1f1b
from semu.errors import ConfigError
from semu.plan.verification.rules import verify
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.deferring import deferring_plan
from semu.searcher.orders.space import OrderSpace
from semu.searcher.planner.planned_iteration import Outcome
from semu.searcher.planner.training_loop import IterationRow, train
from semu.searcher.problem.build import build_problem


@cache
def assigned(seed: int, method: str = "entrain-literal") -> Assignment:
    return vlm_assigner()(draw_vlm(90, seed), method=method)


def check_reads(plan: StagePlan, found: Assignment) -> None:
    """Readers take the images of the samples that the assignment has them read, counted from the samples alone."""
    images = np.diff(found.samples.items["vision"].ptr)
    reads, items, parts = plan.reads["vit"], plan.items["vit"], plan.parts["vit"]
    listed = sorted(pair for own in reads for pair in own)
    assert listed == [(i, part) for i, own in enumerate(items) for part in range(len(own[0]))]
    assert [len(own[0]) for own in items] == list(parts)
    for replica in range(found.dp):
        for microbatch in range(found.num_microbatches):
            assert sum(items[microbatch][replica]) == images[found.members(replica, microbatch)].sum()
            own, late = (
                sum(items[i][replica][part] for i, part in reads[microbatch] if (i < microbatch) == is_late)
                for is_late in (False, True)
            )
            read = found.readers(replica, microbatch)
            waited = found.dealt.is_deferred[read]
            assert (own, late) == (images[read[~waited]].sum(), images[read[waited]].sum())


@pytest.mark.slow
def test_a_search_keeps_what_is_deferred_and_its_plan_runs_under_rendezvous_sends() -> None:
    found = assigned(8)
    assert found.defers
    report = semu.search(vlm_job(), assigned=found, rollouts=8, workers=1, candidates=3)
    check_reads(report.plan, found)
    assert semu.simulate(report.job, plan=report.plan).iteration_time_s == report.report.iteration_time_s
    assert report.report.iteration_time_s < min(found.iteration_s, report.default.iteration_time_s + 1e-12)
    plan = semu.compile_plan(report)
    assert plan.reads == report.plan.reads
    check_compiled(plan, report.problem.simulated(report.plan))
    verify(plan)
    assert "samples that stay, then samples that wait" in " ".join(report.partition.lines())


@pytest.mark.slow
def test_without_deferral_it_is_the_search_of_the_assigned_job() -> None:
    found = assigned(10, "coupled")
    assert not found.defers
    own = semu.search(vlm_job(), assigned=found, rollouts=2, workers=1)
    other = semu.search(found.assigned_job, rollouts=2, workers=1)
    assert own.report.iteration_time_s == other.report.iteration_time_s
    assert own.plan.orders == other.plan.orders


def test_samples_of_another_job_are_refused() -> None:
    with pytest.raises(ConfigError, match="assigned to another job; expected 2 data-parallel"):
        semu.search(vlm_job(dp=1), assigned=assigned(8), rollouts=1)


@pytest.mark.slow
def test_a_planner_plans_iterations_that_defer_and_others() -> None:
    own = [assigned(8), assigned(10, "coupled")]
    rows: list[IterationRow] = []
    with semu.Planner(vlm_job(), iter(own), rollouts=4, workers=1) as planner:
        fallback = planner.batches.fallback(*_jobs(planner, own[0]))
        train(planner, 2, has_deadline=False, tell=rows.append)
    assert [row.error for row in rows] == [None] * 2
    for row, found in zip(rows, own, strict=True):
        assert row.outcome is Outcome.PLANNED
        assert row.planned_s is not None
        assert row.heuristic_s is not None
        assert row.planned_s <= row.heuristic_s < found.iteration_s
        assert row.megatron_s is not None  # which reads what it encodes
        assert row.megatron_s == semu.evaluate(_megatron(found)).iteration_time_s
    check_reads(fallback, own[0])
    job = own[0].given_to(vlm_job(), own[0].batch)
    assert semu.simulate(job, plan=fallback).iteration_time_s > 0


def _jobs(planner: semu.Planner, found: Assignment) -> tuple[semu.TrainingJob, Assignment]:
    return planner.batches.jobs_of(found.batch)[1], found


def _megatron(found: Assignment) -> semu.TrainingJob:
    """Interleaved where the number of microbatches allows it, as the loop has it."""
    make = megatron_1f1b if found.num_microbatches % 4 else megatron
    return make(found.given_to(vlm_job(), found.undeferred)).job


@pytest.mark.slow
def test_steps_say_which_samples_they_train() -> None:
    found = assigned(8)
    with semu.Planner(vlm_job(), iter([found]), rollouts=1, workers=1) as planner:
        step = planner.take(None)
        assert step is not None
        assert step.assigned is found
        check_reads(step.plan, found)
        assert planner.take(None) is None
    assert semu.simulate(step.job, plan=step.plan).iteration_time_s > 0


def test_microbatches_that_need_one_another_are_joint() -> None:
    """The least sets that no edge leaves, found by merging sets."""
    problem = build_problem(assigned(8).checkpoint).problem
    sets = [{number} for number in range(int(problem.microbatch.max()) + 1)]
    for before, after in zip(*problem.edges, strict=True):
        a, b = (next(s for s in sets if int(problem.microbatch[e // 2]) in s) for e in (before, after))
        if a is not b:
            sets.remove(b)
            a |= b
    assert len(sets) < len(np.unique(problem.microbatch))
    found = {frozenset(problem.microbatch[problem.joint == number].tolist()) for number in np.unique(problem.joint)}
    assert found == {frozenset(own) for own in sets}
    space = OrderSpace.of(problem)
    place = space.places(space.default)
    assert all(place[before] < place[item] for item, needs in enumerate(space.needs) for before in needs)
    plain = build_problem(assigned(10, "coupled").checkpoint).problem
    assert (plain.joint == plain.microbatch).all()


def _cases() -> Iterator[tuple[list[list[list[int]]], int]]:
    generator = np.random.default_rng(4)
    for _ in range(60):
        count = int(generator.integers(1, 6))
        parts = [2 if k % 2 == 0 and k + 1 < count else 1 for k in range(count)]
        yield [[generator.integers(0, 9, n).tolist() for _ in range(3)] for n in parts], int(generator.integers(1, 5))


def test_halves_are_cut_evenly_into_sub_microbatches() -> None:
    for rows, size in _cases():
        plan = deferring_plan({"vit": rows}, len(rows), {"vit": size})
        items, reads, parts = plan.items["vit"], plan.reads["vit"], plan.parts["vit"]
        for microbatch, own in enumerate(rows):
            late = [part for target in reads for i, part in target if i == microbatch and target != reads[microbatch]]
            for replica, halves in enumerate(own):
                mine = items[microbatch][replica]
                assert len(mine) == parts[microbatch]
                waits = [mine[part] for part in late]
                stays = [n for part, n in enumerate(mine) if part not in late]
                for total, cut in zip(halves, (stays, waits), strict=False):
                    busy = [n for n in cut if n]
                    assert sum(cut) == total
                    assert len(busy) == -(-total // size)
                    assert max(busy, default=0) - min(busy, default=0) <= 1
        whole = deferring_plan({"vit": rows}, len(rows))
        assert whole.items["vit"] == tuple(tuple(map(tuple, own)) for own in rows)
        assert replace(whole, orders=None) == whole
