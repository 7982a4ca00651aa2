"""``Span``: a piece of a simulated iteration at any level, with its time, its costs and its memory.

``IterationTimeline.root``, ``span`` and ``chunk`` give spans. Operators are expanded only where costs are asked for, or
where the children of a stage are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from semu.distinct import sorted_distinct
from semu.engine.rank_timeline import OuterSlice, RankTimeline, StageOperators
from semu.errors import ConfigError, nearest_name
from semu.graph.level import Level
from semu.records import dataclass


@dataclass(frozen=True)
class SpanCosts:
    """What the operators of a span cost, one GPU per pipeline rank.

    Attributes:
        operators: how many. busy_s: stream -> sum of their durations [s]; only streams with operators.
        flop, mem_bytes, net_bytes: sums; operators outside stages (transfers, optimizer) count ``net_bytes`` only.
    """

    operators: int
    busy_s: Mapping[str, float]
    flop: float
    mem_bytes: int
    net_bytes: int

    @classmethod
    def of_rows(cls, operators: StageOperators, rows: slice) -> SpanCosts:
        """Operators of a stage."""
        names, codes = operators.table.stream_codes
        mine = codes[rows]
        busy = np.bincount(mine, weights=(operators.end_s - operators.start_s)[rows], minlength=len(names))
        return cls(
            operators=len(mine),
            busy_s={names[code]: float(busy[code]) for code in sorted_distinct(mine)},
            flop=math.fsum(operators.flop[rows].tolist()),
            mem_bytes=int(operators.mem_bytes[rows].sum()),
            net_bytes=int(operators.net_bytes[rows].sum()),
        )

    @classmethod
    def of_outer(cls, piece: OuterSlice) -> SpanCosts:
        """An operator outside stages."""
        return cls(1, {piece.stream: piece.end_s - piece.start_s}, 0.0, 0, piece.net_bytes)

    @classmethod
    def total(cls, pieces: Iterable[SpanCosts]) -> SpanCosts:
        """Sum of several."""
        costs = list(pieces)
        busy: dict[str, float] = {}
        for piece in costs:
            for stream, seconds in piece.busy_s.items():
                busy[stream] = busy.get(stream, 0.0) + seconds
        return cls(
            operators=sum(piece.operators for piece in costs),
            busy_s=busy,
            flop=math.fsum(piece.flop for piece in costs),
            mem_bytes=sum(piece.mem_bytes for piece in costs),
            net_bytes=sum(piece.net_bytes for piece in costs),
        )


@dataclass(frozen=True)
class Span:
    """A piece of an iteration.

    Attributes:
        level: how large it is. name: among its siblings. path: from the iteration down, for ``IterationTimeline.span``.
        rank: pipeline rank, None when it covers several.
        start_s, end_s: start of its first and end of its last operator [s].
        ranks: the pipeline ranks that it covers.
        find_costs, find_children: make the costs and the pieces one level down, on first use.
    """

    level: Level
    name: str
    path: str
    rank: int | None
    start_s: float
    end_s: float
    ranks: tuple[RankTimeline, ...] = field(repr=False, compare=False)
    find_costs: Callable[[], SpanCosts] = field(repr=False, compare=False)
    find_children: Callable[[], tuple[Span, ...]] = field(repr=False, compare=False)

    @property
    def duration_s(self) -> float:
        """From start to end [s]."""
        return self.end_s - self.start_s

    @cached_property
    def costs(self) -> SpanCosts:
        """Everything that its operators cost, added up (they are expanded)."""
        return self.find_costs()

    @property
    def operators(self) -> int:
        """Number of operators inside."""
        return self.costs.operators

    @property
    def busy_s(self) -> Mapping[str, float]:
        """Stream -> sum of its operators' durations [s], over the ranks covered."""
        return self.costs.busy_s

    @property
    def flop(self) -> float:
        """Floating-point operations of one GPU per pipeline rank."""
        return self.costs.flop

    @property
    def mem_bytes(self) -> int:
        """Bytes read from and written to device memory, of one GPU per pipeline rank."""
        return self.costs.mem_bytes

    @property
    def net_bytes(self) -> int:
        """Wire bytes of one GPU per pipeline rank."""
        return self.costs.net_bytes

    @cached_property
    def peak_bytes(self) -> Mapping[int, int]:
        """Rank -> highest allocation on it between start and end, of the whole rank, static memory included [bytes]."""
        return {rank.rank: rank.memory.highest_within(self.start_s, self.end_s) for rank in self.ranks}

    @cached_property
    def net_change_bytes(self) -> Mapping[int, int]:
        """Rank -> allocation at the end minus at the beginning [bytes]; at both as ``MemoryCurve.between`` says."""
        return {rank.rank: rank.memory.between(self.end_s) - rank.memory.between(self.start_s) for rank in self.ranks}

    def children(self) -> tuple[Span, ...]:
        """The pieces one level down, in order of start (within a stage: of issue); made on first use.

        An iteration has microbatches and the operators that belong to none; a microbatch its stages and transfers; a
        chunk, across microbatches, its stages; a stage, which runs one chunk, its layers; a layer the modules inside
        it and its own operators.
        """
        return self._children

    @cached_property
    def _children(self) -> tuple[Span, ...]:
        return self.find_children()

    def child(self, name: str) -> Span:
        """The piece of this name one level down.

        Raises:
            ConfigError: there is none; the nearest path is named.
        """
        return pick(self.children(), name, self.path)


def pick(spans: Sequence[Span], name: str, inside: str) -> Span:
    """The span of a name among siblings.

    Raises:
        ConfigError: there is none.
    """
    for span in spans:
        if span.name == name:
            return span
    if not spans:
        raise ConfigError("nothing is inside an operator", where=inside, expected="its own path", got=name)
    names = [span.name for span in spans]
    nearest = _nearest(name, names)
    alike = [other for other in names if _pattern(other) == _pattern(nearest)] if len(names) > 12 else names
    listed = alike if len(alike) <= 12 else [*alike[:8], "...", alike[-1]]
    raise ConfigError(
        f"nothing is called {name!r} here",
        where=inside,
        expected="one of " + ", ".join(listed),
        got=name,
        nearest=next(span.path for span in spans if span.name == nearest),
    )


def _nearest(name: str, legal: Sequence[str]) -> str:
    """The legal name that differs in its numbers only, and least in the first of them; else the most similar one."""
    numbers = _numbers(name)
    alike = [other for other in legal if _pattern(other) == _pattern(name)]
    if alike:
        return min(alike, key=lambda other: [abs(a - b) for a, b in zip(_numbers(other), numbers, strict=True)])
    return nearest_name(name, legal) or legal[0]


_NUMBER = re.compile(r"\d+")


def _pattern(name: str) -> str:
    return _NUMBER.sub("0", name)


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in _NUMBER.findall(name)]
