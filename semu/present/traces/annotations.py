"""Slices that say what operators belong to: the iteration, microbatches, stages, and the layers inside stages.

Layers lie on the track of their stage, inside its slice, so that viewers nest them. Where a layer begins before the one
before it has ended (communication that overlaps), it goes to a second track of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.engine.span import Span
from semu.engine.timeline import RankTimeline, StageOperators
from semu.graph.level import Level
from semu.present.traces.columns import disjoint_lanes, microseconds, phase_words, ticks

_STEP_NAME = "ProfilerStep#0"
"""HolisticTraceAnalysis's name for an iteration."""
_ANNOTATION = "user_annotation"


def iteration_slice(rank: RankTimeline, iteration_time_s: float, track: int) -> list[str]:
    """The iteration as one annotation."""
    span = ticks(np.array([[0.0], [iteration_time_s]]))
    return _slices([_STEP_NAME], [{"level": Level.ITERATION.value}], rank.rank, track, _ANNOTATION, span)


def stage_slices(rank: RankTimeline, track: int, category: str = _ANNOTATION) -> list[str]:
    """Stages as annotations, in order of start; what they are goes into the arguments."""
    names = [f"{stage.label} {stage.module}" for stage in rank.stages]
    arguments: list[dict[str, object]] = [
        {
            "level": Level.STAGE.value,
            "chunk": stage.chunk,
            "microbatch": stage.microbatch,
            "phase": phase_words(stage.phase),
        }
        for stage in rank.stages
    ]
    return _slices(names, arguments, rank.rank, track, category, stage_ticks(rank))


def stage_ticks(rank: RankTimeline) -> NDArray[np.int64]:
    """int64[2, num_stages], starts and ends in ticks."""
    return ticks(np.array([(stage.start_s, stage.end_s) for stage in rank.stages]).reshape(-1, 2).T)


def nested_stages(rank: RankTimeline, stages: Sequence[StageOperators], track: int, spare: int) -> dict[int, list[str]]:
    """Stages with their layers inside, by track; outer slices first.

    Args:
        rank: whose stages. stages: their operators, in the same order.
        track: number of the track. spare: number of the first one for layers that would overlap.
    """
    layers = _Layers(rank, stages)
    lane, *others = disjoint_lanes(*layers.spans)
    inside = layers.slices(lane, track)
    events = stage_slices(rank, track)
    bounds = np.searchsorted(layers.stage[lane], np.arange(len(events) + 1)).tolist()
    nested = []
    for number, event in enumerate(events):
        nested.append(event)
        nested += inside[bounds[number] : bounds[number + 1]]
    return {track: nested, **{number: layers.slices(lane, number) for number, lane in enumerate(others, start=spare)}}


class _Layers:
    """The layers of a rank's stages: name, place, start and end in ticks.

    Attributes:
        stage: int64[num_layers], position of each layer's stage, in order of stage and start.
        spans: int64[2, num_layers], starts and ends in ticks.
    """

    def __init__(self, rank: RankTimeline, stages: Sequence[StageOperators]) -> None:
        names: list[str] = []
        places: list[str] = []
        counts = [np.empty(0, dtype=np.int64)]
        times_s = [np.empty((2, 0))]
        for slice_, operators in zip(rank.stages, stages, strict=True):
            firsts = operators.table.block_starts
            counts.append(np.array([len(firsts)]))
            if len(firsts):
                starts = np.minimum.reduceat(operators.start_s, firsts)
                ends = np.maximum.reduceat(operators.end_s, firsts)
                times_s.append(np.stack((starts, ends)))
                names += [operators.table.blocks[first] for first in firsts.tolist()]
                places += [f'"chunk":{slice_.chunk},"microbatch":{slice_.microbatch}'] * len(firsts)
        stage = np.repeat(np.arange(len(stages)), np.concatenate(counts))
        spans = ticks(np.concatenate(times_s, axis=1))
        order = np.lexsort((spans[1], spans[0], stage))
        self.stage, self.spans = stage[order], spans[:, order]
        self._names, self._places = [names[i] for i in order], [places[i] for i in order]
        self._pid = rank.rank

    def slices(self, rows: NDArray[np.int64], track: int) -> list[str]:
        """The events of one track."""
        begin, end = self.spans[:, rows]
        starts, durations = microseconds(begin), microseconds(end - begin)
        head = f'{{"ph":"X","cat":"{_ANNOTATION}","name":'
        middle = f',"pid":{self._pid},"tid":{track},"ts":'
        arguments = f',"args":{{"level":"{Level.LAYER.value}",'
        return [
            f'{head}{json.dumps(self._names[row])}{middle}{start},"dur":{duration}{arguments}{self._places[row]}}}}}'
            for row, start, duration in zip(rows.tolist(), starts, durations, strict=True)
        ]


def microbatch_slices(spans: Sequence[Span], pid: int) -> list[list[str]]:
    """Microbatches from the start of their first stage to the end of their last, per track: they overlap.

    Args:
        spans: of level MICROBATCH, in order of start. pid: the process that they get.
    """
    times = ticks(np.array([(span.start_s, span.end_s) for span in spans]).reshape(-1, 2).T)
    result = []
    for number, lane in enumerate(disjoint_lanes(*times), start=1):
        chosen = [int(spans[position].name.removeprefix("mb")) for position in lane.tolist()]
        names = [f"microbatch {microbatch}" for microbatch in chosen]
        arguments = [{"level": Level.MICROBATCH.value, "microbatch": microbatch} for microbatch in chosen]
        result.append(_slices(names, arguments, pid, number, Level.MICROBATCH.value, times[:, lane]))
    return result


def _slices(
    names: Sequence[str],
    arguments: Sequence[Mapping[str, object]],
    pid: int,
    track: int,
    category: str,
    spans: NDArray[np.int64],
) -> list[str]:
    """Complete events (``ph: X``) of one track; spans: int64[2, num_slices], starts and ends in ticks."""
    starts, durations = microseconds(spans[0]), microseconds(spans[1] - spans[0])
    return [
        compact_json(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": track, "ts": ts, "dur": dur, "args": extra}
        )
        for name, extra, ts, dur in zip(names, arguments, starts, durations, strict=True)
    ]


def compact_json(event: Mapping[str, object]) -> str:
    """One event as text."""
    return json.dumps(event, separators=(",", ":"))
