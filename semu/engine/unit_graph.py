"""``UnitGraph``: consolidated units and the edges between them as arrays; ``resume`` times them under further edges.

This is the state that a checkpoint holds (PipeWeaver §4.2): every unit (an atomic stage, a transfer) is a single node
with its latency and, where an edge reads or binds one of its operators, the means to time its inside again. Nothing
here changes, so one ``UnitGraph`` may be resumed any number of times, in any order, from several threads.

Arrays have one row per *variant* (a data-parallel replica with other data): same units, same edges, other latencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.engine.cycles import cycle_error
from semu.errors import ConfigError, GraphError
from semu.records import dataclass

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Edges:
    """Edges between units; the meaning of the columns is that of ``kernels.dispatch``.

    Attributes:
        source, target: int32[k], units.
        op: int32[k], the operator of the source whose end is read; -1: the source's own end.
        lag: float64[num_variants, k] [s], that operator's end after the source's start; no columns: all
            read ends.
        slot: int32[k], -1: the edge bounds the target's start; else the slot that it releases.
    """

    source: I32
    target: I32
    op: I32
    lag: F64
    slot: I32

    @classmethod
    def between(cls, pairs: NDArray[np.integer] | Sequence[tuple[int, int]], num_variants: int = 1) -> Edges:
        """Edges from the end of one unit to the start of another.

        Args:
            pairs: int[k, 2], (before, after).
        """
        source, target = np.array(np.asarray(pairs).reshape(-1, 2).T, dtype=np.int32, order="C")
        nothing = np.full(len(source), -1, dtype=np.int32)
        return cls(source, target, nothing, np.zeros((num_variants, 0)), nothing)

    @classmethod
    def given(cls, pairs: object, num_units: int, num_variants: int = 1) -> Edges:
        """``between`` for pairs from outside: checked before a kernel sees them.

        Raises:
            GraphError: not an integer table of two columns, or a number that is no unit's.
        """
        table = np.asarray(pairs)
        if table.size == 0:
            table = np.zeros((0, 2), dtype=np.int32)
        if table.ndim != 2 or table.shape[1] != 2 or not np.issubdtype(table.dtype, np.integer):
            raise GraphError(
                "not edges between units",
                where="restore",
                expected="integers of shape [k, 2], (before, after)",
                got=f"{table.dtype} of shape {list(table.shape)}",
            )
        if table.size and (table.min() < 0 or table.max() >= num_units):
            wrong, last = int(table[(table < 0) | (table >= num_units)][0]), num_units - 1
            nearest = min(max(wrong, 0), last)
            raise GraphError("no such unit", where="restore", expected=f"0 to {last}", got=wrong, nearest=nearest)
        return cls.between(table, num_variants)

    def followed_by(self, other: Edges) -> Edges:
        """These edges, then the others."""
        return Edges(
            np.concatenate((self.source, other.source)),
            np.concatenate((self.target, other.target)),
            np.concatenate((self.op, other.op)),
            np.concatenate((self.full_lag(), other.full_lag()), axis=1),
            np.concatenate((self.slot, other.slot)),
        )

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """``added`` of the dispatch kernels."""
        return self.source, self.target, self.lag, self.op, self.slot

    def full_lag(self) -> F64:
        """``lag`` with one column per edge."""
        return self.lag if self.lag.shape[1] == len(self.source) else np.zeros((len(self.lag), len(self.source)))


@dataclass(frozen=True)
class Slots:
    """Operators that edges from outside bound without bounding their unit, and how to time those units again.

    Attributes:
        ptr: int32[num_units + 1], first slot of each unit.
        op: int32[s], position of the slot's operator in its unit.
        start: float64[num_variants, s] [s], the operator's start after the unit's when nothing releases it late.
        prog: int32[num_units], program of each unit; -1 for a unit without slots. Units that are built alike share one.
        prog_ptr: int32[num_programs + 1], first operator of each program.
        op_pred_ptr, op_pred: CSR int32[num_ops + 1], int32[..], predecessors as positions inside the program, earlier
            ones.
        op_stream: int32[num_ops], numbered inside the program. prog_streams: int32[num_programs], their number.
        cost_ptr: int64[num_units], place in ``op_latency`` of a unit's first operator; -1 for a unit without slots.
        op_latency: float64[num_variants, ..] [s].
    """

    ptr: I32
    op: I32
    start: F64
    prog: I32
    prog_ptr: I32
    op_pred_ptr: I32
    op_pred: I32
    op_stream: I32
    prog_streams: I32
    cost_ptr: NDArray[np.int64]
    op_latency: F64

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """``slots`` of the dispatch kernels."""
        return tuple(vars(self).values())

    @classmethod
    def none(cls, num_units: int, num_variants: int = 1) -> Slots:
        """No slots at all."""
        empty = np.zeros(0, dtype=np.int32)
        zero = np.zeros(1, dtype=np.int32)
        return cls(
            ptr=np.zeros(num_units + 1, dtype=np.int32),
            op=empty,
            start=np.zeros((num_variants, 0)),
            prog=np.full(num_units, -1, dtype=np.int32),
            prog_ptr=zero,
            op_pred_ptr=zero,
            op_pred=empty,
            op_stream=empty,
            prog_streams=empty,
            cost_ptr=np.full(num_units, -1, dtype=np.int64),
            op_latency=np.zeros((num_variants, 0)),
        )


@dataclass(frozen=True)
class UnitTimes:
    """Times of all units (first axis: variants).

    Attributes:
        start, end: float64[num_variants, num_units] [s].
        release: float64[num_variants, num_slots] [s], absolute, 0 where nothing came. slots: what the columns are.
        touched: bool[num_variants, num_units], the unit's operators were timed again.
        order: int32[num_units], an order in which they can be timed; where the edges do not force it, that of dispatch
            (of the last variant).
    """

    start: F64
    end: F64
    release: F64
    slots: Slots
    touched: NDArray[np.bool_]
    order: I32

    @property
    def makespan_s(self) -> F64:
        """End of the last unit of every variant: float64[num_variants] [s]."""
        result: F64 = self.end.max(axis=1, initial=0.0)
        return result


@dataclass(frozen=True)
class UnitGraph:
    """Consolidated units with the edges that a model gives them; a schedule adds its own.

    Attributes:
        latency: float64[num_variants, num_units] [s].
        hold_ptr, hold: CSR, int32, streams that each unit holds. num_streams: number of streams.
        edge_ptr: int32[num_units + 1]; edges: sorted by source. slots: of these edges.
        name: name of a unit, for errors.
    """

    latency: F64
    hold_ptr: I32
    hold: I32
    num_streams: int
    edge_ptr: I32
    edges: Edges
    slots: Slots
    name: Callable[[int], str]

    @classmethod
    def build(
        cls,
        latency: F64,
        holds: tuple[I32, I32],
        num_streams: int,
        edges: Edges,
        name: Callable[[int], str],
        slots: Slots | None = None,
    ) -> UnitGraph:
        """Sort the edges by source.

        Args:
            latency: as the attribute. holds: ``hold_ptr`` and ``hold``.
            edges: in any order. name, slots: as the attributes.
        """
        num_variants, num_units = latency.shape
        hold_ptr, hold = (np.asarray(column, dtype=np.int32) for column in holds)
        order = np.argsort(edges.source, kind="stable")
        lag = edges.lag if edges.lag.shape[1] == 0 else np.ascontiguousarray(edges.lag[:, order])
        counts = np.bincount(edges.source, minlength=num_units)
        return cls(
            latency=latency,
            hold_ptr=hold_ptr,
            hold=hold,
            num_streams=num_streams,
            edge_ptr=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
            edges=Edges(edges.source[order], edges.target[order], edges.op[order], lag, edges.slot[order]),
            slots=slots if slots is not None else Slots.none(num_units, num_variants),
            name=name,
        )

    @property
    def num_units(self) -> int:
        """Number of units."""
        return int(self.latency.shape[1])

    def only(self, variant: int) -> UnitGraph:
        """One variant alone.

        Raises:
            ConfigError: there is no such variant.
        """
        if isinstance(variant, bool) or not 0 <= variant < len(self.latency):
            last = len(self.latency) - 1
            expected, nearest = f"0 to {last}", min(max(int(variant), 0), last)
            raise ConfigError(
                "no such distinct replica", where="replica", expected=expected, got=variant, nearest=nearest
            )
        row = slice(variant, variant + 1)
        edges, slots = self.edges, self.slots
        return replace(
            self,
            latency=self.latency[row],
            edges=replace(edges, lag=edges.lag[row]),
            slots=replace(slots, start=slots.start[row], op_latency=slots.op_latency[row]),
        )

    def resume(
        self,
        new: Edges | None = None,
        *,
        slots: Slots | None = None,
        rank: I32 | None = None,
        marked: frozenset[tuple[int, int]] = frozenset(),
        forced: I32 | None = None,
    ) -> UnitTimes:
        """Times under these edges and new ones.

        Args:
            new: further edges. slots: all slots, old ones first, where the new edges add some; default: the old ones.
            rank: int32[num_units], a permutation: which of two units that could start together goes first; default:
                by number.
            marked: (source, target) of edges here that a printed cycle shows as added, beside the new ones.
            forced: int32[num_units], the ``forced_order`` of these edges; None: it is computed here.
        Raises:
            GraphError: the edges close a cycle; it is printed.
        """
        num_variants, n = self.latency.shape
        added = new if new is not None else Edges.between([], num_variants)
        inner = slots if slots is not None else self.slots
        start, end = np.empty((num_variants, n)), np.empty((num_variants, n))
        release = np.zeros((num_variants, len(inner.op)))
        touched = np.zeros((num_variants, n), dtype=np.bool_)
        order = forced if forced is not None else self.forced_order(added, marked)
        streams, edges, further = self._streams, self._edges, added.columns
        operators, times = inner.columns, (start, end, release, touched)
        if order is not None:
            from semu.engine.kernels.dispatch import replay_units

            replay_units(order, streams, self.latency, edges, further, operators, times)
        else:
            from semu.engine.kernels.dispatch import dispatch_units

            order = np.empty(n, dtype=np.int32)
            places = rank if rank is not None else np.arange(n, dtype=np.int32)
            for v in range(num_variants):
                rows = [_row(group, v) for group in (edges, further, operators, times)]
                dispatch_units(streams, places, self.latency[v], rows[0], rows[1], rows[2], rows[3], order)
        return UnitTimes(start, end, release, inner, touched, order)

    def forced_order(self, added: Edges, marked: frozenset[tuple[int, int]] = frozenset()) -> I32 | None:
        """An order in which all units can be timed, whatever their latencies; None: the edges leave a choice.

        Args:
            added, marked: as ``new`` and ``marked`` of ``resume``.
        Returns:
            int32[num_units].
        Raises:
            GraphError: the edges close a cycle; it is printed.
        """
        from semu.engine.kernels.orders import forced_order

        order = np.empty(self.num_units, dtype=np.int32)
        done, is_forced = forced_order(self._streams, self._edges, added.columns, order)
        if done < self.num_units:
            source = np.concatenate((self.edges.source, added.source))
            target = np.concatenate((self.edges.target, added.target))
            new = marked.union(zip(added.source.tolist(), added.target.tolist(), strict=True))
            raise cycle_error(source, target, order[:done], self.num_units, self.name, new)
        return order if is_forced else None

    @property
    def _streams(self) -> tuple[I32, I32, int]:
        """``streams`` of the dispatch kernels."""
        return self.hold_ptr, self.hold, self.num_streams

    @property
    def _edges(self) -> tuple[NDArray[Any], ...]:
        """``edges`` of the dispatch kernels."""
        return self.edge_ptr, *self.edges.columns[1:]


def _row(group: tuple[NDArray[Any], ...], variant: int) -> tuple[NDArray[Any], ...]:
    """The columns of a group for one variant: those that depend on it have a row for each."""
    return tuple(column[variant] if column.ndim == 2 else column for column in group)
