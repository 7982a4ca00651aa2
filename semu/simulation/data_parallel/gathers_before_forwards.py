"""Parameter gathers before the first forwards (ZeRO-1; ZeRO-3 that gathers once), and what those forwards wait for.

The gathers of ZeRO-3 inside stages are operators of the stages: ``semu.compile.zero_exchange``.
An iteration is counted from the start of its gathers. A first forward stage begins as the schedule lets it; an
operator of a block whose parameters are not there yet waits inside the stage. Weights that live on the host are
gathered after the step (``step``), not here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.chunk import ChunkStages
from semu.costs.evaluation import CostedJob
from semu.engine.timeline import OuterSlice
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.simulation.bindings import Binding, StageInsides
from semu.simulation.context import ParameterGather
from semu.simulation.data_parallel.buckets import rank_buckets, shares_parameters
from semu.simulation.data_parallel.fsdp_units import unit_gathers
from semu.simulation.transfers import collectives_among, moved


def parameter_gathers(costed: CostedJob) -> dict[int, ParameterGather]:
    """The overlapped gathers of every pipeline rank; empty where nothing is gathered before the first forwards."""
    layout, model, job = costed.layout, costed.cost_model, costed.job
    if not job.gathers_once and (job.parallel.zero not in (1, 2) or not job.hides_gathers):
        return {}

    def _find() -> dict[int, ParameterGather]:
        if not shares_parameters(layout):
            return {}
        if job.gathers_once:
            return {rank: unit_gathers(costed, rank) for rank in range(job.parallel.pp)}
        alike: _Alike = {}
        return {rank: _gather(costed, rank, alike) for rank in range(job.parallel.pp)}

    return _find() if model.rules else _GATHERS.get(layout.place, model, _find)


_GATHERS = memo.ScopedTable[dict[int, ParameterGather]]("parameter gathers in a place, by cost model", 64)
_BOUND = memo.ScopedTable["tuple[NDArray[np.int64], NDArray[np.int64]]"](
    "gathers that forward stages in a place wait for, and operators that do, by gather and chunk", 1024
)
_Alike = dict[Hashable, tuple[tuple[OuterSlice, ...], tuple[CommGroup, ...], list[tuple[int, ...]]]]
"""The gathers of ranks that hold as much in the same groups: slices, communicators, members of the buckets."""


def _gather(costed: CostedJob, rank: int, alike: _Alike) -> ParameterGather:
    layout = costed.layout
    on_host = layout.cut.on_host
    held = [
        entry
        for entry in layout.held_by(rank)
        if entry[2].parameter.requires_grad and entry[2].parameter not in on_host
    ]
    key = layout.likeness(rank)
    if key not in alike:
        elements, each = [h.elements for _, _, h in held], layout.weight_sizes([own for _, _, own in held])
        slots = [layout.chunks[chunk].chunk.slot for chunk, _, _ in held]
        keys = [h.parameter for _, _, h in held]
        buckets = rank_buckets(layout, rank, keys, elements, slots, overlapped=True)
        sizes = [sum([each[member] for member in bucket.members]) for bucket in buckets]
        groups = [bucket.group for bucket in buckets]
        names = [f"parameters {number}" for number in range(len(groups))]
        slices: list[OuterSlice] = []
        for piece in collectives_among(costed.cost_model, names, OpKind.ALL_GATHER, groups, sizes):
            slices.append(moved(piece, slices[-1].end_s if slices else 0.0))
        alike[key] = tuple(slices), tuple(groups), [bucket.members for bucket in buckets]
    slices_of, groups_of, inside = alike[key]
    last = {held[member][:2]: number for number, members in enumerate(inside) for member in members}
    return ParameterGather(slices_of, groups_of, last)


def first_forward_bindings(
    insides: StageInsides, gathers: Mapping[int, ParameterGather], first: Sequence[Sequence[int]]
) -> list[Binding]:
    """Edges from the gathers to the operators that need them, in each chunk's first forward stage.

    Args:
        insides: the stages of the job. gathers: units too, after those of the pipeline, by rank.
        first: per rank, the units of its chunks' first forward stages, sorted.
    """
    units = insides.units
    bindings: list[Binding] = []
    gather_unit = units.num_units
    for rank, gather in sorted(gathers.items()):
        for unit in first[rank]:
            waits, bound = _bound(insides, gather, unit)
            bindings.append(Binding(np.array([unit]), gather_unit + waits, bound))
        gather_unit += len(gather.slices)
    return bindings


def _bound(insides: StageInsides, gather: ParameterGather, unit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The gathers that operators of a chunk's forward stage need, and these operators: int64[k] each; remembered."""
    kind = insides.stage(unit)[0]

    def _find() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        waits = needed_gathers(insides.layout.kinds[kind], gather)
        bound = np.flatnonzero(waits >= 0)
        return waits[bound], bound

    return _BOUND.get(insides.layout.place, (gather, kind), _find)


def parameter_waits(
    insides: StageInsides,
    gathers: Mapping[int, ParameterGather],
    first: Sequence[Sequence[int]],
    start: NDArray[np.float64],
) -> dict[int, NDArray[np.float64]]:
    """What first forward stages last longer for their parameters alone, by unit: float64[num_replicas] [s].

    Args:
        insides, gathers, first: as ``first_forward_bindings``. start: float64[num_replicas, num_units] [s].
    """
    waits: dict[int, NDArray[np.float64]] = {}
    for rank, gather in gathers.items():
        ends = np.array([0.0, *(piece.end_s for piece in gather.slices)])
        for unit in first[rank]:
            inside = insides.of(unit)
            ready = ends[1 + needed_gathers(insides.layout.kinds[insides.stage(unit)[0]], gather)]
            rows = np.zeros(int(inside.program.rows.max(initial=-1)) + 1)
            waits[unit] = np.zeros(len(start))
            for replica, lasts in enumerate(inside.latency):
                rows[inside.program.rows] = lasts
                _, plain = inside.program.times(rows)
                _, late = inside.program.times(rows, np.maximum(ready - start[replica, unit], 0.0))
                waits[unit][replica] = late.max(initial=0.0) - plain.max(initial=0.0)
    return waits


def needed_gathers(chunk: ChunkStages, gather: ParameterGather) -> NDArray[np.int64]:
    """The gather that each operator of a chunk's forward stage needs, -1: none: int64[num_ops]."""
    ready = [gather.last.get((chunk.chunk.index, block), -1) for block in range(len(chunk.blocks))]
    needed = np.array(ready, dtype=np.int64)[chunk.forward.block]
    needed[chunk.forward.is_exchange] = -1
    return needed
