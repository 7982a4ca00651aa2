"""Reserved memory: the requests behind it add up to the memory that is reported, and small cases by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from engine.allocator_reference import reserve_slowly
from simulation.jobs import (
    LANGUAGE,
    attention_encoder,
    carry_along,
    gpt,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)
from simulation.jobs import job_of as job_of_items
from simulation.reference.held import wholes
from simulation.reference.model import CutModel

import semu
from semu.engine.allocator import MOST_REPEATS, reserve
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Overlap, Parallel
from semu.schedule.problem import lower
from semu.searcher.what_if.advice import advise
from semu.simulation import prepare
from semu.simulation.context import TimedJob
from semu.simulation.memory.allocation_tape import PipelineTapes
from semu.simulation.memory.ranks import RankMemory
from semu.simulation.memory.reserved import RankProgram, rank_trace, reserved_bytes, shared_out, static_requests
from semu.simulation.memory.workspaces import CUBLAS_BYTES, CUBLAS_BYTES_HOPPER, CUBLAS_HANDLES
from semu.simulation.pipeline import run_pipeline
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

MIB = 1 << 20


def timed(job: TrainingJob) -> TimedJob:
    made = prepare(job)
    problem = lower(made.schedule(), made.units.shape, overlapped_sends=job.overlaps_sends)
    return run_pipeline(made, problem)


def live(job: TrainingJob, rank: int) -> tuple[np.ndarray, int]:
    """Bytes alive after every event of one rank's iteration without rounding, and its static bytes."""
    found = timed(job)
    trace = rank_trace(found, rank, 0)
    held: dict[int, int] = {}
    total, curve = 0, []
    for slot, size in zip(trace.slot.tolist(), trace.size.tolist(), strict=True):
        if size:
            assert slot not in held
            held[slot] = size
            total += size
        else:
            total -= held.pop(slot)
        curve.append(total)
    return np.array(curve), curve[trace.first - 1]


def job_of(model: object, device: str = "h800", **parallel: object) -> TrainingJob:
    chosen = Parallel(**parallel)  # type: ignore[arg-type]
    serial = Overlap(tensor_parallel=False)  # requests follow each other as the kernels do
    training = Training(global_batch=4 * chosen.dp, seq_len=256, recompute="none", overlap=serial)
    return TrainingJob(model, Cluster(device, 1, chosen.num_gpus), chosen, training)  # type: ignore[arg-type]


def llama() -> Model:
    return Model.from_module(Llama(LANGUAGE), name="llm")


@pytest.mark.parametrize("make", [gpt, llama, carry_along, attention_encoder])
@pytest.mark.parametrize("parallel", [{}, {"tp": 2}, {"tp": 2, "pp": 2}, {"pp": 3}, {"dp": 2, "zero": 1}])
def test_requests_add_up_to_the_peak_of_allocated_memory(make: object, parallel: dict[str, int]) -> None:
    """Every request is freed once, what the iteration allocates goes again, and its highest sum is the peak."""
    job = job_of(make(), **parallel)  # type: ignore[operator]
    report = semu.simulate(job)
    for rank in range(job.parallel.pp):
        curve, static = live(job, rank)
        assert curve[-1] == static
        assert static - CUBLAS_HANDLES * CUBLAS_BYTES_HOPPER == report.static_memory_bytes[rank]
        over = curve.max() - CUBLAS_HANDLES * CUBLAS_BYTES_HOPPER - report.peak_memory_bytes[rank]
        carried = 2 * 4 * 256 * 128 if job.parallel.pp > 1 else 0  # a transfer may be held a stage longer
        assert 0 <= over <= carried


@pytest.mark.parametrize(
    "options", [{}, {"offload": "activations"}, {"offload": "weights"}, {"recompute": "full"}], ids=str
)
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_every_request_is_freed_once(pp: int, options: dict[str, object]) -> None:
    """Several modules, an empty microbatch, overlapped sends, virtual stages, shards."""
    hide = overlap(tensor=True, pipeline=True)
    jobs = [
        job_of_items(vlm(), vlm_items(4, empty=(1,)), Parallel(pp=pp), **options),
        job_of_items(t2v(), t2v_items(4), Parallel(pp=pp, tp=2), schedule="gpipe", overlap=hide, **options),
    ]
    if pp == 2:
        jobs.append(job_of_items(gpt(4), text_items(4), Parallel(pp=2, vpp=2), **options))
    if pp == 1 and "offload" not in options:
        jobs.append(job_of_items(gpt(4), text_items(4), Parallel(dp=2, zero=2), **options))
    for job in jobs:
        report = semu.simulate(job)
        assert report.reserved_memory_bytes is not None
        for rank, (reserved, peak) in enumerate(
            zip(report.reserved_memory_bytes, report.peak_memory_bytes, strict=True)
        ):
            curve, static = live(job, rank)
            assert curve[-1] == static
            assert reserved >= peak


@pytest.mark.parametrize("master", ["fp32", "bf16"])
def test_static_memory_is_asked_for_tensor_by_tensor(master: str) -> None:
    """Of one GPU: cuBLAS's workspaces, every parameter in bf16, all gradients in fp32 at once, then of every parameter
    the master weights, unless they are the parameters, and two moments in fp32."""
    job = job_of(gpt())
    job = replace(job, training=replace(job.training, master_dtype=master))
    layout = timed(job).layout
    elements = [entry[2].elements for entry in layout.held_by(0)]
    bf16, fp32 = [2 * n for n in elements], [4 * n for n in elements]
    expected = [CUBLAS_BYTES_HOPPER] * CUBLAS_HANDLES + bf16 + [sum(fp32)] + fp32 * (3 if master == "fp32" else 2)
    assert static_requests(layout, 0) == expected
    away = replace(job, training=replace(job.training, offload=("weights",)))
    ends = {0, max(entry[1] for entry in layout.held_by(0))}  # embedding and head: no layers, whose weights are away
    left = [2 * entry[2].elements for entry in layout.held_by(0) if entry[1] in ends]
    expected[2 : 2 + len(bf16)] = left
    assert static_requests(timed(away).layout, 0) == expected


def test_zero_3_frees_what_it_gathers() -> None:
    job = job_of(gpt(), dp=2, zero=3)
    curve, static = live(job, 0)
    assert curve[-1] == static
    assert curve.max() - 2 * CUBLAS_BYTES_HOPPER >= semu.simulate(job).peak_memory_bytes[0]


def test_the_report_gives_the_estimate() -> None:
    job = job_of(gpt(), device="a100-80g", pp=2)
    report = semu.simulate(job)
    assert report.reserved_memory_bytes is not None
    found = timed(job)
    for rank, reserved in enumerate(report.reserved_memory_bytes):
        trace = rank_trace(found, rank, 0)
        assert trace.size[:2].tolist() == [CUBLAS_BYTES] * 2
        assert reserved == reserve(trace, capacity_bytes=1 << 50).peak_bytes
        assert reserved % (2 * MIB) == 0
        assert reserved >= report.peak_memory_bytes[rank]
        assert RankMemory(found, rank).static.total == report.static_memory_bytes[rank]
    assert report.to_json()["reserved_memory_bytes"] == list(report.reserved_memory_bytes)


@pytest.mark.parametrize(
    "model",
    [
        Model.from_module(Llama(LlamaConfig(4, 1024, 2816, heads=8, kv_heads=8, vocab=8192)), name="llm"),
        Model.from_module(GPT(GPTConfig(4, 1536, heads=8, vocab=50304, positions=2048)), name="llm"),
    ],
    ids=["llama", "gpt"],
)
def test_cached_blocks_are_given_back_before_the_margin_is_touched(model: Model) -> None:
    """A device with room for what the allocator would hold, if nothing lay outside it and no margin were kept."""
    training = Training(global_batch=4, seq_len=2048, recompute="full", memory_margin=0.0)
    base = TrainingJob(model, Cluster("a100-80g", 1, 2), Parallel(pp=2), training)
    plenty = semu.simulate(base).reserved_memory_bytes
    assert plenty is not None
    outside, lower = (512 << 20) + 32 * (4 << 20), 0
    for rank, highest in enumerate(plenty):
        for usable in range(highest - 2 * MIB, highest - 40 * MIB, -6 * MIB):
            tight = replace(base, cluster=replace(base.cluster, override={"memory_bytes": usable + outside}))
            expected = reserve_slowly(rank_trace(timed(tight), rank, 0), capacity_bytes=usable, repeats=MOST_REPEATS)
            found = semu.simulate(tight).reserved_memory_bytes
            assert found is not None and found[rank] == expected.peak_bytes
            lower += found[rank] < highest
    assert lower > 0


@pytest.mark.parametrize("make", [gpt, llama])
def test_every_rank_is_replayed_once(make: Callable[[], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a report and its copies are asked, and advised on."""
    replayed: list[int] = []

    def _of(timed: TimedJob, rank: int, replica: int, tapes: PipelineTapes | None = None) -> RankProgram:
        replayed.append(rank)
        return program_of(timed, rank, replica, tapes)

    program_of = RankProgram.of
    monkeypatch.setattr(RankProgram, "of", _of)
    job = job_of(make(), pp=2)
    report = semu.simulate(job)
    assert not replayed
    copy = replace(advise(job, replace(report, warnings=("new",))), settings={})
    assert copy.held_memory_bytes == report.held_memory_bytes == copy.reserved_memory_bytes
    assert copy.fullest_rank in range(2) and len(copy.memory) == 2
    assert sorted(replayed) == [0, 1]


def test_programs_of_one_content_are_one_trace() -> None:
    """Of ranks and schedules, of models with and without parts that cut microbatches; and most differ."""
    traces: dict[bytes, bytes] = {}
    programs = 0
    for make in (gpt, llama):
        for schedule in ("1f1b", "interleaved", "gpipe"):
            for recompute in ("none", "full"):
                job = job_of(make(), pp=2)
                found = timed(replace(job, training=replace(job.training, schedule=schedule, recompute=recompute)))
                for rank in range(2):
                    program = RankProgram.of(found, rank, 0)
                    trace = program.trace()
                    written = trace.slot.tobytes() + trace.size.tobytes()
                    assert traces.setdefault(program.content, written) == written
                    programs += 1
    assert len({*traces.values()}) == len(traces) < programs


def test_a_small_model_by_hand() -> None:
    """Two workspaces of 8.125 MiB and a gradient buffer of 4 bytes a parameter share a segment of 20 MiB of the large
    pool; all else is at most 1 MiB and lies in segments of 2 MiB."""
    job = job_of(gpt(), device="a100-80g")
    found = timed(job)
    trace = rank_trace(found, 0, 0)
    gradients = 4 * job.model.num_parameters()
    assert sorted(trace.size[trace.size > MIB].tolist()) == [gradients, CUBLAS_BYTES, CUBLAS_BYTES]
    curve, _ = live(job, 0)
    reserved = semu.simulate(job).reserved_memory_bytes
    assert reserved is not None
    small = reserved[0] - 20 * MIB
    assert small % (2 * MIB) == 0
    assert 0 <= small - (curve.max() - gradients - 2 * CUBLAS_BYTES) <= 3 * MIB


@pytest.mark.parametrize("more", [1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 7 * MIB])
def test_no_less_is_reserved_than_is_allocated(more: int) -> None:
    """The host frees early what the device still holds: then whole segments of 2 MiB over the peak count."""
    job = job_of(gpt(), pp=2)
    found = timed(job)

    def held(*peaks: int) -> list[int]:
        return [reserved_bytes(found, (0, 0), peaks, rank) for rank in range(2)]

    replayed = held(0, 0)
    assert all(reserved > 0 and reserved % (2 * MIB) == 0 for reserved in replayed)
    assert held(*[reserved - 1 for reserved in replayed]) == replayed
    assert held(*replayed) == replayed
    segments = (more + 2 * MIB - 1) // (2 * MIB)
    assert held(replayed[0] + more, replayed[1]) == [replayed[0] + 2 * MIB * segments, replayed[1]]


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("make", [gpt, llama])
def test_zero_3_that_gathers_once_holds_all_through_the_iteration(make: Callable[[], Model], pp: int) -> None:
    """Whole parameters and whole gradients of every block come before the first stage and go after the last one."""
    job = job_of(make(), pp=pp, dp=2, zero=3, reshard_after_forward=False)
    found = timed(job)
    model = CutModel(job)
    peaks = semu.simulate(job).peak_memory_bytes
    for rank in range(pp):
        elements = [sum(use.numel for use in whole.uses) for whole in wholes(model, rank)]
        expected = sorted([2 * count for count in elements] + [4 * count for count in elements])  # bf16, fp32 gradients
        trace = rank_trace(found, rank, 0)
        slot, size = trace.slot[trace.first :].tolist(), trace.size[trace.first :].tolist()
        first, last = slot[: len(expected)], slot[-len(expected) :]
        assert sorted(size[: len(expected)]) == expected
        assert sorted(first) == sorted(last)
        assert not any(size[-len(expected) :])
        assert not set(first) & set(slot[len(expected) : -len(expected)])
        curve, static = live(job, rank)
        assert curve[-1] == static
        assert curve.max() - CUBLAS_HANDLES * CUBLAS_BYTES_HOPPER >= peaks[rank]


def test_sharing_out_keeps_the_sum() -> None:
    assert shared_out(10, [1, 1, 1]) == [3, 3, 4]
    assert sum(shared_out(12345678901234567, [3, 5, 7])) == 12345678901234567
    assert shared_out(5, []) == shared_out(5, [0]) == []
