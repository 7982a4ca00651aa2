"""Around the pipeline: gradient reduction, optimizer step, parameter gathers, hidden or not."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.comparison import assert_tails_equal
from simulation.jobs import Distance, gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items, wide
from simulation.memory.test_memory_peaks import memories_of
from simulation.reference.expansion import expand
from simulation.reference.tail import gather_times

from semu.graph.operator import Phase
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.hardware.network.cost import collective_latency
from semu.nn import InputSpec, Linear, ModalityModule, ModalityRole, Model, Sequential
from semu.parallel.config import Parallel
from semu.present.report import Report
from semu.simulation import simulate
from semu.simulation.data_parallel.gradient_times import latest_ends


def on_grid(latency_s: float) -> float:
    return float(round(Fraction(latency_s) * 2**40) / Fraction(2**40))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("hidden", [False, True], ids=["after", "overlapped"])
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(("dp", "tp", "pp"), [(2, 1, 1), (2, 2, 2), (1, 2, 3), (3, 1, 2)])
def test_against_the_reference(dp: int, tp: int, pp: int, zero: int, hidden: bool) -> None:
    parallel = Parallel(dp=dp, tp=tp, pp=pp, zero=zero)
    options = overlap(gradients=hidden)
    assert_tails_equal(job_of(gpt(), text_items(2 * dp), parallel, overlap=options))
    assert_tails_equal(job_of(vlm(frozen=["vit"]), vlm_items(2 * dp), parallel, overlap=options))


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_several_buckets_start_as_their_gradients_are_ready(pp: int, schedule: str) -> None:
    job = job_of(wide(), text_items(4), Parallel(dp=2, pp=pp), overlap=overlap(gradients=True), schedule=schedule)
    assert_tails_equal(job)
    report = simulate(job)
    for rank in report.timeline.ranks:
        reductions = [piece for piece in rank.outer if piece.kind is OpKind.REDUCE_SCATTER]
        assert len(reductions) > 1
        assert reductions[0].start_s < rank.stages[-1].end_s < reductions[-1].end_s


@pytest.mark.parametrize("zero", [0, 1])
def test_pytorch_reduces_in_smaller_buckets(zero: int) -> None:
    options = overlap(gradients=True)
    pieces = {}
    for software in ("megatron", "torch"):
        job = job_of(wide(), text_items(4), Parallel(dp=2, zero=zero), overlap=options, software=software)
        assert_tails_equal(job)
        outer = simulate(job).timeline.ranks[0].outer
        pieces[software] = sum(piece.name.startswith("gradients") for piece in outer)
    assert pieces["torch"] > pieces["megatron"] > 1


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("pp", [1, 2])
def test_equal_replicas_start_their_buckets_as_gradients_are_ready(pp: int, schedule: str) -> None:
    """Every microbatch is the same, so that one replica and one shape stand for all."""
    for model, items in ((wide(), text_items(1)), (vlm(frozen=["vit"], layers=4), vlm_items(1))):
        options = overlap(gradients=True)
        job = job_of(model, items * 6, Parallel(dp=2, pp=pp), overlap=options, schedule=schedule)
        assert_tails_equal(job)
        starts = [item.start_s for item in simulate(job).timeline.ranks[0].outer if item.kind is OpKind.REDUCE_SCATTER]
        assert starts or model.name != "wide"


def test_without_overlap_by_hand() -> None:
    """Iteration = pipeline + reduce-scatter of fp32 gradients + Adam on a share + all-gather of bf16 parameters."""
    dp = 4
    job = job_of(gpt(), text_items(1) * dp, Parallel(dp=dp))
    report = simulate(job)
    count = gpt().num_parameters()
    profile, group = Cluster("h800", 1, dp).profile, Cluster("h800", 1, dp).place_group("dp", range(dp))
    scatter = on_grid(collective_latency(profile, OpKind.REDUCE_SCATTER, group, int(count * 4 * (dp - 1) / dp)))
    gather = on_grid(collective_latency(profile, OpKind.ALL_GATHER, group, int(count * 2 * (dp - 1) / dp)))
    step = profile.efficiencies[OpKind.OPTIMIZER]
    share = -(-count // dp)
    # read: gradient, master, two moments; written: master, two moments (all fp32) and the bf16 parameter
    adam = on_grid(step.t0_s + share * (7 * 4 + 2) / (step.mem * profile.mem_bytes_per_s.value))
    assert report.iteration_time_s == report.makespan_s + scatter + adam + gather
    assert report.breakdown_s["optimizer"] == adam
    assert report.breakdown_s["exposed_communication"] == {"dp": pytest.approx(scatter + gather)}


def test_zero_0_reduces_whole_gradients_and_gathers_nothing() -> None:
    report = simulate(job_of(gpt(), text_items(1) * 2, Parallel(dp=2, zero=0)))
    count = gpt().num_parameters()
    kinds = {piece.kind: piece for piece in report.timeline.ranks[0].outer}
    assert set(kinds) == {OpKind.ALL_REDUCE, OpKind.OPTIMIZER}
    assert kinds[OpKind.ALL_REDUCE].net_bytes == count * 4  # 2 (n - 1) / n of the buffer, n = 2


def test_the_optimizer_waits_for_every_rank() -> None:
    """The gradient norm is global, so all ranks step together, after the last reduction."""
    report = simulate(
        job_of(wide(3), text_items(4), Parallel(dp=2, pp=3), overlap=overlap(gradients=True), software="kernels")
    )
    steps = [p for rank in report.timeline.ranks for p in rank.outer if p.kind is OpKind.OPTIMIZER]
    sums = (OpKind.REDUCE_SCATTER, OpKind.ALL_REDUCE)  # over the replicas; of the tied table over two ranks
    reductions = [p.end_s for rank in report.timeline.ranks for p in rank.outer if p.kind in sums]
    assert len(steps) == 3
    assert {p.start_s for p in steps} == {max(*reductions, report.makespan_s)}


@pytest.mark.parametrize(
    ("model", "items"), [(gpt, text_items), (wide, text_items), (vlm, vlm_items), (t2v, t2v_items)]
)
def test_hiding_the_reduction_never_costs_time(model: object, items: object) -> None:
    """Hiding the gathers may: they come in buckets, each with a latency, and the first forwards wait for the last."""
    assert callable(model)
    assert callable(items)
    times = {}
    for gradients in (False, True):
        for parameters in (False, True):
            options = overlap(gradients=gradients, parameters=parameters)
            job = job_of(model(), items(4), Parallel(dp=2, pp=2), overlap=options, software="kernels")
            times[gradients, parameters] = simulate(job).iteration_time_s
    assert times[True, False] <= times[False, False]
    assert times[True, True] <= times[False, True]


# -- gathers before the first forwards ---------------------------------------------------------------------------------
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["text", "vlm", "t2v"])
def test_first_forwards_wait_for_their_parameters(kind: str, pp: int, tp: int) -> None:
    """Replicas are equal; in the reference every operator waits for the parameters of its own block."""
    model, items = {"text": (wide, text_items), "vlm": (vlm, vlm_items), "t2v": (t2v, t2v_items)}[kind]
    twice = [item for item in items(2) for _ in range(2)]
    job = job_of(model(), twice, Parallel(dp=2, pp=pp, tp=tp), overlap=overlap(parameters=True))
    report, free = simulate(job), expand(job)
    replica = expand(job, gather_times(free)).replicas[0]
    assert replica.makespan_s > free.replicas[0].makespan_s
    assert report.makespan_s == replica.makespan_s
    for rank, order in zip(report.timeline.ranks, replica.orders, strict=True):
        assert [(s.start_s, s.end_s) for s in rank.stages] == [replica.span(name) for name in order]
        gathers = [piece for piece in rank.outer if piece.kind is OpKind.ALL_GATHER]
        assert gathers[0].start_s == 0.0


def test_gather_by_hand() -> None:
    """Two blocks of 67 million weights: each fills a bucket, the second one's bias is left for a third."""
    width, dp = 8192, 2
    features = (InputSpec("text", width),)
    blocks = Sequential(Linear(width, width, bias=False), Distance(width))
    model = Model("two", [ModalityModule("two", ModalityRole.BACKBONE, blocks, features)])

    def make(parameters: bool) -> Report:
        options = overlap(parameters=parameters)
        return simulate(job_of(model, text_items(1) * dp, Parallel(dp=dp), overlap=options))

    plain, waiting = make(False), make(True)
    profile, group = Cluster("h800", 1, dp).profile, Cluster("h800", 1, dp).place_group("dp", range(dp))
    counts = (width * width, width * width, width)
    gathers = [
        on_grid(collective_latency(profile, OpKind.ALL_GATHER, group, count * 2 * (dp - 1) // dp)) for count in counts
    ]
    operators = plain.timeline.ranks[0].expand(0)
    latency = (operators.end_s - operators.start_s).tolist()
    first, rest = latency[0], sum(latency[1:])
    end = max(gathers[0] + first, sum(gathers)) + rest
    assert waiting.timeline.ranks[0].stages[0].end_s == end > plain.timeline.ranks[0].stages[0].end_s
    assert waiting.breakdown_s["exposed_communication"]["dp"] > 0  # type: ignore[index]


def test_zero_0_and_a_single_replica_gather_nothing() -> None:
    for parallel, count in ((Parallel(dp=2, zero=0), 2), (Parallel(), 1)):
        report = simulate(job_of(gpt(), text_items(1) * count, parallel, overlap=overlap(parameters=True)))
        assert not [p for p in report.timeline.ranks[0].outer if p.kind is OpKind.ALL_GATHER]


# -- replicas ----------------------------------------------------------------------------------------------------------
def test_the_slowest_replica_is_named_and_shown() -> None:
    light, heavy = text_items(40)[:2]
    if light.tokens("text") > heavy.tokens("text"):
        light, heavy = heavy, light
    for place in range(3):
        items = [heavy if i % 3 == place else light for i in range(6)]  # replica i mod 3 runs item i
        report = simulate(job_of(gpt(), items, Parallel(dp=3, pp=2)))
        alone = simulate(job_of(gpt(), [heavy] * 2, Parallel(pp=2)))
        assert report.slowest_replica == place
        assert report.num_distinct_replicas == 2
        assert report.makespan_s == alone.makespan_s
        assert {rank.replica for rank in report.timeline.ranks} == {place}
        assert [rank.gpu for rank in report.timeline.ranks] == [place, 3 + place]
        assert report.peak_memory_bytes == tuple(
            peak - static + own
            for peak, static, own in zip(
                alone.peak_memory_bytes, alone.static_memory_bytes, report.static_memory_bytes, strict=True
            )
        )


def test_backward_of_the_last_microbatch_feeds_the_reduction() -> None:
    """The last bucket starts no earlier than the last weight gradient of the slowest replica ends."""
    job = job_of(gpt(), text_items(4), Parallel(dp=2), overlap=overlap(gradients=True))
    rank = simulate(job).timeline.ranks[0]
    last = max(
        end
        for _, operators in rank.stage_operators()
        for phase, end in zip(operators.table.phases, operators.end_s, strict=True)
        if phase is Phase.WEIGHT_GRADIENT
    )
    assert max(p.start_s for p in rank.outer if p.kind is OpKind.REDUCE_SCATTER) == last


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("model", ["gpt", "vlm"])
def test_gradients_are_ready_when_the_slowest_of_many_replicas_has_them(seed: int, model: str) -> None:
    """Operator by operator the latest of all replicas, though most of them are never asked."""
    made, items = (gpt(), text_items(40, seed)) if model == "gpt" else (vlm(), vlm_items(40, seed))
    job = job_of(made, items, Parallel(dp=20, pp=2))
    run, memories = memories_of(job)
    assert run.num_replicas == 20
    layout, evaluation = memories[0].layout, memories[0].pipeline.evaluation
    for chunk in layout.chunks:
        assert chunk.backward is not None
        node = max(n for n, s in enumerate(run.problem.stages) if s.chunk == chunk.chunk.index and s.phase.is_backward)
        ends = [
            run.start[replica, node]
            + chunk.backward.times(evaluation.by_shape.latency[run.shape[replica][run.column][node]])[1]
            for replica in range(20)
        ]
        latest = np.max(ends, axis=0)
        for operators in (np.arange(chunk.backward.num_ops), np.array([chunk.backward.num_ops - 1]), np.array([0])):
            found = latest_ends(evaluation, run, chunk.backward, node, operators)
            assert found.tolist() == latest[operators].tolist()


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.integers(0, 9), min_size=4, max_size=4)), min_size=1, max_size=24
    ),
    st.lists(st.integers(0, 3), max_size=4),
)
def test_the_latest_end_of_each_operator(replicas: list[tuple[int, list[int]]], operators: list[int]) -> None:
    """A stage of four operators in a row: a replica that starts late and runs fast is last at first, not at the end."""
    replicas = [*replicas, *[(begin, lasts) for begin in (0, 30) for _, lasts in replicas], *[(0, [1, 1, 9, 40])] * 9]
    latency = np.array([lasts for _, lasts in replicas], dtype=np.float64)
    start = np.array([[begin] for begin, _ in replicas], dtype=np.float64)
    ends = start + np.cumsum(latency, axis=1)
    run = SimpleNamespace(
        start=start,
        end=ends[:, -1:],
        shape=np.arange(len(replicas))[:, None],
        problem=SimpleNamespace(),
        column=np.zeros(1, dtype=np.int64),
        release={},
    )
    found = latest_ends(
        SimpleNamespace(
            by_shape=SimpleNamespace(ends=lambda stage, shapes: [np.cumsum(latency[shape]) for shape in shapes])
        ),  # type: ignore[arg-type]
        run,  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        0,
        np.array(operators, dtype=np.int64),
    )
    assert found.tolist() == ends.max(axis=0)[operators].tolist()
