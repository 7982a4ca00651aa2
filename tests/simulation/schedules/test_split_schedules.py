"""Split backwards and V-shapes by paper and pencil: makespans, what stays between I and W, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation.jobs import (
    WIDTH,
    attention_encoder,
    carry_along,
    chain,
    gpt,
    job_of,
    overlap,
    text_items,
    vlm,
    vlm_items,
)
from simulation.schedules.test_closed_forms import FREE_LINKS

import semu
from semu import memo
from semu.costs.roofline import LatencyRules, RuleInput
from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.job import Training, TrainingJob
from semu.nn import Linear, Module, Tensor
from semu.nn import functional as F
from semu.parallel.config import Parallel
from semu.parallel.pipeline import deal_chunks
from semu.schedule import ALL_SCHEDULES, Schedule, split_backward
from semu.simulation import prepare, simulate
from semu.simulation.schedules.named import pipeline_study

SECONDS = 2**-10
"""Of a forward, an input gradient, a weight gradient."""


class Two(Module):
    """Two products; only the second takes time, so that a block at the model's beginning has an input gradient too."""

    def __init__(self, *, ends: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.ends = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH), ends

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        return F.mean_squared_error(y) if self.ends else y


def seconds(row: RuleInput) -> float:
    return SECONDS if "second" in row.operator.path else 0.0


RULES: LatencyRules = {
    OpKind.MATMUL: seconds,
    OpKind.CROSS_ENTROPY: lambda row: 0.0,
    OpKind.OPTIMIZER: lambda row: 0.0,
}


def equal_stages(p: int, m: int, v: int, schedule: str, *, in_v: bool = False, **options: Any) -> TrainingJob:
    blocks = [Two() for _ in range(p * v - 1)]
    parallel = Parallel(pp=p, vpp=v, placement="v-shape" if in_v else "circular")
    items = text_items(1) * m
    return job_of(chain(*blocks, Two(ends=True)), items, parallel, schedule=schedule, override=FREE_LINKS, **options)


@pytest.mark.paper
@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [
        ("zb-h1", 4, 8, 1),
        ("zb-h2", 4, 8, 1),
        ("zb-auto", 4, 8, 1),
        ("zb-auto-2p", 4, 8, 1),
        ("interleaved-zb", 4, 8, 2),
        ("zb-v", 4, 8, 2),
        ("v-half", 4, 8, 2),
        ("v-min", 4, 8, 2),
        ("dualpipe-v", 4, 8, 2),
    ],
)
def test_closed_forms_of_jobs(name: str, p: int, m: int, v: int) -> None:
    """Makespans of 2401.10241 §2 and §6, 2405.15362 §3, through a job."""
    family = ALL_SCHEDULES[name]
    in_v = family.placement.value == "v-shape"
    report = simulate(equal_stages(p, m, v, name, in_v=in_v, overlap=overlap(pipeline=True)), latency_rules=RULES)
    closed = family.makespan(p, m, v, SECONDS, SECONDS, SECONDS)
    assert closed is not None
    assert report.makespan_s == closed
    assert report.bubble_ratio == pytest.approx(1 - 3 * m * v * SECONDS / closed, abs=1e-12)
    held = family.activations(p, m, v)
    if held is not None:
        one = simulate(equal_stages(p, 1, v, "gpipe")).ranks[1].activation_bytes // v
        assert one == 2 * 2 * WIDTH * sum(text_items(1)[0].lengths["text"])
        assert report.ranks[1].activation_bytes == (held if isinstance(held, int) else held[1]) * one


@pytest.mark.paper
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
def test_ranks_that_step_apart_lose_nothing_to_the_pipeline(p: int, m: int) -> None:
    """2401.10241 §4: under ZB-H2 a rank is busy from its first stage to its last."""
    options: dict[str, Any] = {"overlap": overlap(pipeline=True)}
    apart = equal_stages(p, m, 1, "zb-h2", optimizer_post_validation=True, **options)
    report = simulate(apart, latency_rules=RULES)
    assert report.iteration_time_s == 3 * m * SECONDS
    assert report.makespan_s == (3 * m + p - 1) * SECONDS
    assert report.breakdown_s["bubble"] == pytest.approx(0.0, abs=1e-15)
    assert report.breakdown_s["other"] == pytest.approx(0.0, abs=1e-15)
    together = simulate(equal_stages(p, m, 1, "zb-h2", **options), latency_rules=RULES)
    assert together.iteration_time_s == (3 * m + p - 1) * SECONDS


def test_what_a_weight_gradient_reads_stays_until_it_ran() -> None:
    """x, first(x), and the gradients of both outputs: four tensors of 64 features in two bytes."""
    job = job_of(chain(Two(ends=True)), text_items(2))
    schedule = Schedule.from_text("0F0 0I0 0F1 0I1 0W1 0W0", "mine")
    rank = prepare(job).report(schedule).timeline.ranks[0]
    tokens = [sum(item.lengths["text"]) for item in text_items(2)]
    static = int(rank.memory.total[-1])

    def held_after(label: str) -> int:
        stage = next(stage for stage in rank.stages if stage.label == label)
        at = np.searchsorted(rank.memory.times_s, stage.end_s, side="right") - 1
        return int(rank.memory.total[at]) - static

    one, two = (4 * 2 * WIDTH * count for count in tokens)
    assert [held_after(label) for label in ("0I1", "0W1", "0W0")] == [one + two, one, 0]


@pytest.mark.paper
def test_memory_of_a_transformer_layer_between_i_and_w() -> None:
    """2401.10241 §3: M_W = 32 s b h bytes of a layer: 14 of inputs and 18 of output gradients of its products."""
    job = job_of(gpt(6), text_items(4), Parallel(pp=4))
    checkpoint = prepare(job)
    study = pipeline_study(checkpoint)
    layers = [chunk.chunk.last - chunk.chunk.first for chunk in checkpoint.layout.chunks]
    delta = study.costs.delta_bytes.reshape(4, 4, 4)  # chunk, microbatch, stage
    tokens = [sum(item.lengths["text"]) for item in text_items(4)]
    for chunk in (1, 2):
        assert (-delta[chunk, :, 3]).tolist() == [32 * 128 * layers[chunk] * count for count in tokens]


def test_a_whole_backward_in_two_parts_takes_the_same_time() -> None:
    for job in (job_of(gpt(), text_items(4), Parallel(pp=1)), job_of(vlm(), vlm_items(3), Parallel(pp=1, tp=2))):
        checkpoint = prepare(job)
        base = checkpoint.schedule()
        whole, split = checkpoint.report(base), checkpoint.report(split_backward(base))
        assert split.makespan_s == whole.makespan_s
        assert split.iteration_time_s == whole.iteration_time_s
        assert split.mfu == whole.mfu
        assert max(split.peak_memory_bytes) >= max(whole.peak_memory_bytes)


def test_split_stages_are_restored_too() -> None:
    checkpoint = prepare(job_of(gpt(), text_items(3), Parallel(pp=3), overlap=overlap(pipeline=True)))
    split = checkpoint.split()
    assert checkpoint.split(None) is checkpoint
    schedule = checkpoint.schedule("zb-h1")
    report = checkpoint.report(schedule)
    times = split.restore(split.edges_of(schedule))
    assert float(times.end.max()) == report.makespan_s
    with pytest.raises(ScheduleError, match="splits backwards that these units have whole"):
        checkpoint.edges_of(schedule)
    own = prepare(job_of(gpt(), text_items(3), Parallel(pp=3), schedule="zb-h1", overlap=overlap(pipeline=True)))
    assert own.units.merged == frozenset()
    assert own.report("1f1b").makespan_s == checkpoint.report("1f1b").makespan_s
    assert own.report().makespan_s == report.makespan_s


def test_gradients_leave_at_the_end_of_the_input_gradient() -> None:
    job = job_of(gpt(), text_items(2), Parallel(pp=2), overlap=overlap(pipeline=True))
    checkpoint = prepare(job)
    rank = checkpoint.report(split_backward(checkpoint.schedule())).timeline.ranks[1]
    stages = {stage.label: stage for stage in rank.stages}
    sends = {piece.name: piece for piece in rank.outer if piece.kind is OpKind.P2P}
    assert sends["send 1I0 to rank 0"].start_s == stages["1I0"].end_s < stages["1W0"].end_s


def test_frozen_parts_have_no_weight_gradients() -> None:
    job = job_of(vlm(frozen=("llm",)), vlm_items(3), Parallel(pp=4), schedule="zb-h1")
    phases: dict[str, set[Phase]] = {}
    for rank in simulate(job).timeline.ranks:
        for stage in rank.stages:
            phases.setdefault(stage.module, set()).add(stage.phase)
    assert phases["vit"] == {Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT}
    assert phases["llm"] == {Phase.FORWARD, Phase.INPUT_GRADIENT}


# -- placements --------------------------------------------------------------------------------------------------------
def test_chunks_of_a_v() -> None:
    chunks = deal_chunks([8], [0, 1, 2, 3, 4, 5, 6, 7, 8], 4, "v-shape")
    assert [(chunk.rank, chunk.slot) for chunk in chunks] == [(r, 0) for r in range(4)] + [(r, 1) for r in (3, 2, 1, 0)]


def test_in_a_v_embedding_and_loss_are_on_the_first_rank() -> None:
    parallel = Parallel(pp=3, vpp=2, placement="v-shape")
    report = simulate(job_of(gpt(4), text_items(6), parallel, schedule="zb-v"))
    chunks = [row.chunks for row in report.ranks]
    assert chunks == ["0: llm[0:1], 5: llm[5:6]", "1: llm[1:2], 4: llm[4:5]", "2: llm[2:3], 3: llm[3:4]"]
    assert report.job["parallel"]["placement"] == "v-shape"  # type: ignore[index]
    names = {piece.name for rank in report.timeline.ranks for piece in rank.outer}
    assert "tied gradients" not in names  # both ends of the model hold the one embedding
    turn = [p for p in report.timeline.ranks[2].outer if p.name.startswith("send 2F")]
    assert turn == []  # chunk 3 lies where chunk 2 does


# -- files, limits, refusals -------------------------------------------------------------------------------------------
def test_a_schedule_in_a_file(tmp_path: Path) -> None:
    job = job_of(gpt(), text_items(2), Parallel(pp=2), overlap=overlap(pipeline=True))
    text = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1"
    for name, written in (("mine.txt", text), ("mine.csv", text.replace(" ", ","))):
        (tmp_path / name).write_text(written, encoding="utf-8")
        path = str(tmp_path / name)
        filed = job_of(gpt(), text_items(2), Parallel(pp=2), overlap=overlap(pipeline=True), schedule_file=path)
        report = simulate(filed)
        assert report.iteration_time_s == prepare(job).report(Schedule.from_text(text)).iteration_time_s
        assert report.title.endswith(name)
        assert semu.evaluate(filed).iteration_time_s == report.iteration_time_s
    (tmp_path / "mine.txt").write_text(text.replace("1W1", "1W0"), encoding="utf-8")
    with pytest.raises(ScheduleError, match="a stage runs twice"):
        simulate(job_of(gpt(), text_items(2), Parallel(pp=2), schedule_file=str(tmp_path / "mine.txt")))


def test_limits_of_the_automatic_schedule() -> None:
    times = {}
    for limit in ("p", "1.5p", "2p", 2.0):
        job = job_of(gpt(6), text_items(12), Parallel(pp=4), schedule="zb-auto", activation_limit=limit)
        report = simulate(job)
        times[limit] = report.makespan_s
    assert times["p"] == simulate(job_of(gpt(6), text_items(12), Parallel(pp=4), schedule="zb-auto")).makespan_s
    assert times["2p"] == times[2.0]
    assert times["2p"] <= times["1.5p"] <= times["p"]
    with pytest.raises(MemoryLimitError, match="no room for a microbatch"):
        simulate(job_of(gpt(6), text_items(12), Parallel(pp=4), schedule="zb-auto", activation_limit="0.2p"))
    for bad in ("two", "0p", -1, True):
        with pytest.raises(ConfigError, match="not a limit of activations") as caught:
            Training(activation_limit=bad)
        assert (caught.value.where, caught.value.got) == ("training.activation_limit", bad)


V = Parallel(pp=2, vpp=2, placement="v-shape")


@pytest.mark.parametrize(
    ("parallel", "options", "where", "nearest"),
    [
        (Parallel(pp=2), {"schedule": "chimera"}, "parallel.placement", "bidirectional"),
        (Parallel(pp=2), {"schedule": "zb-v"}, "parallel.vpp", 2),
        (Parallel(pp=2, vpp=2), {"schedule": "zb-v"}, "parallel.placement", "v-shape"),
        (V, {"schedule": "1f1b"}, "parallel.placement", "circular"),
        (V, {"schedule": "zb-h1"}, "parallel.placement", "circular"),
        (Parallel(pp=2, vpp=2), {"schedule": "zb-h1"}, "parallel.vpp", 1),
        (Parallel(pp=2), {"schedule": "1f1b", "activation_limit": "2p"}, "training.activation_limit", "zb-auto"),
        (
            Parallel(pp=2, dp=2),
            {"schedule": "zb-h1", "optimizer_post_validation": True, "overlap": overlap(parameters=True)},
            "training.optimizer_post_validation",
            "false",
        ),
        (Parallel(pp=2), {"schedule_file": ""}, "training.schedule_file", None),
    ],
)
def test_refused_by_name(parallel: Parallel, options: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(gpt(), text_items(4), parallel, **options))
    assert (caught.value.where, caught.value.nearest) == (where, nearest)
    assert caught.value.message
    assert caught.value.expected


def test_what_weight_gradients_share_with_other_chunks_is_refused() -> None:
    """A gradient that passes a projection on its way out; an encoder's output that both chunks of a rank keep."""
    for model, pp in ((carry_along(), 3), (attention_encoder(), 1)):
        with pytest.raises(ConfigError, match="what another chunk gave or takes") as caught:
            prepare(job_of(model, text_items(3), Parallel(pp=pp), overlap=overlap(pipeline=True))).report("zb-h1")
        assert (caught.value.where, caught.value.nearest) == ("training.schedule", "1f1b")


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"placement": "bidirectional", "vpp": 2}, "parallel.vpp"),
        ({"placement": "diagonal"}, "parallel.placement"),
        ({"placement": "v-shape"}, "parallel.vpp"),
    ],
)
def test_placements_that_are_not_modelled(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(pp=2, **options)
    assert caught.value.where == where


@pytest.mark.parametrize("first", ["whole", "split"])
def test_transfers_last_as_long_whichever_numbering_is_asked_first(first: str) -> None:
    """Units of whole and of split backwards are numbered differently; what is remembered of one is not taken for the
    other."""
    memo.clear()
    checkpoint = prepare(job_of(gpt(), text_items(6), Parallel(pp=3)))
    order = [checkpoint, checkpoint.split()] if first == "whole" else [checkpoint.split(), checkpoint]
    lasts = []
    for own in order:
        names = [own.units.name(unit).replace("I", "B") for unit in range(own.units.num_units)]
        latency = own.nodes.latency[0].tolist()
        lasts.append({name: time for name, time in zip(names, latency, strict=True) if name.startswith("send")})
    assert lasts[0] == lasts[1]
    assert len(set(lasts[0].values())) > 1  # microbatches differ
