"""``node_graph``: consolidated units and the edges between them as a ``UnitGraph``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram, csr, pointer
from semu.distinct import sorted_distinct
from semu.engine.consolidation import Consolidated
from semu.engine.sides import PlaceEdges
from semu.engine.unit_graph import Edges, Slots, UnitGraph


def node_graph(alone: Consolidated, places: PlaceEdges) -> UnitGraph:
    """Units as nodes.

    Args:
        alone: units simulated alone. places: all edges; those that bind inside a unit become its release slots.
    """
    units = alone.partition.units
    slots, slot_of = _slots(alone, places)
    edges = Edges(
        source=places.source,
        target=places.target,
        op=places.source_op,
        lag=_lags(alone, places)[None, :],
        slot=slot_of,
    )
    return UnitGraph.build(
        alone.unit_latency[alone.variant][None, :],
        csr([unit.streams for unit in units]),
        len(alone.partition.streams),
        edges,
        lambda number: units[number].name,
        slots,
    )


def added_edges(alone: Consolidated, places: PlaceEdges) -> Edges | None:
    """Edges for ``UnitGraph.resume``; None where one binds inside a unit, so that the slots change."""
    if (places.target_op >= 0).any():
        return None
    nothing = np.full(len(places.source), -1, dtype=np.int32)
    return Edges(places.source, places.target, places.source_op, _lags(alone, places)[None, :], nothing)


def _lags(alone: Consolidated, places: PlaceEdges) -> NDArray[np.float64]:
    """Per edge: end [s] of the operator that it reads, after its unit's start; 0 where it reads the unit's end."""
    lag = np.zeros(len(places.source))
    for position in np.flatnonzero(places.source_op >= 0):
        lag[position] = alone.end[alone.variant[places.source[position]]][places.source_op[position]]
    return lag


def _slots(alone: Consolidated, places: PlaceEdges) -> tuple[Slots, NDArray[np.int32]]:
    """Release slots, sorted by unit and operator, and the slot of every edge (-1: it bounds the unit's start)."""
    num_units = len(alone.partition.units)
    binds = np.flatnonzero(places.target_op >= 0)
    slot_of = np.full(len(places.source), -1, dtype=np.int32)
    if not len(binds):
        return Slots.none(num_units), slot_of
    pairs = np.stack((places.target[binds], places.target_op[binds]), axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    slot_of[binds] = inverse.ravel()
    owner, op = distinct[:, 0], distinct[:, 1]
    start = np.array([alone.start[alone.variant[u]][o] for u, o in distinct.tolist()])
    programs: dict[StageProgram, int] = {}
    prog = np.full(num_units, -1, dtype=np.int32)
    cost_ptr = np.full(num_units, -1, dtype=np.int64)
    costs: list[NDArray[np.float64]] = []
    filled = 0
    for unit in sorted_distinct(owner).tolist():
        program = alone.programs[alone.variant[unit]]
        prog[unit] = programs.setdefault(program, len(programs))
        whole = alone.partition.units[unit]
        costs.append(alone.latency[whole.first : whole.last])
        cost_ptr[unit] = filled
        filled += whole.last - whole.first
    lengths = np.concatenate([np.diff(program.pred_ptr) for program in programs])
    slots = Slots(
        ptr=pointer(np.bincount(owner, minlength=num_units).tolist()),
        op=np.ascontiguousarray(op),
        start=start[None, :],
        prog=prog,
        prog_ptr=pointer(program.num_ops for program in programs),
        op_pred_ptr=pointer(lengths.tolist()),
        op_pred=np.concatenate([program.pred for program in programs]).astype(np.int32),
        op_stream=np.concatenate([program.stream for program in programs]).astype(np.int32),
        prog_streams=np.array([program.num_streams for program in programs], dtype=np.int32),
        cost_ptr=cost_ptr,
        op_latency=np.concatenate(costs)[None, :],
    )
    return slots, slot_of
