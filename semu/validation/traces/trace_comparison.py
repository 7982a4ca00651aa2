"""``compare_trace``: an iteration of a trace against the same rank of the simulation, family by family."""

from __future__ import annotations

import numpy as np

from semu.checks import check_integer
from semu.errors import ConfigError
from semu.fitting.kernel_names import Family
from semu.job import TrainingJob
from semu.present.report import Report
from semu.records import dataclass
from semu.units import format_time
from semu.validation.traces.comparison_notes import (
    check_pipeline_rank,
    collective_notes,
    count_notes,
    longest_first,
    partial_notes,
)
from semu.validation.traces.gpu_trace import GpuTrace, Kernel, NamedKernels
from semu.validation.traces.gpu_work import GpuWork, averaged, busy_times, family_codes, simulated_work
from semu.validation.traces.trace_result import TraceComparison

LEAST_IDLE = 0.01
"""A share of the iteration that its kernels may exceed it by, before a warning is made."""


def compare_trace(
    trace: GpuTrace,
    job: TrainingJob,
    report: Report,
    *,
    rank: int | None = None,
    step: int | None = None,
    iterations: int | None = None,
    gpu: int | None = None,
    where: str | None = None,
) -> TraceComparison:
    """Compare.

    Args:
        trace: what was measured. job, report: what was simulated.
        rank: pipeline rank; None: that which the trace tells, else the first.
        step: number of the ``ProfilerStep``; None: the one of median length.
        iterations: how many a trace without steps holds, of which the mean is taken; None: one, and a warning.
        gpu: number of the GPU in a trace of several. where: name of the trace, for messages.
    Raises:
        ConfigError: no such rank, step, GPU or number of iterations, or kernels of several GPUs in one trace.
    """
    pipeline_rank, rank_notes = _pipeline_rank(trace, job, rank)
    kernels, device_note = _one_gpu(trace, rank, gpu, where)
    chosen = _choose(trace, kernels, step, iterations, where)
    timeline = report.timeline
    measured = averaged([busy_times(_work(chosen))], chosen.count)
    simulated = busy_times(simulated_work(timeline.ranks[pipeline_rank], report.iteration_time_s))
    warnings = [*rank_notes, *device_note, *chosen.warnings]
    idle_s, iteration_s = measured.idle_s, measured.iteration_s
    if idle_s is not None and iteration_s is not None and idle_s < -LEAST_IDLE * iteration_s:
        warnings.append(
            f"the GPU works {format_time(-idle_s)} longer than the iteration's annotation: steps overlap, or it is not "
            "the whole iteration"
        )
    warnings += [
        *partial_notes(_named(chosen.kernels), chosen.count),
        *count_notes(measured, simulated, job),
        *collective_notes(measured, simulated),
    ]
    unmatched = [kernel for kernel in chosen.kernels if kernel.family is Family.UNMATCHED]
    return TraceComparison(
        title=report.title,
        rank=pipeline_rank,
        num_ranks=len(timeline.ranks),
        iteration=chosen.name,
        measured=measured,
        simulated=simulated,
        unmatched=longest_first(_named(unmatched), chosen.count),
        warnings=tuple(warnings),
    )


@dataclass(frozen=True)
class _Iteration:
    """The kernels of an iteration, or of ``count`` of them, what they are called, their length [us]."""

    kernels: list[Kernel]
    name: str
    length_us: float
    warnings: tuple[str, ...]
    count: int = 1


def _pipeline_rank(trace: GpuTrace, job: TrainingJob, rank: int | None) -> tuple[int, tuple[str, ...]]:
    """The simulated rank that the trace is of, and what to know about it.

    Global ranks count pipeline ranks outermost, as Megatron-LM does.
    """
    pp, gpus = job.parallel.pp, job.cluster.num_gpus
    if rank is not None:
        return check_pipeline_rank(rank, pp), ()
    if trace.rank is None:
        notes = () if pp == 1 else ("the trace does not tell its rank: pipeline rank 0 is compared (--rank chooses)",)
        return 0, notes
    if trace.world_size == gpus and trace.rank < gpus:
        return trace.rank // (gpus // pp), ()
    sentence = f"number of GPUs: the trace has {trace.world_size} ranks, the run {gpus} GPUs"
    if trace.world_size == pp and trace.rank < pp:
        return trace.rank, (f"{sentence}; its rank {trace.rank} is taken for the pipeline rank",)
    return 0, (f"{sentence}; pipeline rank 0 is compared (--rank chooses)",)


def _one_gpu(
    trace: GpuTrace, rank: int | None, gpu: int | None, where: str | None
) -> tuple[list[Kernel], tuple[str, ...]]:
    """The kernels of one GPU: all, those of the one asked for, or, of a trace with a process per rank, the rank's.

    Where nsys numbers the GPUs of a node, a pipeline rank is none of these numbers: ``gpu`` has to tell.
    """
    pids = dict.fromkeys(kernel.pid for kernel in trace.kernels)
    named = ", ".join(str(pid) for pid in list(pids)[:8])
    numbers = sorted(pid for pid in pids if isinstance(pid, int))
    if gpu is not None and gpu not in pids:
        nearest = min(numbers, key=lambda number: abs(number - gpu), default=None)
        raise ConfigError(
            "no such GPU in the trace", where=f"--gpu, {where}", expected=f"one of {named}", got=gpu, nearest=nearest
        )
    if len(pids) == 1:
        return list(trace.kernels), ()
    word, words = ("process", "processes") if trace.has_process_per_rank else ("GPU", "GPUs")
    chosen = rank if gpu is None and trace.has_process_per_rank else gpu
    if chosen is None or chosen not in pids:
        raise ConfigError(
            "kernels of several GPUs in one trace",
            where=where,
            expected=f"a trace of one GPU, or {'--rank or ' * trace.has_process_per_rank}--gpu with one of its {words}",
            got=f"{words} {named}",
            nearest=None if trace.has_process_per_rank else next(iter(numbers), None),
        )
    kernels = [kernel for kernel in trace.kernels if kernel.pid == chosen]
    return kernels, (f"{word} {chosen} of {named} is compared",)


def _choose(
    trace: GpuTrace, kernels: list[Kernel], step: int | None, iterations: int | None, where: str | None
) -> _Iteration:
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
        return _whole(kernels, iterations)
    if iterations is not None:
        raise ConfigError(
            "the trace marks its iterations",
            where=f"--iterations, {where}",
            expected=f"no --iterations: ProfilerStep#N marks {len(own)}, --step chooses one",
            got=iterations,
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


def _whole(kernels: list[Kernel], iterations: int | None) -> _Iteration:
    """All kernels: those of one iteration, or of the number that was told."""
    start, end = min(kernel.start_us for kernel in kernels), max(kernel.end_us for kernel in kernels)
    if iterations is None:
        warning = (
            "no annotations ProfilerStep#N around kernels: the whole trace is taken for one iteration "
            "(--iterations tells how many whole ones it holds)"
        )
        return _Iteration(kernels, "the whole trace", end - start, (warning,))
    count = check_integer(iterations, "--iterations", "a number of iterations")
    name = "the whole trace, one iteration" if count == 1 else f"mean of {count} iterations, the whole trace"
    return _Iteration(kernels, name, end - start, (), count)


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


def _named(kernels: list[Kernel]) -> list[NamedKernels]:
    """The kernels by name."""
    sums: dict[str, list[float]] = {}
    for kernel in kernels:
        sums.setdefault(kernel.name, []).append((kernel.end_us - kernel.start_us) * 1e-6)
    return [NamedKernels(name, len(times), sum(times)) for name, times in sums.items()]
