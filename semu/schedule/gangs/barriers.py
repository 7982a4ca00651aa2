"""Barriers: stages of a gang begin together on all its ranks.

A gang is how several pipeline ranks hold a chunk (FlexPipe §4.1, a stage shared by several actors): its members give
one another what they need inside the stage. A stage of a member begins when every member's rank has ended what it
runs before; a gang whose members send one another what they read has none (``PipelineShape.chunk_gang``). Two ranks
that run gangs in different orders wait for each other for ever; ``check_schedule`` finds it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.schedule.graph import PipelineGraph, fan_out, pointers
from semu.schedule.phases import INPUT, WEIGHT
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape

I64 = NDArray[np.int64]


def fellows(shape: PipelineShape, columns: StageColumns) -> tuple[I64, I64]:
    """Positions in a schedule's stages of every two that begin together: int64[k] each, every pair both ways.

    Args:
        shape: with gangs or without. columns: the schedule's stages, rank after rank.
    """
    if not shape.chunk_gang:
        none = np.zeros(0, dtype=np.int64)
        return none, none
    gang = np.array(shape.meeting, dtype=np.int64)[columns.chunk]
    mine = np.flatnonzero((gang >= 0) & (columns.phase < WEIGHT))
    kinds = np.stack((gang[mine], columns.phase[mine] > 0, columns.microbatch[mine]))
    group = np.unique(kinds, axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(group, kind="stable")
    mine, group = mine[order], group[order]
    member, other = fan_out(np.bincount(group), group)
    apart = member != other
    return mine[other[apart]], mine[member[apart]]


def barrier_edges(shape: PipelineShape, columns: StageColumns) -> tuple[I64, I64]:
    """Positions (before, after) in a schedule's stages: a stage of a gang waits for what runs before its fellows.

    Args:
        shape, columns: as ``fellows``.
    Returns:
        int64[k] each.
    """
    fellow, stage = fellows(shape, columns)
    if not len(fellow):
        return fellow, stage
    is_first = np.isin(fellow, columns.ptr[:-1])
    return fellow[~is_first] - 1, stage[~is_first]


def awaited_by_gangs(shape: PipelineShape, columns: StageColumns, waits: I64) -> tuple[I64, I64]:
    """What a stage of a gang waits for besides stages, its fellows wait for too.

    Args:
        waits: int64[n], positions of stages that wait for something.
    Returns:
        int64[k] each: positions in ``waits``, and of the fellows.
    """
    fellow, stage = fellows(shape, columns)
    order = np.argsort(fellow, kind="stable")
    sizes = np.bincount(fellow, minlength=len(columns.chunk))
    wait, entry = fan_out(sizes, waits)
    return wait, stage[order[entry]]


def with_barriers(
    graph: PipelineGraph, ptr: I64, stages: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], I64]:
    """Predecessors of stages under orders, barriers of gangs among them.

    Args:
        graph: the pipeline. ptr: int64[num_ranks + 1]. stages: int32[n], stage numbers, rank after rank.
    Returns:
        CSR as ``PipelineGraph.pred_ptr`` and ``pred``; int64, position of each among the graph's, -1 for a barrier.
    """
    pair, phase = np.divmod(stages.astype(np.int64), 4)
    columns = StageColumns(ptr, graph.chunk[pair].astype(np.int64), phase, graph.part[pair].astype(np.int64))
    before, after = (stages[places] for places in barrier_edges(graph.shape, columns))
    before = before - (before % 4 == INPUT)  # a B stands for its I
    every: I64 = np.concatenate((np.repeat(np.arange(graph.num_stages), np.diff(graph.pred_ptr)), after))
    preds = np.concatenate((graph.pred, before)).astype(np.int32)
    place = np.concatenate((np.arange(len(graph.pred)), np.full(len(before), -1)))
    order = np.lexsort((preds, every))
    return pointers(every, graph.num_stages), preds[order], place[order]
