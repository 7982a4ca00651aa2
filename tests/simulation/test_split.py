"""Schedules that split backwards, on real jobs: against the slow reference, and against what splitting must keep."""

from __future__ import annotations

from random import Random

import pytest
from simulation.comparison import assert_all_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference import expand
from simulation.reference_split import orders_of

from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.parallel.config import Overlap, Parallel
from semu.schedule import Schedule, StageKey, split_backward
from semu.simulation import prepare, simulate


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


def check(job: TrainingJob, seed: int = 0) -> None:
    checkpoint = prepare(job)
    base = checkpoint.schedule()
    for schedule in (split_backward(base), late_weights(base, seed), late_weights(base, seed + 1, whole=0.4)):
        assert_all_equal(checkpoint.report(schedule), expand(job, orders=orders_of(schedule)))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("pipeline", [False, True], ids=["wait", "overlap_pp"])
@pytest.mark.parametrize(
    ("tp", "sequence", "tensor"),
    [(1, False, False), (2, False, False), (2, True, False), (2, True, True), (2, False, True)],
    ids=["tp1", "tp2", "sp", "sp_overlap", "tp2_overlap"],
)
def test_text(tp: int, sequence: bool, tensor: bool, pipeline: bool, recompute: str) -> None:
    for pp in (1, 3):
        parallel = Parallel(pp=pp, tp=tp, sequence_parallel=sequence)
        check(job_of(gpt(), text_items(4), parallel, overlap=overlap(tensor=tensor, pipeline=pipeline), recompute=recompute))


@pytest.mark.parametrize("frozen", [(), ("vit",), ("llm",), ("vit.layers", "llm")], ids=lambda names: "+".join(names))
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (2, 2), (4, 1)])
def test_vision_language(pp: int, tp: int, frozen: tuple[str, ...]) -> None:
    for recompute in ("none", "full"):
        check(job_of(vlm(frozen=frozen), vlm_items(3), Parallel(pp=pp, tp=tp), recompute=recompute))


@pytest.mark.parametrize("frozen", [(), ("dit",)], ids=lambda names: "+".join(names))
def test_text_to_video(frozen: tuple[str, ...]) -> None:
    check(job_of(t2v(frozen=frozen), t2v_items(3), Parallel(pp=3)))


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("gradients", [False, True])
def test_replicas_with_different_data(zero: int, gradients: bool) -> None:
    hidden = overlap(gradients=gradients, pipeline=True)
    check(job_of(gpt(), text_items(6, seed=3), Parallel(dp=2, pp=2, zero=zero), overlap=hidden))


def test_virtual_stages() -> None:
    check(job_of(gpt(4), text_items(4), Parallel(pp=2, vpp=2)))


ONE, TWO = Parallel(pp=3), Parallel(pp=3, vpp=2)
V = Parallel(pp=3, vpp=2, placement="v-shape")


@pytest.mark.parametrize(
    ("name", "parallel"),
    [
        ("zb-h1", ONE),
        ("zb-h2", ONE),
        ("zb-auto", ONE),
        ("zb-auto-2p", ONE),
        ("eager-1f1b", ONE),
        ("greedy", TWO),
        ("interleaved-zb", TWO),
        ("zb-v", V),
        ("v-half", V),
        ("v-min", V),
        ("dualpipe-v", V),
        ("hanayo", V),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_schedules_by_name(name: str, parallel: Parallel, recompute: str) -> None:
    job = job_of(gpt(4), text_items(9), parallel, overlap=Overlap(False, False, False), schedule=name, recompute=recompute)
    assert job.overlaps_sends
    report = simulate(job)
    assert_all_equal(report, expand(job, orders=orders_of(prepare(job).schedule())))
    assert report.breakdown_s["other"] == 0


def test_in_a_v_embedding_and_loss_are_on_the_first_rank() -> None:
    report = simulate(job_of(gpt(4), text_items(6), V, schedule="zb-v"))
    first, second, third = (row.chunks for row in report.ranks)
    assert (first, second, third) == ("0: llm[0:1], 5: llm[5:6]", "1: llm[1:2], 4: llm[4:5]", "2: llm[2:3], 3: llm[3:4]")
