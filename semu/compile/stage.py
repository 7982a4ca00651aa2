"""``StageProgram``: the forward or backward stage of a chunk as arrays (``join`` makes them).

``segments.cost_stage`` evaluates all microbatches, ``expand`` gives the operators of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.graph.tensor import Role
from semu.records import dataclass

ROLES: tuple[Role, ...] = tuple(Role)
"""Row order of memory by role."""


@dataclass(frozen=True, eq=False)
class StageCosts:
    """What a stage costs, for many shapes (all arrays [num_shapes], ``exposed`` [num_shapes, num_streams]).

    Attributes:
        latency: [s]. exposed: compute time lost to each stream's communication [s].
        peak: highest allocation above the stage's beginning [bytes]. net: allocation left at its end [bytes].
        peak_op: operator at the peak, -1: the beginning itself.
    """

    latency: NDArray[np.float64]
    exposed: NDArray[np.float64]
    peak: NDArray[np.int64]
    net: NDArray[np.int64]
    peak_op: NDArray[np.int32]

    def without(self, shape: int) -> StageCosts:
        """The same, where a shape costs nothing."""
        found = StageCosts(
            self.latency.copy(), self.exposed.copy(), self.peak.copy(), self.net.copy(), self.peak_op.copy()
        )
        found.latency[shape], found.exposed[shape] = 0.0, 0.0
        found.peak[shape], found.net[shape], found.peak_op[shape] = 0, 0, -1
        return found


@dataclass(frozen=True)
class ExpandedStage:
    """One stage operator by operator, relative to its beginning.

    Attributes:
        start, end: float64[num_ops] [s].
        event_time: float64[num_events] [s]. event_bytes: int64[num_roles, num_events] [bytes], change at each event.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    event_time: NDArray[np.float64]
    event_bytes: NDArray[np.int64]

    @cached_property
    def changes(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """When memory changes, in order: float64[num_events] [s], and by how much: int64[num_events] [bytes]."""
        order = np.argsort(self.event_time, kind="stable")
        return self.event_time[order], np.ascontiguousarray(self.event_bytes.sum(axis=0)[order])


@dataclass(frozen=True, eq=False)
class StageProgram:
    """Arrays of one stage.

    Attributes:
        rows: int32[num_ops], cost rows in the library. block: int32[num_ops], block of each operator.
        pred_ptr, pred, stream, touch_ptr, touch, alive_before, alive_after: see ``kernels``.
        size_row: int32[num_storages], size rows in the library. role: int32[num_storages], index into ``ROLES``.
        num_streams: number of streams.
        arriving, leaving: size rows of the tensors that come in and go out (carry or gradients), by position; -1: none.
        leaving_kept: the leaving tensor survives its sending (it is saved for the backward stage, or is one that
            arrived and is still needed).
        storage: int32[num_storages], number of each storage in the chunk, the same in both its stages.
        arriving_storage, leaving_storage: such numbers of the tensors of ``arriving`` and ``leaving``; -1: none.
        is_exchange: bool[num_ops], it is a transfer of parameters or gradients that serves ``block``, none of the
            block's own operators; bool[0]: none is.
    """

    rows: NDArray[np.int32]
    block: NDArray[np.int32]
    pred_ptr: NDArray[np.int32]
    pred: NDArray[np.int32]
    stream: NDArray[np.int32]
    touch_ptr: NDArray[np.int32]
    touch: NDArray[np.int32]
    size_row: NDArray[np.int32]
    role: NDArray[np.int32]
    alive_before: NDArray[np.bool_]
    alive_after: NDArray[np.bool_]
    num_streams: int
    arriving: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    leaving_kept: tuple[bool, ...] = ()
    storage: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    arriving_storage: tuple[int, ...] = ()
    leaving_storage: tuple[int, ...] = ()
    is_exchange: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))

    @cached_property
    def is_serial(self) -> bool:
        """Whether every operator starts exactly when the one before it ends, for all shapes."""
        edges = np.repeat(np.arange(self.num_ops), np.diff(self.pred_ptr))
        follows = np.zeros(self.num_ops, dtype=np.bool_)
        follows[edges[self.pred == edges - 1]] = True
        follows[1:] |= self.stream[1:] == self.stream[:-1]
        return bool(follows[1:].all()) and self.num_ops > 0

    @property
    def num_ops(self) -> int:
        """Number of operators."""
        return len(self.rows)

    @property
    def graph(self) -> tuple[Any, ...]:
        """``program`` of the kernels."""
        return self.pred_ptr, self.pred, self.stream, self.num_streams

    @cached_property
    def touches(self) -> NDArray[np.int32]:
        """int32[num_storages], operators that touch each storage."""
        return np.bincount(self.touch, minlength=len(self.size_row)).astype(np.int32)

    @cached_property
    def storages(self) -> tuple[Any, ...]:
        """``storages`` of the kernels."""
        order_ptr = pointer(np.bincount(self.stream, minlength=self.num_streams).tolist())
        order = np.argsort(self.stream, kind="stable").astype(np.int32)
        return order_ptr, order, self.touch_ptr, self.touch, self.touches, self.alive_before, self.alive_after

    @cached_property
    def rows_kept_before(self) -> NDArray[np.int64]:
        """Size rows of what is there before the stage and does not arrive for it."""
        arriving = np.isin(self.storage, [storage for storage in self.arriving_storage if storage >= 0])
        return self.size_row[self.alive_before & ~arriving].astype(np.int64)

    @cached_property
    def rows_arriving(self) -> NDArray[np.int64]:
        """Size rows of the storages that arrive for the stage."""
        rows = dict(zip(self.arriving_storage, self.arriving, strict=True))
        return np.array([row for row in rows.values() if row >= 0], dtype=np.int64)

    def times(
        self, latency: NDArray[np.float64], release: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and end [s] of every operator, relative to the stage's beginning, for one shape.

        Args:
            latency: float64[num_rows] [s], all rows of the library.
            release: float64[num_ops] [s], earliest starts relative to the stage's beginning.
        """
        return self.timed(latency[self.rows], release)[:2]

    def timed(
        self, duration: NDArray[np.float64], release: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float, NDArray[np.float64]]:
        """``times`` where each operator has its own duration: float64[num_ops] [s].

        Returns:
            start, end; latency of the stage [s]; float64[num_streams] [s], exposed time by stream.
        """
        from semu.compile.kernels import time_stage

        start, end, exposed = np.zeros(self.num_ops), np.zeros(self.num_ops), np.zeros(self.num_streams)
        bound = release if release is not None else np.zeros(0)
        return start, end, time_stage(duration, bound, self.graph, start, end, exposed), exposed

    def expand(
        self, latency: NDArray[np.float64], size: NDArray[np.int64], release: NDArray[np.float64] | None = None
    ) -> ExpandedStage:
        """Operators and memory events of one shape.

        Args:
            latency: float64[num_rows] [s]. size: int64[num_size_rows] [bytes]. release: as ``times``.
        """
        return self.expand_at(*self.times(latency, release), size)

    def expand_at(self, start: NDArray[np.float64], end: NDArray[np.float64], size: NDArray[np.int64]) -> ExpandedStage:
        """``expand`` for operators whose times are known.

        Args:
            start, end: float64[num_ops] [s], relative to the stage's beginning. size: int64[num_size_rows] [bytes].
        """
        from semu.compile.kernels import memory_of_stage

        event_time = np.zeros(2 * len(self.size_row) + 1)
        event_bytes = np.zeros((len(ROLES), len(event_time)), dtype=np.int64)
        *_, num_events = memory_of_stage(
            start, end, self.storages, size[self.size_row], self.role, event_time, event_bytes
        )
        return ExpandedStage(start, end, event_time[:num_events], event_bytes[:, :num_events])


def later_of(one: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """The later of two earliest starts of every operator; None: there is none."""
    if one is None or other is None:
        return other if one is None else one
    return np.maximum(one, other)


def pointer(lengths: Iterable[int]) -> NDArray[np.int32]:
    """CSR pointer: 0, then the running sum of the lengths."""
    return np.array([0, *accumulate(lengths)], dtype=np.int32)


def csr(groups: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Groups one after another: their pointer, and what is in them."""
    return pointer(map(len, groups)), np.array([item for group in groups for item in group], dtype=np.int32)
