"""``PairCosts``: what every stage pair of a job costs under each of its chunk's variants, before any schedule.

A *pair* is the forward stage of a chunk for one (sub-)microbatch with its backward, where it has one; pairs are
numbered chunk after chunk, part after part. Stage 2i is the forward of pair i, 2i + 1 its backward: the numbers of
``PipelineGraph.pair_edges``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.costs.evaluation import CostedJob
from semu.errors import ConfigError
from semu.records import dataclass
from semu.schedule.graph import PipelineGraph, graph_of
from semu.schedule.shape import PipelineShape
from semu.simulation.context import SimulatedJob
from semu.simulation.memory.reserved import device_room
from semu.simulation.memory.static import resident_memory

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PairCosts:
    """Stage pairs with their costs; n pairs, at most V variants of any chunk.

    Attributes:
        graph: the pipeline. pairs: int64[n], the graph's numbers of the pairs, which are those that exist.
        layers: per chunk, layers that variants name.
        num_variants: int32[n]; columns behind them repeat the last one.
        forward_s, backward_s: float64[n, V] [s], on the time grid; 0 without a backward.
        held_bytes: int64[n, V], from the end of the forward to the end of the backward.
        forward_peak_bytes, backward_peak_bytes: int64[n, V], peak of a stage on top of what the stage pairs
            in flight hold, with what arrives for it; of a forward at least ``held_bytes``.
        transfer_s: float64[num_edges] [s], by the edges of ``graph.pair_edges``, how long each result is on its way; 0
            within a rank.
        static_bytes: int64[num_ranks], parameters, gradients, optimizer state and workspaces.
        capacity_bytes: memory of a device.
    """

    graph: PipelineGraph
    pairs: I64
    layers: tuple[int, ...]
    num_variants: I32
    forward_s: F64
    backward_s: F64
    held_bytes: I64
    forward_peak_bytes: I64
    backward_peak_bytes: I64
    transfer_s: F64
    static_bytes: I64
    capacity_bytes: int

    @property
    def shape(self) -> PipelineShape:
        """Ranks, chunks, microbatches."""
        return self.graph.shape

    @property
    def chunk(self) -> I32:
        """int32[n], the chunk of each pair."""
        return self.graph.chunk[self.pairs]

    @property
    def number(self) -> I32:
        """int32[n], the (sub-)microbatch of each pair, as ``StageKey`` numbers it."""
        return self.graph.part[self.pairs]


def pair_costs(sim: SimulatedJob, replica: int | None = None) -> PairCosts:
    """The costs of a prepared job, under a plan or none.

    Args:
        replica: a distinct data-parallel replica; None: of each number the largest of all replicas, which all run in
            one order.
    Raises:
        ConfigError: there is no such replica.
    """
    layout, evaluation, units = sim.layout, sim.evaluation, sim.units
    graph = graph_of(units.shape)
    shapes = sim.replicas.shape
    if replica is not None:
        if isinstance(replica, bool) or not 0 <= replica < len(shapes):
            raise ConfigError("no such replica", where="replica", expected=f"0 to {len(shapes) - 1}", got=replica)
        shapes = shapes[replica : replica + 1]
    pairs = np.flatnonzero(graph.exists)
    chunk_of, part_of = graph.chunk[pairs], graph.part[pairs]
    column = layout.recipe.column_of(chunk_of, part_of)
    numbers = layout.recipe.numbers
    most, n = max(map(len, numbers), default=1), len(pairs)
    seconds = np.zeros((2, n, most))
    held, peaks = np.zeros((n, most), dtype=np.int64), np.zeros((2, n, most), dtype=np.int64)
    sizes_of = stage_sizes(sim, (kind for kinds in numbers for kind in kinds))
    for chunk, kinds in enumerate(numbers):
        mine = chunk_of == chunk
        its = shapes[:, column[mine]]
        for variant in range(most):
            kind = kinds[min(variant, len(kinds) - 1)]
            costs = evaluation.chunks[kind]
            seconds[0, mine, variant] = costs.forward.latency[its].max(axis=0)
            if costs.backward is not None:
                seconds[1, mine, variant] = costs.backward.latency[its].max(axis=0)
            sizes = sizes_of[kind][:, its].max(axis=1)
            held[mine, variant], peaks[:, mine, variant] = sizes[0], sizes[1:]
    return PairCosts(
        graph=graph,
        pairs=pairs,
        layers=tuple(sum(block.is_layer for block in chunk.blocks) for chunk in layout.chunks),
        num_variants=np.array([len(variants) for variants in numbers], dtype=np.int32)[chunk_of],
        forward_s=seconds[0],
        backward_s=seconds[1],
        held_bytes=held,
        forward_peak_bytes=peaks[0],
        backward_peak_bytes=peaks[1],
        transfer_s=_transfer_s(sim, replica),
        static_bytes=np.array([static.total + work for static, work in resident_memory(layout)], dtype=np.int64),
        capacity_bytes=device_room(layout.job).usable_bytes,
    )


def stage_sizes(costed: CostedJob, kinds: Iterable[int]) -> dict[int, I64]:
    """What chunks under variants hold between their stages, and the highest of their forward and of their backward, as
    ``PairCosts`` says.

    Args:
        kinds: chunks and variants, as ``Layout.kinds`` numbers them.
    Returns:
        int64[3, num_shapes] of each [bytes].
    """
    evaluation, wanted = costed.evaluation, dict.fromkeys(kinds)
    stages = {kind: costed.layout.kinds[kind] for kind in wanted}
    backwards = list(dict.fromkeys(own.backward for own in stages.values() if own.backward is not None))
    sums = _sums_of_rows(costed, [rows for own in backwards for rows in (own.rows_kept_before, own.rows_arriving)])
    of_stage = dict(zip(backwards, zip(sums[::2], sums[1::2], strict=True), strict=True))
    found = {}
    for kind, own in stages.items():
        costs = evaluation.chunks[kind]
        nothing = np.zeros(evaluation.num_shapes, dtype=np.int64)
        held, gradients = (nothing, nothing) if own.backward is None else of_stage[own.backward]
        forward = np.maximum(costs.forward.peak + costs.arriving.sum(axis=0), held)
        backward = nothing if costs.backward is None or own.backward is None else costs.backward.peak + gradients
        found[kind] = np.stack((held, forward, backward))
    return found


def saved_bytes(costed: CostedJob, stages: ChunkStages) -> I64:
    """Bytes that a chunk's forward leaves for its backward: int64[num_shapes]."""
    if stages.backward is None:
        return np.zeros(costed.evaluation.num_shapes, dtype=np.int64)
    return _sums_of_rows(costed, [stages.backward.rows_kept_before])[0]


def _sums_of_rows(costed: CostedJob, groups: Sequence[I64]) -> list[I64]:
    """Bytes of several groups of size rows: int64[num_shapes] of each."""
    every, number = np.unique(np.concatenate([*groups, np.zeros(0, dtype=np.int64)]), return_inverse=True)
    sizes = costed.evaluation.by_shape.sizes_of_rows(every.tolist())
    ends = np.cumsum([len(rows) for rows in groups])
    return [sizes[number[end - len(rows) : end]].sum(axis=0) for rows, end in zip(groups, ends, strict=True)]


def _transfer_s(sim: SimulatedJob, replica: int | None) -> F64:
    """How long each result of ``PipelineGraph.pair_edges`` is on its way: float64[num_edges] [s]."""
    units, graph = sim.units, graph_of(sim.units.shape)
    latency = sim.nodes.latency if replica is None else sim.nodes.latency[replica : replica + 1]
    edges, count = graph.pair_edges, len(graph.pair_edges.ptr)
    key = np.repeat(np.arange(count - 1), np.diff(edges.ptr)) * count + edges.pred
    stage = graph.pair_stages(units.stage_numbers)
    moved = stage[:, units.consumer] * count + stage[:, units.producer]
    transfer_s = np.zeros(len(edges.pred))
    transfer_s[np.searchsorted(key, moved.ravel())] = latency.max(axis=0)[units.repeated(units.transfers)]
    return transfer_s
