"""When gradients are complete, on the slowest replica, and which operators complete them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.chunk import ChunkStages
from semu.compile.layout import Layout
from semu.compile.stage import StageProgram, later_of
from semu.compile.tracer import HeldParameter
from semu.costs.evaluation import Evaluation
from semu.costs.phases import program_of, split_of
from semu.errors import InternalError
from semu.nn.module import Parameter
from semu.records import dataclass
from semu.schedule.phases import BACKWARD, INPUT, WEIGHT
from semu.schedule.problem import PipelineProblem
from semu.simulation.context import PipelineRun, TimedJob


def last_nodes(run: PipelineRun, rank: int) -> tuple[int, ...]:
    """The last stage of a rank, if it has any."""
    return tuple(run.problem.rank_nodes[rank][-1:].tolist())


Operators = tuple[tuple[int, int], ...]
"""(stage, operator) each."""


@dataclass(frozen=True, eq=False)
class Writers:
    """Operators of a chunk that complete gradients.

    Attributes:
        chunk: its number. code: the kind of stage that they are in, see ``semu.schedule.units``.
        operators: int64[k], their positions in that stage. whole: int64[k], and in the whole backward.
        places: int64[k], the parameters whose gradients they complete.
        variants: variant of the chunk (``Layout.kinds``) -> the same positions in its backward.
    """

    chunk: int
    code: int
    operators: NDArray[np.int64]
    whole: NDArray[np.int64]
    places: NDArray[np.int64]
    variants: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    def last_stage(self, problem: PipelineProblem) -> int:
        """The last stage of the chunk with these operators, which a whole backward has too: its node; -1: none runs."""
        last: list[int] = problem.stage_nodes[self.chunk, self.code][-1:].tolist()
        if self.code != BACKWARD:
            last += problem.stage_nodes[self.chunk, BACKWARD][-1:].tolist()
        return max(last, default=-1)

    def at(self, problem: PipelineProblem, node: int, kind: int) -> NDArray[np.int64]:
        """Their positions in a stage that has them. ``kind``: which of ``Layout.kinds`` it runs."""
        if kind in self.variants:
            return self.variants[kind]
        return self.whole if problem.phase[node] == BACKWARD else self.operators


@dataclass(frozen=True, eq=False)
class Trained:
    """The trained parameters of all pipeline ranks, rank after rank.

    Attributes:
        keys, elements, slots: of each: itself, local elements, virtual stage.
        ptr: where each rank's begin, and their number. rank: int64[num_parameters], whose each is.
        unreached: int64[..], those that get no gradient; they are reduced all the same, at the end.
        written: per chunk with a backward stage, of each rank from the last to the first, what completes its
            gradients; where backwards are split, by part.
    """

    keys: list[Parameter]
    elements: list[int]
    slots: list[int]
    ptr: list[int]
    rank: NDArray[np.int64]
    unreached: NDArray[np.int64]
    written: list[Writers]

    def last_stages(self, problem: PipelineProblem) -> NDArray[np.int64]:
        """The last backward stage of everything in ``written``: int64[len(written)], nodes; -1: none runs."""
        return np.array([writers.last_stage(problem) for writers in self.written], dtype=np.int64)

    def completing(self, problem: PipelineProblem) -> list[Operators]:
        """The operators that complete each gradient."""
        completing: list[list[tuple[int, int]]] = [[] for _ in self.keys]
        for writers, node in zip(self.written, self.last_stages(problem).tolist(), strict=True):
            for writer, place in zip(
                writers.at(problem, node, writers.chunk).tolist(), writers.places.tolist(), strict=True
            ):
                completing[place].append((node, writer))
        return [tuple(operators) for operators in completing]


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradients of the trained parameters, of each rank in the order in which they are complete.

    Attributes:
        trained: the parameters. order: int64[num_parameters], their numbers, rank after rank.
        ready_s: float64[num_parameters] [s], when each, in this order, is complete on the slowest replica.
    """

    trained: Trained
    order: NDArray[np.int64]
    ready_s: NDArray[np.float64]


_TRAINED = memo.ScopedTable[Trained]("trained parameters of a cut, by whether backwards are split", 2)
_LAST_BACKWARDS = memo.ScopedTable["NDArray[np.int64]"](
    "last stages of costed chunks that complete gradients, by lowered schedule", 256, is_large=True
)
_COMPLETED = memo.ScopedTable["tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]"](
    "operators of costed chunks that complete gradients, by lowered schedule and shapes", 256, is_large=True
)
_USUAL_ORDERS = memo.ScopedTable["NDArray[np.int64]"](
    "orders in which gradients of costed chunks were complete, by lowered schedule", 256, is_large=True
)


def pipeline_gradients(timed: TimedJob) -> Gradients:
    """When the gradient of each trained parameter is complete."""
    layout, evaluation, run = timed.layout, timed.evaluation, timed.run
    problem, by_shape = run.problem, evaluation.by_shape
    trained = trained_of(layout, splits=problem.splits_backward)
    nodes = _LAST_BACKWARDS.get(by_shape, problem, lambda: trained.last_stages(problem))
    ready = np.zeros(len(trained.keys))
    if run.num_replicas > 1 or not by_shape.is_few or any((0, node) in run.release for node in nodes.tolist()):
        for writers, node in zip(trained.written, nodes.tolist(), strict=True):
            if node < 0:
                continue
            stage = program_of(layout, int(run.kind[node]), int(problem.phase[node]))
            ends = latest_ends(evaluation, run, stage, node, writers.at(problem, node, int(run.kind[node])))
            np.maximum.at(ready, writers.places, ends)
    else:  # one replica, on whose stages nothing outside bears: the ends are remembered
        shapes = run.shape[0][run.column[nodes]]
        key = problem, shapes.tobytes()
        begins, ends, places = _COMPLETED.get(by_shape, key, lambda: _completed(timed, trained, nodes, shapes))
        np.maximum.at(ready, places, run.start[0].take(begins) + ends)
    for writers in [absent for absent, node in zip(trained.written, nodes.tolist(), strict=True) if node < 0]:
        ready[writers.places] = np.array(run.rank_ends)[trained.rank[writers.places]]
    if len(trained.unreached):
        ready[trained.unreached] = np.array(run.rank_ends)[trained.rank[trained.unreached]]
    if layout.cut.copies > 1:
        _wait_for_copies(trained.ptr, ready)
    usual = _USUAL_ORDERS.get(by_shape, problem, lambda: np.lexsort((ready, trained.rank)))
    order = usual if _is_in_order(usual, ready, trained.rank) else np.lexsort((ready, trained.rank))
    return Gradients(trained, order, ready[order])


def _wait_for_copies(ptr: list[int], ready: NDArray[np.float64]) -> None:
    """Ranks r and p - 1 - r hold the same parameters, in the same order, and reduce them together: a gradient is ready
    when it is on both. ``ready``: float64[num_parameters] [s], written."""
    num_ranks = len(ptr) - 1
    for rank in range(num_ranks // 2):
        other = num_ranks - 1 - rank
        here, there = ready[ptr[rank] : ptr[rank + 1]], ready[ptr[other] : ptr[other + 1]]
        here[:] = there[:] = np.maximum(here, there)


def _is_in_order(order: NDArray[np.int64], ready: NDArray[np.float64], rank: NDArray[np.int64]) -> bool:
    """Whether parameters are in order of rank, then readiness, then number. ``order`` is one in order of rank."""
    here = ready[order]
    later = here[1:] > here[:-1]
    later |= (here[1:] == here[:-1]) & (order[1:] > order[:-1])
    later |= rank[1:] != rank[:-1]
    return bool(later.all())


def _completed(
    timed: TimedJob, trained: Trained, nodes: NDArray[np.int64], shapes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Of every operator that completes a gradient: its stage, its end after the stage's beginning [s], the parameter.

    Args:
        nodes: the last backward stage of everything in ``trained.written``. shapes: their microbatches'.
    """
    layout, evaluation, run = timed.layout, timed.evaluation, timed.run
    begins, ends, every = [np.zeros(0, dtype=np.int64)], [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
    for writers, node, shape in zip(trained.written, nodes.tolist(), shapes.tolist(), strict=True):
        if node < 0:
            continue
        begins.append(np.full(len(writers.places), node))
        stage = program_of(layout, int(run.kind[node]), int(run.problem.phase[node]))
        ends.append(evaluation.by_shape.ends(stage, [shape])[0][writers.at(run.problem, node, int(run.kind[node]))])
        every.append(writers.places)
    return np.concatenate(begins), np.concatenate(ends), np.concatenate(every)


def trained_of(layout: Layout, *, splits: bool) -> Trained:
    """The trained parameters. ``splits``: some backwards run in two parts."""
    whole = _TRAINED.get(layout.cut, False, lambda: _find_trained(layout))
    return _TRAINED.get(layout.cut, True, lambda: _by_parts(layout, whole)) if splits else whole


def _by_parts(layout: Layout, whole: Trained) -> Trained:
    """The same with writers in the parts of the backwards."""
    written = []
    for writers in whole.written:
        split = split_of(layout)[writers.chunk]
        assert split is not None
        is_weight = split.is_weight[writers.whole]
        for code, mine in ((INPUT, ~is_weight), (WEIGHT, is_weight)):
            if mine.any():
                positions = writers.whole[mine]
                written.append(Writers(writers.chunk, code, split.place[positions], positions, writers.places[mine]))
    return replace(whole, written=written)


def _find_trained(layout: Layout) -> Trained:
    keys: list[Parameter] = []
    elements: list[int] = []
    slots: list[int] = []
    unreached: list[int] = []
    written = []
    ptr = [0]
    starts: dict[StageProgram, list[int]] = {}
    for rank in range(layout.cut.num_ranks):
        place: dict[Parameter, int] = {}
        first = ptr[-1]
        for chunk in reversed(layout.chunks_of(rank)):
            if chunk.backward is None:
                continue
            completed = _completing(chunk, starts)
            slot, chosen = chunk.chunk.slot, list[int]()
            for held, _ in completed:
                key = held.parameter
                number = place.setdefault(key, first + len(place))
                if number == len(keys):
                    keys.append(key)
                    elements.append(held.elements)
                    slots.append(slot)
                else:
                    elements[number], slots[number] = held.elements, slot
                chosen.append(number)
            writers = np.array([writer for _, writer in completed], dtype=np.int64)
            places = np.array(chosen, dtype=np.int64)
            others = layout.recipe.numbers[chunk.chunk.index][1:]
            by_kind = {kind: _same_order(completed, _completing(layout.kinds[kind], starts)) for kind in others}
            written.append(Writers(chunk.chunk.index, BACKWARD, writers, writers, places, by_kind))
        missing = len(layout.held_by(rank)) > len(place)  # each is held once
        for number, _, held in layout.held_by(rank) if missing else ():
            key = held.parameter
            if key not in place and key.requires_grad:
                place[key] = first + len(place)
                unreached.append(place[key])
                keys.append(key)
                elements.append(held.elements)
                slots.append(layout.chunks[number].chunk.slot)
        ptr.append(len(keys))
    ranks = np.repeat(np.arange(layout.cut.num_ranks), np.diff(ptr))
    return Trained(keys, elements, slots, ptr, ranks, np.array(unreached, dtype=np.int64), written)


def _completing(chunk: ChunkStages, starts: dict[StageProgram, list[int]]) -> list[tuple[HeldParameter, int]]:
    """The parameters whose gradients a chunk's backward stage completes, and where in it."""
    assert chunk.backward is not None
    first = starts.get(chunk.backward)
    if first is None:
        first = starts[chunk.backward] = block_starts(chunk.backward, len(chunk.blocks))
    return [
        (held, start + held.writers[-1])
        for start, block in zip(first, chunk.blocks, strict=True)
        for held in block.parameters
        if held.writers and held.parameter.requires_grad
    ]


def _same_order(
    first: Sequence[tuple[HeldParameter, int]], variant: Sequence[tuple[HeldParameter, int]]
) -> NDArray[np.int64]:
    """Positions in a variant of a chunk, in the order in which the chunk's first variant names its parameters."""
    if [held.parameter for held, _ in first] != [held.parameter for held, _ in variant]:
        raise InternalError("variants of a chunk complete other gradients", where=first[0][0].path)
    return np.array([writer for _, writer in variant], dtype=np.int64)


_TOGETHER = 8
"""Replicas whose operators are timed before asking whether any other could still be later."""


def latest_ends(
    evaluation: Evaluation, run: PipelineRun, stage: StageProgram, node: int, operators: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Ends of some operators of a stage on the replica where they end last: float64[len(operators)] [s].

    Replicas are asked in order of the stage's end, the last first: one that ends before every operator's
    latest end so far cannot be later.
    """
    order = np.argsort(-run.end[:, node], kind="stable")
    shapes = run.shape[:, run.column[node]]
    latest = np.zeros(len(operators))
    for first in range(0, len(order), _TOGETHER):
        some = order[first : first + _TOGETHER]
        if run.end[some[0], node] <= latest.min(initial=np.inf):
            break
        for replica, ends in zip(some.tolist(), evaluation.by_shape.ends(stage, shapes[some].tolist()), strict=True):
            release = run.release.get((replica, node))
            if release is not None:
                release = later_of(release, evaluation.by_shape.waits(stage, int(shapes[replica])))
                ends = stage.times(evaluation.by_shape.latencies_of(shapes[[replica]])[0], release)[1]
            np.maximum(latest, run.start[replica, node] + ends[operators], out=latest)
    return latest


def block_starts(stage: StageProgram, num_blocks: int) -> list[int]:
    """Position of each block's first operator in a stage."""
    block = np.where(stage.is_exchange, -1, stage.block) if len(stage.is_exchange) else stage.block
    return [int(np.argmax(block == number)) for number in range(num_blocks)]
