"""Stage costs of a whole batch: one evaluation of all cost rows, one kernel call per distinct chunk and phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.costs import CostModel
from semu.engine.join import build_stages
from semu.engine.stage import StageCosts, StageProgram
from semu.engine.template import CostColumns, TemplateLibrary, stream_names
from semu.simulation.layout import ChunkStages, Layout
from semu.workload.batch import Microbatch, shape_columns


@dataclass(frozen=True)
class BatchShapes:
    """The distinct shapes of a batch.

    Attributes:
        columns: symbol -> int64[num_shapes].
        index: int64[dp, num_microbatches], shape of every replica's microbatch.
    """

    columns: Mapping[str, NDArray[np.int64]]
    index: NDArray[np.int64]


def distinct_shapes(microbatches: Sequence[Microbatch], dp: int, token_divisor: int) -> BatchShapes:
    """Find equal microbatches.

    Args:
        microbatches: dp x m of them; replica r runs items r, r + dp, r + 2 dp, ... (round robin).
        dp: replicas. token_divisor: see ``Parallel.token_divisor``.
    """
    columns = shape_columns(microbatches, token_divisor)
    names = list(columns)
    table = np.stack([columns[name] for name in names])
    distinct, inverse = np.unique(table, axis=1, return_inverse=True)
    return BatchShapes(
        columns=dict(zip(names, distinct, strict=True)),
        index=np.asarray(inverse).reshape(-1, dp).T.copy(),
    )


@dataclass(frozen=True)
class ChunkCosts:
    """A chunk's costs for every distinct shape.

    Attributes:
        forward, backward: stage costs; backward None where there is none.
        arriving, leaving: int64[num_tensors, num_shapes] [bytes], forward carry.
        gradient_leaving: the same for the gradients that the backward stage sends.
    """

    forward: StageCosts
    backward: StageCosts | None
    arriving: NDArray[np.int64]
    leaving: NDArray[np.int64]
    gradient_leaving: NDArray[np.int64]


@dataclass(frozen=True)
class Evaluation:
    """Everything about operators and stages that does not depend on the schedule.

    Attributes:
        shapes: distinct shapes. columns: cost columns. cost_model: how latencies came about.
        latency: float64[num_shapes, num_rows] [s]. size: int64[num_shapes, num_size_rows] [bytes].
        chunks: costs per chunk.
    """

    shapes: BatchShapes
    columns: CostColumns
    cost_model: CostModel
    latency: NDArray[np.float64]
    size: NDArray[np.int64]
    chunks: tuple[ChunkCosts, ...]


def evaluate(layout: Layout, shapes: BatchShapes, cost_model: CostModel) -> Evaluation:
    """Cost every stage of the layout for every distinct shape."""
    columns = layout.library.evaluate(shapes.columns)
    latency = np.ascontiguousarray(cost_model.latencies(columns).T)
    size = np.ascontiguousarray(columns.size_bytes.T)
    known: dict[int, StageCosts] = {}

    def run(program: StageProgram) -> StageCosts:
        if id(program) not in known:
            known[id(program)] = program.run(latency, size)
        return known[id(program)]

    return Evaluation(
        shapes=shapes,
        columns=columns,
        cost_model=cost_model,
        latency=latency,
        size=size,
        chunks=tuple(_chunk_costs(chunk, columns, run) for chunk in layout.chunks),
    )


def _chunk_costs(chunk: ChunkStages, columns: CostColumns, run: Callable[[StageProgram], StageCosts]) -> ChunkCosts:
    backward = chunk.backward
    return ChunkCosts(
        forward=run(chunk.forward),
        backward=run(backward) if backward is not None else None,
        arriving=_sizes(columns, chunk.forward.arriving),
        leaving=_sizes(columns, chunk.forward.leaving),
        gradient_leaving=_sizes(columns, backward.leaving if backward is not None else ()),
    )


def _sizes(columns: CostColumns, rows: Sequence[int]) -> NDArray[np.int64]:
    result = np.zeros((len(rows), columns.size_bytes.shape[1]), dtype=np.int64)
    for i, row in enumerate(rows):
        if row >= 0:
            result[i] = columns.size_bytes[row]
    return result


def template_latencies(
    library: TemplateLibrary, shapes: BatchShapes, cost_model: CostModel, *, serial: bool
) -> list[float]:
    """Mean forward plus backward latency [s] of each template over all microbatches, for balancing stages."""
    costs = library.evaluate(shapes.columns)
    uses = np.bincount(shapes.index.ravel()) / shapes.index.size
    latency = np.ascontiguousarray(cost_model.latencies(costs).T)
    size = np.ascontiguousarray(costs.size_bytes.T)
    streams = stream_names(library)
    result = []
    for number in range(len(library.templates)):
        stages = build_stages(library, [number], streams, serial=serial)
        result.append(sum(float(uses @ stage.run(latency, size).latency) for stage in stages if stage is not None))
    return result
