"""Pipelines whose towers run their loss together (``parallel.loss = "towers"``), for a search that knows no gangs.

``without_meetings``: what is searched. A member's forward waits for what arrives at any member, and a backward that
waits for one member's waits for all: everything a gang asks for, but that its stages begin together. Times and bounds
of it are never above those of the gang. ``met``: an order in which members meet, and the simulation of this decides.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from dataclasses import replace

import numpy as np

from semu.errors import ScheduleError
from semu.schedule.gangs.barriers import fellows
from semu.schedule.gangs.weaving import without_gangs
from semu.schedule.graph import PipelineGraph, graph_of
from semu.schedule.schedule import Schedule, StageColumns
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy, StudyResult
from semu.searcher.problem.problem_arrays import F64, I64
from semu.simulation.schedules.woven import with_gangs

AHEAD = 8
"""So many stages behind one that waits are tried in its place."""
MOST_MOVES = 2000
"""Moves that are tried: a second or two."""


def without_meetings(graph: PipelineGraph, transfer_s: F64) -> tuple[PipelineGraph, F64]:
    """A pipeline whose members wait for what the others wait for, and do not meet; the same pairs.

    Args:
        graph: the pipeline. transfer_s: float64[num_edges] [s], by its ``pair_edges``.
    Returns:
        The pipeline, and the same by its own edges: what a gang gathers takes no time beside its stage.
    """
    shape = graph.shape
    if all(gang < 0 for gang in shape.meeting):  # nothing meets: features are sent, gradients stay on their own ranks
        return graph, transfer_s
    sources = list(shape.sources)
    for members in shape.gangs:
        every = tuple(sorted({source for chunk in members for source in shape.sources[chunk]}))
        for chunk in members:
            sources[chunk] = every
    other = graph_of(replace(shape, sources=tuple(sources), chunk_gang=()))
    count = len(other.pair_edges.ptr)
    keys = [
        np.repeat(np.arange(count - 1), np.diff(one.pair_edges.ptr)) * count + one.pair_edges.pred
        for one in (graph, other)
    ]
    seconds = np.zeros(len(keys[1]))
    seconds[np.searchsorted(keys[1], keys[0])] = transfer_s
    return other, seconds


def met(schedule: Schedule, study: PipelineStudy, start_s: F64, room: I64) -> Schedule:
    """The shortest schedule that is found in which the members of gangs meet.

    It begins with the schedule itself, or where its members meet in a circle with its stages by the times at which they
    began, a gang's when its last member did; and with its other chunks, the gangs woven in between. From either on,
    where a rank waits, one of the next ``AHEAD`` stages is run first if that makes the whole shorter.

    Args:
        schedule: whole backwards, legal without meetings. study: of the pipeline, with its gangs.
        start_s: float64[num_stages] [s], when its stages began without meeting, rank after rank.
        room: int64[num_ranks] [bytes], what activations may take.
    """
    try:
        schedule.validate(study.shape)
        first = schedule
    except ScheduleError:
        first = _by_times(schedule, study.shape, start_s)
    found = [study.evaluate(first)]
    with suppress(ScheduleError):
        found.append(study.evaluate(with_gangs(_layers_of(first, study.shape), study)))
    fits = [one for one in found if np.all(one.peak_bytes <= room)] or found[:1]
    best = min((_closer(one, study, room) for one in fits), key=lambda one: one.makespan_s)
    return study.arrays.to_schedule(schedule.name, best.ptr, best.stages)


def _layers_of(schedule: Schedule, shape: PipelineShape) -> Schedule:
    """The order of the chunks that are in no gang, numbered as ``without_gangs`` does."""
    number = {chunk: place for place, chunk in enumerate(without_gangs(shape)[1])}
    orders = [
        [StageKey(number[key.chunk], key.phase, key.microbatch) for key in own if key.chunk in number]
        for own in schedule.orders
    ]
    return Schedule.build(schedule.name, orders)


def _closer(result: StudyResult, study: PipelineStudy, room: I64) -> StudyResult:
    """The order of a result, with stages moved to where ranks wait, for as long as that makes it shorter."""
    peak, best = np.maximum(result.peak_bytes, room), result
    last = np.repeat(result.ptr[1:], np.diff(result.ptr)).tolist()
    left, is_shorter = MOST_MOVES, True
    while is_shorter and left > 0:
        is_shorter = False
        for place, behind in enumerate(last):
            before = 0.0 if place in result.ptr else float(best.end_s[place - 1])
            for other in range(place + 1, min(place + 1 + AHEAD, behind)) if best.start_s[place] > before else ():
                left -= 1
                one = _tried(best, place, other, study)
                if one is not None and one.makespan_s < best.makespan_s and np.all(one.peak_bytes <= peak):
                    best, is_shorter = one, True
                    break
            if left <= 0:
                break
    return best


def _tried(result: StudyResult, place: int, other: int, study: PipelineStudy) -> StudyResult | None:
    """The order with a later stage of a rank moved to a place; None: it does not run."""
    stages = result.stages.copy()
    stages[place + 1 : other + 1] = result.stages[place:other]
    stages[place] = result.stages[other]
    try:
        return study.evaluate_orders(result.ptr, stages)
    except ScheduleError:
        return None


def _by_times(schedule: Schedule, shape: PipelineShape, start_s: F64) -> Schedule:
    columns, graph = schedule.columns, graph_of(shape)
    numbers = graph.numbers(schedule)
    place_of = {number: place for place, number in enumerate(numbers.tolist())}
    event = list(range(len(numbers)))  # stages that begin together are one event: that of the first of them
    for stage, fellow in sorted(zip(*(ends.tolist() for ends in fellows(shape, columns)), strict=True)):
        event[fellow] = min(event[fellow], event[stage])
    members: dict[int, list[int]] = {}
    for place, own in enumerate(event):
        members.setdefault(own, []).append(place)
    needs: dict[int, set[int]] = {own: set() for own in members}
    readers: dict[int, set[int]] = {own: set() for own in members}
    for place, number in enumerate(numbers.tolist()):
        for before in graph.pred[graph.pred_ptr[number] : graph.pred_ptr[number + 1]].tolist():
            own = event[place_of[before]]
            needs[event[place]].add(own)
            readers[own].add(event[place])
    at = {own: max(float(start_s[place]) for place in places) for own, places in members.items()}
    ready = [(at[own], own) for own, before in needs.items() if not before]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, own = heapq.heappop(ready)
        order += members[own]
        for reader in readers[own]:
            needs[reader].discard(own)
            if not needs[reader]:
                heapq.heappush(ready, (at[reader], reader))
    rank = np.repeat(np.arange(shape.num_ranks), np.diff(columns.ptr))
    chosen = np.array(order, dtype=np.int64)
    chosen = chosen[np.argsort(rank[chosen], kind="stable")]
    found = StageColumns(columns.ptr, columns.chunk[chosen], columns.phase[chosen], columns.microbatch[chosen])
    return Schedule(schedule.name, found)
