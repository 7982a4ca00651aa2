"""``find_order``: the arrays of the rule machine, and what it says of a rule that waits for ever."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.errors import ScheduleError
from semu.schedule.graph import PipelineGraph, Wait, pointers, waiting_graph
from semu.schedule.rules.hooks import Hooks
from semu.schedule.rules.limits import NO_LIMIT
from semu.schedule.rules.rule import by_rank
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
MOST_CHUNKS = 64
"""Chunks of a rank that a bitmap has room for."""


class Limits(NamedTuple):
    """What may be in flight.

    Attributes:
        limit_bytes: int64[num_ranks] [bytes], of what forwards leave. chunk_limit: int64[num_chunks], microbatches of
            each chunk. admits: a microbatch enters where every rank has room for all of it.
    """

    limit_bytes: I64
    chunk_limit: I64
    admits: bool


class _Flow(NamedTuple):
    """Stages ``2 x pair + (0 forward, 1 backward)`` of the pairs that exist, and what waits for them; see ``run_rule``.

    Attributes:
        place: int64[len(succ)], position of each edge among the graph's predecessors. number: int64[num_stages], stage
            numbers of the graph.
    """

    succ_ptr: I32
    succ: I32
    before: I32
    rank: I32
    chunk: I32
    microbatch: I32
    first: I64
    place: I64
    number: I64


@memo.remembered(128, is_large=True)
def _flow_of(shape: PipelineShape, waits: tuple[Wait, ...]) -> _Flow:
    graph = waiting_graph(shape, waits)
    edges, pairs = graph.pair_edges, np.flatnonzero(graph.exists)
    after = np.repeat(np.arange(2 * len(pairs)), np.diff(edges.ptr))
    order = np.argsort(edges.pred, kind="stable")
    number = (4 * pairs[:, None] + np.arange(2)).ravel()
    missing = np.diff(edges.ptr).astype(np.int32)
    missing[1::2][~graph.has_backward[pairs]] = -1
    return _Flow(
        pointers(edges.pred, 2 * len(pairs)),
        after[order].astype(np.int32),
        missing,
        graph.rank[pairs],
        graph.chunk[pairs],
        graph.microbatch[pairs],
        np.searchsorted(graph.chunk[pairs], np.arange(shape.num_chunks + 1)).astype(np.int64),
        edges.place[order],
        number,
    )


@memo.remembered(256)
def _chunk_orders(shape: PipelineShape, is_breadth: tuple[tuple[bool, bool], ...]) -> tuple[I64, I64, I64]:
    """Chunks of each rank in the order of traversal: ``chunk_ptr``, ``chunk_order``, ``bit_of`` of ``run_rule``.

    Args:
        is_breadth: per rank, of forwards and of backwards: earlier chunks first.
    """
    depth = [0] * shape.num_chunks
    for chunk in range(shape.num_chunks):  # within its copy of the model
        depth[chunk] = sum(flow == shape.chunk_flow[chunk] for flow in shape.chunk_flow[:chunk])
    ptr, order, bit = [0], list[int](), np.zeros((shape.num_chunks, 2), dtype=np.int64)
    for rank, of_rank in enumerate(is_breadth):
        for kind, breadth in enumerate(of_rank):
            held = sorted(shape.chunks_of(rank), key=depth.__getitem__, reverse=not breadth)
            if len(held) > MOST_CHUNKS:
                expected = f"at most {MOST_CHUNKS}"
                raise ScheduleError("too many chunks on a rank", where=f"rank {rank}", expected=expected, got=len(held))
            bit[held, kind] = np.arange(len(held))
            order += held
            ptr.append(len(order))
    return np.array(ptr, dtype=np.int64), np.array(order, dtype=np.int64), bit


def find_order(
    study: PipelineStudy,
    rules: I64,
    is_breadth: tuple[tuple[bool, bool], ...],
    limits: Limits,
    hooks: Hooks | None = None,
) -> StageColumns:
    """The order that a rule makes of a pipeline.

    Args:
        study: the pipeline with its costs. rules: int64[num_ranks, RULE_COLUMNS], codes of ``rules.kernels.machine``.
        is_breadth: as ``_chunk_orders``. limits: what may be in flight. hooks: functions of Python that are asked.
    Raises:
        ScheduleError: the ranks wait for ever; the rank, the stage and the limit or check are named.
        ConfigError: a function of Python that raises, or chooses what is not ready.
    """
    from semu.schedule.rules.kernels import machine as kernels

    shape, costs, graph = study.shape, study.costs, study.arrays
    flow = _flow_of(shape, study.waits)
    ptr, chunk_order, bit_of = _chunk_orders(shape, is_breadth)
    needs_room = limits.admits and bool(np.any(limits.limit_bytes < NO_LIMIT))
    if needs_room and not shape.part_counts:
        needs_room = bool(np.any(np.diff(ptr) > 1))  # a chain of single chunks always drains
    need = study.held_bytes if needs_room else np.zeros((shape.num_microbatches, shape.num_ranks), dtype=np.int64)
    order = np.zeros(len(flow.number), dtype=np.int32)
    held = np.ascontiguousarray(costs.delta_bytes[flow.number[::2]])
    state = _new_state(shape, flow, len(need))
    asks = kernels.ASKS_NOTHING if hooks is None else hooks.asks
    given = (
        (ptr, chunk_order, bit_of, flow.first, np.array(shape.has_backward, dtype=np.bool_)),
        (*flow[:6], costs.latency_s[flow.number], study.delay_s[flow.place], len(held)),
        (held, np.array(limits.limit_bytes), limits.chunk_limit, need, needs_room, bool(shape.part_counts), rules),
        state,
        asks,
        order,
    )
    done = kernels.run_rule(*given)
    while hooks is not None and state[-1][kernels.ASKED] != kernels.NOTHING_READY:
        hooks.answer(graph, flow.number, given[0], given[3], rules, order[:done])
        done = kernels.run_rule(*given)
    if done < np.count_nonzero(flow.before >= 0):
        _refuse(graph, flow, order[:done], limits, None if hooks is None else hooks.refused)
    return by_rank(graph, flow.number[order[:done]])


def _new_state(shape: PipelineShape, flow: _Flow, num_microbatches: int) -> tuple[Any, ...]:
    """The state of ``run_rule`` before it begins: queue, flight, before, mask, rest, free, at, winner, pend_ptr,
    rank_state, progress."""
    p, chunks, stages = shape.num_ranks, shape.num_chunks, len(flow.number)
    leaves = 1 << max(p - 1, 0).bit_length()

    def _zeros(*sizes: int) -> I64:
        return np.zeros(sizes, dtype=np.int64)

    head, tail, waiting = _zeros(chunks, 2), _zeros(chunks, 2), np.zeros((2, stages // 2), dtype=np.int32)
    level, count, reserved, inside = _zeros(p), _zeros(chunks), _zeros(p), np.zeros(num_microbatches, dtype=np.bool_)
    arriving = _zeros(p), _zeros(p), np.zeros(stages, dtype=np.int32), np.zeros(stages)
    flags = np.zeros(p, dtype=np.bool_), np.zeros(p, dtype=np.bool_), np.zeros((p, 2), dtype=np.uint64)
    return (
        (head, tail, waiting, _zeros(p, 2), _zeros(p, 2), _zeros(chunks, 2)),
        (level, count, reserved, inside, *arriving),
        flow.before.copy(),
        np.zeros((p, 2), dtype=np.uint64),
        _zeros(p, 2),
        np.zeros(p),
        np.full(leaves, np.inf),
        np.zeros(2 * leaves, dtype=np.int32),
        _zeros(p + 1),
        (np.full(p, -1, dtype=np.int64), _zeros(p), *flags),
        np.array([0, 0, -1, -1, 0], dtype=np.int64),
    )


def _refuse(
    graph: PipelineGraph, flow: _Flow, done: I32, limits: Limits, refused: dict[int, tuple[StageKey, str]] | None
) -> NoReturn:
    """Say which rank holds back which stage."""
    waits = flow.before.copy()
    for stage in done.tolist():
        np.subtract.at(waits, flow.succ[flow.succ_ptr[stage] : flow.succ_ptr[stage + 1]], 1)
    waits[done] = -1
    for rank, (key, name) in (refused or {}).items():
        raise ScheduleError(
            f"the ranks wait for ever: rank {rank} does not run {key}, by the check {name}",
            where=f"check {name}, rank {rank}, stage {key}",
            expected="a check that lets every stage run in the end",
            got=f"{len(done)} of {np.count_nonzero(flow.before >= 0)} stages run",
        )
    held = np.flatnonzero(waits == 0)
    stage = int(held[0])
    rank, key = int(flow.rank[stage // 2]), graph.key(int(flow.number[stage]))
    has_limit = bool(limits.limit_bytes[rank] < NO_LIMIT or limits.chunk_limit[key.chunk] < NO_LIMIT)
    what = "its limit of microbatches in flight" if has_limit and stage % 2 == 0 else "its rule"
    raise ScheduleError(
        f"the ranks wait for ever: rank {rank} does not run {key}, by {what}",
        where=f"in_flight, rank {rank}, stage {key}" if has_limit else f"rank {rank}, stage {key}",
        expected="a higher in_flight, or admission = microbatch" if has_limit else "when_blocked = yield",
        got=f"{len(done)} of {np.count_nonzero(flow.before >= 0)} stages run",
        nearest="admission = microbatch" if has_limit and not limits.admits else None,
    )
