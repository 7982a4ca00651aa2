"""Several virtual stages per rank: closed forms, the slow reference bit for bit, what is refused."""

from __future__ import annotations

from random import Random

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import (
    FEATURES,
    WIDTH,
    Distance,
    attention_encoder,
    carry_along,
    chain,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
    wide,
)
from simulation.reference.expansion import expand
from simulation.reference.tail import gather_times
from simulation.schedules.test_closed_forms import BACKWARD_S, EQUAL_STAGES, FORWARD_S, FREE_LINKS

from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.nn import Linear, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.parallel.config import Overlap, Parallel
from semu.simulation import simulate


def check(job: TrainingJob) -> None:
    assert_equal(simulate(job), expand(job))


def equal_stages(p: int, m: int, v: int, schedule: str = "1f1b") -> TrainingJob:
    """p v blocks with one matrix product each, one per rank and virtual stage."""
    blocks = [Linear(WIDTH, WIDTH) for _ in range(p * v - 1)]
    parallel = Parallel(pp=p, vpp=v)
    return job_of(chain(*blocks, Distance()), text_items(1) * m, parallel, schedule=schedule, override=FREE_LINKS)


# -- closed forms ------------------------------------------------------------------------------------------------------
@pytest.mark.paper
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe"])
@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (2, 6, 3), (3, 9, 2), (4, 4, 2), (4, 8, 4)])
def test_bubble_of_equal_virtual_stages(p: int, m: int, v: int, schedule: str) -> None:
    """2104.04473 §2.2.2: makespan (m v + p - 1)(f + b) for virtual stages of f + b, the bubble is v times smaller."""
    report = simulate(equal_stages(p, m, v, schedule), latency_rules=EQUAL_STAGES)
    assert report.makespan_s == (m * v + p - 1) * (FORWARD_S + BACKWARD_S)
    assert report.bubble_ratio == pytest.approx((p - 1) / (m * v + p - 1), abs=1e-12)
    assert report.breakdown_s["compute"] == pytest.approx(m * v * (FORWARD_S + BACKWARD_S), rel=1e-12)
    assert report.breakdown_s["bubble"] == pytest.approx((p - 1) * (FORWARD_S + BACKWARD_S), rel=1e-12)


@pytest.mark.paper
@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (2, 4, 2), (3, 6, 2), (4, 8, 3)])
def test_activations_in_flight(p: int, m: int, v: int) -> None:
    """When its first backward begins, rank r keeps the inputs of 2 (p - r - 1) + (v - 1) p + 1 virtual stages.

    That is 2 for every rank behind it, p for every virtual stage but one, and one (2104.04473 §2.2.2).
    """
    size = text_items(1)[0].tokens("text") * WIDTH * 2
    report = simulate(equal_stages(p, m, v), latency_rules=EQUAL_STAGES)
    for rank, static in zip(report.timeline.ranks, report.static_memory_bytes, strict=True):
        in_flight = next(i for i, stage in enumerate(rank.stages) if stage.phase is Phase.BACKWARD)
        assert in_flight == min(m * v, 2 * (p - rank.rank - 1) + (v - 1) * p + 1)
        end = rank.stages[in_flight - 1].end_s
        received = sum(
            piece.start_s < end and piece.name.endswith(f"to rank {rank.rank}")
            for other in report.timeline.ranks
            for piece in other.outer
        )
        waiting = received - sum(stage.chunk > 0 for stage in rank.stages[:in_flight])
        level = int(rank.memory.total[(rank.memory.times_s < end).sum() - 1]) - static
        assert level == (in_flight + 1 + waiting) * size  # the stage that ends has made its output


@pytest.mark.parametrize(("p", "v"), [(2, 2), (2, 3), (4, 2)])
def test_bytes_that_cross_ranks(p: int, v: int) -> None:
    """Every boundary but the last is crossed once forward and once back by each microbatch; one of v p - 1 wraps."""
    m = 2 * p
    report = simulate(equal_stages(p, m, v))
    size = text_items(1)[0].tokens("text") * WIDTH * 2
    sends = [[piece for piece in rank.outer if piece.kind is OpKind.P2P] for rank in report.timeline.ranks]
    assert {piece.net_bytes for pieces in sends for piece in pieces} == {size}
    assert sum(map(len, sends)) == 2 * m * (p * v - 1)
    first_to_last = m * (v - 1) + (m * v if p == 2 else 0)  # gradients that wrap; with two ranks also the activations
    assert sum(f"to rank {p - 1}" in piece.name for piece in sends[0]) == first_to_last
    assert sum("to rank 0" in piece.name for piece in sends[p - 1]) == first_to_last


# -- the slow reference ------------------------------------------------------------------------------------------------
@pytest.mark.sampled(8)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("pipeline", [False, None], ids=["wait", "default"])
@pytest.mark.parametrize(("pp", "vpp", "tp"), [(2, 2, 1), (2, 3, 2), (3, 2, 1)])
def test_text(pp: int, vpp: int, tp: int, pipeline: bool | None, schedule: str, recompute: str) -> None:
    options = Overlap(grad_reduce=False, param_gather=False, tensor_parallel=tp > 1, pipeline=pipeline)
    parallel = Parallel(pp=pp, vpp=vpp, tp=tp)
    check(job_of(gpt(5), text_items(2 * pp), parallel, overlap=options, schedule=schedule, recompute=recompute))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("frozen", [(), ("vit",), ("llm",), ("vit.layers", "llm")], ids=lambda names: "+".join(names))
@pytest.mark.parametrize(("pp", "vpp", "tp"), [(2, 2, 2), (2, 3, 1), (3, 2, 1)])
def test_vision_language(pp: int, vpp: int, tp: int, frozen: tuple[str, ...]) -> None:
    for recompute, pipeline in (("none", False), ("full", True)):
        check(
            job_of(
                vlm(frozen=frozen),
                vlm_items(2 * pp, empty=(1,)),
                Parallel(pp=pp, vpp=vpp, tp=tp),
                overlap=overlap(pipeline=pipeline),
                recompute=recompute,
            )
        )


@pytest.mark.parametrize("frozen", [(), ("llm",), ("dit",)], ids=lambda names: "+".join(names))
def test_text_to_video(frozen: tuple[str, ...]) -> None:
    check(job_of(t2v(frozen=frozen), t2v_items(4), Parallel(pp=2, vpp=2, tp=2), overlap=overlap(pipeline=True)))


def test_a_virtual_stage_across_two_modules_is_two_chunks_that_run_together() -> None:
    job = job_of(vlm(), vlm_items(6), Parallel(pp=3, vpp=2))
    report = simulate(job)
    place: dict[tuple[object, object], list[int]] = {}
    for chunk in report.job["chunks"]:  # type: ignore[attr-defined]
        place.setdefault((chunk["rank"], chunk["virtual_stage"]), []).append(chunk["chunk"])
    assert len(place) == 6
    ((rank, _), shared), *others = [item for item in place.items() if len(item[1]) > 1]
    assert not others
    stages = [stage for stage in report.timeline.ranks[int(str(rank))].stages if stage.chunk in shared]
    assert [stage.chunk for stage in stages if stage.phase is Phase.FORWARD] == shared * 6
    assert [stage.chunk for stage in stages if stage.phase is Phase.BACKWARD] == shared[::-1] * 6
    check(job)


def skipping() -> Model:
    """Two encoders before a backbone: what the first one makes skips the ranks of the second one."""

    def module(name: str, sources: tuple[str, ...], *blocks: Module) -> ModalityModule:
        role = ModalityRole.BACKBONE if sources else ModalityRole.ENCODER
        return ModalityModule(name, role, Sequential(*blocks), FEATURES, sources=sources)

    layers = [Linear(WIDTH, WIDTH) for _ in range(3)]
    return Model(
        "skipping",
        [
            module("first", (), Linear(WIDTH, WIDTH)),
            module("second", (), Linear(WIDTH, WIDTH)),
            module("backbone", ("first", "second"), Take(), *layers, Distance()),
        ],
    )


class Take(Module):
    """A projection of the data and its second input, plus something of the third one."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return self.projection(x + y) + F.gelu(z)


@pytest.mark.parametrize("model", [attention_encoder, carry_along, skipping], ids=lambda model: model.__name__)
@pytest.mark.parametrize("pipeline", [False, True], ids=["wait", "overlap_pp"])
def test_awkward_models(model: object, pipeline: bool) -> None:
    """A tensor kept by two chunks, tensors carried past ranks and back to them, an edge that skips virtual stages."""
    check(job_of(model(), text_items(4), Parallel(pp=2, vpp=2), overlap=overlap(pipeline=pipeline)))  # type: ignore[operator]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(10))
def test_random_jobs(seed: int) -> None:
    random = Random(seed)
    model, items = random.choice([(gpt, text_items), (vlm, vlm_items), (t2v, t2v_items)])
    dp, tp, pp, vpp = random.choice([(1, 1, 2, 2), (2, 1, 2, 2), (1, 2, 3, 2), (2, 2, 2, 2), (3, 1, 2, 3)])
    job = job_of(
        model(layers=random.randint(4, 5)),
        items(dp * pp * random.randint(1, 3), seed=seed),
        Parallel(
            dp=dp,
            tp=tp,
            pp=pp,
            vpp=vpp,
            sequence_parallel=random.random() < 0.7,
            zero=random.choice([1, 1, 3]),
            reshard_after_forward=random.random() < 0.5,
        ),
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.5),
        schedule=random.choice(["1f1b", "interleaved", "gpipe"]),
        recompute=random.choice(["none", "full"]),
    )
    check(job)


# -- around the pipeline -----------------------------------------------------------------------------------------------
@pytest.mark.sampled(2)
@pytest.mark.parametrize("hidden", [False, True], ids=["after", "overlapped"])
@pytest.mark.parametrize(("dp", "tp", "pp", "vpp"), [(2, 1, 2, 2), (2, 2, 2, 3), (3, 1, 3, 2)])
def test_reductions_against_the_reference(dp: int, tp: int, pp: int, vpp: int, hidden: bool) -> None:
    parallel, options = Parallel(dp=dp, tp=tp, pp=pp, vpp=vpp), overlap(gradients=hidden)
    assert_tails_equal(job_of(gpt(5), text_items(pp * dp), parallel, overlap=options))
    assert_tails_equal(job_of(vlm(frozen=["vit"]), vlm_items(pp * dp), parallel, overlap=options))


def test_a_virtual_stage_is_reduced_while_earlier_ones_compute() -> None:
    """Gradients of a rank's last virtual stage are complete pp backwards before those of its first one."""
    twice = [item for item in text_items(4) for _ in range(2)]
    job = job_of(wide(), twice, Parallel(dp=2, pp=2, vpp=2), overlap=overlap(gradients=True))
    assert_tails_equal(job)
    for rank in simulate(job).timeline.ranks:
        begin = min(piece.start_s for piece in rank.outer if piece.kind is OpKind.REDUCE_SCATTER)
        last = [stage for stage in rank.stages if stage.chunk == rank.rank + 2][-1]
        assert (last.phase, last.microbatch) == (Phase.BACKWARD, 3)
        assert last.start_s < begin <= last.end_s
        assert [stage.chunk for stage in rank.stages if stage.start_s >= begin] == [rank.rank] * 2


@pytest.mark.parametrize("hidden", [False, True], ids=["after", "overlapped"])
def test_every_virtual_stage_has_buckets_of_its_own(hidden: bool) -> None:
    """A small model: one bucket per virtual stage, reduced from the last to the first, gathered from the first on."""
    job = job_of(gpt(4), text_items(8), Parallel(dp=2, pp=2, vpp=3), overlap=overlap(gradients=hidden, parameters=True))
    report = simulate(job)
    for rank in report.timeline.ranks:
        reductions = [piece for piece in rank.outer if piece.kind is OpKind.REDUCE_SCATTER]
        gathers = [piece for piece in rank.outer if piece.kind is OpKind.ALL_GATHER]
        assert len(reductions) == len(gathers) == 3
        assert [2 * piece.net_bytes for piece in gathers] == [piece.net_bytes for piece in reversed(reductions)]
        assert (reductions[0].start_s < rank.stages[-1].end_s) == hidden


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (3, 2)])
def test_first_forwards_of_every_virtual_stage_wait_for_their_parameters(pp: int, vpp: int) -> None:
    parallel = Parallel(dp=2, pp=pp, vpp=vpp)
    items = [item for item in text_items(pp) for _ in range(2)]
    job = job_of(wide(5), items, parallel, overlap=overlap(parameters=True))
    free = expand(job_of(wide(5), items, parallel))
    replica = expand(job, gather_times(free)).replicas[0]
    report = simulate(job)
    for timeline, order in zip(report.timeline.ranks, replica.orders, strict=True):
        assert [(stage.start_s, stage.end_s) for stage in timeline.stages] == [replica.span(name) for name in order]
    assert report.makespan_s == replica.makespan_s
    assert report.makespan_s > free.replicas[0].makespan_s


# -- switches and refusals ---------------------------------------------------------------------------------------------
def test_sends_overlap_by_default_only_where_virtual_stages_take_turns() -> None:
    assert not job_of(gpt(), text_items(2), Parallel(pp=2), overlap=Overlap()).overlaps_sends
    assert job_of(gpt(), text_items(2), Parallel(pp=2, vpp=2), overlap=Overlap()).overlaps_sends
    assert not job_of(gpt(), text_items(2), Parallel(pp=2, vpp=2), overlap=Overlap(pipeline=False)).overlaps_sends
    assert job_of(gpt(), text_items(2), Parallel(pp=2), overlap=Overlap(pipeline=True)).overlaps_sends
    report = simulate(job_of(gpt(), text_items(2), Parallel(pp=2, vpp=2), overlap=Overlap()))
    assert report.job["overlap"]["pipeline"] is True  # type: ignore[index]


def test_one_virtual_stage_interleaved_is_1f1b() -> None:
    plain, other = (
        simulate(job_of(gpt(), text_items(3), Parallel(pp=2), schedule=name)) for name in ("1f1b", "interleaved")
    )
    assert plain.iteration_time_s == other.iteration_time_s
    assert plain.peak_memory_bytes == other.peak_memory_bytes


@pytest.mark.parametrize(
    ("parallel", "count", "schedule", "where", "nearest"),
    [
        (Parallel(vpp=2), 2, "1f1b", "parallel.vpp", 1),
        (Parallel(pp=2, vpp=2), 3, "1f1b", "training.global_batch", 2),
        (Parallel(dp=2, pp=3, vpp=2), 10, "interleaved", "training.global_batch", 12),
        (Parallel(pp=3, vpp=2), 1, "1f1b", "training.global_batch", 3),
        (Parallel(pp=2, vpp=4), 2, "1f1b", "parallel.vpp", 2),
        (Parallel(pp=6, vpp=2), 6, "1f1b", "parallel.pp", 5),
    ],
)
def test_what_does_not_fit_is_refused(parallel: Parallel, count: int, schedule: str, where: str, nearest: int) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(gpt(3), text_items(count), parallel, schedule=schedule))
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_gpipe_takes_any_number_of_microbatches() -> None:
    check(job_of(gpt(3), text_items(3), Parallel(pp=2, vpp=2), schedule="gpipe"))
