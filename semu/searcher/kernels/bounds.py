"""Kernels of the lower bounds: heads and tails, one machine at a time, and whether a makespan can be refuted."""

from __future__ import annotations

import numpy as np

from semu.compiled import kernel, part, zeros
from semu.searcher.problem.problem_arrays import F64, I32, I64


@kernel
def heads_and_tails(topological: I32, pred_ptr: I32, pred: I32, transfer: F64, time: F64, head: F64, tail: F64) -> None:
    """Longest ways to the start of every stage and from its end: raises ``head`` and ``tail`` (float64[2n] [s])."""
    for stage in topological:
        for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
            head[stage] = max(head[stage], head[pred[e]] + time[pred[e]] + transfer[e])
    for stage in topological[::-1]:
        for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
            tail[pred[e]] = max(tail[pred[e]], tail[stage] + time[stage] + transfer[e])


@kernel
def gather_sets(
    topological: I32,
    pred_ptr: I32,
    pred: I32,
    transfer: F64,
    time: F64,
    rank: I32,
    head: F64,
    way: F64,
    place: I64,
    away: F64,
) -> None:
    """Raise heads by sets: of all that a stage waits for, what shares a rank runs there one after another.

    Args:
        topological: int32[c], a component of the graph. way: float64[c, c], scratch. place: int64[2n], scratch.
        away: float64[n] [s], written, where it is not empty: the longest way from the end of a forward to the start of
            its own backward. others: as ``heads_and_tails``. For tails, the graph is given the other way round.
    """
    size = len(topological)
    num_ranks = 1
    for stage in topological:
        num_ranks = max(num_ranks, rank[stage] + 1)
    sums, shortest = zeros(num_ranks, np.float64), zeros(num_ranks, np.float64)
    by_head = zeros(size, np.int64)
    for at in range(size):
        place[topological[at]] = at
    for at in range(size):
        stage = topological[at]
        for other in range(at):
            way[at, other] = -np.inf
        for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
            source = place[pred[e]]
            way[at, source] = max(way[at, source], transfer[e])
            further = time[pred[e]] + transfer[e]
            head[stage] = max(head[stage], head[pred[e]] + further)
            for other in range(source):
                way[at, other] = max(way[at, other], way[source, other] + further)
        if len(away) > 0 and stage & 1:
            away[stage >> 1] = max(0.0, way[at, place[stage - 1]])
        sums[:] = 0.0
        shortest[:] = np.inf
        for spot in range(at):
            source = topological[by_head[spot]]
            if way[at, by_head[spot]] > -np.inf:
                r = rank[source]
                sums[r] += time[source]
                shortest[r] = min(shortest[r], way[at, by_head[spot]])
                head[stage] = max(head[stage], head[source] + sums[r] + shortest[r])
        spot, value = at, head[stage]
        while spot > 0 and head[topological[by_head[spot - 1]]] < value:
            by_head[spot] = by_head[spot - 1]
            spot -= 1
        by_head[spot] = at  # places so far by falling head; of equal ones the earlier first


@kernel
def one_machine(head: F64, time: F64, tail: F64) -> float:
    """The makespan of the preemptive schedule of one machine: the highest, over all sets, of the least head, the sum
    of times and the least tail (Carlier 1982, Jackson's preemptive schedule). Stages are sorted by head."""
    best = 0.0
    for k in range(len(head)):
        total = 0.0
        for i in range(len(head) - 1, -1, -1):
            if tail[i] >= tail[k]:
                total += time[i]
                best = max(best, head[i] + total + tail[k])
    return best


@part
def _sort(order: I64, key: F64) -> None:
    """Sort stages by a key, in place; they are nearly sorted."""
    for at in range(1, len(order)):
        stage, spot = order[at], at
        while spot > 0 and key[order[spot - 1]] > key[stage]:
            order[spot] = order[spot - 1]
            spot -= 1
        order[spot] = stage


@kernel
def _edge_find(order: I64, release: F64, due: F64, time: F64, raised: F64, latest: F64) -> bool:
    """Raise releases on one machine by edge-finding; false where no schedule meets the due times.

    For every due time D: the stages due by D, from each release on, end at the earliest at C; one more stage that does
    not fit among them before D must follow them (Nuijten 1994; Baptiste, Le Pape, Nuijten 2001, §2.1.4).

    Args:
        order: stages by rising release. release, due, time: [s], by stage. raised: written. latest: scratch.
    """
    count = len(order)
    for i in range(count):
        raised[i] = release[order[i]]
    for k in range(count):
        limit = due[order[k]]
        total, ends = 0.0, -np.inf
        for i in range(count - 1, -1, -1):
            stage = order[i]
            if due[stage] <= limit:
                total += time[stage]
                ends = max(ends, release[stage] + total)
                if ends > limit:
                    return False
            latest[i] = ends
        whole = -np.inf
        for i in range(count):
            stage = order[i]
            if due[stage] <= limit:
                whole = max(whole, release[stage] + total)
                total -= time[stage]
            else:
                if release[stage] + total + time[stage] > limit:
                    raised[i] = max(raised[i], latest[i])
                if whole + time[stage] > limit:
                    raised[i] = max(raised[i], ends)
    for i in range(count):
        release[order[i]] = raised[i]
    return True


@part
def _contradicts(
    topological: I32,
    pred_ptr: I32,
    pred: I32,
    transfer: F64,
    time: F64,
    rank_ptr: I64,
    stages: I64,
    before: I64,
    after: I64,
    num_decided: int,
    release: F64,
    due: F64,
    orders: I64,
    work: F64,
    max_rounds: int,
) -> bool:
    """Raise releases and lower due times by edge-finding on every rank and by precedences; whether they contradict.

    Args:
        before, after: int64, the first ``num_decided`` are further pairs of stages in order. release, due: float64[2n]
            [s], written. orders: int64[2, num stages], ``stages`` twice, kept sorted. work: float64[4, 2n], scratch.
        others: as ``refute``.
    """
    mirrored, mirror_due = work[0], work[1]
    for _ in range(max_rounds):
        moved = False
        for stage in topological:
            for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
                release[stage] = max(release[stage], release[pred[e]] + time[pred[e]] + transfer[e])
        for stage in topological[::-1]:
            for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
                due[pred[e]] = min(due[pred[e]], due[stage] - time[stage] - transfer[e])
        for i in range(num_decided):
            a, b = before[i], after[i]
            if release[a] + time[a] > release[b]:
                release[b] = release[a] + time[a]
                moved = True
            if due[b] - time[b] < due[a]:
                due[a] = due[b] - time[b]
                moved = True
        for r in range(len(rank_ptr) - 1):
            a, z = rank_ptr[r], rank_ptr[r + 1]
            for stage in stages[a:z]:
                if release[stage] + time[stage] > due[stage]:
                    return True
                mirrored[stage] = release[stage]
            order = orders[0, a:z]
            _sort(order, release)
            if not _edge_find(order, release, due, time, work[2], work[3]):
                return True
            for stage in order:
                moved |= release[stage] > mirrored[stage]
            # The same backwards in time.
            for stage in order:
                mirrored[stage], mirror_due[stage] = -due[stage], -release[stage]
            order = orders[1, a:z]
            _sort(order, mirrored)
            if not _edge_find(order, mirrored, mirror_due, time, work[2], work[3]):
                return True
            for stage in order:
                if -mirrored[stage] < due[stage]:
                    due[stage] = -mirrored[stage]
                    moved = True
        if not moved:
            return False
    return False


@kernel
def refute(
    makespan: float,
    topological: I32,
    pred_ptr: I32,
    pred: I32,
    transfer: F64,
    time: F64,
    head: F64,
    tail: F64,
    rank_ptr: I64,
    stages: I64,
    max_rounds: int,
    max_probes: int,
) -> bool:
    """Whether no schedule ends by a makespan, as far as edge-finding, precedences and probing can see.

    Probing: of two stages of a rank whose order is open, one order is tried; where it contradicts itself, the other
    one is decided.

    Args:
        makespan: [s]. topological to tail: as ``heads_and_tails``; all on the time grid.
        rank_ptr, stages: CSR, int64, of the stages of each rank.
        max_rounds: of going over all ranks at once. max_probes: orders that are tried.
    """
    size = len(head)
    release, due = head.copy(), makespan - tail
    trial_release, trial_due, work = zeros(size, np.float64), zeros(size, np.float64), zeros((4, size), np.float64)
    orders = zeros((2, len(stages)), np.int64)
    for i in range(len(stages)):
        orders[0, i] = orders[1, i] = stages[i]
    capacity = 8 * size + 1
    before, after, decided = zeros(capacity, np.int64), zeros(capacity, np.int64), 0
    graph = (topological, pred_ptr, pred, transfer, time, rank_ptr, stages, before, after)
    if _contradicts(*graph, decided, release, due, orders, work, max_rounds):
        return True
    probes, news = 0, True
    while news:
        news = False
        for r in range(len(rank_ptr) - 1):
            for i in range(rank_ptr[r], rank_ptr[r + 1]):
                for j in range(i + 1, rank_ptr[r + 1]):
                    for turn in range(2):
                        a, b = stages[i], stages[j]
                        if turn == 1:
                            a, b = b, a
                        both = time[a] + time[b]
                        if release[a] + both > due[b] or release[b] + both > due[a]:
                            continue
                        is_known = False
                        for k in range(decided):
                            is_known |= before[k] == b and after[k] == a
                        if is_known:
                            continue
                        if probes >= max_probes or decided >= capacity - 1:
                            return False
                        probes += 1
                        for stage in range(size):
                            trial_release[stage], trial_due[stage] = release[stage], due[stage]
                        before[decided], after[decided] = a, b
                        if _contradicts(*graph, decided + 1, trial_release, trial_due, orders, work, 3):
                            before[decided], after[decided] = b, a
                            decided += 1
                            news = True
                            if _contradicts(*graph, decided, release, due, orders, work, max_rounds):
                                return True
    return False
