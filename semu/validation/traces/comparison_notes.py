"""What comparisons of traces and of sums share: the pipeline rank, kernels by time, and what to know about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semu.errors import ConfigError
from semu.fitting.kernel_names import Family
from semu.job import TrainingJob
from semu.validation.traces.gpu_trace import NamedKernels
from semu.validation.traces.gpu_work import BusyTimes
from semu.validation.traces.trace_result import LEAST_SHARE

COUNT_FACTOR = 2.0
"""Matrix products measured and simulated may differ by this factor before the iteration itself is in doubt."""


def check_pipeline_rank(rank: int, pp: int) -> int:
    """A pipeline rank of ``pp``.

    Raises:
        ConfigError: there is none of that number.
    """
    if not 0 <= rank < pp:
        nearest = min(max(rank, 0), pp - 1)
        raise ConfigError("no such pipeline rank", where="--rank", expected=f"0 to {pp - 1}", got=rank, nearest=nearest)
    return rank


def longest_first(kernels: Iterable[NamedKernels], parts: int) -> tuple[NamedKernels, ...]:
    """Kernels in the order of their times; those of one of ``parts`` iterations and GPUs."""
    rows = [NamedKernels(one.name, round(one.count / parts), one.busy_s / parts) for one in kernels]
    return tuple(sorted(rows, key=lambda row: (-row.busy_s, row.name)))


def partial_notes(kernels: Sequence[NamedKernels], parts: int) -> list[str]:
    """A warning where much of the work is by kernels whose number is no multiple of the iterations and GPUs."""
    total = sum(one.busy_s for one in kernels)
    odd = [one for one in kernels if one.count % parts]
    share = sum(one.busy_s for one in odd) / total if total else 0.0
    if share < LEAST_SHARE:
        return []
    first = max(odd, key=lambda one: one.busy_s)
    return [
        f"{share:.0%} of the kernel time is of kernels whose number is no multiple of {parts} (iterations times GPUs), "
        f"as {first.count} of {first.name[:40]}: is another number of iterations in the profile, or a part of one?"
    ]


def count_notes(measured: BusyTimes, simulated: BusyTimes, job: TrainingJob) -> list[str]:
    """A warning where matrix products are so many or so few that it may not be one iteration."""
    counts = [
        side.families[Family.MATMUL].count if Family.MATMUL in side.families else 0 for side in (measured, simulated)
    ]
    if min(counts) * COUNT_FACTOR >= max(counts):
        return []
    return [
        f"{counts[0]} matrix products measured, {counts[1]} simulated: is the step one iteration of this run "
        f"(global batch {job.training.global_batch})?"
    ]


def collective_notes(measured: BusyTimes, simulated: BusyTimes) -> list[str]:
    """A warning where all-to-alls may have been counted as p2p."""
    is_hidden = Family.P2P in measured.families and Family.ALL_TO_ALL not in measured.families
    if not is_hidden or Family.ALL_TO_ALL not in simulated.families:
        return []
    return [
        "no all-to-all is told by name: NCCL runs it in its SendRecv kernel, which counts as p2p where the profile "
        "does not name the collective"
    ]
