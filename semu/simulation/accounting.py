"""Where the time goes and how much work was done: breakdown, FLOP, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.timeline import OuterSlice
from semu.graph.operator import Phase
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun
from semu.simulation.reduction import RankTail


@dataclass(frozen=True)
class Breakdown:
    """Means over all ranks that sum to the iteration time [s].

    Attributes:
        compute: kernels of forward and backward stages.
        exposed_communication: by communicator (``tp``, ``pp``, ``dp``): compute waited for a transfer.
        bubble: compute waited for another rank's work, or for a slower replica.
        optimizer: the optimizer step. other: what none of these explains (rounding; a test holds it at that).
    """

    compute: float
    exposed_communication: Mapping[str, float]
    bubble: float
    optimizer: float
    other: float

    def to_json(self) -> dict[str, object]:
        """As ``breakdown_s`` of ``simulate --json``."""
        return {
            "compute": self.compute,
            "exposed_communication": dict(self.exposed_communication),
            "bubble": self.bubble,
            "optimizer": self.optimizer,
            "other": self.other,
        }


def breakdown(
    layout: Layout, evaluation: Evaluation, run: PipelineRun, tails: list[RankTail], iteration_time_s: float
) -> Breakdown:
    """Attribute every second of every rank.

    A gap before a stage counts as exposed pipeline communication as far as a transfer that ends exactly then lasted,
    else as bubble; so does the time after a rank's last stage in which no collective, gather or optimizer step runs.
    """
    weights = run.count / run.count.sum()
    num_ranks = len(tails)
    compute, exposed_inner, exposed_pp, waited, bubble = _stage_times(layout, evaluation, run, weights)
    exposed = dict.fromkeys(layout.streams[1:], 0.0)
    for number, name in enumerate(layout.streams[1:], start=1):
        exposed[name] += float(exposed_inner[number])
    exposed["pp"] = exposed.get("pp", 0.0) + exposed_pp
    exposed["dp"] = exposed.get("dp", 0.0) + waited
    optimizer = 0.0
    for rank, tail in enumerate(tails):
        done = run.end[:, np.flatnonzero(run.problem.node_rank == rank)].max(axis=1, initial=0.0)
        idle = iteration_time_s - done
        for piece in (*tail.reductions, *tail.gathers):
            late = _visible(piece, done)
            idle = idle - late
            exposed[piece.stream] = exposed.get(piece.stream, 0.0) + float(weights @ late) / num_ranks
        if tail.optimizer is not None:
            step = tail.optimizer.end_s - tail.optimizer.start_s
            idle = idle - step
            optimizer += step / num_ranks
        bubble += float(weights @ idle) / num_ranks
    return Breakdown(
        compute=compute,
        exposed_communication={name: value for name, value in exposed.items() if value > 0},
        bubble=bubble,
        optimizer=optimizer,
        other=iteration_time_s - (compute + sum(exposed.values()) + bubble + optimizer),
    )


def _visible(piece: OuterSlice, done: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of a slice lies after each replica's own last stage [s]."""
    late: NDArray[np.float64] = np.maximum(piece.end_s - np.maximum(piece.start_s, done), 0.0)
    return late


def _stage_times(
    layout: Layout, evaluation: Evaluation, run: PipelineRun, weights: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], float, float, float]:
    """Mean per rank of: compute, exposed time per stream, exposed P2P, waiting for parameters, bubble [s]."""
    problem = run.problem
    n = problem.num_stages
    num_ranks = problem.shape.num_ranks
    exposed = np.zeros(len(layout.streams))
    busy = 0.0
    for number, costs in enumerate(evaluation.chunks):
        for phase, stage in enumerate((costs.forward, costs.backward)):
            if stage is None:
                continue
            nodes = np.flatnonzero((problem.chunk == number) & (problem.phase == phase))
            shapes = run.shape[:, problem.microbatch[nodes]]
            busy += float(weights @ stage.latency[shapes].sum(axis=1))
            exposed += np.einsum("r,rns->s", weights, stage.exposed[shapes])
    wait = float(weights @ (run.latency - run.plain)[:, :n].sum(axis=1))
    gaps, explained = _pipeline_gaps(run)
    return (
        (busy - float(exposed[1:].sum())) / num_ranks,
        exposed / num_ranks,
        float(weights @ explained.sum(axis=1)) / num_ranks,
        wait / num_ranks,
        float(weights @ (gaps - explained).sum(axis=1)) / num_ranks,
    )


def _pipeline_gaps(run: PipelineRun) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per replica and stage: the gap before it, and the part that a transfer ending at its start explains [s]."""
    problem = run.problem
    n = problem.num_stages
    previous = np.zeros((run.num_replicas, n))
    same = problem.node_rank[1:] == problem.node_rank[:-1]
    previous[:, 1:][:, same] = run.end[:, : n - 1][:, same]
    gap = run.start[:, :n] - previous
    explained = np.zeros_like(gap)
    node_of_edge = np.repeat(np.arange(problem.num_nodes), np.diff(problem.pred_ptr))
    is_transfer = (node_of_edge < n) & (problem.pred >= n)
    nodes, transfers = node_of_edge[is_transfer], problem.pred[is_transfer]
    lasted = np.minimum(gap[:, nodes], run.end[:, transfers] - run.start[:, transfers])
    binding = run.end[:, transfers] == run.start[:, nodes]
    for column in range(len(nodes)):
        target = nodes[column]
        explained[:, target] = np.maximum(explained[:, target], np.where(binding[:, column], lasted[:, column], 0.0))
    return gap, explained


def bubble_ratio(run: PipelineRun, replica: int) -> float:
    """1 - (sum of stage times) / (P x makespan) of one replica (DESIGN §2); 0 for an empty pipeline."""
    n = run.problem.num_stages
    makespan = float(run.makespan()[replica])
    if makespan == 0:
        return 0.0
    return 1.0 - float(run.plain[replica, :n].sum()) / (run.problem.shape.num_ranks * makespan)


@dataclass(frozen=True)
class Work:
    """Floating-point operations of one iteration over all GPUs.

    Attributes:
        model_flop: forward plus the gradients that training needs, causal attention counted half.
        hardware_flop: with recomputation.
        model_flop_full_attention: ``model_flop`` with causal attention counted in full (2104.04473's convention).
        tokens: tokens of the backbone's stream, padding excluded.
    """

    model_flop: float
    hardware_flop: float
    model_flop_full_attention: float
    tokens: int


def count_work(layout: Layout, evaluation: Evaluation) -> Work:
    """Sum the operators' FLOP over all stages, microbatches, replicas and tensor-parallel ranks."""
    uses = np.bincount(evaluation.shapes.index.ravel(), minlength=evaluation.latency.shape[0]).astype(np.float64)
    operators = layout.library.operators
    again = np.array([op.phase is Phase.RECOMPUTE for op in operators])
    ranks = np.array([layout.job.parallel.tp / op.copies for op in operators])
    flop = (evaluation.columns.flop @ uses) * ranks
    symbols = evaluation.columns.symbols
    needed = flop - layout.library.total([op.recomputed_flop for op in operators], symbols, uses) * ranks
    causal = layout.library.total([op.causal_flop for op in operators], symbols, uses) * ranks
    hardware = model = full = 0.0
    for chunk in layout.chunks:
        for stage in (chunk.forward, chunk.backward):
            if stage is not None:
                rows = stage.rows
                first = rows[~again[rows]]
                hardware += float(flop[rows].sum())
                model += float(needed[first].sum())
                full += float((needed[first] + causal[first]).sum())
    return Work(model, hardware, full, _tokens(layout, evaluation, uses))


def _tokens(layout: Layout, evaluation: Evaluation, uses: NDArray[np.float64]) -> int:
    """Tokens of the last modality module's first data stream (the backbone's text, the decoder's video)."""
    fed = [module.inputs[0].stream for module in layout.job.model.modules if module.inputs]
    stream = fed[-1] if fed else ""
    column = evaluation.shapes.columns.get(f"{stream}.tokens")
    return int(column @ uses) if column is not None else 0
