"""Whole rollouts: an order, the choice of candidates, and the times of both, in one call."""

from __future__ import annotations

import numpy as np

from semu.compiled import kernel, zeros
from semu.searcher.kernels.interleaving import run_dual_queue
from semu.searcher.kernels.memory_choice import choose_memory
from semu.searcher.kernels.times import Candidates, Flow, Group, cost_choice, new_costs, time_run
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64


@kernel
def rollouts(
    flow: Group,
    queues: Group,
    limits: Group,
    candidates: Group,
    room: I64,
    sequences: I32,
    back_sequences: I32,
    goal: float,
    max_rounds: int,
    worth: float,
    order: I32,
    choice: I16,
    times: Group,
    lean: F64,
    count: I64,
    missing: I64,
) -> None:
    """Whole rollouts: ``interleave`` with the leanest candidates, ``choose_memory`` on every rank, and the times of the
    same order with what was chosen (002 §5.1, step 3).

    The choice still fits after times have moved: every rank runs the same stages one after another in the same order,
    so what is held when a stage begins is the pairs whose forward comes before it and whose backward does not. That
    is a matter of positions in the order, and positions are what the choice was made for. Where the chosen candidates
    do not end earlier than the leanest (a later stage may pay for what an earlier one saved), these stay.

    Args:
        flow, queues, limits, room, sequences, back_sequences: as ``interleave``. candidates: of ``Candidates``.
        goal, max_rounds: as ``choose_memory``. worth: orders whose leanest time is longer get no other candidates [s].
        order, count, missing: as ``interleave``; ``times`` too, its makespan with what was chosen.
        choice: int16[k, n], written as ``order``. lean: float64[B] [s], written: makespan with the leanest.
    """
    graph, columns = Flow(*flow), Candidates(*candidates)
    start, end, makespan = times
    ptr, num_links = graph.ptr, graph.num_links
    num_stages, num_ranks, num_pairs = len(graph.rank), len(ptr) - 1, len(graph.rank) // 2
    total, num_rows = ptr[num_ranks], len(order)
    run = zeros((1, total), np.int32)
    ready, rank_free, link_free = (
        zeros(num_stages, np.float64),
        zeros(num_ranks, np.float64),
        zeros(num_links, np.float64),
    )
    costs, lean_costs = new_costs(num_stages), new_costs(num_stages)
    local, leanest = zeros(num_pairs, np.int64), zeros(num_pairs, np.int16)
    late_start, late_end = zeros(num_stages, np.float64), zeros(num_stages, np.float64)
    cost_choice(leanest, columns, lean_costs)
    for b in range(len(sequences)):
        row = min(b, num_rows - 1)
        run_dual_queue(
            flow,
            queues,
            limits,
            (lean_costs.latency, lean_costs.held, lean_costs.peak),
            room,
            sequences[b : b + 1],
            back_sequences[b : b + 1],
            (order[row : row + 1], run),
            (start[row : row + 1], end[row : row + 1], lean[b : b + 1]),
            count[b : b + 1],
            missing[b : b + 1],
        )
        makespan[b] = lean[b]
        choice[row] = 0
        if count[b] < total or columns.forward_s.shape[1] == 1 or lean[b] > worth:
            continue
        for r in range(num_ranks):
            stages = order[row, ptr[r] : ptr[r + 1]]
            choose_memory(stages, candidates, room[r], goal, max_rounds, local, choice[row])
        cost_choice(choice[row], columns, costs)
        time = time_run(run[0], graph, costs.latency, ready, rank_free, link_free, late_start, late_end)
        if time < lean[b]:
            makespan[b] = time
            for stage in run[0]:
                start[row, stage], end[row, stage] = late_start[stage], late_end[stage]
        else:
            choice[row] = 0
