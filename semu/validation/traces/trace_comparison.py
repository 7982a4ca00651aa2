"""``compare_trace``: one iteration of a Kineto trace against the same rank of the simulation, family by family."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semu.errors import ConfigError
from semu.fitting.kernel_names import Family
from semu.job import TrainingJob
from semu.present.report import Report
from semu.units import format_time
from semu.validation.traces.gpu_work import GpuWork, busy_times, family_codes, simulated_work
from semu.validation.traces.kineto import Kernel, KinetoTrace
from semu.validation.traces.trace_result import NamedKernels, TraceComparison

LEAST_IDLE = 0.01
"""A share of the iteration that its kernels may exceed it by, before a warning is made."""
COUNT_FACTOR = 2.0
"""Matrix products measured and simulated may differ by this factor before the iteration itself is in doubt."""


def compare_trace(
    trace: KinetoTrace,
    job: TrainingJob,
    report: Report,
    *,
    rank: int | None = None,
    step: int | None = None,
    where: str | None = None,
) -> TraceComparison:
    """Compare.

    Args:
        trace: what was measured. job, report: what was simulated.
        rank: pipeline rank; None: that of the trace's ``distributedInfo``, else the first.
        step: number of the ``ProfilerStep``; None: the one of median length.
        where: name of the trace, for messages.
    Raises:
        ConfigError: no such rank or step, or kernels of several GPUs in one trace.
    """
    pipeline_rank, rank_notes = _pipeline_rank(trace, job, rank)
    kernels, device_note = _one_gpu(trace, rank, where)
    chosen = _choose(trace, kernels, step, where)
    work = _work(chosen)
    timeline = report.timeline
    measured = busy_times(work)
    simulated = busy_times(simulated_work(timeline.ranks[pipeline_rank], report.iteration_time_s))
    warnings = [*rank_notes, *device_note, *chosen.warnings]
    if measured.idle_s < -LEAST_IDLE * measured.iteration_s:
        warnings.append(
            f"the GPU works {format_time(-measured.idle_s)} longer than the iteration's annotation: steps overlap, "
            "or it is not the whole iteration"
        )
    counts = [
        side.families[Family.MATMUL].count if Family.MATMUL in side.families else 0 for side in (measured, simulated)
    ]
    if min(counts) * COUNT_FACTOR < max(counts):
        warnings.append(
            f"{counts[0]} matrix products measured, {counts[1]} simulated: is the step one iteration of this run "
            f"(global batch {job.training.global_batch})?"
        )
    return TraceComparison(
        title=report.title,
        rank=pipeline_rank,
        num_ranks=len(timeline.ranks),
        iteration=chosen.name,
        measured=measured,
        simulated=simulated,
        unmatched=_unmatched(chosen.kernels),
        warnings=tuple(warnings),
    )


@dataclass(frozen=True)
class _Iteration:
    """The kernels of one iteration, what it is called, its length [us]."""

    kernels: list[Kernel]
    name: str
    length_us: float
    warnings: tuple[str, ...]


def _pipeline_rank(trace: KinetoTrace, job: TrainingJob, rank: int | None) -> tuple[int, tuple[str, ...]]:
    """The simulated rank that the trace is of, and what to know about it.

    Global ranks count pipeline ranks outermost, as Megatron-LM does.
    """
    pp, gpus = job.parallel.pp, job.cluster.num_gpus
    if rank is not None:
        if not 0 <= rank < pp:
            raise ConfigError(
                "no such pipeline rank",
                where="--rank",
                expected=f"0 to {pp - 1}",
                got=rank,
                nearest=min(max(rank, 0), pp - 1),
            )
        return rank, ()
    if trace.rank is None:
        notes = () if pp == 1 else ("the trace does not tell its rank: pipeline rank 0 is compared (--rank chooses)",)
        return 0, notes
    if trace.world_size == gpus and trace.rank < gpus:
        return trace.rank // (gpus // pp), ()
    sentence = f"number of GPUs: the trace has {trace.world_size} ranks, the run {gpus} GPUs"
    if trace.world_size == pp and trace.rank < pp:
        return trace.rank, (f"{sentence}; its rank {trace.rank} is taken for the pipeline rank",)
    return 0, (f"{sentence}; pipeline rank 0 is compared (--rank chooses)",)


def _one_gpu(trace: KinetoTrace, rank: int | None, where: str | None) -> tuple[list[Kernel], tuple[str, ...]]:
    """The kernels of one GPU: all, or, of a trace with a process per rank, those of the rank that was asked for."""
    pids = dict.fromkeys(kernel.pid for kernel in trace.kernels)
    if len(pids) == 1:
        return list(trace.kernels), ()
    named = ", ".join(str(pid) for pid in list(pids)[:8])
    if rank is None or rank not in pids:
        raise ConfigError(
            "kernels of several GPUs in one trace",
            where=where,
            expected="a trace of one GPU, or --rank with one of its processes",
            got=f"processes {named}",
        )
    return [kernel for kernel in trace.kernels if kernel.pid == rank], (f"process {rank} of {named} is compared",)


def _choose(trace: KinetoTrace, kernels: list[Kernel], step: int | None, where: str | None) -> _Iteration:
    """The step asked for, or the one of median length among those with kernels; without steps the whole trace."""
    own: dict[int, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.step is not None:
            own.setdefault(kernel.step, []).append(kernel)
    if not own:
        if step is not None:
            raise ConfigError(
                "the trace has no steps", where=f"--step, {where}", expected="annotations ProfilerStep#N", got=step
            )
        start, end = min(kernel.start_us for kernel in kernels), max(kernel.end_us for kernel in kernels)
        return _Iteration(
            kernels,
            "the whole trace",
            end - start,
            ("no annotations ProfilerStep#N around kernels: the whole trace is taken for one iteration",),
        )
    lengths = {number: trace.steps[number][1] - trace.steps[number][0] for number in own}
    ordered = sorted(own, key=lambda number: (lengths[number], number))
    if step is not None and step not in own:
        raise ConfigError(
            "no such step with kernels",
            where=f"--step, {where}",
            expected="one of " + ", ".join(str(number) for number in sorted(own)),
            got=step,
            nearest=min(own, key=lambda number: abs(number - step)),
        )
    number = ordered[(len(ordered) - 1) // 2] if step is None else step
    how = (
        ""
        if len(ordered) == 1
        else f", of {len(ordered)} steps the one " + ("of median length" if step is None else "asked for")
    )
    outside = len(kernels) - sum(map(len, own.values()))
    warnings = (f"{outside} of {len(kernels)} kernels lie outside all steps",) if outside else ()
    return _Iteration(own[number], f"ProfilerStep#{number}{how}", lengths[number], warnings)


def _work(chosen: _Iteration) -> GpuWork:
    """Times from the first kernel on, so that they keep their digits."""
    kernels = chosen.kernels
    origin = min(kernel.start_us for kernel in kernels)
    return GpuWork(
        start_s=np.array([kernel.start_us - origin for kernel in kernels]) * 1e-6,
        end_s=np.array([kernel.end_us - origin for kernel in kernels]) * 1e-6,
        families=family_codes([kernel.family for kernel in kernels]),
        iteration_s=chosen.length_us * 1e-6,
        names=tuple(kernel.name for kernel in kernels),
    )


def _unmatched(kernels: list[Kernel]) -> tuple[NamedKernels, ...]:
    """Kernels that match no pattern, by name, longest first."""
    sums: dict[str, list[float]] = {}
    for kernel in kernels:
        if kernel.family is Family.UNMATCHED:
            sums.setdefault(kernel.name, []).append((kernel.end_us - kernel.start_us) * 1e-6)
    rows = [NamedKernels(name, len(times), sum(times)) for name, times in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.busy_s, row.name)))
