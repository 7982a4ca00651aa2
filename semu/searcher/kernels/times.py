"""Groups of arrays that the search's kernels share, and kernels that time orders.

Groups are the fields of the named tuples below, as plain tuples where Python calls (numba types a plain tuple three
times as fast as a named one). Stage numbers, edges and bytes are as in ``SearchProblem``;
``semu.searcher.problem.tables`` makes the other arrays. Work arrays are made once per call and reused for every
schedule of a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from semu.compiled import kernel, part, zeros
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64, U8

Group = tuple[Any, ...]


class Flow(NamedTuple):
    """Stages of each rank, and the edges between them.

    Attributes:
        ptr: int64[P + 1], first stage of each rank in an order. rank: int32[2n].
        succ_ptr, succ, succ_s, succ_link: CSR of the edges by producer, sends in the order in which they leave; time
            of the send [s]; its directed pair of ranks, -1 within a rank. num_links: pairs of ranks.
        num_pred: int32[2n], edges into each stage.
    """

    ptr: I64
    rank: I32
    succ_ptr: I32
    succ: I32
    succ_s: F64
    succ_link: I32
    num_links: int
    num_pred: I32


class Candidates(NamedTuple):
    """What every candidate of every pair costs: columns of ``SearchProblem`` of the same names."""

    forward_s: F64
    backward_s: F64
    held_bytes: I64
    forward_peak: I64
    backward_peak: I64
    has_backward: U8
    num_candidates: I16


class Costs(NamedTuple):
    """What stages cost under a choice of candidates: float64[2n] [s], int64[n] and int64[2n] [bytes]."""

    latency: F64
    held: I64
    peak: I64


@part
def _follow(order: I32, flow: Flow, run: I32) -> int:
    """Stages in an order in which all can run one by one, written to ``run``; returns how many there are."""
    ptr, rank, succ_ptr, succ = flow.ptr, flow.rank, flow.succ_ptr, flow.succ
    num_ranks = len(ptr) - 1
    waiting, cursor = flow.num_pred.copy(), ptr[:-1].copy()
    stack, height, ran = zeros(num_ranks, np.int64), num_ranks, 0
    for r in range(num_ranks):
        stack[r] = r
    while height > 0:
        height -= 1
        r = stack[height]
        while cursor[r] < ptr[r + 1] and waiting[order[cursor[r]]] == 0:
            stage = order[cursor[r]]
            cursor[r] += 1
            run[ran] = stage
            ran += 1
            waiting[stage] = -1
            for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
                target = succ[e]
                waiting[target] -= 1
                there = rank[target]
                if waiting[target] == 0 and there != r and order[cursor[there]] == target:
                    stack[height] = there
                    height += 1
    return ran


@part
def time_run(
    run: I32, flow: Flow, latency: F64, ready: F64, rank_free: F64, link_free: F64, start: F64, end: F64
) -> float:
    """Times of stages in the order ``run``; returns the end of the last one [s]."""
    rank, succ_ptr, succ, succ_s, succ_link = flow.rank, flow.succ_ptr, flow.succ, flow.succ_s, flow.succ_link
    ready[:] = 0.0
    rank_free[:] = 0.0
    link_free[:] = 0.0
    longest = 0.0
    for stage in run:
        begun = max(ready[stage], rank_free[rank[stage]])
        finish = begun + latency[stage]
        start[stage] = begun
        end[stage] = finish
        rank_free[rank[stage]] = finish
        longest = max(longest, finish)
        for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
            target, link, arrival = succ[e], succ_link[e], finish
            if link >= 0:
                arrival = max(finish, link_free[link]) + succ_s[e]
                link_free[link] = arrival
            ready[target] = max(ready[target], arrival)
    return longest


@part
def _measure(ptr: I64, order: I32, costs: Costs, top: I64) -> None:
    """Highest memory of every rank above its static one [bytes], written to ``top``."""
    _, held, peak = costs
    for r in range(len(ptr) - 1):
        level, highest = np.int64(0), np.int64(0)
        for at in range(ptr[r], ptr[r + 1]):
            stage = order[at]
            highest = max(highest, level + peak[stage])
            level += -held[stage >> 1] if stage & 1 else held[stage >> 1]
        top[r] = highest


@part
def new_costs(num_stages: int) -> Costs:
    """Room for what stages cost."""
    held, peak = zeros(num_stages // 2, np.int64), zeros(num_stages, np.int64)
    return Costs(zeros(num_stages, np.float64), held, peak)


@part
def cost_choice(choice: I16, candidates: Candidates, costs: Costs) -> None:
    """What stages cost under a choice of candidates, written to ``costs``.

    What a forward without a backward holds ends with it: nothing.
    """
    forward_s, backward_s, held_bytes, forward_peak, backward_peak, has_backward, _ = candidates
    latency, held, peak = costs
    for i in range(len(choice)):
        j = choice[i]
        latency[2 * i], latency[2 * i + 1] = forward_s[i, j], backward_s[i, j]
        held[i] = held_bytes[i, j] if has_backward[i] else 0
        peak[2 * i], peak[2 * i + 1] = forward_peak[i, j], backward_peak[i, j]


@kernel
def evaluate_orders(flow: Group, candidates: Group, orders: I32, choices: I16, times: Group, top: I64) -> None:
    """Times and memory of given orders with given candidates: the truth.

    A stage starts when its rank is free and all that it needs has arrived.

    Args:
        flow: of ``Flow``. candidates: of ``Candidates``.
        orders: int32[B, num stages], rank after rank. choices: int16[B, n].
        times: start, end: float64[k, 2n] [s], written; row b or the last one. makespan: float64[B] [s], written;
            infinite where an order deadlocks.
        top: int64[B, P] [bytes], written: highest memory above the static one.
    """
    graph, columns = Flow(*flow), Candidates(*candidates)
    start, end, makespan = times
    num_stages, num_ranks = len(graph.rank), len(graph.ptr) - 1
    run = zeros(orders.shape[1], np.int32)
    ready, rank_free, link_free = (
        zeros(num_stages, np.float64),
        zeros(num_ranks, np.float64),
        zeros(graph.num_links, np.float64),
    )
    costs = new_costs(num_stages)
    for b in range(len(orders)):
        row = min(b, len(start) - 1)
        cost_choice(choices[b], columns, costs)
        _measure(graph.ptr, orders[b], costs, top[b])
        if _follow(orders[b], graph, run) < len(run):
            makespan[b] = np.inf
            continue
        makespan[b] = time_run(run, graph, costs.latency, ready, rank_free, link_free, start[row], end[row])
