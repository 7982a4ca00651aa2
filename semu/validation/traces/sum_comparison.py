"""``compare_sum``: sums of kernels over iterations and GPUs against the simulation: busy time, family by family."""

from __future__ import annotations

from math import gcd

from semu.checks import check_integer
from semu.errors import ConfigError
from semu.fitting.kernel_names import Family, family_of
from semu.job import TrainingJob
from semu.present.report import Report
from semu.validation.traces.comparison_notes import (
    check_pipeline_rank,
    collective_notes,
    count_notes,
    longest_first,
    partial_notes,
)
from semu.validation.traces.gpu_trace import KernelSum
from semu.validation.traces.gpu_work import averaged, busy_times, named_times, simulated_work
from semu.validation.traces.trace_result import TraceComparison


def check_told(
    kernels: KernelSum, iterations: int | None, gpus: int | None, where: str | None = None
) -> tuple[int, int]:
    """How many iterations and GPUs a sum holds, which only the user knows.

    Raises:
        ConfigError: one is not told, or not an integer >= 1.
    """
    common = gcd(*(one.count for one in kernels.kernels))
    for flag, value, what in (("--iterations", iterations, "iterations"), ("--gpus", gpus, "GPUs")):
        if value is None:
            raise ConfigError(
                f"a sum of kernels does not tell how many {what} it holds",
                where=f"{flag}, {where}",
                expected=f"{flag} N, an integer >= 1: the whole {what} that were profiled",
                got=f"nothing; the number of every kernel is a multiple of {common}",
                nearest=1,
            )
    return check_integer(iterations, "--iterations"), check_integer(gpus, "--gpus")


def compare_sum(
    kernels: KernelSum,
    job: TrainingJob,
    report: Report,
    *,
    iterations: int | None,
    gpus: int | None,
    rank: int | None = None,
    where: str | None = None,
) -> TraceComparison:
    """Compare the mean of an iteration on a GPU.

    Args:
        kernels: what was measured. job, report: what was simulated.
        iterations, gpus: how many the sum holds. rank: the pipeline rank of these GPUs; None: the mean of all ranks
            where the GPUs are those of the whole run, else the first.
        where: name of the file, for messages.
    Raises:
        ConfigError: no number of iterations or GPUs; no such rank; more GPUs than the run, or the rank, has.
    """
    iterations, gpus = check_told(kernels, iterations, gpus, where)
    chosen, warnings = _ranks(job, gpus, rank)
    ranks, parts = report.timeline.ranks, iterations * gpus
    measured = averaged([named_times(kernels.kernels)], parts)
    each = [busy_times(simulated_work(ranks[number], report.iteration_time_s)) for number in chosen]
    simulated = averaged(each, len(each))
    if kernels.listed is not None and kernels.listed < 1:
        warnings.append(f"the rows make {kernels.listed:.1%} of the kernel time: the others are missing")
    warnings += [
        *partial_notes(kernels.kernels, parts),
        *count_notes(measured, simulated, job),
        *collective_notes(measured, simulated),
        "a sum of kernels tells no starts and no copies: neither the iteration time nor what of the communication "
        "is exposed is compared (cuda_gpu_trace has both)",
    ]
    unmatched = [one for one in kernels.kernels if family_of(one.name) is Family.UNMATCHED]
    return TraceComparison(
        title=report.title,
        rank=chosen[0] if len(chosen) == 1 else None,
        num_ranks=len(ranks),
        iteration=f"mean of {_number(iterations, 'iteration')} on {_number(gpus, 'GPU')}, a sum of kernels",
        measured=measured,
        simulated=simulated,
        unmatched=longest_first(unmatched, parts),
        warnings=tuple(warnings),
    )


def _ranks(job: TrainingJob, gpus: int, rank: int | None) -> tuple[list[int], list[str]]:
    """The simulated ranks whose mean is compared, and what to know about it."""
    pp, most = job.parallel.pp, job.cluster.num_gpus
    each = most // pp
    if rank is None and gpus == most:
        return list(range(pp)), []
    if rank is not None:
        check_pipeline_rank(rank, pp)
    if gpus > each:
        whole = "" if rank is not None else f", or {most}, all of the run"
        raise ConfigError(
            "more GPUs than a pipeline rank has" if pp > 1 else "more GPUs than the run has",
            where="--gpus",
            expected=f"1 to {each}" + (f", of one pipeline rank{whole}" if pp > 1 else ""),
            got=gpus,
            nearest=each if rank is not None or gpus - each <= abs(gpus - most) else most,
        )
    if rank is None and pp > 1:
        return [0], ["the report does not tell its ranks: pipeline rank 0 is compared (--rank chooses)"]
    return [rank or 0], []


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
