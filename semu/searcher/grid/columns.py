"""``Points``: many configurations as columns of small numbers, and functions that are asked once for all alike.

A configuration is a tuple of eighteen values; a million of them as objects take most of a gigabyte, and a second for
whatever each is asked. As columns they are a few numbers each, and a question about one is a question about all that
have the same values on the axes that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from semu.searcher.grid.space import Point

T = TypeVar("T")
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
FIELDS = Point._fields
_BLOCK = 4096


class Points(Sequence[Point]):
    """Configurations in order, immutable.

    Args:
        values: of every field, its values. codes: int32[num_fields, num_points], which of them a configuration has.
    """

    def __init__(self, values: Sequence[Sequence[Any]], codes: I32) -> None:
        self.values, self.codes = tuple(map(tuple, values)), codes

    @classmethod
    def of(cls, points: Iterable[Point], among: Mapping[str, Sequence[Any]] | None = None) -> Points:
        """Some configurations.

        Args:
            points: which. among: further values of fields, which others beside these have.
        """
        every = points if isinstance(points, Sequence) else [*points]
        values, codes = [], np.empty((len(FIELDS), len(every)), dtype=np.int32)
        for field, (name, column) in enumerate(zip(FIELDS, zip(*every, strict=True) if every else [()] * len(FIELDS))):  # noqa: B905
            numbers = {value: number for number, value in enumerate(dict.fromkeys((among or {}).get(name, ())))}
            codes[field] = [numbers.setdefault(value, len(numbers)) for value in column]
            values.append(tuple(numbers))
        return cls(values, codes)

    def __len__(self) -> int:
        return int(self.codes.shape[1])

    def __iter__(self) -> Iterator[Point]:
        for first in range(0, len(self), _BLOCK):
            rows = self.codes[:, first : first + _BLOCK].tolist()
            columns = [[*map(own.__getitem__, row)] for own, row in zip(self.values, rows, strict=True)]
            yield from map(Point, *columns)

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Point]: ...
    def __getitem__(self, place: int | slice) -> Point | Sequence[Point]:
        if isinstance(place, slice):
            return [*self.take(np.arange(len(self))[place])]
        return Point(*[own[code] for own, code in zip(self.values, self.codes[:, place].tolist(), strict=True)])

    def take(self, rows: NDArray[Any]) -> Points:
        """Some of them: rows, or bool[num_points]."""
        return Points(self.values, self.codes[:, rows])

    def with_codes(self, **columns: NDArray[Any]) -> Points:
        """The same with other values on some fields: their numbers among ``values_of``."""
        codes = self.codes.copy()
        for name, column in columns.items():
            codes[FIELDS.index(name)] = column
        return Points(self.values, codes)

    def values_of(self, name: str) -> tuple[Any, ...]:
        """The values of a field."""
        return self.values[FIELDS.index(name)]

    def codes_of(self, name: str) -> I32:
        """int32[num_points] on one field."""
        own: I32 = self.codes[FIELDS.index(name)]
        return own

    def column(self, name: str) -> I64:
        """The values of a field of numbers: int64[num_points]."""
        return self.mapped(name, int)

    def mapped(self, name: str, of: Callable[[Any], Any]) -> NDArray[Any]:
        """What a function of a field's values says, of every configuration."""
        found: NDArray[Any] = np.array([of(value) for value in self.values_of(name)] or [0])[self.codes_of(name)]
        return found

    def groups(self, *columns: str | NDArray[Any]) -> tuple[I64, I64]:
        """Configurations that are alike in some columns.

        Args:
            columns: names of fields, or arrays of whole numbers >= 0.
        Returns:
            int64[num_groups], the first of every group, ascending; int64[num_points], everyone's group.
        """
        arrays = [self.codes_of(own) if isinstance(own, str) else own for own in columns]
        return groups_of(arrays, len(self))

    def differences(self, point: Point) -> I64:
        """On how many fields each differs from one of them; dp follows the other sizes and does not count."""
        own = [values.index(value) if value in values else -1 for values, value in zip(self.values, point, strict=True)]
        found: I64 = np.count_nonzero(self.codes[1:] != np.array(own)[1:, np.newaxis], axis=0)
        return found

    def in_turn(self, *keys: NDArray[Any]) -> Iterator[tuple[int, Point]]:
        """The configurations with their rows, ascending by the first key, then by the next, and of equals by what they
        are; they are made one by one."""
        order = np.lexsort(keys[::-1])
        ranked = [key[order] for key in keys]
        is_new = np.any([own[1:] != own[:-1] for own in ranked], axis=0) if len(order) else np.zeros(0, dtype=np.bool_)
        ends = [*(1 + np.flatnonzero(is_new)).tolist(), len(order)]
        for first, last in pairwise([0, *ends]):
            alike = [(self[row], row) for row in order[first:last].tolist()]
            yield from ((row, point) for point, row in sorted(alike))


def groups_of(columns: Sequence[NDArray[Any]], count: int) -> tuple[I64, I64]:
    """As ``Points.groups``; ``count``: rows."""
    code, radix = np.zeros(count, dtype=np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        if size == 1:
            continue
        if radix * size > 1 << 62:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
            radix = int(code.max(initial=0)) + 1
        code, radix = code * size + column, radix * size
    if radix <= max(4 * count, 1 << 16):  # a table of codes is faster than sorting them
        seen = np.zeros(radix, dtype=np.int64)
        seen[code[::-1]] = np.arange(count)[::-1]  # the last that is written stays: the first of each
        first = seen[code]
        firsts = np.flatnonzero(first == np.arange(count))
        place = np.searchsorted(firsts, first)
        return firsts, place
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return first[order], number[place.reshape(-1)]


class _Asked:
    """A configuration that notes what it is asked for; nothing else can be done with it."""

    def __init__(self, point: Point, asked: dict[str, None]) -> None:
        self._point, self._asked = point, asked

    def __getattr__(self, name: str) -> Any:
        self._asked[name] = None
        return getattr(self._point, name)


def answers(function: Callable[[Point, int], T], points: Points, counts: I64) -> tuple[list[T], I64]:
    """What a function says of many configurations with as many microbatches each.

    It is called once for all that are alike in the fields that it reads, which is seen when it is called; so it may
    read fields of a configuration, and nothing else of it.

    Args:
        function, points: which. counts: int64[num_points], microbatches.
    Returns:
        Answers, and int64[num_points], everyone's among them.
    """
    asked: dict[str, None] = {}
    found: list[T] = []
    firsts, place = np.zeros(0, dtype=np.int64), np.zeros(len(points), dtype=np.int64)
    known = -1
    while known != len(asked):
        known, found = len(asked), []
        firsts, place = points.groups(*asked, counts)
        for row in firsts.tolist():
            found.append(function(cast("Point", _Asked(points[row], asked)), int(counts[row])))
            if len(asked) != known:
                break
    return found, place


def running_sums(table: NDArray[Any]) -> NDArray[Any]:
    """Sums over the first 0, 1, ... of the last axis."""
    sums = np.cumsum(table, axis=-1)
    return np.concatenate((np.zeros((*table.shape[:-1], 1), dtype=sums.dtype), sums), axis=-1)
