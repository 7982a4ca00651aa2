"""What programs allocate and free in turn: ``Change``, and ``Changes`` with a number for each.

A change is in numbers of the storages of its chunk, so that all parts of a chunk that run alike share it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.stage import StageProgram
from semu.distinct import sorted_distinct

I64 = NDArray[np.int64]


class Change(NamedTuple):
    """Storages that come and go in turn.

    Attributes:
        storage: int64[k], numbers in the chunk. size: int64[k] [bytes], 0: freed. source: int64[k], storage of another
            chunk that this one is from now on; -1: none, it is allocated or freed.
    """

    storage: I64
    size: I64
    source: I64

    @classmethod
    def of(cls, storage: NDArray[np.integer], size: I64, is_new: NDArray[np.bool_] | bool) -> Self:
        """Those of size 0 are left out; ``is_new``: allocated, else freed."""
        exists = size > 0
        number = storage[exists].astype(np.int64)
        return cls(number, np.where(is_new, size, 0)[exists], np.full_like(number, -1))


class Changes:
    """Changes under the costs of a batch, each with a number by which turns name it."""

    def __init__(self, known: memo.Values[I64]) -> None:
        self._known = known
        self._entries: list[I64] = []
        self._digests: list[bytes] = []
        self._numbers: dict[Hashable, int] = {}
        self._by_shape: dict[Hashable, I64] = {}
        self._table = np.zeros(1, dtype=np.int64), np.zeros((3, 0), dtype=np.int64)
        self._contents = np.zeros((0, 2), dtype=np.int64)
        self._is_something = np.zeros(0, dtype=np.bool_)
        self._lock = threading.RLock()

    def number(self, key: Hashable, make: Callable[[], Change]) -> int:
        """Of a change; ``make`` makes it where it has none."""
        number = self._numbers.get(key)
        if number is None:
            entries = self._known.get(key, lambda: np.array(make()))
            with self._lock:
                number = self._numbers.setdefault(key, len(self._entries))
                if number == len(self._entries):
                    self._entries.append(entries)
                    self._digests.append(hashlib.blake2b(entries.tobytes(), digest_size=16).digest())
        return number

    def by_shape(self, key: Hashable, shape: I64, num_shapes: int, make: Callable[[int], Change]) -> I64:
        """Of the changes of parts of several shapes. ``shape``: int64[num_parts]."""
        known = self._by_shape.setdefault(key, np.full(num_shapes, -1, dtype=np.int64))
        numbers: I64 = known[shape]
        if (numbers < 0).any():
            for new in sorted_distinct(shape[numbers < 0]).tolist():
                known[new] = self.number((key, new), partial(make, new))
            numbers = known[shape]
        return numbers

    def is_something(self) -> NDArray[np.bool_]:
        """Whether each change changes anything: bool[num_changes]."""
        with self._lock:
            if len(self._is_something) < len(self._entries):
                self._is_something = np.array([own.size > 0 for own in self._entries], dtype=np.bool_)
            return self._is_something

    def contents(self) -> I64:
        """What every change is, whatever its number: int64[num_changes, 2]."""
        with self._lock:
            if len(self._contents) < len(self._digests):
                self._contents = np.frombuffer(b"".join(self._digests), dtype=np.int64).reshape(-1, 2)
            return self._contents

    def table(self) -> tuple[I64, I64]:
        """Where the entries of each change begin, and all entries, as ``write_tape`` takes them."""
        with self._lock:
            if len(self._table[0]) <= len(self._entries):
                first = np.cumsum([0, *(own.shape[1] for own in self._entries)])
                self._table = first, np.concatenate(self._entries, axis=1)
            return self._table


def shared(here: Sequence[int], there: Sequence[int]) -> Change:
    """Storages that are storages of another chunk from now on; negative ones are none."""
    pairs = [pair for pair in zip(here, there, strict=False) if min(pair) >= 0]
    storage, shared = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Change(storage, np.zeros_like(storage), shared)


def freed(program: StageProgram, positions: tuple[int, ...] | None) -> Change:
    """What a stage hands on and does not keep; ``positions``: among its leaving tensors, None: all."""
    every = range(len(program.leaving)) if positions is None else positions
    gone = [k for k in every if program.leaving[k] >= 0 and not program.leaving_kept[k]]
    storage = np.array([program.leaving_storage[k] for k in gone], dtype=np.int64)
    return Change.of(storage, np.ones_like(storage), False)


def issue_order(program: StageProgram) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A stage's allocations (True) and frees in the order in which its operators are issued: an operator allocates what
    is not there, then frees what no operator after it touches and what does not survive the stage.

    Returns:
        int64[num_events], positions among the program's storages; bool[num_events].
    """
    op = np.repeat(np.arange(program.num_ops), np.diff(program.touch_ptr))
    touched, first = np.unique(program.touch, return_index=True)
    _, from_end = np.unique(program.touch[::-1], return_index=True)
    last = len(program.touch) - 1 - from_end
    come = ~program.alive_before[touched]
    go = ~program.alive_after[touched]
    idle = np.flatnonzero((program.touches == 0) & program.alive_before & ~program.alive_after)
    storage = np.concatenate((touched[come], touched[go], idle)).astype(np.int64)
    turn = np.concatenate((2 * op[first[come]], 2 * op[last[go]] + 1, np.full(len(idle), 2 * program.num_ops)))
    within = np.concatenate((first[come], last[go], idle))
    order = np.lexsort((within, turn))
    comes = np.arange(len(storage)) < int(come.sum())
    return storage[order], comes[order]
