"""``compare_log``: a user's training log against the report of the run: time and memory, simulated / measured.

A log of torchtitan tells tokens per second and GPU; its iteration time is the run's tokens / (rate x GPUs). Memory is
compared in the scope and measure that the log names: a global rank is one pipeline rank, by the run's
``parallel.rank_order``; ``max allocated`` is semu's peak, ``max reserved`` its reserved memory, and
``allocated``, what stays between iterations, its static part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from semu.job import TrainingJob
from semu.parallel.axes import COUNTS
from semu.parallel.mesh import Mesh
from semu.present.report import Report
from semu.records import dataclass
from semu.validation.logs.log_result import LogComparison, LoggedQuantity
from semu.validation.logs.samples import Samples, steady_samples
from semu.validation.logs.training_log import LoggedIteration, LoggedMemory, TrainingLog

FLOP_SLACK = 0.15
"""Relative difference of FLOP counts that is no contradiction: frameworks count attention in different ways."""

_NO_RANK = -1


@dataclass(frozen=True)
class _Measured:
    iterations: tuple[LoggedIteration, ...]
    times_s: Samples
    warnings: tuple[str, ...]


def compare_log(
    log: TrainingLog, job: TrainingJob, report: Report, *, warm_up: int | None = None, where: str | None = None
) -> LogComparison:
    """Compare.

    Args:
        log: what was measured. job, report: what was simulated.
        warm_up: iterations to leave out; None: the rule of ``semu.validation.logs.samples``.
        where: name of the log, for messages.
    Raises:
        ConfigError: no iteration is left after the warm-up.
    """
    measured = _measure(log, job, report, warm_up, where)
    settings = _logged_settings(log, measured.iterations)
    warnings = (
        *log.notes,
        *measured.warnings,
        *_rate_note(log, job, report),
        *_contradictions(settings, job),
        *_flop_warning(measured, job, report),
        *_rank_warning(log, job),
    )
    time = LoggedQuantity("iteration time", "s", measured.times_s, None, report.iteration_time_s, is_scored=True)
    return LogComparison(
        title=report.title,
        format=log.format.value,
        quantities=(time, *_memory(log, job, report)),
        settings=settings,
        warnings=warnings,
    )


def _measure(log: TrainingLog, job: TrainingJob, report: Report, warm_up: int | None, where: str | None) -> _Measured:
    """Iteration times of the iterations that have the run's batch, where any has; all of them otherwise."""
    wanted = job.training.global_batch
    iterations, warnings = log.iterations, []
    batches = Counter(one.global_batch for one in iterations if one.global_batch is not None)
    if len(batches) > 1 and wanted in batches:
        kept = tuple(one for one in iterations if one.global_batch in (wanted, None))
        sizes = ", ".join(str(batch) for batch in sorted(batches))
        warnings.append(
            f"the global batch size changes in the log ({sizes}): "
            f"the {len(kept)} of {len(iterations)} iterations with the run's {wanted} are compared"
        )
        iterations = kept
    tokens_per_gpu = report.tokens / job.cluster.num_gpus
    times = [one.time_s if one.time_s is not None else tokens_per_gpu / (one.tokens_per_s or 1.0) for one in iterations]
    samples = steady_samples([one.number for one in iterations], times, warm_up, where=where)
    return _Measured(iterations, samples, tuple(warnings))


def _rate_note(log: TrainingLog, job: TrainingJob, report: Report) -> Iterator[str]:
    if any(one.time_s is None for one in log.iterations):
        yield (
            f"the log has tokens per second and GPU, no times: iteration time = the run's {report.tokens} tokens / "
            f"(rate x {job.cluster.num_gpus} GPUs)"
        )


def _logged_settings(log: TrainingLog, iterations: tuple[LoggedIteration, ...]) -> dict[str, int]:
    """What the log tells about the run; the iteration lines win over the arguments at its beginning."""
    settings = dict(log.settings)
    batches = [one.global_batch for one in iterations if one.global_batch is not None]
    if batches:
        settings["global_batch"] = Counter(batches).most_common(1)[0][0]
    return settings


def _contradictions(settings: dict[str, int], job: TrainingJob) -> Iterator[str]:
    parallel, training = job.parallel, job.training
    run = {
        "gpus": ("number of GPUs", job.cluster.num_gpus),
        "global_batch": ("global batch size", training.global_batch),
        "micro_batch": ("micro batch size", training.micro_batch),
        "seq_len": ("sequence length", training.seq_len),
        **{name: (name, getattr(parallel, name)) for name in COUNTS},
    }
    for name, (words, ours) in run.items():
        logged = settings.get(name)
        if logged is not None and ours is not None and logged != ours:
            yield f"{words}: the log has {logged}, the run {ours}"


def _flop_warning(measured: _Measured, job: TrainingJob, report: Report) -> Iterator[str]:
    """The FLOP that the framework counts per GPU and iteration, against those of the run's model."""
    rates = {one.number: one.tflop_per_s for one in measured.iterations if one.tflop_per_s is not None}
    times = dict(zip(measured.times_s.numbers, measured.times_s.values.tolist(), strict=True))
    products = sorted(rate * 1e12 * times[number] for number, rate in rates.items() if number in times)
    if not products:
        return
    logged = products[len(products) // 2] * job.cluster.num_gpus
    most = max(report.mfu_full_attention, report.hfu) / report.mfu if report.mfu else 1.0
    low, high = report.model_flop * (1 - FLOP_SLACK), report.model_flop * most * (1 + FLOP_SLACK)
    if not low <= logged <= high:
        yield (
            f"the log's TFLOP/s x time x GPUs make {logged:.3g} FLOP per iteration, the run {report.model_flop:.3g}: "
            "another model, batch or number of GPUs?"
        )


def _rank_warning(log: TrainingLog, job: TrainingJob) -> Iterator[str]:
    beyond = sorted({rank for rank, _ in log.memory if rank is not None and rank >= job.cluster.num_gpus})
    if beyond:
        ranks = ", ".join(str(rank) for rank in beyond)
        yield f"number of GPUs: the log has memory of rank {ranks}, the run {job.cluster.num_gpus} GPUs"


def _memory(log: TrainingLog, job: TrainingJob, report: Report) -> Iterator[LoggedQuantity]:
    """One quantity per pipeline rank and measure: the highest value over the GPUs of that pipeline rank. Where a log
    names no GPU, one quantity per measure: the highest value over all pipeline ranks."""
    mesh = Mesh(job.parallel, job.cluster)
    simulated = {
        LoggedMemory.MAX_ALLOCATED: report.peak_memory_bytes,
        LoggedMemory.MAX_RESERVED: report.reserved_memory_bytes,
        LoggedMemory.ALLOCATED: report.static_memory_bytes,
    }
    places: dict[tuple[int, LoggedMemory], dict[int | None, float]] = {}
    for (rank, what), size in log.memory.items():
        stage = _NO_RANK if rank is None else mesh.stage_of_gpu(rank)
        if stage < job.parallel.pp:
            places.setdefault((stage, what), {})[rank] = size
    order = list(LoggedMemory)
    for (stage, what), by_rank in sorted(places.items(), key=lambda item: (item[0][0], order.index(item[0][1]))):
        sizes = simulated[what]
        rank, size = max(by_rank.items(), key=lambda item: item[1])
        place = "highest rank" if rank is None else f"rank {rank}, pipeline rank {stage}"
        if len(by_rank) > 1:
            place = f"rank {rank}, highest of {len(by_rank)} of pipeline rank {stage}"
        yield LoggedQuantity(
            name=f"{what.value} ({place})",
            unit="byte",
            measured=size,
            simulated=None if sizes is None else max(sizes) if rank is None else sizes[stage],
            is_scored=what is not LoggedMemory.ALLOCATED,
        )
