"""Pipelines that run the model in both directions (Chimera, 2107.06925): against the slow reference bit for bit, by
paper and pencil, and what does not go with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulation.comparison import assert_all_equal, assert_equal
from simulation.jobs import WIDTH, chain, gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items, wide
from simulation.reference.expansion import expand
from simulation.reference.split import orders_of
from simulation.reference.tail import gather_times, tail_of
from simulation.schedules.test_closed_forms import FREE_LINKS
from simulation.schedules.test_split import late_weights
from simulation.schedules.test_split_schedules import RULES, SECONDS, Two

import semu
from semu.costs.roofline import RuleInput
from semu.errors import ConfigError, ScheduleError
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule import Schedule, split_backward
from semu.simulation import prepare, simulate


def both(**sizes: Any) -> Parallel:
    return Parallel(placement="bidirectional", **sizes)


def compare(job: TrainingJob, schedule: Schedule | None = None) -> None:
    checkpoint = prepare(job)
    chosen = schedule if schedule is not None else checkpoint.schedule()
    orders = orders_of(chosen)
    found = expand(job, orders=orders)
    report = checkpoint.report(chosen)
    if job.parallel.zero == 1 and job.training.overlap.param_gather:
        found = expand(job, gather_times(found), orders)
        assert_equal(report, found)
        assert report.iteration_time_s == tail_of(found).iteration_s
    else:
        assert_all_equal(report, found)


LAUNCH = {"launch": True, "override": {"host": {"launch_s": 9e-6}}}
JOBS: dict[str, Callable[[], TrainingJob]] = {
    "two ranks": lambda: job_of(gpt(), text_items(4), both(pp=2), schedule="chimera"),
    "four ranks": lambda: job_of(gpt(6), text_items(8), both(pp=4), schedule="chimera"),
    "six microbatches": lambda: job_of(gpt(6), text_items(6), both(pp=4), schedule="chimera"),
    "sends awaited": lambda: job_of(
        gpt(6), text_items(8), both(pp=4), schedule="chimera", overlap=overlap(pipeline=False)
    ),
    "replicas": lambda: job_of(
        gpt(6), text_items(8, seed=3), both(pp=4, dp=2, zero=0), schedule="chimera", overlap=overlap(gradients=True)
    ),
    "zero 1, gathered after the step": lambda: job_of(
        gpt(6), text_items(8), both(pp=4, dp=2, zero=1), schedule="chimera"
    ),
    "zero 1, gathered before": lambda: job_of(
        gpt(6), text_items(8), both(pp=4, dp=2), schedule="chimera", overlap=overlap(gradients=True, parameters=True)
    ),
    "one replica, gathered before": lambda: job_of(
        gpt(), text_items(4), both(pp=2), schedule="chimera", overlap=overlap(parameters=True, gradients=True)
    ),
    "tensor parallel": lambda: job_of(
        gpt(), text_items(4), both(pp=2, tp=2, sequence_parallel=True), schedule="chimera", gradient_clipping=True
    ),
    "clipped": lambda: job_of(
        gpt(6), text_items(8), both(pp=4, dp=2, zero=0), schedule="chimera", gradient_clipping=True
    ),
    "context parallel": lambda: job_of(
        gpt(),
        text_items(8),
        both(pp=2, cp=2, dp=2),
        schedule="chimera",
        overlap=overlap(gradients=True, parameters=True),
    ),
    "fp8": lambda: job_of(
        gpt(), text_items(4), both(pp=2, tp=2), schedule="chimera", precision="fp8", fp8_weights="primary"
    ),
    "recomputed": lambda: job_of(gpt(6), text_items(4), both(pp=2), schedule="chimera", recompute="full"),
    "recomputed layers": lambda: job_of(
        gpt(6), text_items(4), both(pp=2), schedule="chimera", recompute="full", recompute_layers=1
    ),
    "greedy": lambda: job_of(gpt(6), text_items(8), both(pp=4), schedule="greedy"),
    "breadth first": lambda: job_of(gpt(6), text_items(8), both(pp=4), schedule="looped-bfs"),
    "vision-language": lambda: job_of(vlm(layers=4), vlm_items(4), both(pp=4), schedule="greedy"),
    "ranks with the ends of two modules": lambda: job_of(vlm(layers=4), vlm_items(4), both(pp=2), schedule="chimera"),
    "the same, text-to-video": lambda: job_of(t2v(), t2v_items(4), both(pp=2), schedule="chimera", recompute="full"),
    "frozen encoder": lambda: job_of(vlm(frozen=("vit",)), vlm_items(4), both(pp=2), schedule="greedy"),
    "text-to-video": lambda: job_of(t2v(), t2v_items(4), both(pp=2), schedule="greedy"),
    "offload": lambda: job_of(gpt(6), text_items(4), both(pp=2), schedule="chimera", offload="activations"),
    "state on the host": lambda: job_of(gpt(6), text_items(4), both(pp=2), schedule="chimera", offload="optimizer"),
    "weights on the host": lambda: job_of(gpt(6), text_items(4), both(pp=2), schedule="chimera", offload="weights"),
    "hidden collectives cost": lambda: job_of(
        gpt(6),
        text_items(8),
        both(pp=4, dp=2, zero=0),
        schedule="chimera",
        overlap=overlap(gradients=True),
        override={"software": {"megatron": {"interference": 0.25}}},
    ),
    "launch": lambda: job_of(gpt(6), text_items(4), both(pp=2), schedule="chimera", **LAUNCH),
    "many buckets": lambda: job_of(
        wide(), [text_items(1)[0]] * 4, both(pp=2, dp=2, zero=0), schedule="chimera", overlap=overlap(gradients=True)
    ),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.sampled(2)
def test_as_the_reference_says(name: str) -> None:
    compare(JOBS[name]())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dp", [1, 2])
def test_split_backwards_in_both_directions(dp: int) -> None:
    job = job_of(gpt(6), text_items(8), both(pp=4, dp=dp), schedule="chimera", overlap=overlap(gradients=True))
    base = prepare(job).schedule()
    for schedule in (split_backward(base), late_weights(base, 1), late_weights(base, 2, whole=0.4)):
        compare(job, schedule)


def in_turn(row: RuleInput) -> float:
    """A forward takes as long as a backward (2107.06925 §3.2)."""
    if "second" not in row.operator.path:
        return 0.0
    return SECONDS if row.operator.phase is Phase.FORWARD else SECONDS / 2


@pytest.mark.paper
@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 8), (4, 4), (4, 8), (8, 16)])
def test_makespan_of_the_paper(p: int, m: int) -> None:
    """2107.06925 Table 2: D - 2 slots of bubble on either side of N forwards and backwards, f = b."""
    blocks = [Two() for _ in range(p - 1)]
    job = job_of(
        chain(*blocks, Two(ends=True)),
        text_items(1) * m,
        both(pp=p),
        schedule="chimera",
        override=FREE_LINKS,
        overlap=overlap(pipeline=True),
    )
    report = simulate(job, latency_rules={**RULES, OpKind.MATMUL: in_turn})
    assert report.makespan_s == (2 * m + p - 2) * SECONDS
    assert report.bubble_ratio == pytest.approx((p - 2) / (2 * m + p - 2), abs=1e-12)


@pytest.mark.paper
def test_a_rank_holds_two_stages_and_reduces_them_with_its_mirror() -> None:
    """2107.06925 §3.1 and Table 2: twice the weights (2 M_theta); with W replicas, 2 W ranks hold the same."""
    model = chain(*[Two() for _ in range(3)], Two(ends=True))
    elements = 2 * (WIDTH * WIDTH + WIDTH)  # of a stage: two products with their biases
    plain = simulate(job_of(model, text_items(8), Parallel(pp=4, dp=2, zero=0)))
    twice = simulate(job_of(model, text_items(8), both(pp=4, dp=2, zero=0), schedule="chimera"))
    assert plain.static_memory_bytes == (18 * elements,) * 4
    assert twice.static_memory_bytes == (2 * 18 * elements,) * 4
    for rank in twice.timeline.ranks:
        sums = [piece for piece in rank.outer if piece.kind is OpKind.ALL_REDUCE]
        assert [(piece.group_ranks, piece.net_bytes) for piece in sums] == [(4, 2 * 3 * 4 * elements // 4)] * 2
        mirror = twice.timeline.ranks[3 - rank.rank]
        assert [(piece.start_s, piece.end_s) for piece in sums] == [
            (piece.start_s, piece.end_s) for piece in mirror.outer if piece.kind is OpKind.ALL_REDUCE
        ]
    assert (twice.model_flop, twice.hardware_flop, twice.tokens) == (
        plain.model_flop,
        plain.hardware_flop,
        plain.tokens,
    )
    sharded = simulate(job_of(model, text_items(8), both(pp=4, dp=2, zero=1), schedule="chimera"))
    assert sharded.static_memory_bytes == (2 * 6 * elements + 12 * 2 * elements // 4,) * 4


def test_half_the_microbatches_go_either_way() -> None:
    report = simulate(job_of(gpt(6), text_items(6), both(pp=4), schedule="chimera"))
    ways: dict[int, set[int]] = {0: set(), 1: set()}
    for stage in report.timeline.ranks[0].stages:
        ways[int(stage.chunk >= 4)].add(stage.microbatch)
    assert ways == {0: {0, 1, 4}, 1: {2, 3, 5}}
    assert [row.chunks for row in report.ranks] == [
        "0: llm[0:2], 7: llm[6:8]",
        "1: llm[2:4], 6: llm[4:6]",
        "5: llm[2:4], 2: llm[4:6]",
        "4: llm[0:2], 3: llm[6:8]",
    ]
    assert report.job["parallel"]["placement"] == "bidirectional"  # type: ignore[index]


def test_restored_and_estimated_as_simulated() -> None:
    job = job_of(gpt(6), text_items(8), both(pp=4), schedule="chimera")
    checkpoint, report = prepare(job), simulate(job)
    assert float(checkpoint.restore(checkpoint.edges_of()).end.max()) == report.makespan_s
    assert semu.evaluate(job).iteration_time_s == report.iteration_time_s
    drawn = checkpoint.report(samples=3)
    assert drawn.samples is not None
    assert drawn.samples.p50_s == drawn.samples.p95_s == report.iteration_time_s


def test_an_order_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("0F0 3F1 3B1 0B0\n2F1 1F0 1B0 2B1", encoding="utf-8")
    job = job_of(gpt(), text_items(2), both(pp=2), schedule_file=str(path))
    report = simulate(job)
    compare(job, Schedule.from_text(path.read_text(encoding="utf-8")))
    assert (
        report.iteration_time_s
        == simulate(job_of(gpt(), text_items(2), both(pp=2), schedule="chimera")).iteration_time_s
    )


@pytest.mark.parametrize(
    ("sizes", "options", "where", "nearest"),
    [
        ({"pp": 3}, {}, "parallel.pp", 4),
        ({"pp": 1}, {}, "parallel.pp", 2),
        ({"pp": 2, "vpp": 2}, {}, "parallel.vpp", 1),
        ({"pp": 2, "dp": 2, "zero": 2}, {}, "parallel.zero", 1),
        ({"pp": 2, "dp": 4, "zero_group": 2, "zero": 1}, {}, "parallel.zero_group", None),
        ({"pp": 2, "dp": 2, "ep": 2}, {}, "parallel.ep", 1),
        ({"pp": 2, "tp": 2, "etp": 1}, {}, "parallel.etp", 2),
        ({"pp": 2, "segments": "apart"}, {}, "parallel.segments", "mixed"),
        ({"pp": 2, "tp": 2, "modules": {"llm": {"tp": 1}}}, {}, "parallel.modules", None),
        ({"pp": 2}, {"schedule": "1f1b"}, "parallel.placement", "chimera"),
        ({"pp": 2}, {"schedule": "zb-auto"}, "parallel.placement", "chimera"),
        ({"pp": 2}, {"optimizer_post_validation": True}, "training.optimizer_post_validation", "false"),
        ({"pp": 2}, {"items": 3}, "training.global_batch", 4),
    ],
)
def test_refused_by_name(sizes: dict[str, Any], options: dict[str, Any], where: str, nearest: object) -> None:
    count = options.pop("items", 4)
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(gpt(), text_items(count), both(**sizes), **{"schedule": "chimera", **options}))
    assert (caught.value.where, caught.value.nearest) == (where, nearest)
    assert caught.value.message
    assert caught.value.expected


def test_what_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="in opposite directions") as caught:
        simulate(job_of(gpt(), text_items(4), Parallel(pp=2), schedule="chimera"))
    assert (caught.value.where, caught.value.nearest) == ("parallel.placement", "bidirectional")
    plain, twice = (
        prepare(job_of(gpt(), text_items(4), p, schedule=s))
        for p, s in ((Parallel(pp=2), "1f1b"), (both(pp=2), "chimera"))
    )
    with pytest.raises(ConfigError, match="in opposite directions"):
        plain.report("chimera")
    with pytest.raises(ConfigError, match="does not run a pipeline in both directions"):
        twice.report("gpipe")
    with pytest.raises(ConfigError, match="contention in a bidirectional pipeline"):
        twice.report(contention=True)
    with pytest.raises(ScheduleError, match="chimera needs a backward of every chunk"):
        simulate(
            job_of(
                vlm(frozen=("vit",)),
                vlm_items(4),
                both(pp=2, layout={"modules": {"vit": [3], "llm": [3]}}),
                schedule="chimera",
            )
        )
