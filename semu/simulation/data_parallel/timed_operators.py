"""``TimedOperators``: operators outside stages as templates and times, each an ``OuterSlice`` only when it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from semu.engine.timeline import OuterSlice
from semu.simulation.transfers import timed_operator


class TimedOperators(Sequence[OuterSlice]):
    """Operators one after another.

    Args:
        pieces: the operators at any times. start_s, end_s: their times [s].
        streams: the distinct streams of the operators, in order; None: not worked out yet.
    """

    __slots__ = ("_streams", "end_s", "pieces", "start_s")

    def __init__(
        self,
        pieces: Sequence[OuterSlice],
        start_s: Sequence[float],
        end_s: Sequence[float],
        streams: Sequence[str] | None = None,
    ) -> None:
        self.pieces, self.start_s, self.end_s, self._streams = pieces, start_s, end_s, streams

    @property
    def streams(self) -> Sequence[str]:
        """The distinct streams of the operators, in order."""
        return distinct_streams(self.pieces) if self._streams is None else self._streams

    @classmethod
    def of(cls, pieces: Sequence[OuterSlice]) -> TimedOperators:
        """TimedOperators that are there already."""
        return cls(pieces, [piece.start_s for piece in pieces], [piece.end_s for piece in pieces])

    def followed_by(self, other: Sequence[OuterSlice]) -> TimedOperators:
        """These, then others."""
        more = TimedOperators.of(other)
        return TimedOperators([*self.pieces, *other], [*self.start_s, *more.start_s], [*self.end_s, *more.end_s])

    def __len__(self) -> int:
        return len(self.pieces)

    @overload
    def __getitem__(self, number: int) -> OuterSlice: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[OuterSlice]: ...

    def __getitem__(self, number: int | slice) -> OuterSlice | Sequence[OuterSlice]:
        if isinstance(number, slice):
            return [self[position] for position in range(*number.indices(len(self)))]
        return timed_operator(self.pieces[number], self.start_s[number], self.end_s[number])


def distinct_streams(pieces: Sequence[OuterSlice]) -> tuple[str, ...]:
    """The streams of some operators, each once, in order."""
    return tuple(dict.fromkeys([piece.stream for piece in pieces]))
