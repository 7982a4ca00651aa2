"""``TrainingJob`` = model + cluster + parallelism + training options + batch: data only, validated at the door."""

from semu.job.kinds import Attention, Fp8Weights, Optimizer, Precision, Recompute, RecomputeMethod, Workspaces
from semu.job.training import Training
from semu.job.training_job import TrainingJob

__all__ = [
    "Attention",
    "Fp8Weights",
    "Optimizer",
    "Precision",
    "Recompute",
    "RecomputeMethod",
    "Training",
    "TrainingJob",
    "Workspaces",
]
