"""What a report must conserve (DESIGN §3.10): seconds, FLOP, bytes on the wire, parameters, memory."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from simulation.jobs import (
    WIDTH,
    Distance,
    chain,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)
from simulation.models.test_experts import moe
from simulation.reference.costs import symbols_of, value
from simulation.reference.model import CutModel

from semu.graph.operator import Phase
from semu.hardware.kinds import DType, OpKind
from semu.hardware.profile import load_profile
from semu.job import TrainingJob
from semu.nn import Linear, Model
from semu.parallel.config import Overlap, Parallel
from semu.present.report import Report
from semu.simulation import simulate
from semu_models.text.llama import Llama, LlamaConfig

JOBS = {
    "text": lambda: job_of(gpt(), text_items(4), Parallel(pp=2), overlap=Overlap()),
    "text-dp-zero0": lambda: job_of(gpt(), text_items(6), Parallel(dp=2, pp=2, zero=0), overlap=Overlap()),
    "text-dp-tp": lambda: job_of(gpt(), text_items(6), Parallel(dp=2, tp=2, pp=2), overlap=Overlap()),
    "text-dp-late": lambda: job_of(gpt(), text_items(6), Parallel(dp=3, tp=2)),
    "vlm": lambda: job_of(vlm(), vlm_items(4, empty=(2,)), Parallel(dp=2, pp=3), overlap=Overlap(pipeline=True)),
    "vlm-frozen": lambda: job_of(vlm(frozen=["vit"]), vlm_items(4), Parallel(pp=4, tp=2), schedule="gpipe"),
    "t2v": lambda: job_of(t2v(), t2v_items(4), Parallel(dp=2, pp=2), overlap=Overlap(), recompute="full"),
    "text-zero2": lambda: job_of(gpt(), text_items(6), Parallel(dp=2, tp=2, zero=2), overlap=Overlap()),
    "vlm-zero3": lambda: job_of(
        vlm(), vlm_items(8, empty=(2,)), Parallel(dp=4, zero=3, zero_group=2), overlap=Overlap()
    ),
    "t2v-zero3-late": lambda: job_of(t2v(frozen=["llm"]), t2v_items(4), Parallel(dp=2, tp=2, zero=3)),
    "all-overlap": lambda: job_of(
        vlm(), vlm_items(6), Parallel(dp=2, tp=2, pp=2), overlap=Overlap(True, True, True, True)
    ),
    "text-zero2-pipeline": lambda: job_of(gpt(), text_items(6), Parallel(dp=2, pp=2, zero=2), overlap=Overlap()),
    "t2v-zero3-pipeline": lambda: job_of(t2v(), t2v_items(6), Parallel(dp=2, pp=3, zero=3), overlap=Overlap()),
    "vlm-zero3-kept": lambda: job_of(
        vlm(), vlm_items(6), Parallel(dp=2, pp=3, zero=3, reshard_after_forward=False), overlap=Overlap()
    ),
    "experts-zero3": lambda: job_of(moe(), text_items(6), Parallel(dp=2, tp=2, ep=2, zero=3), overlap=Overlap()),
    "interleaved": lambda: job_of(vlm(), vlm_items(8), Parallel(dp=2, tp=2, pp=2, vpp=2), overlap=Overlap()),
}


@pytest.fixture(params=JOBS)
def job(request: pytest.FixtureRequest) -> TrainingJob:
    made: TrainingJob = JOBS[request.param]()
    return made


@pytest.fixture
def report(job: TrainingJob) -> Report:
    return simulate(job)


def parts(report: Report) -> dict[str, float]:
    breakdown = dict(report.breakdown_s)
    exposed = breakdown.pop("exposed_communication")
    return {**breakdown, **exposed}  # type: ignore[dict-item]


def test_breakdown_sums_to_the_iteration_time(report: Report) -> None:
    found = parts(report)
    always = {"compute", "exposed_communication", "bubble", "optimizer", "other"}
    assert set(report.breakdown_s) - {"interference"} == always
    assert sum(found.values()) == pytest.approx(report.iteration_time_s, rel=1e-12)
    assert all(seconds >= -1e-15 for seconds in found.values()), found
    assert abs(found["other"]) <= 1e-12 * report.iteration_time_s  # gaps, stages and tails explain everything


def test_streams_are_busy_once_at_a_time_and_within_the_iteration(report: Report) -> None:
    """Per stream, slices do not overlap, so that busy + idle = total; sends have a stream per receiver."""
    for rank in report.timeline.ranks:
        spans: dict[str, list[tuple[float, float]]] = {}
        for _, operators in rank.stage_operators():
            for stream, start, end in zip(operators.table.streams, operators.start_s, operators.end_s, strict=True):
                spans.setdefault(stream, []).append((start, end))
        for piece in rank.outer:
            pair = piece.name.rsplit(" ", 1)[1] if piece.kind is OpKind.P2P else ""
            spans.setdefault(f"{piece.stream} {pair}".strip(), []).append((piece.start_s, piece.end_s))
        for stream, slices in spans.items():
            slices.sort()
            assert slices[0][0] >= 0, stream
            assert all(first[1] <= second[0] for first, second in pairwise(slices)), stream
            assert slices[-1][1] <= report.iteration_time_s, stream


def test_compute_and_optimizer_are_the_busy_time_of_the_compute_streams() -> None:
    report = simulate(job_of(vlm(), vlm_items(4), Parallel(pp=3, tp=2), overlap=overlap(tensor=True)))
    busy = optimizer = 0.0
    for rank in report.timeline.ranks:
        for _, operators in rank.stage_operators():
            for stream, start, end in zip(operators.table.streams, operators.start_s, operators.end_s, strict=True):
                busy += end - start if stream == "compute" else 0.0
        optimizer += sum(piece.end_s - piece.start_s for piece in rank.outer if piece.kind is OpKind.OPTIMIZER)
    assert parts(report)["compute"] * 3 == pytest.approx(busy, rel=1e-12)
    assert parts(report)["optimizer"] * 3 == pytest.approx(optimizer, rel=1e-12)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("dp", "tp", "pp"), [(1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 1, 3)])
def test_flop_are_those_of_the_operators(dp: int, tp: int, pp: int, recompute: str) -> None:
    """All replicas are equal and every matrix product is split, so one rank of each group counts for all."""
    items = [item for item in text_items(3) for _ in range(dp)]
    report = simulate(job_of(gpt(), items, Parallel(dp=dp, tp=tp, pp=pp), recompute=recompute))
    hardware = again = 0.0
    for rank in report.timeline.ranks:
        for _, operators in rank.stage_operators():
            hardware += float(operators.flop.sum())
            for phase, flop in zip(operators.table.phases, operators.flop, strict=True):
                again += flop if phase is Phase.RECOMPUTE else 0.0
    assert report.num_distinct_replicas == 1
    assert report.hardware_flop == hardware * tp * dp
    assert (again > 0) == (recompute == "full")
    peak = load_profile("h800").peak_flop_per_s(DType.BF16) * dp * tp * pp * report.iteration_time_s
    assert report.hfu == pytest.approx(report.hardware_flop / peak, rel=1e-12)
    assert report.mfu / report.hfu == pytest.approx(report.model_flop / report.hardware_flop, rel=1e-12)


def test_model_flop_of_a_gpt_by_hand() -> None:
    """Per token 6 x weights of matrix products; attention 2 + 4 pairs x width per layer, halved by the mask twice."""
    layers, width, vocab = 3, 128, 512
    items = text_items(4)
    report = simulate(job_of(gpt(layers), items, Parallel(pp=2), recompute="full"))
    lengths = [length for item in items for length in item.streams["text"]]
    dense = 6 * sum(lengths) * (12 * layers * width**2 + vocab * width)
    scores = layers * 6 * sum(length**2 for length in lengths) * width
    assert report.model_flop == dense + scores
    assert report.mfu_full_attention / report.mfu == pytest.approx((dense + 2 * scores) / (dense + scores), rel=1e-12)


@pytest.mark.parametrize(("model", "items"), [(gpt, text_items), (vlm, vlm_items), (t2v, t2v_items)])
def test_model_flop_do_not_depend_on_the_layout(model: object, items: object) -> None:
    assert callable(model)
    assert callable(items)
    drawn = [item for seed in range(200) for item in items(1, seed)]
    even = [item for item in drawn if all(item.tokens(stream) % 2 == 0 for stream in item.streams)]
    counts = {
        simulate(job_of(model(), even[:4], Parallel(dp=dp, tp=tp, pp=pp), recompute=recompute)).model_flop
        for dp, tp, pp, recompute in [(1, 1, 1, "none"), (1, 2, 2, "none"), (2, 1, 3, "full"), (2, 2, 1, "full")]
    }
    assert len(counts) == 1


def test_bytes_sent_are_bytes_received(job: TrainingJob, report: Report) -> None:
    """What ranks send to a rank is what its chunks take from other ranks: carries and gradients of carries."""
    model = CutModel(job)
    count = job.num_microbatches * job.parallel.dp
    items = job.batch.microbatches(count, 1)[report.slowest_replica :: job.parallel.dp]
    received: Counter[int] = Counter()
    for block in model.blocks:
        for k, source in enumerate(block.sources):
            if source is None or model.blocks[source[0]].rank == block.rank:
                continue
            maker = model.blocks[source[0]]
            ends = [(block, block.trace.inputs[k])]
            gradient = maker.trace.output_gradients[source[1]]
            ends += [(maker, gradient)] if gradient is not None else []
            for taker, tensor in ends:
                size = taker.trace.graph.storages[taker.trace.graph.tensors[tensor].storage].size_bytes
                received[taker.rank] += sum(value(size, symbols_of(item, job.parallel.tp)) for item in items)
    sent: Counter[int] = Counter()
    for rank in report.timeline.ranks:
        for piece in rank.outer:
            if piece.kind is OpKind.P2P:
                sent[int(piece.name.rsplit(" ", 1)[1])] += piece.net_bytes
    assert sent == +received


def test_bytes_between_the_ranks_of_a_language_model() -> None:
    """Each boundary carries one bf16 activation and one bf16 gradient of the width per token, split over tp."""
    items = text_items(4)
    for tp in (1, 2):
        report = simulate(job_of(gpt(), items, Parallel(pp=3, tp=tp)))
        padded = [-(-item.tokens("text") // tp) for item in items]
        for number, rank in enumerate(report.timeline.ranks):
            sizes = sorted(piece.net_bytes for piece in rank.outer if piece.kind is OpKind.P2P)
            neighbours = (number > 0) + (number < 2)
            assert sizes == sorted(shard * 128 * 2 for shard in padded * neighbours)


def test_parameters_are_those_of_the_model() -> None:
    config = LlamaConfig(layers=4, hidden=64, ffn=128, heads=4, kv_heads=2, vocab=256)
    by_hand = 2 * 256 * 64 + 64 + 4 * (2 * 64 + 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128)
    for tp, pp in [(1, 1), (1, 3), (2, 2)]:
        report = simulate(job_of(Model.from_module(Llama(config)), text_items(2), Parallel(tp=tp, pp=pp)))
        norms = 64 * (2 * 4 + 1)  # whole on every tensor-parallel rank
        assert report.parameters == by_hand
        assert sum(row.parameters for row in report.ranks) == (by_hand - norms) // tp + norms


def test_a_tied_table_is_stored_by_both_ranks_that_use_it() -> None:
    table = 512 * 128
    one, two = (simulate(job_of(gpt(), text_items(2), Parallel(pp=pp))) for pp in (1, 2))
    assert one.parameters == two.parameters == one.ranks[0].parameters
    assert sum(row.parameters for row in two.ranks) == one.parameters + table


def test_reported_peaks_are_those_of_the_curves() -> None:
    """All replicas are equal, so the timeline shows the peak that is reported, with its explanation."""
    items = [item for item in vlm_items(3) for _ in range(2)]
    report = simulate(job_of(vlm(), items, Parallel(dp=2, pp=3, tp=2)))
    for row, rank, size in zip(report.ranks, report.timeline.ranks, report.peak_memory_bytes, strict=True):
        assert row.peak_bytes == size == rank.memory.peak_bytes == rank.peak.size_bytes
        assert sum(rank.peak.by_role.values()) == size
        assert (row.peak_stage, row.peak_operator) == (rank.peak.stage, rank.peak.operator)
        stage = next(number for number, piece in enumerate(rank.stages) if piece.label == row.peak_stage)
        assert row.peak_operator in rank.expand(stage).table.paths


def test_memory_curves_end_where_they_began(report: Report) -> None:
    for rank, static, peak in zip(
        report.timeline.ranks, report.static_memory_bytes, report.peak_memory_bytes, strict=True
    ):
        curve = rank.memory
        assert curve.total[-1] == static
        assert curve.by_role.min() >= 0
        assert (curve.by_role[:, -1] == curve.by_role.min(axis=1)).all()
        assert curve.total.max() <= peak
        assert (curve.times_s[1:] >= curve.times_s[:-1]).all()
        reduced = [piece.end_s for piece in rank.outer if piece.kind is OpKind.REDUCE_SCATTER]  # whole gradients stay
        assert curve.times_s[-1] <= max([report.makespan_s, *reduced])


def test_a_sent_activation_leaves_the_sender_and_reaches_the_receiver() -> None:
    """The receiver's buffer is there when the transfer starts, the sender's tensor is gone when it ends."""
    items = text_items(1)
    model = chain(Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH), Distance())
    report = simulate(job_of(model, items, Parallel(pp=2), overlap=overlap(pipeline=True)))

    def level(rank: int, time: float) -> int:
        curve = report.timeline.ranks[rank].memory
        return int(curve.total[(curve.times_s <= time).sum() - 1])

    send = next(piece for piece in report.timeline.ranks[0].outer if piece.kind is OpKind.P2P)
    size = items[0].tokens("text") * WIDTH * 2
    assert send.net_bytes == size
    assert level(1, send.start_s) == report.static_memory_bytes[1] + size
    assert level(0, send.start_s) - level(0, send.end_s) == size
    assert report.timeline.ranks[1].stages[0].start_s == send.end_s


def test_top_operators_are_sums_over_the_timeline() -> None:
    report = simulate(job_of(vlm(), vlm_items(3), Parallel(pp=2, tp=2), recompute="full"))
    seconds: Counter[tuple[str, str, str]] = Counter()
    calls: Counter[tuple[str, str, str]] = Counter()
    for rank in report.timeline.ranks:
        for _, operators in rank.stage_operators():
            table = operators.table
            for i, path in enumerate(table.paths):
                plain = ".".join(part for part in path.split(".") if not part.isdecimal())
                key = (plain, table.kinds[i].value, table.phases[i].name.lower())
                seconds[key] += operators.end_s[i] - operators.start_s[i]
                calls[key] += 1
    assert len(report.top_operators) == 10
    for row, (_, longest) in zip(report.top_operators, seconds.most_common(10), strict=True):
        key = (row.path, row.kind, row.phase)
        assert row.time_s == pytest.approx(seconds[key], rel=1e-9) == pytest.approx(longest, rel=1e-9)
        assert row.calls == calls[key]
        assert row.share == pytest.approx(seconds[key] / seconds.total(), rel=1e-9)
    assert sum(report.provenance.values()) == pytest.approx(1.0)
