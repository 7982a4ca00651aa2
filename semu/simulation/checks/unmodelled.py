"""What this version would get wrong is refused before anything is simulated (DESIGN §3.10)."""

from __future__ import annotations

import numpy as np

from semu.compile.module_sharding import refuse_modules
from semu.costs.evaluation import BatchShapes
from semu.errors import ConfigError
from semu.hardware.kinds import DType
from semu.hardware.profile import list_profiles, load_profile
from semu.job import Precision, TrainingJob
from semu.simulation.checks.context_parallel import check_attention
from semu.simulation.memory.host import check_offload
from semu.simulation.schedules.named import check_schedule_options


def refuse_unmodelled(job: TrainingJob) -> None:
    """Say no to what this version would get wrong."""
    if any(job.parallel.of_module(module.name).cp > 1 for module in job.model.modules):
        check_attention(job)
    check_offload(job)
    refuse_modules(job)
    _check_fp8(job)
    consumers = [source for module in job.model.modules for source in module.sources]
    twice = next((name for name in consumers if consumers.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            "a module that feeds several others is not modelled by this version",
            where=f"model.{twice}",
            expected="at most one module with it among its sources",
            got=consumers.count(twice),
            nearest=1,
        )
    if job.parallel.segments == "replicated":
        _check_replicated(job)
    check_schedule_options(job)


def _check_replicated(job: TrainingJob) -> None:
    """Encoders on every rank: what keeps parameters elsewhere, or groups layers of one chunk, is not modelled."""
    training, parallel = job.training, job.parallel
    for where, fits, expected, got, nearest in (
        ("parallel.zero", parallel.zero <= 1, "0 or 1", parallel.zero, 1),
        ("training.recompute_layers", training.recompute_layers is None, "nothing", training.recompute_layers, None),
        ("training.offload", training.offload is None, "nothing", training.offload, None),
    ):
        if not fits:
            raise ConfigError(
                "encoders that are replicated on every pipeline rank do not go with this",
                where=where,
                expected=f'{expected}, or parallel.segments = "apart" or "colocated"',
                got=got,
                nearest=nearest,
            )


def _check_fp8(job: TrainingJob) -> None:
    """fp8 products need a device that has them."""
    profile = job.profile
    if job.training.precision is not Precision.FP8 or DType.FP8 in profile.flop_per_s:
        return
    able = [name for name in list_profiles() if DType.FP8 in load_profile(name).flop_per_s]
    raise ConfigError(
        f"{profile.name} has no fp8 arithmetic",
        where="training.precision",
        expected=f"bf16, or a device with an fp8 peak: {', '.join(able)}",
        got="fp8",
        nearest="bf16",
    )


def check_streams(job: TrainingJob, shapes: BatchShapes) -> None:
    """Every stream that the model reads must be in the batch, with something in it."""
    have = {name.split(".")[0] for name in shapes.columns if name.endswith(".tokens")}
    for module in job.model.modules:
        for spec in module.inputs:
            if spec.stream not in have:
                raise ConfigError(
                    f"module {module.name} reads the stream {spec.stream!r}, which the batch does not have",
                    where="batch.kind",
                    expected=f"a batch with the stream {spec.stream!r}",
                    got=", ".join(sorted(have)) or "an empty batch",
                )
    if not any(int(np.sum(column)) for name, column in shapes.columns.items() if name.endswith(".tokens")):
        raise ConfigError("the batch is empty", where="batch", expected="at least one token", got="none")
