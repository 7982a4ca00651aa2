"""``StageChain``: operators of several halves, one after another, as ``join`` writes them down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.template import HalfTemplate, Pairs
from semu.records import dataclass

Numbers = NDArray[np.int64]
NO_NUMBERS: Numbers = np.zeros(0, dtype=np.int64)
NO_PAIRS: Pairs = np.zeros((0, 2), dtype=np.int64)


@dataclass
class StageChain:
    """Operators of several halves, one after another, with chunk-wide storage numbers.

    Attributes:
        length: number of operators.
        rows, stream: of the operators of each half or transfer. block, lengths: of each half or transfer, its block and
            how many operators it has. is_exchange: it is a transfer of a unit.
        ends: stream -> last operator of the latest block. ready: unit -> its gather, or the copy behind it.
        copied: units that were copied out of the gathers' buffers.
        barrier: reduction that the next block waits for, -1: none.
        producers: of the tensors that the latest block hands on. last, before_last: last operator of the latest block,
            and of the one before, without copies to and from the host; -1: none. last_stream: that of ``last``.
    """

    producers: list[int | None]
    length: int = 0
    rows: list[NDArray[np.int32] | list[int]] = field(default_factory=list)
    stream: list[Numbers | list[int]] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    is_exchange: list[bool] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)
    barrier: int = -1
    last: int = -1
    before_last: int = -1
    last_stream: int = -1
    _waits: list[Pairs] = field(default_factory=list)
    _touched: list[Pairs] = field(default_factory=list)

    def append(
        self, rows: NDArray[np.int32] | list[int], block: int, stream: Numbers | list[int], *, is_exchange: bool = False
    ) -> None:
        """Operators that follow."""
        self.rows.append(rows)
        self.stream.append(stream)
        self.block.append(block)
        self.lengths.append(len(rows))
        self.is_exchange.append(is_exchange)
        self.length += len(rows)

    def repeat(
        self, positions: Sequence[int], half: HalfTemplate, maps: Sequence[Numbers], first: int, written: int
    ) -> None:
        """Append blocks that do as the latest one does, each so much later.

        Args:
            positions: of the blocks. half: of each of them, and of the latest block. maps: as ``_Joiner``'s.
            first: first operator of the latest block. written: number of arrays of ``wait`` before it.
        """
        size, count = len(half.operators), len(positions)
        whole = size * count
        later = size * np.arange(1, count + 1)
        waits = self._waits[written:]
        if waits:
            self._waits.append((np.concatenate(waits) + later[:, None, None]).reshape(-1, 2))
        touches = half.pairs[1]
        storages = np.stack([maps[position] for position in positions]).take(touches[:, 1], axis=1)
        operators = np.broadcast_to(touches[:, 0] + first, storages.shape) + later[:, None]
        self._touched.append(np.stack((operators.ravel(), storages.ravel()), axis=1))
        self.rows += [self.rows[-1]] * count
        self.stream += [self.stream[-1]] * count
        self.block += positions
        self.lengths += [size] * count
        self.is_exchange += [False] * count
        self.length += whole
        self.producers = [None if p is None else p + whole for p in self.producers]
        if self.last >= first:
            self.last, self.before_last = self.last + whole, self.before_last + whole

    @property
    def num_waits(self) -> int:
        """How many arrays of pairs ``wait`` was given."""
        return len(self._waits)

    def wait(self, pairs: Pairs | list[tuple[int, int]]) -> None:
        """Operators wait for others: pairs of both."""
        if len(pairs):
            self._waits.append(np.asarray(pairs))

    def touch(self, pairs: Pairs | list[tuple[int, int]]) -> None:
        """Operators touch storages: pairs of both."""
        if len(pairs):
            self._touched.append(np.asarray(pairs))

    @property
    def latest(self) -> list[int]:
        """What ends the latest block, and the reduction that the next one waits for."""
        return [*self.ends.values(), *([self.barrier] if self.barrier >= 0 else [])]

    @cached_property
    def waits(self) -> Pairs:
        """int64[num, 2], operators and what they wait for, in order of writing; when all is written."""
        return np.concatenate(self._waits) if self._waits else NO_PAIRS

    @cached_property
    def touched(self) -> Pairs:
        """int64[num, 2], operators and storages that they touch, in order of writing; when all is written."""
        return np.concatenate(self._touched) if self._touched else NO_PAIRS


def grouped(pairs: Pairs, count: int) -> tuple[NDArray[np.int32], Numbers]:
    """The second of each pair by the first, of which there are ``count``: CSR pointer, and what is in the groups."""
    pointer = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.bincount(pairs[:, 0], minlength=count), out=pointer[1:])
    return pointer, pairs[:, 1].take(np.argsort(pairs[:, 0], kind="stable"))
