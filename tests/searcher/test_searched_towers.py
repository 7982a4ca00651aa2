"""``search`` on towers that run their loss together: orders in which ranks meet, and nothing that ships is faster."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from schedule.gang_shapes import reference_times

import semu
import semu_models
from semu.cli import main
from semu.errors import ConfigError, ScheduleError
from semu.graph.operator import Phase
from semu.plan.compile import compile_plan
from semu.plan.verification.rules import verify
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.simulation import prepare
from semu.workload import pair_batch


def job(microbatches: int = 8, schedule: str = "1f1b", **sizes: Any) -> semu.TrainingJob:
    parallel = semu.Parallel(**{"dp": 1, "pp": 3, "segments": "apart", "loss": "towers", **sizes})
    training = semu.Training(global_batch=4 * microbatches * parallel.dp, micro_batch=4, schedule=schedule)
    cluster = semu.Cluster("h100", 1, parallel.num_gpus)
    return semu.TrainingJob(semu_models.clip_vit_b_32(), cluster, parallel, training, pair_batch(patches_per_image=49))


def every_order(shape: PipelineShape, rank: int) -> Iterator[list[StageKey]]:
    """All orders of a rank that holds a tower and its loss: two microbatches, each in the order of its stages."""
    tower, head = (chunk for chunk, place in enumerate(shape.chunk_rank) if place == rank)
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    flow = [(tower, forward), (head, forward), (head, backward), (tower, backward)]
    for first in itertools.combinations(range(8), 4):
        left = [[StageKey(chunk, phase, m) for chunk, phase in flow] for m in range(2)]
        yield [left[0 if place in first else 1].pop(0) for place in range(8)]


@pytest.mark.slow
def test_the_order_is_the_shortest_of_all() -> None:
    """Two ranks, two microbatches: 4,900 orders, each timed by the slow reference."""
    own = job(2, pp=2)
    found = semu.search(own, rollouts=64)
    checkpoint = prepare(own)
    run = checkpoint.timed().run
    problem, latency = run.problem, run.plain[0]
    seconds = dict(zip(problem.stages, latency[: problem.num_stages].tolist(), strict=True))
    assert not problem.transfers
    lengths = []
    for orders in itertools.product(*(list(every_order(problem.shape, rank)) for rank in range(2))):
        schedule = Schedule.build("one", orders)
        try:
            schedule.validate(problem.shape)
        except ScheduleError:
            continue
        times = reference_times(schedule, problem.shape, lambda stage: seconds[stage])
        lengths.append(max(end for _, end in times.values()))
    assert len(lengths) > 100
    assert found.solution.makespan_s == pytest.approx(min(lengths), rel=1e-9)
    assert max(stage.end_s for rank in found.report.timeline.ranks for stage in rank.stages) == pytest.approx(
        min(lengths), rel=1e-9
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({}, id="towers of one and two ranks"),
        pytest.param({"pp": 4, "dp": 2}, id="two replicas"),
        pytest.param({"pp": 2, "tp": 2, "microbatches": 5}, id="tensor parallel"),
        pytest.param({"pp": 4, "vpp": 2}, id="virtual stages"),
        pytest.param({"loss": "towers-async"}, id="features that are sent"),
        pytest.param({"loss": "towers-async", "pp": 4, "dp": 2}, id="features that are sent, two replicas"),
        pytest.param({"loss": "head", "segments": "mixed"}, id="the loss on one rank"),
        pytest.param({"pp": 1, "loss": "head", "segments": "mixed"}, id="no pipeline"),
    ],
)
def test_no_named_schedule_is_faster(sizes: dict[str, Any]) -> None:
    own = job(**sizes)
    found = semu.search(own, rollouts=32)
    assert found.job.parallel == own.parallel
    members = [chunk.gang for chunk in compile_plan(found.job, found.plan).chunks].count(0)
    assert members == (2 if own.parallel.gathers_towers else 0)
    timed = []
    for name, family in ALL_SCHEDULES.items():
        if not family.splits_backward:
            try:
                timed.append(semu.evaluate(job(schedule=name, **sizes)).iteration_time_s)
            except (ConfigError, ScheduleError):
                continue
    assert len(timed) >= 3
    assert found.report.iteration_time_s <= min(timed)
    assert found.solution.makespan_s >= found.solution.lower_bound_s
    verify(compile_plan(found.job, found.plan))


@pytest.mark.parametrize("loss", ["towers", "towers-async"])
def test_the_bound_is_not_above_what_runs(loss: str) -> None:
    """Two ranks, one microbatch: what is simulated in the end is the search's length, and the bound is no longer."""
    found = semu.search(job(1, pp=2, loss=loss), rollouts=8)
    taken = max(stage.end_s for rank in found.report.timeline.ranks for stage in rank.stages)
    assert found.solution.makespan_s == pytest.approx(taken, rel=1e-9)
    assert found.solution.lower_bound_s <= taken * (1 + 1e-9)


def test_too_little_memory_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "clip-vit-b-32", "--cluster", "h100:1x2", "--parallel", "pp2", "--rollouts", "4"]
    words += ["--set", "parallel.segments=apart", "--set", "parallel.loss=towers", "--memory-limit", "0.2GiB"]
    assert main(words) == 3
    assert "missing" in capsys.readouterr().err


@pytest.mark.slow
def test_virtual_stages_apart_are_searched() -> None:
    """1F1B does not order them; the search begins with what does, and is not slower than that."""
    own = semu.load_run("vlm-s", ["parallel.segments=apart", "parallel.vpp=2", "training.schedule=greedy"])
    found = semu.search(own, rollouts=8)
    assert found.job.parallel == own.parallel
    assert found.report.iteration_time_s <= semu.evaluate(own).iteration_time_s


def test_the_searched_order_meets_as_the_slow_reference() -> None:
    found = semu.search(job(), rollouts=32)
    assert found.plan.orders is not None
    checkpoint = prepare(found.job, plan=found.plan)
    run = checkpoint.timed().run
    problem, latency = run.problem, run.plain[0]
    seconds = dict(zip(problem.stages, latency[: problem.num_stages].tolist(), strict=True))
    delays = {
        (move.stage.chunk, move.consumer.chunk, move.stage.phase is Phase.FORWARD): lasts
        for move, lasts in zip(problem.transfers, latency[problem.num_stages :].tolist(), strict=True)
    }
    expected = reference_times(
        found.plan.orders,
        problem.shape,
        lambda stage: seconds[stage],
        lambda source, reader, is_forward, _: delays.get((source, reader, is_forward), 0.0),
    )
    starts = dict(zip(problem.stages, run.start[0].tolist(), strict=False))
    assert all(starts[stage] == pytest.approx(times[0], abs=1e-12) for stage, times in expected.items())


def test_what_would_cut_the_towers_anew_is_refused() -> None:
    with pytest.raises(ConfigError, match="keeps the chunks"):
        semu.search(job(), segments={"vision": 2})
    with pytest.raises(ConfigError, match="one batch after another"):
        semu.Planner(job())


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Searched, written, and simulated again from the file: the same time."""
    shown = ["clip-vit-b-32", "--cluster", "h100:1x2", "--parallel", "pp2"]
    shown += ["--set", "parallel.segments=apart", "--set", "parallel.loss=towers", "--set", "training.global_batch=8"]
    assert main(["search", *shown, "--explore", "--rollouts", "16", "--json", "--out", str(tmp_path)]) == 0
    searched = json.loads(capsys.readouterr().out)
    assert main(["simulate", *shown, "--set", f"training.schedule_file={tmp_path / 'schedule.json'}", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["iteration_time_s"] == searched["iteration_time_s"]
