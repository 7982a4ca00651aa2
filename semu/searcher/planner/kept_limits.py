"""``KeptLimits``: limits of memory under which a batch's schedule fitted, for the next batch's to begin with.

What an allocator holds beyond what is allocated takes a replay of every rank to say. Limits are lowered until a
schedule fits; how far differs little from batch to batch.
"""

from __future__ import annotations

import numpy as np

from semu.errors import MemoryLimitError
from semu.searcher.memory import check_limits
from semu.searcher.problem.build import JobProblem
from semu.searcher.problem.problem_arrays import I64

EASED = 0.25
"""Part of what limits were lowered by that they are raised by again after a batch that fitted at once."""


class KeptLimits:
    """Limits of one kind of schedule, batch after batch; of none yet."""

    def __init__(self) -> None:
        self._bytes: I64 | None = None

    def under(self, built: JobProblem) -> JobProblem:
        """A problem under limits at least as low; itself where nothing would fit."""
        if self._bytes is None:
            return built
        lowered = built.limited(np.minimum(built.problem.limit_bytes, self._bytes))
        try:
            check_limits(lowered.problem)
        except MemoryLimitError:
            return built
        return lowered

    def keep(self, begun: JobProblem, fitting: JobProblem) -> None:
        """Keep the limits of a problem under which a schedule fits. ``begun``: the one of ``under``."""
        limits = fitting.problem.limit_bytes
        if np.array_equal(limits, begun.problem.limit_bytes):
            limits = limits + (EASED * (fitting.target_bytes - limits)).astype(np.int64)
        self._bytes = limits
