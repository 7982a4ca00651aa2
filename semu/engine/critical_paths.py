"""``critical_path``, ``critical_pieces``: what an iteration's end waited for, followed back to its beginning.

All times are sums on one grid, so an operator begins exactly when the last of its predecessors ends. Where no piece
ends then (an inner time of a stage, or another replica), the path goes on with the piece that ran on the same rank.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from semu.engine.timeline import IterationTimeline, OuterSlice, RankTimeline, StageSlice
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.records import dataclass

Piece: TypeAlias = StageSlice | OuterSlice
"""What a path is made of."""


@dataclass(frozen=True, eq=False)
class RankPieces:
    """What ran on a rank; a piece itself is made when the path meets it.

    Attributes:
        stage_start_s, stage_end_s: of its stages, in order of start [s]. stage: position -> the stage.
        outer_start_s, outer_end_s: of its operators outside stages, in order of start [s]. outer: position -> operator.
    """

    stage_start_s: list[float]
    stage_end_s: list[float]
    stage: Callable[[int], StageSlice]
    outer_start_s: list[float]
    outer_end_s: list[float]
    outer: Callable[[int], OuterSlice]

    @classmethod
    def of(cls, rank: RankTimeline) -> RankPieces:
        """Those of a timeline."""
        stages, outer = rank.stages, rank.outer
        return cls(
            [piece.start_s for piece in stages],
            [piece.end_s for piece in stages],
            lambda number: stages[number],
            [piece.start_s for piece in outer],
            [piece.end_s for piece in outer],
            lambda number: outer[number],
        )


@dataclass(frozen=True)
class CriticalPath:
    """What lies on the path.

    Attributes:
        stages: chunk and phase -> time of their stages on the path [s].
        outer: operators outside stages, each with its time on the path [s].
        gap_s: time that none of them explains [s].
    """

    stages: Mapping[tuple[int, Phase], float]
    outer: tuple[tuple[OuterSlice, float], ...]
    gap_s: float


def critical_path(timeline: IterationTimeline | Sequence[RankPieces]) -> CriticalPath:
    """The critical path of the replica that a timeline shows, or of what ran on each of its ranks; of several equally
    long ones, one that stays on a rank as long as it can."""
    stages: dict[tuple[int, Phase], float] = {}
    outer: list[tuple[OuterSlice, float]] = []
    gap = 0.0
    for _, piece, lasted in critical_pieces(timeline):
        if isinstance(piece, StageSlice):
            key = piece.chunk, piece.phase
            stages[key] = stages.get(key, 0.0) + lasted
        elif piece is not None:
            outer.append((piece, lasted))
        else:
            gap += lasted
    return CriticalPath(stages, tuple(outer), gap)


def critical_pieces(
    timeline: IterationTimeline | Sequence[RankPieces],
) -> Iterator[tuple[int, Piece | None, float]]:
    """The pieces of the critical path from the iteration's end to its beginning.

    Yields:
        Position of the rank; the piece, None where none explains the time; for how long it is on the path [s].
    """
    if isinstance(timeline, IterationTimeline):
        timeline = [RankPieces.of(rank) for rank in timeline.ranks]
    ranks = [_Rank(own) for own in timeline]
    time = max((rank.end_s for rank in ranks), default=0.0)
    number = next((number for number, rank in enumerate(ranks) if rank.end_s == time), 0)
    current = next(ranks[number].ending(time), None) if time > 0 else None
    while current is not None:
        yield number, current, time - current.start_s
        time = current.start_s
        if time <= 0:
            break
        predecessor = _waited_for(ranks, number, current)
        if predecessor is None:
            before = ranks[number].running(time)
            if before is not None and before.end_s < time:
                yield number, None, time - before.end_s
                time = before.end_s
            predecessor = number, before
        number, current = predecessor
    if time > 0:
        yield number, None, time


def waits(timeline: IterationTimeline) -> Iterator[tuple[int, int, float, tuple[int, Piece] | None]]:
    """Where a rank stands idle before a stage, and what ended when the stage began.

    Yields:
        Position of the rank; of the stage on it; for how long no stage ran [s]; position of a rank and the piece that
        ended there, None: none did.
    """
    ranks = [_Rank(RankPieces.of(rank)) for rank in timeline.ranks]
    for number, rank in enumerate(timeline.ranks):
        before = 0.0
        for position, stage in enumerate(rank.stages):
            if stage.start_s > before:
                found = _waited_for(ranks, number, stage)
                piece = None if found is None or found[1] is None else (found[0], found[1])
                yield number, position, stage.start_s - before, piece
            before = max(before, stage.end_s)


def _waited_for(ranks: Sequence[_Rank], rank: int, current: Piece) -> tuple[int, Piece | None] | None:
    """Which of the pieces that end when ``current`` begins it waited for, with its rank; None: there are none."""
    time = current.start_s
    stream = current.stream if isinstance(current, OuterSlice) else None
    ending = list(ranks[rank].ending(time))
    for piece in ending:
        if isinstance(piece, OuterSlice) and piece.stream == stream:
            return rank, piece
    if ending:
        return rank, ending[0]
    to = f" to rank {rank}"
    others = [(number, piece) for number, other in enumerate(ranks) for piece in other.ending(time)]
    for number, piece in others:
        if isinstance(piece, OuterSlice) and piece.kind is OpKind.P2P and piece.name.endswith(to):
            return number, piece
    return others[0] if others else None


class _Rank:
    """What ran on a rank at some time; its stages, and its operators outside them."""

    def __init__(self, pieces: RankPieces) -> None:
        self._pieces = pieces
        ends = pieces.outer_end_s
        self._by_end = sorted(range(len(ends)), key=ends.__getitem__)
        self._outer_ends = [ends[number] for number in self._by_end]
        last = pieces.stage_end_s[-1] if pieces.stage_end_s else 0.0
        self.end_s = max(last, self._outer_ends[-1] if ends else 0.0)

    def ending(self, time: float) -> Iterator[Piece]:
        """What ends at a time, the stage first; pieces that take no time are passed over."""
        pieces = self._pieces
        number = bisect_left(pieces.stage_start_s, time) - 1
        if number >= 0 and pieces.stage_end_s[number] == time:
            yield pieces.stage(number)
        place = bisect_left(self._outer_ends, time)
        while place < len(self._outer_ends) and self._outer_ends[place] == time:
            number = self._by_end[place]
            if pieces.outer_start_s[number] < time:
                yield pieces.outer(number)
            place += 1

    def running(self, time: float) -> Piece | None:
        """A stage, else another piece, that began before a time and ran until then; else the last that ended before."""
        ended: list[Piece] = []
        own = self._pieces
        lists: tuple[tuple[list[float], list[float], Callable[[int], Piece]], ...] = (
            (own.stage_start_s, own.stage_end_s, own.stage),
            (own.outer_start_s, own.outer_end_s, own.outer),
        )
        for starts, ends, piece in lists:
            last = bisect_left(starts, time) - 1
            if last >= 0:
                among = range(max(last - _LOOK_BACK, 0), last + 1)
                best = max(among, key=lambda number: min(ends[number], time))
                if ends[best] >= time:
                    return piece(best)
                ended.append(piece(best))
        return max(ended, key=lambda piece: piece.end_s, default=None)


_LOOK_BACK = 16
"""So many pieces that began last are looked at; collectives of one rank hardly overlap more of them."""
