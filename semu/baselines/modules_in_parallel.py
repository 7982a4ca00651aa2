"""Cornstarch: modality modules in one of its three placements, cut with or without regard to what is frozen."""

from __future__ import annotations

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.job import TrainingJob

PLACEMENTS = ("apart", "colocated", "replicated")
"""Of §3.3, the first where a job has none of them."""


def cornstarch(job: TrainingJob, *, partition: str = "latency") -> Baseline:
    """Modules side by side, each cut so that forward plus backward of its heaviest stage is least; 1F1B.

    Ranks are shared out over the modules so that the heaviest stage of all is as light as can be.

    Args:
        job: what to train; its parallel sizes and recomputation stay, and its segments where they are Cornstarch's
            colocated or replicated placement; else the placement is parallel, every module on ranks of its own.
        partition: what is balanced, as ``Parallel.partition``: ``"latency"`` knows what is frozen (eqs. 3.1 to 3.3, by
            autograd), ``"forward"`` takes every backward for the same multiple of its forward.
    Raises:
        ConfigError: fewer pipeline ranks than modules, fewer layers than ranks, another ``partition``.
    """
    segments = job.parallel.segments if job.parallel.segments in PLACEMENTS else PLACEMENTS[0]
    return Baseline.of(
        "cornstarch" if partition == "latency" else "cornstarch-unaware",
        "Cornstarch (a dissertation's chapter 3), §3.3.1, §3.4.1, §3.5.3",
        job,
        parallel={**NO_LAYOUT, "vpp": 1, "segments": segments, "partition": partition},
        training={**NO_SCHEDULE, "schedule": "1f1b"},
    )


def cornstarch_unaware(job: TrainingJob) -> Baseline:
    """``cornstarch`` as if everything were trained: forward times are balanced (§3.5.3).

    Args:
        job: as ``cornstarch``.
    Raises:
        ConfigError: as ``cornstarch``.
    """
    return cornstarch(job, partition="forward")
