"""FSDP: no pipeline; parameters, gradients and optimizer sharded over all GPUs (2304.11277; DIP §7.1)."""

from __future__ import annotations

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.errors import ConfigError
from semu.hardware.software import Software
from semu.job import TrainingJob
from semu.parallel.axes import COUNTS
from semu.parallel.pipeline import nearest_multiple


def fsdp(job: TrainingJob) -> Baseline:
    """PyTorch's FSDP2: ZeRO-3 over all GPUs, parameters resharded after the forward.

    Args:
        job: what to train; its global batch and recomputation stay, and its software becomes torch.
    Raises:
        ConfigError: a global batch that does not divide among the GPUs.
    """
    gpus, training = job.parallel.num_gpus, job.training
    step = gpus * training.micro_batch
    if training.global_batch % step:
        raise ConfigError(
            f"fsdp: {training.global_batch} items do not divide among {gpus} data-parallel GPUs",
            where="training.global_batch",
            expected=f"a multiple of GPUs x micro_batch = {gpus} x {training.micro_batch}",
            got=training.global_batch,
            nearest=nearest_multiple(training.global_batch, step),
        )
    return Baseline.of(
        "fsdp",
        "2304.11277; DIP §7.1 (FSDP2, reshard_after_forward)",
        job,
        parallel={
            **NO_LAYOUT,
            **dict.fromkeys(COUNTS, 1),
            "dp": gpus,
            "etp": None,
            "modules": {},
            "zero": 3,
            "zero_group": None,
            "reshard_after_forward": True,
        },
        training={**NO_SCHEDULE, "schedule": "1f1b", "software": Software.TORCH},
    )
