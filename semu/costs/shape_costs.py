"""``ShapeCosts``: latencies and sizes of single operators and storages, costed only for the shapes asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.stage import ExpandedStage, StageProgram
from semu.compile.template import CostColumns
from semu.costs.roofline import CostModel
from semu.errors import InternalError
from semu.records import dataclass

_FEW = 4
T = TypeVar("T")
N = TypeVar("N", np.float64, np.int64)
Columns = Mapping[str, NDArray[np.int64]]
"""Symbol -> int64[num_shapes]."""

_COLUMNS = memo.ScopedTable[CostColumns]("columns of all operators of a batch's shapes", 1)
_LATENCIES = memo.ScopedTable["NDArray[np.float64]"]("latencies of all operators of a batch's shapes", 1)
_SIZES = memo.ScopedTable["NDArray[np.int64]"]("sizes of all storages of a batch's shapes", 1)
_ROWS = memo.ScopedTable["NDArray[np.float64]"](
    "latencies of all operators for one of a batch's many shapes, by shape", 1024, is_large=True
)
_SIZE_ROWS = memo.ScopedTable["NDArray[np.int64]"](
    "sizes of all storages for one of a batch's many shapes, by shape", 1024, is_large=True
)
_ENDS = memo.ScopedTable["NDArray[np.float64]"](
    "ends of operators of a batch's shapes, by stage and shape", 512, is_large=True
)
_EXPANDED = memo.ScopedTable[ExpandedStage](
    "expanded stages of a batch's shapes, by stage and shape", 512, is_large=True
)


@dataclass(frozen=True, eq=False)
class ShapeCosts:
    """Costs of a library's operators and storages for the shapes of a batch.

    Attributes:
        model: how latencies come about. symbols: the shapes.
        idle: number of the shape with which nothing runs and nothing is stored, -1: there is none.
        scope: costs are remembered of it, whatever chunks they are for; others with the same model, symbols and idle
            may share it.
    """

    model: CostModel
    symbols: Columns
    idle: int = -1
    scope: memo.Scope = field(default_factory=memo.Scope, repr=False)

    @property
    def stored(self) -> Columns:
        """The shapes as storages see them."""
        return self.symbols

    @property
    def columns(self) -> CostColumns:
        """Cost columns of everything for all shapes."""
        return _COLUMNS.get(self.scope, (), lambda: self.model.library.evaluate(self.symbols))

    @property
    def latency(self) -> NDArray[np.float64]:
        """float64[num_shapes, num_rows] [s]."""
        return _LATENCIES.get(
            self.scope, (), lambda: self._without_idle(np.ascontiguousarray(self.model.latencies(self.columns).T))
        )

    @property
    def size(self) -> NDArray[np.int64]:
        """int64[num_shapes, num_size_rows] [bytes]."""
        return _SIZES.get(self.scope, (), self._sizes)

    def _sizes(self) -> NDArray[np.int64]:
        stored = self.stored
        if stored is self.symbols:
            return self._without_idle(np.ascontiguousarray(self.columns.size_bytes.T))
        every = np.arange(len(self.model.library.sizes))
        return self._without_idle(np.ascontiguousarray(self.model.library.evaluate_sizes(stored, every).T))

    def _without_idle(self, table: NDArray[N], shapes: NDArray[np.int64] | None = None) -> NDArray[N]:
        """A table with a row per shape, or per one of ``shapes``, with nothing in those that are idle."""
        if self.idle >= 0:
            table[self.idle if shapes is None else shapes == self.idle] = 0
        return table

    @cached_property
    def is_few(self) -> bool:
        """Whether there are so few shapes that everything is costed for all of them, once."""
        return num_shapes(self.symbols) <= _FEW

    @cached_property
    def _is_checked(self) -> bool:
        """True, once all shapes have been checked."""
        self.model.library.check(self.stored)
        return True

    def waits(self, program: StageProgram, shape: int) -> NDArray[np.float64] | None:
        """When other context ranks let a stage's operators begin, after its beginning: float64[num_ops] [s]; None: at
        once."""
        return None

    def ends(self, program: StageProgram, shapes: Sequence[int]) -> list[NDArray[np.float64]]:
        """Ends of a stage's operators after its beginning for some shapes: float64[num_ops] [s] each."""
        ends = _ENDS.of(self.scope)
        found = {shape: ends.peek((program, shape)) for shape in shapes}
        missing = [shape for shape, own in found.items() if own is None]
        if missing:
            for shape, latency in zip(missing, self.latencies_of(np.array(missing)), strict=True):
                found[shape] = ends.put((program, shape), program.times(latency)[1])
        return [own for shape in shapes if (own := found[shape]) is not None]

    def expanded(self, program: StageProgram, shape: int) -> ExpandedStage:
        """Operators and memory events of a stage for one shape."""

        def _expand() -> ExpandedStage:
            only = np.array([shape])
            return program.expand(self.latencies_of(only)[0], self.sizes_of(only)[0])

        return _EXPANDED.get(self.scope, (program, shape), _expand)

    def latencies_of(self, shapes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Latencies for some shapes.

        Args:
            shapes: int64[n], numbers of shapes.
        Returns:
            float64[n, num_rows] [s].
        """
        if self.is_few or self.model.rules or _LATENCIES.of(self.scope).peek(()) is not None:  # rules are asked once
            chosen: NDArray[np.float64] = self.latency[shapes]
            return chosen

        def _cost(missing: NDArray[np.int64]) -> NDArray[np.float64]:
            none = np.zeros(0, dtype=np.int64)
            columns = self.model.library.evaluate(self._symbols_of(missing), size_rows=none)
            return self._without_idle(np.ascontiguousarray(self.model.latencies(columns).T), missing)

        return _rows_of(_ROWS.of(self.scope), shapes, _cost)

    def sizes_of(self, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Storage sizes for some shapes.

        Args:
            shapes: int64[n], numbers of shapes.
        Returns:
            int64[n, num_size_rows] [bytes].
        """
        if self.is_few or _SIZES.of(self.scope).peek(()) is not None:
            chosen: NDArray[np.int64] = self.size[shapes]
            return chosen

        def _size(missing: NDArray[np.int64]) -> NDArray[np.int64]:
            every = np.arange(len(self.model.library.sizes))
            stored = {name: column[missing] for name, column in self.stored.items()}
            sizes = self.model.library.evaluate_sizes(stored, every, is_checked=self._is_checked)
            found = np.ascontiguousarray(sizes.T)
            return self._without_idle(found, missing)

        return _rows_of(_SIZE_ROWS.of(self.scope), shapes, _size)

    def _symbols_of(self, shapes: NDArray[np.int64]) -> Columns:
        return {name: column[shapes] for name, column in self.symbols.items()}

    def sizes_of_rows(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Sizes of a few storages for all shapes.

        Args:
            rows: size rows; a negative one is no storage.
        Returns:
            int64[len(rows), num_shapes] [bytes], 0 for no storage.
        """
        wanted = np.array(rows, dtype=np.int64)
        result = np.zeros((len(rows), num_shapes(self.symbols)), dtype=np.int64)
        given = self.stored, wanted[wanted >= 0]
        result[wanted >= 0] = self.model.library.evaluate_sizes(*given, is_checked=self._is_checked)
        if self.idle >= 0:
            result[:, self.idle] = 0
        return result


def _rows_of(
    known: memo.Values[NDArray[N]], shapes: NDArray[np.int64], make: Callable[[NDArray[np.int64]], NDArray[N]]
) -> NDArray[N]:
    """A row per shape; those that are not known are made together."""
    wanted = shapes.tolist()
    if not wanted:
        return make(shapes)
    rows = {shape: known.peek(shape) for shape in dict.fromkeys(wanted)}
    missing = sorted(shape for shape, row in rows.items() if row is None)
    if missing:
        for shape, row in zip(missing, make(np.array(missing)), strict=True):
            rows[shape] = known.put(shape, row)
    return np.stack([row for shape in wanted if (row := rows[shape]) is not None])


def num_shapes(columns: Columns) -> int:
    """How many shapes the columns hold; 1 where there is no symbol."""
    return len(next(iter(columns.values()))) if columns else 1


def distinct_rows(columns: Columns, symbols: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct values of some symbols, in order, and which of them each shape has.

    Returns:
        int64[num_distinct, num_symbols], int64[num_shapes].
    """
    count = num_shapes(columns)
    if not symbols:
        return np.zeros((1, 0), dtype=np.int64), np.zeros(count, dtype=np.int64)
    missing = next((name for name in symbols if name not in columns), None)
    if missing is not None:
        raise InternalError(f"no value for symbol {missing!r}", expected=", ".join(sorted(columns)), got=missing)
    order = np.lexsort([columns[name] for name in reversed(symbols)])
    table = np.stack([columns[name][order] for name in symbols], axis=1)
    is_new = np.ones(count, dtype=np.bool_)
    is_new[1:] = (table[1:] != table[:-1]).any(axis=1)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.cumsum(is_new) - 1
    return np.ascontiguousarray(table[is_new]), place
