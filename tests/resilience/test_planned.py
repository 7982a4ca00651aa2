"""Plans of pipelines that share a batch: verified, run by threads and processes, equal to the model in one piece."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resilience.test_together import a_job, a_set

import semu
from semu.cli.command import main
from semu.errors import ConfigError, PlanError, ScheduleError
from semu.plan.action import KINDS
from semu.plan.compile import compile_plan
from semu.plan.joined import join_plans
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.fault import Fault
from semu.plan.verification.rules import verify
from semu.resilience.templates.planned import compile_pipelines
from semu.resilience.templates.planner import Stage
from semu.resilience.templates.timed import pipeline_job
from semu.resilience.templates.together import simulate_pipelines

SETS = {
    "lm-7b": [([11, 11, 10], 1, 5), ([16, 16], 1, 3), ([16, 16], 1, 4)],
    "qwen2.5-0.5b": [([6, 6, 6, 6], 1, 7), ([24], 1, 2)],
    "qwen3-0.6b": [([20, 8], 1, 3), ([5, 23], 1, 1), ([9, 9, 10], 1, 4)],
}


def a_plan(name: str) -> ExecutionPlan:
    pipelines = SETS[name]
    job = a_job(sum(len(cut) for cut, _, _ in pipelines), name=name)
    return compile_pipelines(*a_set(job, sum(pipelines[0][0]), *pipelines))


@pytest.mark.parametrize("name", SETS)
def test_a_plan_of_unequal_pipelines(name: str) -> None:
    """Ranks and microbatches follow one another; weights are shares of samples; times are those of each alone."""
    plan, pipelines = a_plan(name), SETS[name]
    verify(plan)
    total = sum(m for _, _, m in pipelines)
    assert plan.num_replicas == 1 and plan.num_ranks == sum(len(cut) for cut, _, _ in pipelines)
    assert plan.weights == tuple(m / total for _, _, m in pipelines)
    assert [(chunk.flow, chunk.num_layers) for chunk in plan.chunks] == [
        (flow, layers) for flow, (cut, _, _) in enumerate(pipelines) for layers in cut
    ]
    assert plan.estimates is not None
    rank = 0
    for cut, _, m in pipelines:
        parallel = semu.Parallel(pp=len(cut), zero=0, layout=semu.PipelineLayout(layers=tuple(cut)))
        job = a_job(len(cut), name=name)
        training = replace(job.training, global_batch=m, schedule="1f1b")
        alone = compile_plan(
            replace(job, parallel=parallel if len(cut) > 1 else semu.Parallel(zero=0), training=training)
        )
        assert alone.estimates is not None
        for own, theirs in zip(alone.estimates.end_s, plan.estimates.end_s[rank:], strict=False):
            assert np.array_equal(own, theirs)
        rank += len(cut)
    layers = sum(pipelines[0][0])
    assert [one.layer for one in plan.reductions] == list(range(layers, -2, -1))
    for one in plan.reductions:
        for flow, chunk in enumerate(one.chunks):
            place = plan.chunks[chunk]
            assert place.flow == flow
            assert place.first_layer <= min(max(one.layer, 0), layers - 1) < place.first_layer + place.num_layers
    again = ExecutionPlan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json() and again.weights == plan.weights and again.reductions == plan.reductions


@pytest.mark.parametrize(("name", "divisor"), [("lm-7b", 8), ("qwen2.5-0.5b", 3), ("qwen3-0.6b", 100)])
def test_threads_compute_the_gradients_of_the_model_in_one_piece(name: str, divisor: int) -> None:
    pytest.importorskip("torch", reason="the executor needs torch")
    from semu.executor.demo import run_demo

    found = run_demo(a_plan(name), backend="fake", iterations=1, fewer_layers=divisor)
    assert found.worst_gradient < 1e-12 and found.gradients > 40
    assert found.loss == pytest.approx(found.reference_loss, rel=1e-12)


def test_wrong_weights_are_seen_in_the_gradients() -> None:
    """What the verifier refuses gives other gradients indeed."""
    pytest.importorskip("torch", reason="the executor needs torch")
    from semu.errors import ExecutorError
    from semu.executor.demo import run_demo

    plan = replace(a_plan("qwen3-0.6b"), weights=(1 / 3, 1 / 3, 1 / 3))
    with pytest.raises(ExecutorError, match="gradients are not those"):
        run_demo(plan, backend="fake", iterations=1, fewer_layers=100)


def test_equal_pipelines_have_the_gradients_of_replicas() -> None:
    """Joined by hand beside a plan of replicas on the same data, a replica's microbatch m as the m-th of a pipeline."""
    torch = pytest.importorskip("torch", reason="the executor needs torch")
    from semu.executor import FakeWorld, ModuleStages, run_plan, run_threads, split_model

    job = replace(a_job(4, name="qwen2.5-0.5b"), parallel=semu.Parallel(pp=2, dp=2, zero=0))
    job = replace(job, training=replace(job.training, global_batch=6))
    single = replace(job, cluster=replace(job.cluster, nodes=2), parallel=semu.Parallel(pp=2, zero=0))
    single = replace(single, training=replace(job.training, global_batch=3))
    replicas, one = compile_plan(job), compile_plan(single)

    def run(plan: ExecutionPlan, number: Callable[[int, int], int]) -> list[Any]:
        def work(mine: Any) -> Any:
            generator = torch.Generator().manual_seed(3)
            layers = [torch.nn.Linear(8, 8, dtype=torch.float64) for _ in range(24)]
            with torch.no_grad():
                for layer in layers:
                    layer.weight.copy_(torch.randn(8, 8, generator=generator, dtype=torch.float64) / 3)
                    layer.bias.fill_(0.1)
            modules = {
                "llm": ModuleStages(
                    load=lambda m, first, last: torch.full(
                        (last - first, 8), 1.0 + number(mine.replica, m), dtype=torch.float64
                    ),
                    loss=lambda output, m, first, last: (output**2).mean() / 3,
                    layers=layers,
                )
            }
            part = split_model(plan, modules, mine.rank)
            run_plan(plan, part, mine)
            return [parameter.grad for parameter in part.parameters()]

        found: list[Any] = run_threads(FakeWorld(plan.num_ranks, plan.num_replicas), work)
        return found

    a = run(replicas, lambda replica, m: 3 * replica + m)
    b = run(join_plans([one, one]), lambda _, m: m)
    for rank in (0, 1):
        for replica in (0, 1):
            for mine, theirs in zip(a[2 * rank + replica], b[2 * replica + rank], strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=0)


UNEQUAL = {
    "lm-7b": ([Stage(0, 18, 2), Stage(18, 25, 1), Stage(25, 32, 1)], {"overlaps": False}),
    "qwen2.5-0.5b": ([Stage(0, 5, 1), Stage(5, 10, 1), Stage(10, 24, 2)], {}),
}


@pytest.mark.parametrize("name", [pytest.param("lm-7b", marks=pytest.mark.slow), "qwen2.5-0.5b"])
def test_a_plan_of_stages_of_different_sizes(name: str) -> None:
    """Times as simulated; a stage holds what it holds in a pipeline whose stages all have its size; a message is what
    either end has of it; the model in one piece has the same gradients."""
    stages, options = UNEQUAL[name]
    layers, count = stages[-1].last, 4
    job = a_job(2, 4, name=name, **options)
    templates, pair = a_set(job, layers, ([layers // 2] * 2, 2, count), ([layers // 2] * 2, 2, count))
    odd = replace(pair.pipelines[0], stages=tuple(stages))
    pair = replace(pair, pipelines=(odd, pair.pipelines[1]))
    together = simulate_pipelines(templates, pair)
    plan = compile_pipelines(templates, pair, together=together)
    verify(plan)
    estimates = plan.estimates
    assert estimates is not None and estimates.memory is not None
    assert estimates.makespan_s == pytest.approx(max(one.report.makespan_s for one in together.pipelines), rel=1e-12)
    for rank, own in enumerate(together.pipelines[0].report.timeline.ranks):
        is_stage = np.array([kind.is_stage for kind in KINDS])[plan.actions[rank].kind]
        ends = sorted(piece.end_s for piece in own.stages)
        assert sorted(estimates.end_s[rank][is_stage].tolist()) == pytest.approx(ends, rel=1e-9)
    for one in plan.reductions:
        first = one.chunks[0]
        assert one.shards == (stages[plan.chunks[first].rank].gpus, 2)
    rank_of = np.array([chunk.rank for chunk in plan.chunks])[plan.pairs.chunk]
    sizes = {}
    for gpus in (1, 2):
        alike = replace(odd, stages=tuple(replace(stage, gpus=gpus) for stage in stages))
        place = replace(job.cluster, nodes=len(stages), gpus_per_node=gpus)
        sizes[gpus] = compile_plan(pipeline_job(job, templates.module_of, 1, alike.stages, count, place))
    for rank, stage in enumerate(stages):
        whole = sizes[stage.gpus].estimates
        assert whole is not None and whole.memory is not None
        assert estimates.memory.static_bytes[rank] == whole.memory.static_bytes[rank]
        mine = np.flatnonzero(rank_of == rank)
        assert np.array_equal(estimates.memory.held_bytes[mine], whole.memory.held_bytes[mine])
    assert estimates.memory.static_bytes[3] != estimates.memory.static_bytes[0]
    one_way = np.flatnonzero((plan.messages.source_rank == 0) & (plan.messages.target_rank == 1))
    largest = {int(own.messages.num_bytes.max()) for own in sizes.values()}
    assert set(plan.messages.num_bytes[0, one_way].tolist()) <= largest
    again = ExecutionPlan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json() and plan.problem is not None
    assert plan.problem["pipelines"][0]["stage_gpus"] == [stage.gpus for stage in stages]
    pytest.importorskip("torch", reason="the executor needs torch")
    from semu.executor.demo import run_demo

    found = run_demo(plan, backend="fake", iterations=1, fewer_layers=5)
    assert found.worst_gradient < 1e-12 and found.loss == pytest.approx(found.reference_loss, rel=1e-12)


def _broken(plan: ExecutionPlan, how: str) -> ExecutionPlan:
    reductions = list(plan.reductions)
    first = reductions[0]
    if how == "missing":
        reductions.pop(3)
    if how == "twice":
        reductions.append(first)
    if how == "a holder is missing":
        reductions[0] = replace(first, chunks=first.chunks[1:], shards=first.shards[1:])
    if how == "another rank":
        reductions[0] = replace(first, chunks=(0, *first.chunks[1:]))
    if how == "other shards":
        reductions[2] = replace(reductions[2], shards=(2, *reductions[2].shards[1:]))
    if how == "no layer":
        reductions[0] = replace(first, layer=99)
    weights = {"equal weights": (0.5, 0.5), "no weights": ()}.get(how, plan.weights)
    microbatch = plan.pairs.microbatch.copy()
    if how == "one microbatch twice":
        own = np.isin(plan.pairs.chunk, [n for n, chunk in enumerate(plan.chunks) if chunk.flow == 1])
        microbatch[own & (microbatch == 7)] = 0
    pairs = replace(plan.pairs, microbatch=microbatch)
    return replace(plan, reductions=tuple(reductions), weights=weights, pairs=pairs, estimates=None)


@pytest.mark.parametrize(
    ("how", "faults"),
    [
        ("missing", {Fault.REDUCTION}),
        ("twice", {Fault.REDUCTION}),
        ("a holder is missing", {Fault.REDUCTION}),
        ("another rank", {Fault.REDUCTION}),
        ("no layer", {Fault.REDUCTION}),
        ("other shards", {Fault.REDUCTION}),
        ("equal weights", {Fault.WEIGHTS}),
        ("no weights", {Fault.WEIGHTS}),
        ("one microbatch twice", {Fault.STAGE_MISSING, Fault.LAYERS}),
    ],
)
def test_every_corruption_is_refused(how: str, faults: set[Fault]) -> None:
    with pytest.raises(PlanError) as caught:
        verify(_broken(a_plan("qwen2.5-0.5b"), how))
    assert caught.value.fault in faults


def test_what_cannot_be_joined() -> None:
    plan = a_plan("qwen2.5-0.5b")
    with pytest.raises(ConfigError, match="copied layers"):
        join_plans([plan])
    small, large = (compile_plan(replace(a_job(2, name=name))) for name in ("qwen2.5-0.5b", "lm-7b"))
    with pytest.raises(ConfigError, match="another model"):
        join_plans([small, large])
    with pytest.raises(ScheduleError, match="a weight for every pipeline"):
        replace(plan, weights=(1.0,))


def test_a_trace_of_all_pipelines(tmp_path: Path) -> None:
    pipelines = SETS["lm-7b"]
    found = simulate_pipelines(*a_set(a_job(7), 32, *pipelines)).timeline()
    assert [rank.rank for rank in found.ranks] == list(range(7))
    runs = sorted({stage.microbatch for rank in found.ranks for stage in rank.stages})
    assert runs == list(range(12))
    ends = [max(piece.end_s for piece in rank.outer) for rank in found.ranks]
    assert max(ends) == found.iteration_time_s


WORDS = ("qwen2.5-0.5b", "--cluster", "h100:5x1", "--set", "parallel.zero=0", "--set", "training.global_batch=10")


def test_the_command_writes_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "plan.json", tmp_path / "out"
    words = ["templates", *WORDS, "--nodes", "5", "--plan", str(file), "--out", str(out), "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    plan = ExecutionPlan.read(file)
    verify(plan)
    assert document["verified"]["num_actions"] == plan.num_actions
    assert plan.estimates is not None
    assert plan.estimates.iteration_time_s == document["simulated"]["iteration_time_s"]
    trace = json.loads(gzip.decompress((out / "trace.json.gz").read_bytes()))
    named = {event["pid"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert named == set(range(plan.num_ranks + 1))
    assert main(["plan", "--show", str(file)]) == 0
    assert main(["templates", *WORDS, "--plan", str(file)]) == 2
    assert "--nodes N" in capsys.readouterr().err


@pytest.mark.multiprocess
def test_processes_compute_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="the executor needs torch")
    file = tmp_path / "plan.json"
    a_plan("qwen3-0.6b").write(file)
    assert main(["run", str(file), "--demo", "--fewer-layers", "100", "--iterations", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["worst_gradient"] < 1e-12
