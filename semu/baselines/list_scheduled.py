"""Greedy: the job as it is cut, under a list scheduler without a pattern (``schedule.generators.greedy``)."""

from __future__ import annotations

from semu.baselines.baseline import NO_SCHEDULE, Baseline
from semu.job import TrainingJob


def greedy(job: TrainingJob) -> Baseline:
    """List scheduling by the stage times of the job, within the memory of 1F1B (interleaved: twice that).

    Args:
        job: what to train; nothing but its schedule changes.
    """
    return Baseline.of("greedy", "list scheduling", job, parallel={}, training={**NO_SCHEDULE, "schedule": "greedy"})
