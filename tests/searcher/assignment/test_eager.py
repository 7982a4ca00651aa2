"""Orders of jobs that defer: forwards ahead, within memory, where they are faster."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from searcher.assignment.jobs import draw_vlm, vlm_assigner

import semu
from semu.schedule.passes import defer_backward
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.pipeline import Pipelines
from semu.simulation.schedules.studies_under_plans import activation_room, planned_study


def large_job(memory_bytes: int | None = None) -> semu.TrainingJob:
    """A job in which 1F1B's backwards of deferred samples come late."""
    settings = ["training.global_batch=32"]
    settings += [] if memory_bytes is None else [f"cluster.override.memory_bytes={memory_bytes}"]
    return semu.load_run("vlm-s", settings, cluster="h800:2x8", parallel="dp2-tp2-pp4")


def deferred_pipelines(job: semu.TrainingJob) -> tuple[semu.JobCheckpoint, semu.JobCheckpoint]:
    """Under the plain order with late backwards, and under the one that was chosen."""
    pipelines = Pipelines(job, Assigner(job, samples=draw_vlm(2000, 1)).costs(draw_vlm(2000, 1)), np.ones(2))
    chosen = pipelines.deferring(job.num_microbatches)
    plan = chosen.layout.recipe.plan
    assert plan is not None
    orders = defer_backward(pipelines.base(job.num_microbatches).schedule(), chosen.pipeline_shape, "plain")
    return chosen.decided(replace(plan, orders=orders)), chosen


def test_forwards_run_ahead_where_that_is_faster() -> None:
    plain, chosen = deferred_pipelines(large_job())
    assert chosen.schedule().name.endswith("eager")
    estimates = plain.estimate(), chosen.estimate()
    assert estimates[1].makespan_s < estimates[0].makespan_s
    assert max(estimates[1].peak_memory_bytes) > max(estimates[0].peak_memory_bytes)
    assert estimates[1].fits


def test_memory_sets_the_limit() -> None:
    """Where there is room for 1F1B's forwards alone, these run."""
    plain, chosen = deferred_pipelines(large_job())
    rest = chosen.estimate()
    between = (max(plain.estimate().peak_memory_bytes) + max(rest.peak_memory_bytes)) // 2
    limit = between + rest.other_memory_bytes + rest.memory_margin_bytes
    _, tight = deferred_pipelines(large_job(limit))
    assert not tight.schedule().name.endswith("eager") or tight.estimate().fits
    assert max(tight.estimate().peak_memory_bytes) < max(rest.peak_memory_bytes)
    assert tight.estimate().fits


def test_one_order_serves_all_iterations() -> None:
    assigner = vlm_assigner()
    found = [assigner(draw_vlm(90, seed), method="entrain-literal") for seed in (8, 9)]
    own = assigner.pipelines(assigner.costs(draw_vlm(90, 8)))
    for one in found:
        assert one.checkpoint.schedule().orders == own.deferring(one.num_microbatches).schedule().orders


def test_the_study_of_a_planned_job_is_the_job() -> None:
    """Stage by stage the simulated times, on the slowest replica of each; on one rank the makespan."""
    found = vlm_assigner(1, 4)(draw_vlm(30, 8), method="entrain-literal")
    checkpoint = found.checkpoint
    study, run = planned_study(checkpoint), checkpoint.timed().run
    result = study.evaluate(checkpoint.schedule())
    problem = run.problem
    for rank in range(problem.shape.num_ranks):
        nodes = problem.rank_nodes[rank]
        nodes = nodes[nodes < problem.num_stages]
        own = slice(result.ptr[rank], result.ptr[rank + 1])
        simulated = (run.end - run.start)[0, nodes]
        assert np.allclose(result.end_s[own] - result.start_s[own], simulated, rtol=1e-12)
    assert result.makespan_s <= run.makespan().max() * (1 + 1e-12)
    assert result.makespan_s == pytest.approx(run.makespan().max(), rel=5e-3)
    room = activation_room(checkpoint, study)
    estimate = checkpoint.estimate()
    assert (room > 0).all()
    assert (room < estimate.capacity_bytes).all()


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-auto"])
def test_schedules_that_split_backwards_do_not_defer(schedule: str) -> None:
    """By name it is refused; ``entrain`` goes without."""
    assigner = vlm_assigner(2, 8, schedule)
    assert not assigner(draw_vlm(90, 8), method="entrain").defers
    with pytest.raises(semu.ConfigError, match="under a plan"):
        assert assigner(draw_vlm(90, 8), method="entrain-literal").checkpoint
