"""``timeline_data``: one or several runs on one time axis: stages, transfers, critical path, waits and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from semu.engine.critical_paths import Piece, critical_pieces, waits
from semu.engine.timeline import IterationTimeline, OuterSlice, RankTimeline, StageSlice
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.present.page.arrays import Arrays, smallest
from semu.units import GIB

MOST_STAGES = 200_000
"""Stages of a run that are shown; of more, some ranks are left out, then what begins last."""
_COLUMNS = 1200
"""Points of time of a memory curve; each shows the highest allocation within its part of the iteration."""
_MOST_POINTS = 64 * _COLUMNS
"""The same of all ranks together."""
_COSTLIEST = 5
"""Operators of a stage that are listed."""
_LANES = {"stage": 0, "transfer": 1, "collective": 2}


def timeline_data(runs: Sequence[tuple[str, IterationTimeline]], arrays: Arrays) -> dict[str, Any]:
    """What the browser draws.

    Args:
        runs: name and timeline, drawn one below the other. arrays: of the page.
    """
    return {"runs": [_run(name, timeline, arrays) for name, timeline in runs]}


def left_out(timeline: IterationTimeline) -> str:
    """What of a timeline is not shown, in a sentence; empty: nothing."""
    kept = _kept(timeline)
    if len(kept) < len(timeline.ranks):
        return f"{len(kept)} of {len(timeline.ranks)} ranks are shown"
    if any(len(rank.stages) > MOST_STAGES for rank in timeline.ranks):
        return f"the first {MOST_STAGES:,} stages of every rank are shown"
    return ""


def _kept(timeline: IterationTimeline) -> range:
    """Positions of the ranks that are shown."""
    stages = sum(len(rank.stages) for rank in timeline.ranks)
    return range(0, len(timeline.ranks), max(1, min(-(-stages // MOST_STAGES), len(timeline.ranks))))


def _run(name: str, timeline: IterationTimeline, arrays: Arrays) -> dict[str, Any]:
    kept = _kept(timeline)
    ranks = [timeline.ranks[number] for number in kept]
    row_of = {number: row for row, number in enumerate(kept)}
    texts = _Texts()
    end_s = max(timeline.iteration_time_s, timeline.makespan_s)
    return {
        "name": name,
        "endS": end_s,
        "makespanS": timeline.makespan_s,
        "iterationS": timeline.iteration_time_s,
        "bubble": timeline.bubble_ratio,
        "ranks": [rank.rank for rank in ranks],
        "stages": _stages(timeline, row_of, texts, arrays),
        "outer": _outer(ranks, texts, arrays),
        "critical": _critical(timeline, row_of, arrays),
        "memory": [_memory(rank, end_s, _points(len(ranks)), arrays) for rank in ranks if not rank.is_bare],
        "texts": texts.words,
    }


class _Texts:
    """Words by number."""

    def __init__(self) -> None:
        self.words: list[str] = [""]
        self._numbers = {"": 0}

    def number(self, word: str) -> int:
        """The number of a word, a new one where it was not there."""
        found = self._numbers.setdefault(word, len(self.words))
        if found == len(self.words):
            self.words.append(word)
        return found


def _stages(timeline: IterationTimeline, row_of: dict[int, int], texts: _Texts, arrays: Arrays) -> dict[str, Any]:
    """Columns over all stages, rank by rank in order of start; ``kinds`` are module and phase."""
    waited = {
        (number, position): texts.number(_wait_text(timeline, piece))
        for number, position, _, piece in waits(timeline)
        if number in row_of
    }
    kinds: dict[tuple[str, str], int] = {}
    groups: dict[tuple[int, int, str], tuple[float, int, int]] = {}
    columns: list[tuple[int, float, float, int, int, int, int]] = []
    firsts = [0]
    for number in row_of:
        rank = timeline.ranks[number]
        for position, stage in enumerate(rank.stages[:MOST_STAGES]):
            phase = stage.phase.name.lower().replace("_", " ")
            kind = kinds.setdefault((stage.module, phase), len(kinds))
            lasted = stage.end_s - stage.start_s
            group = (number, stage.chunk, phase)
            if group not in groups or lasted > groups[group][0]:
                groups[group] = (lasted, position, groups[group][2] if group in groups else len(groups))
            wait = waited.get((number, position), 0)
            label = texts.number(stage.label)
            columns.append((label, stage.start_s, lasted, kind, stage.microbatch, wait, groups[group][2]))
        firsts.append(len(columns))
    stages: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * 7
    labels, starts, lengths, kind_numbers, microbatches, wait_numbers, group_numbers = stages
    costly = [_costliest(timeline.ranks[number], position) for (number, _, _), (_, position, _) in groups.items()]
    return {
        "kinds": [{"module": module, "phase": phase} for module, phase in kinds],
        "first": arrays.add(firsts, "u4"),
        "label": arrays.add(labels, "u4"),
        "start": arrays.add(starts, "f8"),
        "lasted": arrays.add(lengths, "f4"),
        "kind": arrays.add(kind_numbers, smallest(len(kinds))),
        "microbatch": arrays.add(microbatches, "u4"),
        "wait": arrays.add(wait_numbers, "u4"),
        "group": arrays.add(group_numbers, "u4"),
        "costly": costly,
    }


def _costliest(rank: RankTimeline, position: int) -> list[dict[str, Any]]:
    """The operators of a stage that take most of its time, alike ones together; none where they are not known."""
    if rank.is_bare:
        return []
    operators = rank.expand(position)
    table, lasted = operators.table, operators.end_s - operators.start_s
    sums: dict[str, float] = {}
    for path, kind, phase, block, time in zip(
        table.paths, table.kinds, table.phases, table.blocks, lasted.tolist(), strict=True
    ):
        within = path.removeprefix(block).lstrip(".") or path
        words = f"{within} ({kind.name.lower().replace('_', ' ')}, {phase.name.lower().replace('_', ' ')})"
        sums[words] = sums.get(words, 0.0) + time
    most = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:_COSTLIEST]
    return [{"name": name, "s": time} for name, time in most]


def _wait_text(timeline: IterationTimeline, piece: tuple[int, Piece] | None) -> str:
    if piece is None:
        return "idle before it"
    number, what = piece
    return f"waited for {_name(what)} on rank {timeline.ranks[number].rank}"


def _name(piece: Piece) -> str:
    return piece.label if isinstance(piece, StageSlice) else piece.name


def _outer(ranks: Sequence[RankTimeline], texts: _Texts, arrays: Arrays) -> dict[str, Any]:
    rows, starts, lengths, lanes, names = [], [], [], [], []
    for row, rank in enumerate(ranks):
        for piece in rank.outer[:MOST_STAGES]:
            rows.append(row)
            starts.append(piece.start_s)
            lengths.append(piece.end_s - piece.start_s)
            lanes.append(_LANES[_lane(piece)])
            names.append(texts.number(piece.name))
    return {
        "row": arrays.add(rows, "u4"),
        "start": arrays.add(starts, "f8"),
        "lasted": arrays.add(lengths, "f4"),
        "lane": arrays.add(lanes, "u1"),
        "name": arrays.add(names, "u4"),
    }


def _lane(piece: OuterSlice) -> str:
    if not piece.kind.is_communication:
        return "stage"
    return "transfer" if piece.kind is OpKind.P2P else "collective"


def _critical(timeline: IterationTimeline, row_of: dict[int, int], arrays: Arrays) -> dict[str, Any]:
    """The critical path from its beginning: row, start, length and lane of each piece."""
    rows, starts, lengths, lanes = [], [], [], []
    for number, piece, lasted in reversed(list(critical_pieces(timeline))):
        if piece is not None and number in row_of:
            rows.append(row_of[number])
            starts.append(piece.start_s)
            lengths.append(lasted)
            lanes.append(_LANES["stage" if isinstance(piece, StageSlice) else _lane(piece)])
    return {
        "row": arrays.add(rows, "u4"),
        "start": arrays.add(starts, "f8"),
        "lasted": arrays.add(lengths, "f4"),
        "lane": arrays.add(lanes, "u1"),
    }


def _points(num_ranks: int) -> int:
    return max(100, min(_COLUMNS, _MOST_POINTS // max(num_ranks, 1)))


def _memory(rank: RankTimeline, end_s: float, points: int, arrays: Arrays) -> dict[str, Any]:
    """A rank's memory by role [GiB] at the middle of equal parts of the iteration, and its peak."""
    memory = rank.highest_memory(np.linspace(0, end_s if end_s > 0 else 1.0, points + 1))
    peak = rank.find_peak(memory)
    rows = dict(zip(memory.roles, memory.by_role, strict=True))
    used = [role for role in Role if role in rows and rows[role].any()]
    return {
        "capacity": memory.capacity_bytes / GIB,
        "roles": [role.value for role in used],
        "points": points,
        "byRole": [arrays.add(rows[role] / GIB, "f4") for role in used],
        "peak": {"s": peak.time_s, "GiB": peak.size_bytes / GIB, "stage": peak.stage, "operator": peak.operator},
    }
