"""When gradients are complete, on the slowest replica, and which operators complete them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import StageProgram
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun


def last_nodes(run: PipelineRun, rank: int) -> tuple[int, ...]:
    """The last stage of a rank, if it has any."""
    return tuple(np.flatnonzero(run.problem.node_rank == rank)[-1:].tolist())


def rank_end(run: PipelineRun, rank: int) -> float:
    """End of a rank's last stage on the slowest replica [s]."""
    nodes = np.flatnonzero(run.problem.node_rank == rank)
    return float(run.end[:, nodes].max()) if len(nodes) else 0.0


@dataclass
class Gradient:
    """A trainable parameter's gradient on a rank.

    Attributes:
        ready_s: when it is complete on the slowest replica. key: whose it is (identity of the parameter).
        elements: local ones. slot: its virtual stage. operators: (stage, operator) that complete it; none: no gradient
            reaches it.
    """

    ready_s: float
    key: int
    elements: int
    slot: int
    operators: list[tuple[int, int]]


def gradients_ready(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> list[Gradient]:
    """The gradient of each trainable parameter, in the order in which they are complete."""
    problem = run.problem
    ready: dict[int, Gradient] = {}
    for chunk in reversed(layout.chunks_of(rank)):
        if chunk.backward is None:
            continue
        starts = _block_starts(chunk.backward, len(chunk.blocks))
        completed = [
            (held, starts[number] + held.writer)
            for number, block in enumerate(chunk.blocks)
            for held in block.parameters
            if held.parameter.requires_grad and held.writer >= 0
        ]
        node = int(np.flatnonzero((problem.chunk == chunk.chunk.index) & (problem.phase == 1))[-1])
        writers = np.array([writer for _, writer in completed], dtype=np.int64)
        ends = latest_ends(evaluation, run, chunk.backward, node, writers)
        for (held, writer), end in zip(completed, ends.tolist(), strict=True):
            gradient = ready.setdefault(id(held.parameter), Gradient(0.0, id(held.parameter), 0, 0, []))
            gradient.ready_s = max(gradient.ready_s, end)
            gradient.elements, gradient.slot = held.elements, chunk.chunk.slot
            gradient.operators.append((node, writer))
    for number, _, held in layout.held_by(rank):  # what no gradient reaches is reduced all the same, at the end
        if held.parameter.requires_grad and id(held.parameter) not in ready:
            slot = layout.chunks[number].chunk.slot
            key = id(held.parameter)
            ready[key] = Gradient(rank_end(run, rank), key, held.elements, slot, [])
    return sorted(ready.values(), key=lambda gradient: gradient.ready_s)


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


def _block_starts(stage: StageProgram, num_blocks: int) -> list[int]:
    """Position of each block's first operator in a stage."""
    return [int(np.argmax(stage.block == number)) for number in range(num_blocks)]
