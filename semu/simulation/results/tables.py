"""The report's tables: memory by rank, the operators that cost most, time by provenance of the coefficients."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from semu.compile.stage import StageProgram
from semu.costs.phases import costs_of
from semu.engine.timeline import IterationTimeline
from semu.parallel.own_gpus import rank_weights
from semu.present.report import RankMemoryRow, TopOperator
from semu.simulation.context import TimedJob
from semu.simulation.memory.peaks import RankPeak
from semu.simulation.memory.ranks import RankMemory
from semu.simulation.memory.saved import SavedActivations
from semu.simulation.replica_costs import ReplicaCosts

NUM_TOP_OPERATORS = 10


def rank_row(timed: TimedJob, memory: RankMemory, peak: RankPeak, saved: SavedActivations) -> RankMemoryRow:
    """One pipeline rank's memory."""
    layout, run = timed.layout, timed.run
    chunks = layout.chunks_of(memory.rank)
    stage, operator = "", ""
    if peak.node >= 0:
        stage = str(run.problem.stages[peak.node])
        chunk, code = int(run.kind[peak.node]), int(run.problem.phase[peak.node])
        part = costs_of(timed, chunk, code)
        position = int(part.peak_op[run.shape[peak.replica, run.column[peak.node]]])
        program = memory.pipeline.program(peak.node)
        if position >= 0:
            block = layout.kinds[chunk].blocks[program.block[position]]
            operator = ".".join(p for p in (block.path, layout.library.operators[program.rows[position]].path) if p)
    return RankMemoryRow(
        rank=memory.rank,
        chunks=", ".join(f"{c.chunk.index}: {c.module}[{c.chunk.first}:{c.chunk.last}]" for c in chunks),
        parameters=sum(held.elements for _, _, held in layout.held_by(memory.rank)),
        static_bytes=memory.static.total,
        peak_bytes=peak.size_bytes,
        peak_stage=stage,
        peak_operator=operator,
        activation_bytes=saved.peak(memory.rank),
        layer_parameters=sum(
            held.elements for c, b, held in layout.held_by(memory.rank) if layout.chunks[c].blocks[b].is_layer
        ),
    )


def top_operators(costs: ReplicaCosts) -> tuple[tuple[TopOperator, ...], dict[str, float]]:
    """The operators that cost most on one replica, and the stage time [s] by provenance of its coefficients; ranks
    count by their GPUs."""
    layout, model = costs.costed.layout, costs.costed.cost_model
    weights = rank_weights(layout.job.parallel)
    library = layout.library
    where: dict[int, str] = {}
    occurrences: dict[StageProgram, list[tuple[int, int, int]]] = {}
    total_of: dict[int, float] = {}
    weighted_of: dict[int, float] = {}
    calls_of: Counter[int] = Counter()
    for number, chunk in enumerate(layout.kinds[: len(costs.times)]):
        if chunk.chunk.flow:  # a microbatch runs through one copy of the model
            continue
        seconds, runs = costs.row_seconds(number), int(costs.times[number].sum())
        weight = float(weights[chunk.chunk.rank])
        for stage in (chunk.forward, chunk.backward):
            if stage is not None:
                if stage not in occurrences:
                    occurrences[stage] = _occurrences(stage)
                for row, block, count in occurrences[stage]:
                    total = count * float(seconds[row])
                    total_of[row] = total_of.get(row, 0.0) + total
                    weighted_of[row] = weighted_of.get(row, 0.0) + weight * total
                    calls_of[row] += count * runs
                    where.setdefault(row, chunk.blocks[block].path)
    time: dict[tuple[str, str, str], list[float]] = {}
    label: dict[tuple[str, str, str], int] = {}
    provenance: dict[str, float] = {}
    for row, total in total_of.items():
        operator = library.operators[row]
        path = re.sub(r"\.\d+\b", "", ".".join(p for p in (where[row], operator.path) if p))
        key = (path, operator.kind.value, operator.phase.name.lower())
        entry = time.setdefault(key, [0.0, 0.0, 0.0])
        entry[0] += weighted_of[row]
        entry[1] += calls_of[row]
        entry[2] += total
        label.setdefault(key, row)
        source = model.coefficients[row].provenance.value
        provenance[source] = provenance.get(source, 0.0) + weighted_of[row]
    everything = sum(provenance.values()) or 1.0
    ranked = sorted(time.items(), key=lambda item: (-item[1][0], item[0]))[:NUM_TOP_OPERATORS]
    top = tuple(
        TopOperator(
            path=key[0],
            kind=key[1],
            phase=key[2],
            time_s=total,
            share=weighted / everything,
            calls=int(count),
            bound=model.bound(label[key], costs.columns, costs.uses),
            provenance=model.coefficients[label[key]].provenance.value,
            source=model.coefficients[label[key]].source,
        )
        for key, (weighted, count, total) in ranked
    )
    return top, provenance


def _occurrences(stage: StageProgram) -> list[tuple[int, int, int]]:
    """(row, block of its first occurrence, number of occurrences) of a stage's operators, in order of occurrence."""
    rows, first, count = np.unique(stage.rows, return_index=True, return_counts=True)
    order = np.argsort(first)
    columns = rows[order], stage.block[first[order]], count[order]
    return list(zip(*(part.tolist() for part in columns), strict=True))


def add_outer(seconds: dict[str, float], timeline: IterationTimeline) -> None:
    """Add transfers, reductions, gathers and the optimizer step to the time by provenance, ranks by their GPUs."""
    for rank in timeline.ranks:
        for piece in rank.outer:
            name = piece.provenance.value
            seconds[name] = seconds.get(name, 0.0) + rank.weight * (piece.end_s - piece.start_s)
