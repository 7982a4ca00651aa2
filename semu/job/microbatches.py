"""``check_microbatches``: a global batch is whole microbatches of all replicas, and no more than can be simulated."""

from __future__ import annotations

from semu.errors import ConfigError
from semu.job.training import Training

MOST_MICROBATCHES = 1 << 17
"""Of a replica, in an iteration; published runs have some hundreds."""


def check_microbatches(training: Training, replicas: int) -> None:
    """Check the global batch of a job with so many replicas.

    Raises:
        ConfigError: it does not divide into microbatches, or into too many.
    """
    per_step = replicas * training.micro_batch
    batch, most = training.global_batch, per_step * MOST_MICROBATCHES
    if batch % per_step:
        raise ConfigError(
            "the global batch does not divide into microbatches",
            where="training.global_batch",
            expected=f"a multiple of dp x micro_batch = {replicas} x {training.micro_batch}",
            got=batch,
            nearest=max(per_step, min(batch, most) // per_step * per_step),
        )
    if batch > most:
        raise ConfigError(
            "more microbatches than can be simulated",
            where="training.global_batch",
            expected=f"at most dp x micro_batch x {MOST_MICROBATCHES} = {most}",
            got=batch,
            nearest=most,
        )
