"""What context parallelism needs of a job: sequences that it can cut, attention that works across ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semu.errors import ConfigError
from semu.job import Attention, TrainingJob
from semu.parallel.context import Balance
from semu.parallel.pipeline import nearest_multiple
from semu.workload.batch import Microbatch, TextBatch


def check_attention(job: TrainingJob) -> None:
    """Only fused attention works on parts of a sequence (Megatron-LM: context parallelism needs Transformer Engine's
    flash or fused attention).

    Raises:
        ConfigError: unfused attention.
    """
    if job.training.attention is not Attention.FUSED:
        raise ConfigError(
            f"cp = {job.parallel.cp} with attention in separate kernels is not modelled by this version",
            where="training.attention",
            expected="fused, or parallel.cp = 1",
            got=job.training.attention.value,
            nearest=Attention.FUSED.value,
        )


def check_lengths(job: TrainingJob, microbatches: Sequence[Microbatch]) -> None:
    """Sequences that context parallelism can cut.

    Text of one length must divide by 2 cp (Megatron-LM: ``seq_length % (2 * context_parallel_size) == 0``). Packed
    sequences are padded one by one to a multiple of 2 cp (Megatron-LM's packed format, ``cu_seqlens_padded``), but none
    may be shorter than cp: there would be ranks with nothing but padding. Where stretches of text lie on groups of
    ranks, text may have any length.

    Raises:
        ConfigError: a length that does not divide, a sequence that is too short.
    """
    own = {module: job.parallel.of_module(module.name) for module in job.model.modules}
    for cp in sorted({parallel.cp for parallel in own.values()} - {1}, reverse=True):
        is_free = Balance(job.parallel.cp_balance).groups_ranks
        if isinstance(job.batch, TextBatch):
            if is_free:
                continue
            _check_text(job.batch.context_length(job.training.seq_len) or 0, 2 * cp)
            continue
        cut = [module for module, parallel in own.items() if parallel.cp == cp]
        read = {spec.stream: module.name for module in cut for spec in module.inputs}
        for stream, module in read.items():
            if is_free and stream == "text":
                continue
            lengths = [item.lengths[stream] for item in microbatches if stream in item.lengths]
            every = np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64)
            shortest = int(every[every > 0].min(initial=np.iinfo(np.int64).max))
            if shortest < cp:
                raise ConfigError(
                    f"module {module} reads sequences of {shortest} tokens of the stream {stream!r}, fewer than "
                    f"cp = {cp} ranks",
                    where="parallel.cp" if cp == job.parallel.cp else f"parallel.modules.{module}.cp",
                    expected=f"at most {shortest}, the shortest sequence",
                    got=cp,
                    nearest=max(n for n in range(1, shortest + 1) if cp % n == 0),
                )


def _check_text(length: int, parts: int) -> None:
    """Text of one length divides into chunks."""
    if length % parts:
        raise ConfigError(
            f"sequences of {length} tokens do not divide into 2 x cp = {parts} chunks",
            where="training.seq_len",
            expected=f"a multiple of {parts}",
            got=length,
            nearest=nearest_multiple(length, parts),
        )
