"""Random pipelines, random legal schedules for them, and a slow simulation of both."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from semu.graph.operator import Phase
from semu.schedule.problem import PipelineProblem
from semu.schedule.schedule import PipelineShape, Schedule, StageKey
from semu.schedule.units import PipelineUnits
from tests.engine.reference import fixed_order

F, B = Phase.FORWARD, Phase.BACKWARD


@st.composite
def shapes(draw: st.DrawFn, *, max_ranks: int = 4, max_chunks: int = 6, max_microbatches: int = 4) -> PipelineShape:
    """Chunks on any ranks; each reads some earlier ones; backward where the chunk or something upstream trains."""
    num_ranks = draw(st.integers(1, max_ranks))
    num_chunks = draw(st.integers(1, max_chunks))
    sources: list[tuple[int, ...]] = []
    has_backward: list[bool] = []
    for chunk in range(num_chunks):
        reads = draw(st.sets(st.integers(0, chunk - 1), max_size=2)) if chunk else set()
        sources.append(tuple(sorted(reads)))
        has_backward.append(draw(st.booleans()) or any(has_backward[source] for source in reads))
    return PipelineShape(
        num_ranks,
        draw(st.integers(1, max_microbatches)),
        tuple(draw(st.integers(0, num_ranks - 1)) for _ in range(num_chunks)),
        tuple(sources),
        tuple(has_backward),
    )


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineShape:
    """Chunks on any ranks that read any earlier ones; of one module, or of two that cut microbatches and join parts."""
    p, m, count = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    sources: list[tuple[int, ...]] = []
    trains: list[bool] = []
    for chunk in range(count):
        reads = draw(st.permutations(range(chunk)))[: draw(st.integers(0, 2))]
        sources.append(tuple(reads))
        trains.append(draw(st.booleans()) or any(trains[source] for source in reads))
    ranks = tuple(draw(st.integers(0, p - 1)) for _ in range(count))
    shape = PipelineShape(p, m, ranks, tuple(sources), tuple(trains))
    if draw(st.booleans()):
        return shape
    first = draw(st.integers(0, count))
    split = [draw(st.integers(1, 3)) for _ in range(2)]
    parts = [tuple(draw(st.integers(0, most)) for _ in range(m)) for most in split]
    module = [int(chunk >= first) for chunk in range(count)]
    return PipelineShape(
        *(p, m, ranks, tuple(sources), tuple(trains)),
        chunk_module=tuple("ab"[which] for which in module),
        chunk_split=tuple(split[which] for which in module),
        part_counts=tuple(parts[which] for which in module),
        joins=True,
    )


def needs(shape: PipelineShape, stage: StageKey) -> set[StageKey]:
    """What must end before a stage: written anew from the definition, not read from the shape's own method."""
    if stage.phase is F:
        return {StageKey(source, F, stage.microbatch) for source in shape.sources[stage.chunk]}
    later = [
        chunk
        for chunk in range(len(shape.chunk_rank))
        if stage.chunk in shape.sources[chunk] and shape.has_backward[chunk]
    ]
    return {StageKey(stage.chunk, F, stage.microbatch)} | {StageKey(chunk, B, stage.microbatch) for chunk in later}


def predecessors(shape: PipelineShape, stage: StageKey) -> list[StageKey]:
    """Stages whose results a stage needs, sub-microbatches and split backwards included; ``B`` of another chunk stands
    for its ``I`` where that is split. By ``PipelineShape.shared`` alone."""
    chunk, part = stage.chunk, stage.microbatch
    if stage.phase is F:
        ends = [(source, F) for source in shape.sources[chunk]]
    elif stage.phase is Phase.WEIGHT_GRADIENT:
        return [StageKey(chunk, Phase.INPUT_GRADIENT, part)]
    else:
        readers = [other for other, sources in enumerate(shape.sources) if chunk in sources]
        ends = [(reader, B) for reader in readers if shape.has_backward[reader]]
    own = [] if stage.phase is F else [StageKey(chunk, F, part)]
    return own + [StageKey(other, phase, there) for other, phase in ends for there in shape.shared(chunk, part, other)]


def all_stages(shape: PipelineShape) -> list[StageKey]:
    return [
        StageKey(chunk, phase, microbatch)
        for chunk in range(len(shape.chunk_rank))
        for phase in (F, B)
        for microbatch in range(shape.num_microbatches)
        if phase is F or shape.has_backward[chunk]
    ]


@st.composite
def legal_schedules(draw: st.DrawFn, shape: PipelineShape) -> Schedule:
    """Any order in which every rank can go on: ready stages are appended to their ranks in random order."""
    todo = all_stages(shape)
    done: set[StageKey] = set()
    orders: list[list[StageKey]] = [[] for _ in range(shape.num_ranks)]
    while todo:
        ready = [stage for stage in todo if needs(shape, stage) <= done]
        stage = draw(st.sampled_from(ready))
        todo.remove(stage)
        done.add(stage)
        orders[shape.chunk_rank[stage.chunk]].append(stage)
    return Schedule.build("random", orders)


Send = tuple[StageKey, int]
"""A stage's result on its way to a chunk that lives on another rank."""


def sends(shape: PipelineShape, stage: StageKey) -> list[int]:
    """Chunks on other ranks that wait for a stage's result."""
    here = shape.chunk_rank[stage.chunk]
    if stage.phase is F:
        takers = [chunk for chunk, sources in enumerate(shape.sources) if stage.chunk in sources]
    else:
        takers = [source for source in shape.sources[stage.chunk] if shape.has_backward[source]]
    return [chunk for chunk in takers if shape.chunk_rank[chunk] != here]


@dataclass
class Times:
    """Start and end of every stage and send."""

    stages: dict[StageKey, tuple[float, float]]
    sends: dict[Send, tuple[float, float]]


def simulate(
    schedule: Schedule,
    shape: PipelineShape,
    stage_s: Mapping[StageKey, float],
    send_s: Mapping[Send, float],
    *,
    overlapped_sends: bool,
) -> Times:
    """Event by event, as a clock would see it.

    A rank runs its stages in order, each as soon as the rank is free and its inputs are there. A result leaves when
    its stage ends; results from one rank to another queue behind one another. Without overlap the rank is free only
    when what it sent has arrived. A result that two chunks of one rank read is sent to each.
    """
    times = Times({}, {})
    ended: set[StageKey] = set()
    arrived: set[Send] = set()
    position = [0] * shape.num_ranks
    busy: list[set[object]] = [set() for _ in range(shape.num_ranks)]  # what a rank waits for before its next stage
    queue: dict[tuple[int, int], list[Send]] = {}
    moving: dict[tuple[int, int], Send | None] = {}
    events: list[tuple[float, int, str, object]] = []
    serial = 0

    def push(time: float, kind: str, what: object) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(events, (time, serial, kind, what))

    def is_there(result: StageKey, consumer: StageKey) -> bool:
        if shape.chunk_rank[result.chunk] == shape.chunk_rank[consumer.chunk]:
            return result in ended
        return (result, consumer.chunk) in arrived

    def pump(now: float) -> None:
        for pair, waiting in queue.items():
            if moving.get(pair) is None and waiting:
                send = waiting.pop(0)
                moving[pair] = send
                times.sends[send] = (now, now + send_s[send])
                push(now + send_s[send], "arrives", (pair, send))
        for rank, order in enumerate(schedule.orders):
            if busy[rank] or position[rank] == len(order):
                continue
            stage = order[position[rank]]
            if all(is_there(before, stage) for before in needs(shape, stage)):
                position[rank] += 1
                busy[rank].add(stage)
                times.stages[stage] = (now, now + stage_s[stage])
                push(now + stage_s[stage], "ends", stage)

    pump(0.0)
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "ends":
            assert isinstance(what, StageKey)
            rank = shape.chunk_rank[what.chunk]
            busy[rank].discard(what)
            ended.add(what)
            for chunk in sends(shape, what):
                pair = (rank, shape.chunk_rank[chunk])
                queue.setdefault(pair, []).append((what, chunk))
                if not overlapped_sends:
                    busy[rank].add((what, chunk))
        else:
            pair, send = what  # type: ignore[misc]
            moving[pair] = None
            arrived.add(send)
            busy[pair[0]].discard(send)
        pump(now)
    return times


def lowered_times(problem: PipelineProblem, latency: Sequence[float]) -> dict[int, tuple[float, float]]:
    """Start and end [s] of every node of a lowered schedule that does not wait in a circle."""
    streams = [range(first, stop) for first, stop in pairwise(problem.stream_ptr.tolist())]
    preds = [row.tolist() for row in np.split(problem.pred, problem.pred_ptr[1:-1])]
    return fixed_order(streams, preds, latency)


def transfer_of(units: PipelineUnits, stage: StageKey, consumer: StageKey) -> int:
    """Number of the unit that carries a stage's result to a consumer."""
    position = units.unit_position(stage)
    (number,) = np.flatnonzero((units.producer == position) & (units.consumer == units.unit_position(consumer)))
    return units.unit(stage) - position + units.num_stages + int(number)
