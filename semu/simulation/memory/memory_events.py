"""``MemoryEvents``: changes of a rank's memory outside stages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.records import dataclass


@dataclass(frozen=True)
class MemoryEvents:
    """Changes of a rank's memory outside stages: data that stages start from, receive buffers, sent tensors.

    Attributes:
        time: float64[num_replicas, num_events] [s], sorted within each replica; frees come first at equal times.
        size: int64[num_replicas, num_events] [bytes].
    """

    time: NDArray[np.float64]
    size: NDArray[np.int64]


def unkept_bytes(stage: StageProgram, sizes: NDArray[np.int64], positions: Iterable[int]) -> NDArray[np.int64]:
    """Bytes of the tensors at some positions that no stage keeps; a tensor that is at two positions counts once."""
    rows = {stage.leaving[k]: k for k in positions if stage.leaving[k] >= 0 and not stage.leaving_kept[k]}
    total: NDArray[np.int64] = sizes[list(rows.values())].sum(axis=0)
    return total
