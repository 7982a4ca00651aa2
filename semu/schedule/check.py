"""``check_schedule``: whether a schedule orders a pipeline; array code, and words only for what is wrong."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.schedule.gangs.barriers import with_barriers
from semu.schedule.graph import PipelineGraph, graph_of
from semu.schedule.phases import BACKWARD, INPUT, PHASES, WEIGHT
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey

I64 = NDArray[np.int64]
_CHECKED = memo.ScopedTable[bool]("schedules that order a pipeline, by its shape", 4)


def check_schedule(schedule: Schedule, shape: PipelineShape) -> None:
    """See ``Schedule.validate``."""
    num_ranks = len(schedule.columns.ptr) - 1
    if num_ranks != shape.num_ranks:
        raise ScheduleError("wrong number of ranks", where=schedule.name, expected=str(shape.num_ranks), got=num_ranks)
    _CHECKED.get(schedule, shape, lambda: _check(schedule, graph_of(shape)))


def _check(schedule: Schedule, arrays: PipelineGraph) -> bool:
    """True; or an error."""
    _check_stages(schedule, arrays)
    numbers = arrays.numbers(schedule)
    _check_missing(schedule, arrays, numbers)
    if arrays.shape.chunk_gang:
        arrays = arrays.with_predecessors(*with_barriers(arrays, schedule.columns.ptr, numbers)[:2])
    cursor = dry_run(arrays, schedule.columns.ptr, numbers)
    if cursor.sum() < len(numbers):
        raise _deadlock(schedule, arrays, cursor.tolist())
    return True


def dry_run(arrays: PipelineGraph, ptr: I64, numbers: NDArray[np.int32]) -> I64:
    """How many stages of each rank can run in the given orders: int64[num_ranks].

    Loading the kernel takes as long as 100,000 stages without it, so it is used where something else has loaded it.
    """
    if "semu.schedule.kernels" not in sys.modules and len(numbers) < 100_000:
        return walk(arrays, ptr, numbers)
    from semu.schedule.kernels import run_orders

    cursor = np.zeros(len(ptr) - 1, dtype=np.int64)
    free = np.zeros(max(arrays.num_stages, len(arrays.pred)))
    done, start, end = np.full(arrays.num_stages, np.nan), np.empty(len(numbers)), np.empty(len(numbers))
    run_orders(ptr, numbers, arrays.pred_ptr, arrays.pred, free, free, done, start, end, cursor)
    return cursor


def walk(arrays: PipelineGraph, ptr: I64, numbers: NDArray[np.int32]) -> I64:
    """``dry_run`` without a kernel."""
    stages, bounds = numbers.tolist(), ptr.tolist()
    pred_ptr, pred = arrays.pred_ptr.tolist(), arrays.pred.tolist()
    done = bytearray(arrays.num_stages)
    at, progress = bounds[:-1], True
    while progress:
        progress = False
        for rank, stop in enumerate(bounds[1:]):
            begun = place = at[rank]
            while place < stop:
                stage = stages[place]
                for before in pred[pred_ptr[stage] : pred_ptr[stage + 1]]:
                    if not done[before]:
                        break
                else:
                    done[stage - 1 if stage & 3 == INPUT else stage] = 1
                    place += 1
                    continue
                break
            at[rank] = place
            progress |= place > begun
    return np.array(at, dtype=np.int64) - ptr[:-1]


def _check_stages(schedule: Schedule, arrays: PipelineGraph) -> None:
    """Every stage exists, lies on its rank and runs once."""
    columns, shape = schedule.columns, arrays.shape
    chunk, phase, part = columns.chunk, columns.phase, columns.microbatch
    if not len(chunk):
        return
    count = np.diff(arrays.first)
    rank = np.repeat(np.arange(len(columns.ptr) - 1), np.diff(columns.ptr))
    bad = (chunk < 0) | (chunk >= shape.num_chunks) | (part < 0) | (phase < 0)
    known = np.where(bad, 0, chunk)
    bad |= part >= count[known]
    pair = np.where(bad, 0, arrays.first[known] + part)
    bad |= ~arrays.exists[pair]
    frozen = (phase > 0) & ~arrays.has_backward[pair]
    elsewhere = arrays.rank[pair] != rank
    number = np.where(bad, -1 - np.arange(len(chunk)), 4 * pair + phase)
    _, first = np.unique(number, return_index=True)
    again = np.ones(len(chunk), dtype=np.bool_)
    again[first] = False
    runs = np.zeros((arrays.num_pairs, 4), dtype=np.bool_)
    runs.reshape(-1)[number[~bad]] = True
    both = (phase == BACKWARD) & (runs[pair, INPUT] | runs[pair, WEIGHT])
    wrong = np.flatnonzero(bad | frozen | elsewhere | again | both)
    if not len(wrong):
        return
    at = int(wrong[0])
    r = int(rank[at])
    stage = schedule.orders[r][at - int(columns.ptr[r])]
    where = f"{schedule.name}: rank {r}, position {at - int(columns.ptr[r])}"
    if bad[at]:
        raise ScheduleError("no such stage", where=where, expected=_range_of(shape, stage), got=stage)
    if frozen[at]:
        raise ScheduleError("the chunk has no backward stage", where=where, expected="no such stage", got=stage)
    if elsewhere[at]:
        expected = f"rank {shape.chunk_rank[stage.chunk]}"
        raise ScheduleError("a stage on the wrong rank", where=where, expected=expected, got=stage)
    if again[at]:
        raise ScheduleError("a stage runs twice", where=where, expected="once", got=stage)
    expected = "one B, or one I and one W"
    raise ScheduleError("a backward runs both whole and split", where=where, expected=expected, got=stage)


def _range_of(shape: PipelineShape, stage: StageKey) -> str:
    if stage.phase not in PHASES:
        return "phase F, B, I or W"
    if 0 <= stage.chunk < shape.num_chunks:
        most = shape.num_microbatches * shape.chunk_split[stage.chunk]
        if 0 <= stage.microbatch < most:
            flow = shape.chunk_flow[stage.chunk]
            microbatch, part = divmod(stage.microbatch, shape.chunk_split[stage.chunk])
            if flow == shape.microbatch_flow[microbatch]:
                count = shape.count(stage.chunk, microbatch)
                return f"of microbatch {microbatch}, which its module cuts into {count}, no part {part}"
            return f"a microbatch that runs through copy {flow} of the model"
    else:
        most = shape.num_microbatches
    return f"0 <= chunk < {shape.num_chunks}, 0 <= microbatch < {most}"


def _check_missing(schedule: Schedule, arrays: PipelineGraph, numbers: NDArray[np.int32]) -> None:
    """Every pair has its forward, and its backward whole or in both parts."""
    runs = np.zeros((arrays.num_pairs, 4), dtype=np.bool_)
    runs.reshape(-1)[numbers] = True
    backward = arrays.exists & arrays.has_backward & ~runs[:, BACKWARD]
    lacks = np.zeros((arrays.num_pairs, 4), dtype=np.bool_)
    lacks[:, 0] = arrays.exists & ~runs[:, 0]
    lacks[:, BACKWARD] = backward & ~runs[:, INPUT] & ~runs[:, WEIGHT]
    lacks[:, INPUT] = backward & ~runs[:, INPUT] & runs[:, WEIGHT]
    lacks[:, WEIGHT] = backward & runs[:, INPUT] & ~runs[:, WEIGHT]
    missing = np.flatnonzero(lacks)
    if len(missing):
        pair = missing // 4
        order = np.lexsort((arrays.part[pair], missing % 4, arrays.rank[pair], arrays.microbatch[pair]))
        stage = int(missing[order[0]])
        raise ScheduleError(
            "a stage is missing",
            where=f"{schedule.name}: rank {int(arrays.rank[stage // 4])}",
            expected=str(arrays.key(stage)),
        )


def _deadlock(schedule: Schedule, arrays: PipelineGraph, cursor: list[int]) -> ScheduleError:
    done = {stage for order, stop in zip(schedule.orders, cursor, strict=True) for stage in order[:stop]}
    done |= {StageKey(s.chunk, Phase.BACKWARD, s.microbatch) for s in done if s.phase is Phase.INPUT_GRADIENT}
    planned = {stage for order in schedule.orders for stage in order}

    def _shown(stage: StageKey) -> StageKey:
        if stage.phase is Phase.BACKWARD and stage not in planned:
            return StageKey(stage.chunk, Phase.INPUT_GRADIENT, stage.microbatch)
        return stage

    waits: dict[int, list[StageKey]] = {}
    lines = []
    for rank, order in enumerate(schedule.orders):
        before = " ".join(str(stage) for stage in order[max(0, cursor[rank] - 3) : cursor[rank]])
        if cursor[rank] == len(order):
            lines.append(f"  rank {rank}: {before} (finished)")
            continue
        stage = order[cursor[rank]]
        waits[rank] = [_shown(p) for p in arrays.predecessors(stage) if p not in done]
        lines.append(f"  rank {rank}: {before} -> {stage} waits for {', '.join(map(str, waits[rank]))}")
    lines.append("  cycle: " + _cycle(schedule, arrays.shape, cursor, waits))
    return ScheduleError(
        "the schedule deadlocks\n" + "\n".join(lines),
        where=schedule.name,
        expected="an order in which every rank can go on",
    )


def _cycle(schedule: Schedule, shape: PipelineShape, cursor: list[int], waits: dict[int, list[StageKey]]) -> str:
    """From a stuck rank to the rank that holds what it waits for, until one comes again."""
    rank, seen = next(iter(waits)), list[int]()
    while rank not in seen:
        seen.append(rank)
        rank = shape.chunk_rank[waits[rank][0].chunk]
    parts = []
    for r in seen[seen.index(rank) :]:
        wanted = waits[r][0]
        holder = shape.chunk_rank[wanted.chunk]
        stage, ahead = schedule.orders[r][cursor[r]], schedule.orders[holder][cursor[holder]]
        behind = f", which rank {holder} runs after {ahead}" if wanted != ahead else f" of rank {holder}"
        parts.append(f"{stage} -> {wanted}{behind}")
    return "; ".join(parts)
