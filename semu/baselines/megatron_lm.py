"""Megatron-LM: chunks of equally many parameters, 1F1B or interleaved 1F1B (DIP §7.1, PipeWeaver §8)."""

from __future__ import annotations

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.job import TrainingJob


def megatron(job: TrainingJob, *, vpp: int | None = None) -> Baseline:
    """Megatron-LM with virtual stages (VPP): layers of all modules in one row, cut into chunks of about equally many
    parameters, interleaved 1F1B.

    Args:
        job: what to train; its parallel sizes and recomputation stay.
        vpp: virtual stages per rank, 1: plain 1F1B; None: the job's where it has several, else 2 (DIP does not print
            how many; without a pipeline there is 1).
    Raises:
        ConfigError: microbatches that the pipeline ranks do not divide, fewer layers than chunks.
    """
    parallel = job.parallel
    if vpp is None:
        vpp = 1 if parallel.pp == 1 else max(parallel.vpp, 2)
    return Baseline.of(
        "megatron" if vpp > 1 or parallel.pp == 1 else "megatron-1f1b",
        "2104.04473 §2.2; DIP §7.1",
        job,
        parallel={**NO_LAYOUT, "vpp": vpp},
        training={**NO_SCHEDULE, "schedule": "interleaved" if vpp > 1 else "1f1b"},
    )


def megatron_1f1b(job: TrainingJob) -> Baseline:
    """Megatron-LM without virtual stages: 1F1B on chunks of about equally many parameters (DIP §2.3).

    Args:
        job: what to train; its parallel sizes and recomputation stay.
    Raises:
        ConfigError: fewer layers than ranks.
    """
    return megatron(job, vpp=1)
