"""The spans of an iteration, from the whole down to one operator: ``iteration_span``, ``chunk_spans``, ``find_span``.

A parent above stages costs what its children cost; a stage, a layer and an operator read the stage's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from semu.engine.rank_timeline import OuterSlice, RankTimeline, StageOperators, StageSlice
from semu.engine.span import Span, SpanCosts, pick
from semu.graph.level import Level

_Children: TypeAlias = Callable[[], tuple[Span, ...]]


def find_span(root: Span, chunks: _Children, path: str) -> Span:
    """The span of a path: ``iteration``, or names of children joined by ``/``; below a layer, modules joined by dots.

    Args:
        root: the iteration. chunks: gives the spans of its chunks.
    Raises:
        ConfigError: nothing has this path.
    """
    if path == root.path:
        return root
    first, *rest = path.split("/", maxsplit=3)
    span = pick(chunks() if first.startswith("chunk") else root.children(), first, "timeline")
    names = [*rest[:2], *rest[2].split(".")] if len(rest) == 3 else rest
    for name in names:
        span = span.child(name)
    return span


def iteration_span(ranks: tuple[RankTimeline, ...], time_s: float) -> Span:
    """The whole iteration, from 0 to its end."""

    def _children() -> tuple[Span, ...]:
        spans = _microbatch_spans(ranks)
        for rank in ranks:
            others = [piece for number, piece in enumerate(rank.outer) if number not in rank.carried]
            names = _unique(f"{piece.name} (rank {rank.rank})" for piece in others)
            spans += [_outer_span(rank, piece, name, name) for piece, name in zip(others, names, strict=True)]
        return tuple(sorted(spans, key=_start))

    return _parent(Level.ITERATION, "iteration", "iteration", (0.0, time_s), ranks, _children)


def _microbatch_spans(ranks: Sequence[RankTimeline]) -> list[Span]:
    """From a microbatch's first stage to the end of its last, on whichever ranks."""
    stages: dict[int, list[tuple[RankTimeline, int]]] = {}
    for rank in ranks:
        for number, stage in enumerate(rank.stages):
            stages.setdefault(stage.microbatch, []).append((rank, number))
    return [_microbatch_span(number, stages[number]) for number in sorted(stages)]


def _microbatch_span(number: int, stages: Sequence[tuple[RankTimeline, int]]) -> Span:
    ranks = tuple({rank.rank: rank for rank, _ in stages}.values())
    slices = [rank.stages[position] for rank, position in stages]
    path = f"mb{number}"

    def _children() -> tuple[Span, ...]:
        spans = [_stage_span(rank, position, path) for rank, position in stages]
        for rank in ranks:
            sent = [rank.outer[position] for position, stage in rank.carried.items() if stage.microbatch == number]
            names = _unique(piece.name for piece in sent)
            spans += [_outer_span(rank, p, name, f"{path}/{name}") for p, name in zip(sent, names, strict=True)]
        return tuple(sorted(spans, key=_start))

    return _parent(Level.MICROBATCH, path, path, _extent(slices), ranks, _children)


def chunk_spans(ranks: Sequence[RankTimeline]) -> tuple[Span, ...]:
    """All stages of each chunk, from the first to the end of the last."""
    found: dict[int, tuple[RankTimeline, list[int]]] = {}
    for rank in ranks:
        for number, stage in enumerate(rank.stages):
            found.setdefault(stage.chunk, (rank, []))[1].append(number)
    return tuple(_chunk_span(chunk, *found[chunk]) for chunk in sorted(found))


def _chunk_span(chunk: int, rank: RankTimeline, numbers: Sequence[int]) -> Span:
    extent = _extent([rank.stages[number] for number in numbers])
    name = f"chunk{chunk}"

    def _children() -> tuple[Span, ...]:
        return tuple(_stage_span(rank, number, f"mb{rank.stages[number].microbatch}") for number in numbers)

    return _parent(Level.CHUNK, name, name, extent, (rank,), _children)


def _stage_span(rank: RankTimeline, number: int, inside: str) -> Span:
    stage = rank.stages[number]
    path = f"{inside}/{stage.label}"

    def _children() -> tuple[Span, ...]:
        operators = rank.expand(number)
        paths = operators.table.paths
        firsts = operators.table.block_starts.tolist()
        runs = list(zip(firsts, [*firsts[1:], len(paths)], strict=True))
        spans = []
        names = _unique(operators.table.blocks[first] for first, _ in runs)
        for (first, last), name in zip(runs, names, strict=True):
            block = operators.table.blocks[first]
            depth = len(block.split(".")) if block else 0
            inner = _Rows(rank, operators, [paths[row].split(".")[depth:] for row in range(first, last)], first)
            spans.append(inner.layer(0, slice(first, last), name, f"{path}/{name}", "/"))
        return tuple(spans)

    return Span(
        level=Level.STAGE,
        name=stage.label,
        path=path,
        rank=rank.rank,
        start_s=stage.start_s,
        end_s=stage.end_s,
        ranks=(rank,),
        find_costs=lambda: SpanCosts.of_rows(rank.expand(number), slice(None)),
        find_children=_children,
    )


class _Rows:
    """The operators of one block in one stage, which nest by the parts of their module paths.

    Args:
        rank, operators: where they are. parts: per operator, its module path within the block, in parts.
        first: the first operator's row in the stage.
    """

    def __init__(self, rank: RankTimeline, operators: StageOperators, parts: Sequence[list[str]], first: int) -> None:
        self.rank, self.operators, self.parts, self.first = rank, operators, parts, first

    def layer(self, depth: int, rows: slice, name: str, path: str, joint: str = ".") -> Span:
        """A module: consecutive operators whose paths share ``depth`` parts; ``joint`` stands before its children."""
        return self._span(Level.LAYER, rows, name, path, lambda: tuple(self._inside(depth, rows, path + joint)))

    def _inside(self, depth: int, rows: slice, prefix: str) -> Iterator[Span]:
        """Modules of a layer, and its operators: those of its own are called by kind, the others by path."""
        groups: list[tuple[str, bool, slice]] = []
        for part, members in groupby(range(rows.start, rows.stop), lambda row: self._part(row, depth)):
            numbers = list(members)
            if part is not None and any(len(self._parts(row)) > depth + 1 for row in numbers):
                groups.append((part, True, slice(numbers[0], numbers[-1] + 1)))
            else:
                for row in numbers:
                    kind = self.operators.table.kinds[row].value
                    groups.append((kind if part is None else part, False, slice(row, row + 1)))
        for name, (_, is_module, inner) in zip(_unique(group[0] for group in groups), groups, strict=True):
            if is_module:
                yield self.layer(depth + 1, inner, name, prefix + name)
            else:
                yield self._span(Level.OPERATOR, inner, name, prefix + name, tuple)

    def _parts(self, row: int) -> list[str]:
        return self.parts[row - self.first]

    def _part(self, row: int, depth: int) -> str | None:
        parts = self._parts(row)
        return parts[depth] if len(parts) > depth else None

    def _span(self, level: Level, rows: slice, name: str, path: str, children: _Children) -> Span:
        return Span(
            level=level,
            name=name,
            path=path,
            rank=self.rank.rank,
            start_s=float(self.operators.start_s[rows].min()),
            end_s=float(self.operators.end_s[rows].max()),
            ranks=(self.rank,),
            find_costs=lambda: SpanCosts.of_rows(self.operators, rows),
            find_children=children,
        )


def _outer_span(rank: RankTimeline, piece: OuterSlice, name: str, path: str) -> Span:
    return Span(
        level=Level.OPERATOR,
        name=name,
        path=path,
        rank=rank.rank,
        start_s=piece.start_s,
        end_s=piece.end_s,
        ranks=(rank,),
        find_costs=lambda: SpanCosts.of_outer(piece),
        find_children=tuple,
    )


def _parent(
    level: Level,
    name: str,
    path: str,
    extent: tuple[float, float],
    ranks: tuple[RankTimeline, ...],
    children: _Children,
) -> Span:
    """A span that costs what its children cost."""
    span = Span(
        level=level,
        name=name,
        path=path,
        rank=ranks[0].rank if len(ranks) == 1 else None,
        start_s=extent[0],
        end_s=extent[1],
        ranks=ranks,
        find_costs=lambda: SpanCosts.total(child.costs for child in span.children()),
        find_children=children,
    )
    return span


def _extent(stages: Sequence[StageSlice]) -> tuple[float, float]:
    return min(stage.start_s for stage in stages), max(stage.end_s for stage in stages)


def _start(span: Span) -> tuple[float, float]:
    return span.start_s, span.end_s


def _unique(names: Iterable[str]) -> list[str]:
    """The names, those that come again with a number: ``add``, ``add#2``."""
    counts: dict[str, int] = {}
    result = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        result.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return result
