"""Optimus: encoders on the same GPUs as the backbone, in the bubbles before and behind its pipeline (DIP §7.1)."""

from __future__ import annotations

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn.model import ModalityRole


def optimus(job: TrainingJob, *, backbone_segments: int | None = None) -> Baseline:
    """Coarse-grained bubble scheduling: every module in segments of its own over all ranks, all encoder segments before
    the backbone's, their backwards behind it (``semu.schedule.generators.optimus``).

    Args:
        job: what to train; its parallel sizes and recomputation stay.
        backbone_segments: virtual stages per rank of the backbone; each encoder has one. None: 2, as ``megatron``, or 1
            where the ranks do not divide the microbatches.
    Raises:
        ConfigError: no encoder before a backbone, a decoder behind one, no pipeline.
    """
    roles = {module.name: module.role for module in job.model.modules}
    decoders = [name for name, role in roles.items() if role is ModalityRole.DECODER]
    encoders = [name for name, role in roles.items() if role is ModalityRole.ENCODER]
    if decoders or not encoders or len(encoders) == len(roles):
        decoder = "a decoder, which Optimus does not schedule (DIP §7.1)"
        raise ConfigError(
            f"optimus: {job.model.name} has {decoder if decoders else 'no encoder in front of a backbone'}",
            where=f"model.{decoders[0]}" if decoders else "model",
            expected="encoders in front of a backbone",
            got=", ".join(f"{name} ({role.value})" for name, role in roles.items()),
            nearest="megatron",
        )
    pp = job.parallel.pp
    if pp == 1:
        raise ConfigError(
            "optimus: there are no bubbles without a pipeline", where="parallel.pp", expected=">= 2", got=1, nearest=2
        )
    if backbone_segments is None:
        backbone_segments = 2 if job.num_microbatches % pp == 0 else 1
    shares = dict.fromkeys(roles, 1)
    backbone = next(name for name in roles if name not in encoders)
    shares[backbone] = backbone_segments
    return Baseline.of(
        "optimus",
        "Feng et al., USENIX ATC 2025; DIP §7.1 (coarse-grained)",
        job,
        parallel={**NO_LAYOUT, "segments": "separated", "shares": shares, "vpp": sum(shares.values())},
        training={**NO_SCHEDULE, "schedule": "optimus"},
    )
