"""When gradients are complete, on the slowest replica, and which operators complete them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import StageProgram
from semu.schedule.problem import PipelineProblem
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun


def last_nodes(run: PipelineRun, rank: int) -> tuple[int, ...]:
    """The last stage of a rank, if it has any."""
    return tuple(run.problem.rank_nodes[rank][-1:].tolist())


def rank_end(run: PipelineRun, rank: int) -> float:
    """End of a rank's last stage on the slowest replica [s]."""
    return run.rank_ends[rank]


Operators = tuple[tuple[int, int], ...]
"""(stage, operator) each."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of a rank's trainable parameters, in the order in which they are complete.

    Attributes:
        ready_s: float64[num_parameters] [s], when each is complete on the slowest replica. keys: whose it is (identity
            of the parameter). elements: local ones. slots: its virtual stage.
        operators: what completes it; nothing: no gradient reaches it.
    """

    ready_s: NDArray[np.float64]
    keys: list[int]
    elements: list[int]
    slots: list[int]
    operators: list[Operators]


def gradients_ready(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> Gradients:
    """The gradient of each trainable parameter, in the order in which they are complete."""
    trained: _Trained = layout.cut.facts.get(("trained", rank), lambda: _find_trained(layout, rank))
    problem = run.problem
    ready = np.zeros(len(trained.keys))
    for chunk, writers, places in trained.written:
        node = int(problem.stage_nodes[chunk, 1][-1])
        program = layout.chunks[chunk].backward
        assert program is not None
        np.maximum.at(ready, places, _ends(evaluation, run, program, node, writers))
    ready[trained.num_reached :] = rank_end(run, rank)
    operators: list[Operators] = layout.cut.facts.get(
        ("completes", rank, problem), lambda: _completing(trained, problem)
    )
    order = np.argsort(ready, kind="stable")
    turn = order.tolist()
    return Gradients(
        ready_s=ready[order],
        keys=[trained.keys[i] for i in turn],
        elements=[trained.elements[i] for i in turn],
        slots=[trained.slots[i] for i in turn],
        operators=[operators[i] for i in turn],
    )


@dataclass(frozen=True, eq=False)
class _Trained:
    """The trained parameters of a rank.

    Attributes:
        keys, elements, slots: of each: identity, local elements, virtual stage.
        num_reached: so many of them, the first, get a gradient.
        written: per chunk with a backward stage, from the last to the first: its number; int64[k], operators that
            complete gradients; int64[k], the parameters whose they are.
    """

    keys: list[int]
    elements: list[int]
    slots: list[int]
    num_reached: int
    written: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]


def _find_trained(layout: Layout, rank: int) -> _Trained:
    place: dict[int, int] = {}
    elements: dict[int, int] = {}
    slots: dict[int, int] = {}
    written = []
    for chunk in reversed(layout.chunks_of(rank)):
        if chunk.backward is None:
            continue
        starts = block_starts(chunk.backward, len(chunk.blocks))
        completed = [
            (held, starts[number] + held.writer)
            for number, block in enumerate(chunk.blocks)
            for held in block.parameters
            if held.parameter.requires_grad and held.writer >= 0
        ]
        for held, _ in completed:
            key = id(held.parameter)
            place.setdefault(key, len(place))
            elements[key], slots[key] = held.elements, chunk.chunk.slot
        writers = np.array([writer for _, writer in completed], dtype=np.int64)
        places = np.array([place[id(held.parameter)] for held, _ in completed], dtype=np.int64)
        written.append((chunk.chunk.index, writers, places))
    num_reached = len(place)
    for number, _, held in layout.held_by(rank):  # what no gradient reaches is reduced all the same, at the end
        key = id(held.parameter)
        if held.parameter.requires_grad and key not in place:
            place[key] = len(place)
            elements[key], slots[key] = held.elements, layout.chunks[number].chunk.slot
    return _Trained([*place], [elements[key] for key in place], [slots[key] for key in place], num_reached, written)


def _completing(trained: _Trained, problem: PipelineProblem) -> list[Operators]:
    """The operators that complete each gradient."""
    found: list[list[tuple[int, int]]] = [[] for _ in trained.keys]
    for chunk, writers, places in trained.written:
        node = int(problem.stage_nodes[chunk, 1][-1])
        for writer, place in zip(writers.tolist(), places.tolist(), strict=True):
            found[place].append((node, writer))
    return [tuple(own) for own in found]


def _ends(
    evaluation: Evaluation, run: PipelineRun, stage: StageProgram, node: int, operators: NDArray[np.int64]
) -> NDArray[np.float64]:
    """``latest_ends``; of a stage on which nothing outside bears, on the only replica, the ends are remembered."""
    by_shape = evaluation.by_shape
    if run.num_replicas > 1 or not by_shape.is_few or (0, node) in run.release:
        return latest_ends(evaluation, run, stage, node, operators)
    shape = int(run.shape[0, run.problem.microbatch[node]])
    ends: NDArray[np.float64] = run.start[0, node] + by_shape.ends(stage, shape)[operators]
    return ends


_TOGETHER = 8
"""Replicas whose operators are timed before asking whether any other could still be later."""


def latest_ends(
    evaluation: Evaluation, run: PipelineRun, stage: StageProgram, node: int, operators: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Ends of some operators of a stage on the replica where they end last: float64[len(operators)] [s].

    Replicas are asked in order of the stage's end, the last first: one that ends before every operator found so far
    cannot be later.
    """
    order = np.argsort(-run.end[:, node], kind="stable")
    shapes = run.shape[:, run.problem.microbatch[node]]
    latest = np.zeros(len(operators))
    for first in range(0, len(order), _TOGETHER):
        some = order[first : first + _TOGETHER]
        if run.end[some[0], node] <= latest.min(initial=np.inf):
            break
        for replica, latency in zip(some.tolist(), evaluation.latencies_of(shapes[some]), strict=True):
            release = run.release.get((replica, node))
            ends = run.start[replica, node] + stage.times(latency, release)[1][operators]
            np.maximum(latest, ends, out=latest)
    return latest


def block_starts(stage: StageProgram, num_blocks: int) -> list[int]:
    """Position of each block's first operator in a stage."""
    block = np.where(stage.is_exchange, -1, stage.block) if len(stage.is_exchange) else stage.block
    return [int(np.argmax(block == number)) for number in range(num_blocks)]
