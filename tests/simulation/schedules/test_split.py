"""Schedules that split backwards, and V-shaped placements, against the slow reference: bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from simulation.comparison import (
    assert_all_equal,
    assert_equal,
    assert_memory_equal,
    assert_sends_equal,
    assert_stages_equal,
)
from simulation.jobs import (
    attention_encoder,
    carry_along,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)
from simulation.models.test_experts import latent, moe
from simulation.models.test_lora import lora_gpt
from simulation.reference.contention import contended
from simulation.reference.expansion import Expansion, StageName, expand
from simulation.reference.split import orders_of
from simulation.reference.tail import gather_times, tail_of

from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.parallel.config import Overlap, Parallel
from semu.schedule import Schedule, StageKey, split_backward
from semu.simulation import prepare, simulate

ALL = overlap(tensor=True, pipeline=True, gradients=True, parameters=True)
LAUNCH = {"launch": True, "override": {"host": {"launch_s": 9e-6}}}


def late_weights(schedule: Schedule, seed: int, whole: float = 0.0) -> Schedule:
    """The same with backwards split but some, and weight gradients some stages later."""
    random = Random(seed)
    orders = []
    for order in schedule.orders:
        stages: list[StageKey] = []
        waiting: list[StageKey] = []
        for stage in order:
            if stage.phase is not Phase.BACKWARD or random.random() < whole:
                stages.append(stage)
            else:
                stages.append(StageKey(stage.chunk, Phase.INPUT_GRADIENT, stage.microbatch))
                waiting.append(StageKey(stage.chunk, Phase.WEIGHT_GRADIENT, stage.microbatch))
            while waiting and random.random() < 0.4:
                stages.append(waiting.pop(random.randrange(len(waiting))))
        orders.append(stages + waiting)
    return Schedule.build("late", orders)


def expected_of(job: TrainingJob, orders: list[list[StageName]]) -> Expansion:
    found = expand(job, orders=orders)
    return expand(job, gather_times(found), orders) if gathers_first(job) else found


def gathers_first(job: TrainingJob) -> bool:
    """Parameters are gathered before the first forwards."""
    return job.parallel.zero in (1, 2) and job.training.overlap.param_gather and job.parallel.dp > 1


def check(job: TrainingJob, seed: int = 0) -> None:
    checkpoint = prepare(job)
    base = checkpoint.schedule()
    for schedule in (split_backward(base), late_weights(base, seed), late_weights(base, seed + 1, whole=0.4)):
        report, expected = checkpoint.report(schedule), expected_of(job, orders_of(schedule))
        if gathers_first(job):
            assert_equal(report, expected)
            assert report.iteration_time_s == tail_of(expected).iteration_s
        else:
            assert_all_equal(report, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("tp", "sequence", "tensor", "pipeline"),
    [(1, False, False, False), (2, False, False, True), (2, True, False, False), (2, True, True, True)],
    ids=["tp1", "tp2", "sp", "sp_overlap"],
)
def test_text(tp: int, sequence: bool, tensor: bool, pipeline: bool, recompute: str) -> None:
    parallel = Parallel(pp=3, tp=tp, sequence_parallel=sequence)
    check(
        job_of(gpt(), text_items(4), parallel, overlap=overlap(tensor=tensor, pipeline=pipeline), recompute=recompute)
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("frozen", [(), ("vit",), ("llm",), ("vit.layers", "llm")], ids=lambda names: "+".join(names))
@pytest.mark.parametrize(("pp", "tp", "recompute"), [(1, 1, "none"), (2, 2, "full"), (4, 1, "none")])
def test_vision_language(pp: int, tp: int, recompute: str, frozen: tuple[str, ...]) -> None:
    check(job_of(vlm(frozen=frozen), vlm_items(3), Parallel(pp=pp, tp=tp), recompute=recompute))


KINDS: dict[str, Callable[[], TrainingJob]] = {
    "t2v": lambda: job_of(t2v(frozen=("dit",)), t2v_items(3), Parallel(pp=3)),
    "ring": lambda: job_of(gpt(), text_items(3), Parallel(cp=2, tp=2, pp=2), overlap=overlap(tensor=True)),
    "ring, full": lambda: job_of(gpt(), text_items(3), Parallel(cp=2, tp=2), recompute="full"),
    "all-gather": lambda: job_of(gpt(), text_items(3), Parallel(cp=2, pp=2, cp_kind="all_gather")),
    "all-to-all": lambda: job_of(gpt(), text_items(3), Parallel(cp=2, tp=2, pp=2, cp_kind="all_to_all")),
    "fp8": lambda: job_of(gpt(), text_items(3), Parallel(pp=2, tp=2), precision="fp8", fp8_recipe="blockwise"),
    "experts": lambda: job_of(moe(), text_items(4), Parallel(dp=2, tp=2, pp=2, ep=2), overlap=overlap(tensor=True)),
    "experts, full": lambda: job_of(
        moe(shared=True), text_items(4), Parallel(dp=2, tp=2, ep=4, etp=1), recompute="full"
    ),
    "latent": lambda: job_of(latent(), text_items(4), Parallel(dp=2, pp=2, ep=2)),
    "lora": lambda: job_of(lora_gpt(), text_items(4), Parallel(dp=2, pp=2)),
    "accumulation": lambda: job_of(gpt(), text_items(3), Parallel(pp=2, tp=2), gradient_accumulation_fusion=False),
    "unfused": lambda: job_of(gpt(), text_items(3), Parallel(pp=2), attention="unfused", recompute="selective"),
    "launch": lambda: job_of(gpt(), text_items(3), Parallel(pp=2, tp=2), **LAUNCH),
    "launch, hidden": lambda: job_of(gpt(), text_items(3), Parallel(pp=2), overlap=overlap(pipeline=True), **LAUNCH),
    "kept outputs": lambda: job_of(attention_encoder(), text_items(3), Parallel(pp=2)),
    "carried along": lambda: job_of(carry_along(), text_items(3), Parallel(pp=5)),
    "clipped": lambda: job_of(gpt(), text_items(4), Parallel(dp=2, pp=2, zero=0), gradient_clipping=True),
    "zero 1": lambda: job_of(gpt(), text_items(6, seed=3), Parallel(dp=2, pp=2), overlap=overlap(gradients=True)),
    "groups": lambda: job_of(gpt(), text_items(8), Parallel(dp=4, pp=2, zero_group=2), overlap=overlap(gradients=True)),
    "virtual stages": lambda: job_of(gpt(4), text_items(4), Parallel(pp=2, vpp=2)),
    **{
        f"zero {zero}, activations on the host, {recompute}": partial(
            job_of,
            gpt(4),
            text_items(4),
            Parallel(dp=2, pp=2, zero=zero),
            offload="activations",
            offload_fraction=0.5,
            recompute=recompute,
        )
        for zero in (2, 3)
        for recompute in ("none", "full")
    },
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_jobs(name: str) -> None:
    check(KINDS[name]())


ONE, TWO = Parallel(pp=3), Parallel(pp=3, vpp=2)
V = Parallel(pp=3, vpp=2, placement="v-shape")
NAMED = {
    **dict.fromkeys(("zb-h1", "zb-h2", "zb-auto", "zb-auto-2p", "eager-1f1b"), ONE),
    **dict.fromkeys(("greedy", "interleaved-zb", "looped-bfs"), TWO),
    **dict.fromkeys(("zb-v", "v-half", "v-min", "dualpipe-v", "hanayo"), V),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMED)
def test_schedules_by_name(name: str) -> None:
    options = {"overlap": Overlap(False, False, False), "schedule": name}
    job = job_of(gpt(4), text_items(9), NAMED[name], **options)  # type: ignore[arg-type]
    assert job.overlaps_sends
    report = simulate(job)
    assert_all_equal(report, expand(job, orders=orders_of(prepare(job).schedule())))
    assert report.breakdown_s["other"] == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        ("zb-h1", Parallel(pp=2, dp=2, tp=2)),
        ("zb-v", Parallel(pp=2, vpp=2, dp=2, tp=2, placement="v-shape")),
        ("zb-h1", Parallel(pp=2, dp=2, zero=2)),
        ("zb-h1", Parallel(pp=2, dp=2, zero=3)),
        ("zb-v", Parallel(pp=2, vpp=2, dp=2, zero=3, placement="v-shape")),
    ],
)
@pytest.mark.sampled(2)
def test_contention(name: str, parallel: Parallel) -> None:
    job = job_of(gpt(4), text_items(8), parallel, overlap=ALL, schedule=name, override={"nvlink_bytes_per_s": 2e9})
    report = simulate(job, contention=True)
    expected, _ = contended(job, orders_of(prepare(job).schedule()))
    makespans = [replica.makespan_s for replica in expected.replicas]
    assert report.contention is not None
    assert report.contention.slowed
    assert report.makespan_s == max(makespans)
    slowest = expected.replicas[makespans.index(max(makespans))]
    for rank, timeline in enumerate(report.timeline.ranks):
        assert_stages_equal(timeline, slowest, slowest.orders[rank])
        assert_sends_equal(timeline, slowest, rank, expected)
        assert_memory_equal(timeline.memory, slowest.memory[rank], expected.static[rank].total)
    assert list(report.peak_memory_bytes) == expected.peak_bytes
