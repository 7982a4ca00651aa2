"""T-1F1B, a baseline of FlexPipe (§7.1): 1F1B with embedding and head split over the pipeline ranks."""

from __future__ import annotations

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.job import TrainingJob


def t_1f1b(job: TrainingJob) -> Baseline:
    """The MLLM placement (Fig. 1) under 1F1B: layers evenly over the ranks, one chunk each.

    Args:
        job: what to train; a decoder between its embedding and its head.
    Raises:
        ConfigError: another model, or a vocabulary that tp x pp does not divide.
    """
    return Baseline.of(
        "t-1f1b",
        "FlexPipe §7.1",
        job,
        parallel={**NO_LAYOUT, "vpp": 1, "vocabulary": "pipeline"},
        training={**NO_SCHEDULE, "schedule": "1f1b"},
    )
