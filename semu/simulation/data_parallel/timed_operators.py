"""``TimedOperators``: operators outside stages as templates and times, each made a slice when somebody looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from semu.engine.timeline import OuterSlice


class TimedOperators(Sequence[OuterSlice]):
    """TimedOperators one after another.

    Args:
        pieces: the operators, whenever they begin.
        start_s, end_s: when they do, and when they end [s].
        streams: the distinct streams of the operators, in order; None: nobody knows.
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
        return between(self.pieces[number], self.start_s[number], self.end_s[number])


def distinct_streams(pieces: Sequence[OuterSlice]) -> tuple[str, ...]:
    """The streams of some operators, each once, in order."""
    return tuple(dict.fromkeys([piece.stream for piece in pieces]))


def between(piece: OuterSlice, start_s: float, end_s: float) -> OuterSlice:
    """The same operator at another time."""
    rest = (piece.net_bytes, piece.group_ranks, piece.provenance, piece.port)
    return OuterSlice(piece.name, piece.kind, piece.stream, start_s, end_s, *rest)
