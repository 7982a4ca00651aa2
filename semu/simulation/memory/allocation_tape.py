"""Allocations and frees of each rank in the order in which its program asks for them.

Stages of one chunk may run different programs, and modules that cut microbatches hand pieces to one another, which are
joined into new tensors (``turns``).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.simulation.context import TimedJob
from semu.simulation.memory.changes import Changes
from semu.simulation.memory.turns import Turns

I64 = NDArray[np.int64]
STAGES = 1 << 16
"""Stages of the ranks whose tapes are made together, about."""


class AllocationTape(NamedTuple):
    """Allocations and frees of one iteration on one rank of one replica.

    Attributes:
        turns, num_cells: as ``Turns.of_ranks``. changes: those that turns name.
    """

    turns: I64
    changes: Changes
    num_cells: int

    @property
    def content(self) -> bytes:
        """The same for tapes that record the same; of few turns, where a record is of many events."""
        found = hashlib.blake2b(self.turns[:2].tobytes(), digest_size=32)
        found.update(self.changes.contents()[self.turns[2]].tobytes())
        return found.digest()

    def record(self) -> tuple[I64, I64]:
        """Slot and size [bytes] of every event, int64[num_events] each; size 0 frees the slot."""
        from semu.engine.kernels.allocator import write_tape

        turns = self.turns
        if not turns.size:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        first, entries = self.changes.table()
        tape = np.empty((2, int((first[turns[2] + 1] - first[turns[2]]).sum())), dtype=np.int64)
        count = write_tape(turns, first, entries, self.num_cells, tape)
        return tape[0, :count], tape[1, :count]


class PipelineTapes:
    """The tapes of all ranks of one replica. Those of neighbours are made together; the last are kept."""

    def __init__(self, timed: TimedJob, replica: int) -> None:
        self._timed, self._replica = timed, replica
        self._first, self._tapes = 0, list[AllocationTape]()

    def of(self, rank: int) -> AllocationTape:
        """That of one rank."""
        if not 0 <= rank - self._first < len(self._tapes):
            ends = self._timed.run.problem.stream_ptr[: self._timed.run.problem.shape.num_ranks + 1]
            group = (ends[1:] - 1) // STAGES  # a rank belongs to the group in which its last stage is
            first, last = np.searchsorted(group, group[rank]), np.searchsorted(group, group[rank], side="right")
            self._first = int(first)
            turns = Turns(self._timed, self._replica, range(int(first), int(last)))
            self._tapes = [AllocationTape(own, turns.changes, count) for own, count in turns.of_ranks()]
        return self._tapes[rank - self._first]
