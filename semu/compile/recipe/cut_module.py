"""``CutModule``: a modality module that cuts microbatches into parts, and which items each part has."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass


@dataclass(frozen=True, eq=False)
class CutModule:
    """A module that cuts microbatches.

    Attributes:
        name: of the module. streams: names of the streams that are cut together with the items of the module.
        own: int64[dp, num_microbatches], number of parts that each replica cuts each microbatch into.
        counts: per microbatch, the largest number of parts over all replicas.
        first: per microbatch, the number of parts of all earlier microbatches; behind them, the number of all parts.
        column: column of the first part in the table of shapes.
        sizes: int64[dp, num_parts], items of every part, microbatch after microbatch, where they are not even; None:
            they are.
    """

    name: str
    streams: frozenset[str]
    own: NDArray[np.int64]
    counts: tuple[int, ...]
    first: tuple[int, ...]
    column: int
    sizes: NDArray[np.int64] | None = None

    @property
    def split(self) -> int:
        """Most parts of any microbatch: those of microbatch i are numbered from i times this."""
        return max(1, *self.counts)

    def items(self, replica: int, microbatch: int, part: int, count: int) -> tuple[int, int]:
        """Which of ``count`` items a part has: from, to."""
        parts = int(self.own[replica, microbatch])
        if part >= parts:
            return 0, 0
        if self.sizes is not None:
            at = self.first[microbatch]
            before = int(self.sizes[replica, at : at + part].sum())
            return before, before + int(self.sizes[replica, at + part])
        return part * count // parts, (part + 1) * count // parts
