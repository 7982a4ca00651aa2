"""What forwards may leave on each rank: limits in microbatches' activations, the refusal of one without room."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu.errors import MemoryLimitError
from semu.schedule.study import PipelineStudy
from semu.units import format_bytes

I64 = NDArray[np.int64]
NO_LIMIT = 2**61
"""More bytes than any pipeline holds."""


def activation_limit(study: PipelineStudy, microbatches: int) -> I64:
    """The memory of so many of its largest microbatches on each rank: int64[num_ranks] [bytes]."""
    return np.asarray(microbatches * study.held_bytes.max(axis=0, initial=0), dtype=np.int64)


def checked_limits(study: PipelineStudy, limit_bytes: ArrayLike | None) -> I64:
    """A limit as one number per rank: int64[num_ranks] [bytes].

    Raises:
        MemoryLimitError: a rank has no room for a microbatch.
    """
    num_ranks = study.shape.num_ranks
    limit = np.asarray(NO_LIMIT if limit_bytes is None else limit_bytes, dtype=np.int64)
    limit = np.ascontiguousarray(np.broadcast_to(limit, (num_ranks,)))
    need = study.held_bytes
    for rank in range(num_ranks):
        most = int(need[:, rank].max(initial=0))
        if most > limit[rank]:
            raise MemoryLimitError(
                f"rank {rank} has no room for a microbatch",
                where=f"rank {rank}",
                expected=f"at least {format_bytes(most)}",
                got=format_bytes(int(limit[rank])),
                nearest=most,
            )
    return limit
