"""Baselines on small jobs: schedules by hand, the slow reference, all plans tried; and their refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import ListedBatch, gpt, job_of, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand
from simulation.reference.split import orders_of
from simulation.rooms import capacity_for

import semu
from semu.baselines import BASELINES, Baseline, find_baseline, fsdp, greedy, megatron, megatron_1f1b, nnscaler, optimus
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.stage_layers import layer_parts
from semu.runfile import load_run
from semu.schedule.rules.around import encoder_chunks
from semu.workload import vlm_batch
from semu.workload.batch import Microbatch

NOT_SCHEDULED = {("t2v", "optimus"), *((kind, name) for kind in ("vlm", "t2v") for name in ("t-1f1b", "distmm"))}
"""Refused, see below."""


def job(kind: str, count: int = 4, override: dict[str, object] | None = None, **sizes: Any) -> TrainingJob:
    model, items = (vlm(), vlm_items(count, empty=[1])) if kind == "vlm" else (t2v(), t2v_items(count))
    options = {"schedule": sizes.pop("schedule", "1f1b"), "recompute": sizes.pop("recompute", "none")}
    return job_of(model, items, Parallel(**{"pp": 2, **sizes}), override=override, **options)


def text_of(found: Baseline) -> list[str]:
    return found.schedule.to_text().splitlines()


def test_optimus_by_hand() -> None:
    """p = m = 2; chunks 0 and 1 are the encoder's, then the backbone's, rank by rank."""
    one = optimus(job("vlm", 2), backbone_segments=1)
    assert text_of(one) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]
    assert one.changes == {
        "parallel.vpp": 2,
        "parallel.segments": "separated",
        "parallel.shares": {"vit": 1, "llm": 1},
        "training.schedule": "optimus",
    }
    two = optimus(job("vlm", 2))
    assert text_of(two) == [
        "0F0 0F1 2F0 2F1 4F0 4F1 4B0 4B1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3F1 5F0 5B0 5F1 5B1 3B0 3B1 1B0 1B1",
    ]
    assert optimus(job("vlm", 3)).job.parallel.shares == {"vit": 1, "llm": 1}  # 2 ranks do not divide 3 microbatches
    assert encoder_chunks(two.checkpoint.pipeline_shape) == {0, 1}


def test_optimus_with_a_frozen_encoder_has_nothing_to_do_behind_the_backbone() -> None:
    frozen = job_of(vlm(frozen=["vit"]), vlm_items(2), Parallel(pp=2))
    assert text_of(optimus(frozen, backbone_segments=1)) == [
        "0F0 0F1 2F0 2F1 2B0 2B1",
        "1F0 1F1 3F0 3B0 3F1 3B1",
    ]


def test_optimus_holds_the_encoders_activations_of_all_microbatches() -> None:
    few, many = (optimus(job("vlm", count)).simulate() for count in (4, 12))
    plain = [semu.simulate(replace(optimus(job("vlm", count)).job, training=other)) for count, other in _interleaved()]
    grown = max(many.peak_memory_bytes) - max(few.peak_memory_bytes)
    assert grown > max(plain[1].peak_memory_bytes) - max(plain[0].peak_memory_bytes)


def _interleaved() -> list[tuple[int, Any]]:
    return [(count, replace(job("vlm", count).training, schedule="interleaved")) for count in (4, 12)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("vlm", "t2v") for name in BASELINES if (kind, name) not in NOT_SCHEDULED],
)
def test_against_the_slow_reference(kind: str, name: str) -> None:
    found = find_baseline(name)(job(kind))
    report = semu.simulate(found.job)
    assert report.iteration_time_s == found.evaluate().iteration_time_s == found.simulate().iteration_time_s
    assert_equal(report, expand(found.job, orders=orders_of(found.schedule)))
    assert found.name == name
    assert found.source


def options(made: TrainingJob) -> tuple[Any, Any]:
    return made.parallel, made.training


@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_megatron_is_the_usual_cut(kind: str) -> None:
    start = job(kind, partition="latency", schedule="greedy")
    assert options(megatron_1f1b(start).job) == options(job(kind))
    assert options(megatron(start).job) == options(job(kind, vpp=2, schedule="interleaved"))
    assert megatron(start).changes == {
        "parallel.vpp": 2,
        "parallel.partition": "parameters",
        "training.schedule": "interleaved",
    }
    assert megatron(start, vpp=3).job.parallel.vpp == 3
    assert megatron(job(kind, vpp=3)).job.parallel.vpp == 3
    assert megatron(job(kind, pp=1)).job.parallel.vpp == 1
    told = job(kind, layout={"first": 2})
    assert options(megatron(told).job) == options(megatron(start).job)
    assert options(greedy(told).job) == (told.parallel, replace(told.training, schedule="greedy"))
    assert greedy(told).changes == {"training.schedule": "greedy"}


@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_fsdp_has_no_pipeline_and_shards_everything(kind: str) -> None:
    start = job(kind, 8, pp=2, tp=2)
    found = fsdp(start)
    parallel = found.job.parallel
    assert (parallel.dp, parallel.tp, parallel.pp, parallel.zero) == (4, 1, 1, 3)
    assert found.job.num_microbatches == 2
    assert found.job.training.software.value == "torch"
    assert found.evaluate().bubble_ratio == 0.0
    shard, whole = (max(semu.simulate(j).static_memory_bytes) for j in (found.job, _unsharded(found.job)))
    assert shard < whole / 2


def _unsharded(made: TrainingJob) -> TrainingJob:
    return replace(made, parallel=replace(made.parallel, zero=0))


def plans(start: TrainingJob) -> list[tuple[float, int, TrainingJob]]:
    """(slowest stage's mean, most memory held, job) of every cut and set of recomputations, as simulated."""
    modules = start.model.modules
    parts = [(number, part.layer) for number, module in enumerate(modules) for part in layer_parts(module)]
    paths = [modules[number].blocks()[layer][0] for number, layer in parts]
    found = []
    for cut in combinations(range(1, len(parts)), start.parallel.pp - 1):
        stages = list(pairwise((0, *cut, len(parts))))
        layers = {
            module.name: [sum(parts[i][0] == number for i in range(*stage)) for stage in stages]
            for number, module in enumerate(modules)
        }
        chunks = [(stage, number) for stage in stages for number in sorted({parts[i][0] for i in range(*stage)})]
        for chosen in product((False, True), repeat=len(chunks)):
            again = [
                paths[i]
                for (stage, number), is_again in zip(chunks, chosen, strict=True)
                if is_again
                for i in range(*stage)
                if parts[i][0] == number
            ]
            recompute: Any = "full" if len(again) == len(paths) else again or "none"
            made = replace(
                start,
                parallel=replace(start.parallel, layout={"modules": layers}),  # type: ignore[arg-type]
                training=replace(start.training, recompute=recompute),
            )
            report = semu.simulate(made)
            taken = [sum(s.end_s - s.start_s for s in rank.stages) for rank in report.timeline.ranks]
            found.append((max(taken) / made.num_microbatches, max(report.held_memory_bytes), made))
    return found


def long(made: TrainingJob) -> TrainingJob:
    """The job with 16 x longer sequences: its activations are more than what an allocator keeps in any case."""
    assert isinstance(made.batch, ListedBatch)
    streams = [{name: [16 * n for n in own] for name, own in item.streams.items()} for item in made.batch.items]
    items = [Microbatch(own, samples=item.samples) for own, item in zip(streams, made.batch.items, strict=True)]
    return replace(made, batch=ListedBatch(tuple(items)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_nnscaler_against_every_plan(kind: str) -> None:
    every = plans(long(job(kind)))
    sizes = sorted(size for _, size, _ in every)
    for size in (sizes[-1], sizes[len(sizes) // 2], sizes[len(sizes) // 8]):
        start = long(job(kind, override={"memory_bytes": capacity_for(size, job(kind).parallel)}))
        found = nnscaler(start)
        fitting = [item for item in every if semu.evaluate(replace(item[2], cluster=start.cluster)).fits]
        assert fitting == every or size < sizes[-1]
        best = min(slowest for slowest, _, _ in fitting)
        report = found.simulate()
        taken = max(sum(s.end_s - s.start_s for s in rank.stages) for rank in report.timeline.ranks) / 4
        assert report.fits
        assert taken == pytest.approx(best, rel=1e-9)
        assert found.job.training.schedule == "1f1b"


def test_nnscaler_says_what_it_could_not_do() -> None:
    start = job("vlm", override={"memory_bytes": 1000})
    found = nnscaler(start)
    assert "no plan" in found.notes[0]
    assert found.job.training.recompute.value == "full"
    assert not found.evaluate().fits
    assert nnscaler(job_of(gpt(), text_items(4), Parallel())).job.parallel.layout is None  # one rank: nothing to cut


@pytest.mark.slow
def test_nnscaler_plans_on_another_iteration() -> None:
    """Static: the plan depends on the distribution, not on the iteration that it runs."""
    start = replace(job("vlm"), batch=ListedBatch(tuple(vlm_items(4, seed=5))))
    workload = job("vlm").batch
    assert nnscaler(start, workload, 4).changes == nnscaler(job("vlm"), workload, 4).changes
    text = load_run("vlm-s", ["batch.seed=3"])
    assert nnscaler(text).changes == nnscaler(text, vlm_batch(seed=4)).changes


REFUSED: tuple[tuple[str, TrainingJob, str, object], ...] = (
    ("optimus", job("t2v"), "model.dit", "megatron"),
    ("t-1f1b", job("vlm"), "parallel.vocabulary", "ends"),
    ("distmm", job("vlm"), "model", "megatron"),
    ("t-1f1b", job_of(gpt(10), text_items(4), Parallel(pp=5)), "parallel.vocabulary", 515),
    ("optimus", job_of(gpt(), text_items(4), Parallel(pp=2)), "model", "megatron"),
    ("optimus", job("vlm", pp=1), "parallel.pp", 2),
    ("fsdp", job("vlm", 3), "training.global_batch", 2),
    ("megatron", job("vlm", 3), "training.global_batch", 2),
    ("nnscaler", job("vlm", pp=7, partition="parameters"), "parallel.pp", 6),
)


@pytest.mark.parametrize(("name", "start", "where", "nearest"), REFUSED)
def test_refusals(name: str, start: TrainingJob, where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        BASELINES[name](start)
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_the_schedule_optimus_wants_an_encoder() -> None:
    with pytest.raises(ConfigError) as caught:
        semu.simulate(job_of(gpt(), text_items(4), Parallel(pp=2), schedule="optimus"))
    assert (caught.value.where, caught.value.nearest) == ("training.schedule", "1f1b")


def test_unknown_names() -> None:
    with pytest.raises(ConfigError) as caught:
        find_baseline("megatorn")
    assert caught.value.nearest == "megatron"
