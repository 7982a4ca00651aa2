"""Slow and plain: the dual queue, the times and memory of an order, and the choice of candidates as CP-SAT sees it."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.searcher import SearchProblem
from semu.searcher.orders.space import OrderSpace


def readers(problem: SearchProblem) -> list[list[tuple[int, float | None]]]:
    """Per stage, who waits for it, by number, and the time of the send; None within a rank."""
    found: list[list[tuple[int, float | None]]] = [[] for _ in range(problem.num_stages)]
    for stage in range(problem.num_stages):
        for e in range(problem.pred_ptr[stage], problem.pred_ptr[stage + 1]):
            before = int(problem.pred[e])
            crosses = problem.stage_rank[before] != problem.stage_rank[stage]
            found[before].append((stage, float(problem.transfer_s[e]) if crosses else None))
    return [sorted(each, key=lambda pair: pair[0]) for each in found]


def priorities(problem: SearchProblem, sequence: Any, back_sequence: Any) -> list[tuple[int, ...]]:
    """Per stage, what it is sorted by: the place of its group, then the fixed order."""
    place, back = np.argsort(sequence), np.argsort(back_sequence)
    keys = []
    for i in range(problem.num_pairs):
        part, slot, group = int(problem.part[i]), int(problem.slot[i]), problem.group[i]
        keys.append((int(place[group]), part, slot, i))
        keys.append((int(back[group]), part, -slot, i))
    return keys


def heap_interleave(problem: SearchProblem, sequence: Any, back_sequence: Any) -> tuple[list[int], list[float]]:
    """The dual queue with heaps, without limits: stages in the order of their choice, starts by stage number."""
    latency = problem.costs_of()[0].tolist()
    rank, after = problem.stage_rank.tolist(), readers(problem)
    keys = priorities(problem, sequence, back_sequence)
    waiting = np.diff(problem.pred_ptr).tolist()
    ranks = range(problem.num_ranks)
    pending: list[list[tuple[float, int]]] = [[] for _ in ranks]
    queues: list[tuple[list[Any], list[Any]]] = [([], []) for _ in ranks]
    free, last = [0.0] * len(ranks), [1] * len(ranks)
    link_free: dict[tuple[int, int], float] = defaultdict(float)
    arrival = [0.0] * problem.num_stages
    start = [float("nan")] * problem.num_stages
    for stage in np.flatnonzero(problem.exists).tolist():
        if not waiting[stage]:
            heapq.heappush(pending[rank[stage]], (0.0, stage))
    chosen: list[int] = []
    while True:
        soonest = [
            (free[r] if any(queues[r]) else max(free[r], pending[r][0][0]), r)
            for r in ranks
            if any(queues[r]) or pending[r]
        ]
        if not soonest:
            return chosen, start
        now, r = min(soonest)
        while pending[r] and pending[r][0][0] <= now:
            _, stage = heapq.heappop(pending[r])
            heapq.heappush(queues[r][stage % 2], (keys[stage], stage))
        kind = 1 - last[r] if queues[r][1 - last[r]] else last[r]
        _, stage = heapq.heappop(queues[r][kind])
        start[stage], free[r], last[r] = now, now + latency[stage], kind
        chosen.append(stage)
        for target, sent in after[stage]:
            there = rank[target]
            when = free[r]
            if sent is not None:
                when = link_free[r, there] = max(when, link_free[r, there]) + sent
            arrival[target] = max(arrival[target], when)
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(pending[there], (arrival[target], target))


def slow_interleave(
    problem: SearchProblem, sequence: Any, back_sequence: Any, choice: Any = None
) -> tuple[list[int], list[float]]:
    """The dual queue with limits by its definition: everything is looked at anew for every stage."""
    latency, held, peak = (column.tolist() for column in problem.costs_of(choice))
    rank, after = problem.stage_rank.tolist(), readers(problem)
    keys = priorities(problem, sequence, back_sequence)
    microbatch = problem.microbatch.tolist()
    room = (problem.limit_bytes - problem.static_bytes).tolist()
    waiting = np.diff(problem.pred_ptr).tolist()
    ranks = range(problem.num_ranks)
    mine = {
        (r, m): [i for i in range(problem.num_pairs) if problem.rank[i] == r and microbatch[i] == m]
        for r in ranks
        for m in set(microbatch)
    }
    need = {
        at: sum(held[i] for i in pairs) + max((max(peak[2 * i] - held[i], peak[2 * i + 1]) for i in pairs), default=0)
        for at, pairs in mine.items()
    }
    most_at_once = slow_hold_at_once(problem, choice)
    free, last = [0.0] * len(ranks), [1] * len(ranks)
    link_free: dict[tuple[int, int], float] = defaultdict(float)
    arrival = {s: 0.0 for s in np.flatnonzero(problem.exists).tolist() if not waiting[s]}
    soon = defaultdict(float)
    start = [float("nan")] * problem.num_stages
    ran: set[int] = set()
    forced: dict[int, int] = {}
    turns: list[int] = []
    chosen: list[int] = []
    clock = 0.0

    def turn(stage: int) -> float:
        m = microbatch[stage // 2]
        return turns.index(m) if m in turns else float("inf")

    def stages(r: int, m: int) -> list[int]:
        return [s for i in mine[r, m] for s in (2 * i, 2 * i + 1) if problem.exists[s]]

    def kept(r: int, m: int) -> int:
        return sum(held[i] for i in mine[r, m] if 2 * i in ran and 2 * i + 1 not in ran)

    def may_run(r: int, stage: int) -> bool:
        level = sum(kept(r, m) for m in set(microbatch))
        return level + peak[stage] <= room[r] and (stage % 2 == 1 or leaves_room(r, stage) or closes(r, stage))

    def closes(r: int, stage: int) -> bool:
        level = sum(kept(r, m) for m in set(microbatch)) + held[stage // 2]
        return np.diff(problem.pred_ptr)[stage + 1] == 1 and level + peak[stage + 1] <= room[r]

    def leaves_room(r: int, stage: int) -> bool:
        for at, m in enumerate(turns):
            if at >= turn(stage) or all(s in ran for s in stages(r, m)):
                continue
            still = need[r, m] - sum(held[i] for i in mine[r, m] if 2 * i + 1 in ran)
            still = min(still, most_at_once[r, m])
            if still + sum(kept(r, other) for other in turns[at + 1 :]) + held[stage // 2] > room[r]:
                return False
        return True

    def pick(r: int, now: float) -> int | None:
        if r in forced:
            return forced[r]
        for kind in (1 - last[r], last[r]):
            before = float("inf")
            is_first = True
            for stage in sorted(
                (s for s in arrival if rank[s] == r and s % 2 == kind and arrival[s] <= now), key=lambda s: keys[s]
            ):
                if not is_first and kind == 0 and not turn(stage) < before:
                    continue
                if may_run(r, stage):
                    return stage
                if kind == 0:
                    is_first, before = False, turn(stage)
        return None

    while True:
        best: tuple[float, int, int] | None = None
        for r in ranks:
            begin = max(free[r], clock)
            times = sorted({max(begin, arrival[s]) for s in arrival if rank[s] == r})
            for now in times:
                stage = pick(r, now)
                if stage is not None:
                    best = min(best or (now, r, stage), (now, r, stage))
                    break
        if best is None:
            return chosen, start
        clock, r, stage = best
        del arrival[stage]
        if forced.pop(r, None) is None and stage % 2 == 0 and not leaves_room(r, stage):
            forced[r] = stage + 1
        ran.add(stage)
        if microbatch[stage // 2] not in turns:
            turns.append(microbatch[stage // 2])
        start[stage], free[r], last[r] = clock, clock + latency[stage], stage % 2
        chosen.append(stage)
        for target, sent in after[stage]:
            there = rank[target]
            when = free[r]
            if sent is not None:
                when = link_free[r, there] = max(when, link_free[r, there]) + sent
            soon[target] = max(soon[target], when)
            waiting[target] -= 1
            if not waiting[target]:
                arrival[target] = soon[target]


def slow_hold_at_once(problem: SearchProblem, choice: Any = None) -> dict[tuple[int, int], int]:
    """What a microbatch may hold on a rank while one of its stages runs, from what its edges say of any two stages."""
    _, held, peak = (column.tolist() for column in problem.costs_of(choice))
    needed: list[set[int]] = [set() for _ in range(problem.num_stages)]
    for stage in problem.topological.tolist():
        for before in problem.pred[problem.pred_ptr[stage] : problem.pred_ptr[stage + 1]].tolist():
            needed[stage] |= needed[before] | {before}
    found: dict[tuple[int, int], int] = defaultdict(int)
    for stage in problem.topological.tolist():
        own = stage // 2
        level = peak[stage] + (held[own] if stage % 2 else 0)
        for i in range(problem.num_pairs):
            is_near = problem.rank[i] == problem.rank[own] and problem.microbatch[i] == problem.microbatch[own]
            if i != own and is_near and problem.has_backward[i]:
                level += held[i] if stage not in needed[2 * i] and 2 * i + 1 not in needed[stage] else 0
        at = int(problem.rank[own]), int(problem.microbatch[own])
        found[at] = max(found[at], level)
    return found


def slow_evaluate(
    problem: SearchProblem, orders: list[list[int]], choice: Any
) -> tuple[list[float], list[float], list[int]]:
    """Starts and ends by stage number and peaks per rank, by fixed point: all times again until none moves."""
    latency, held, peak = (column.tolist() for column in problem.costs_of(choice))
    after = readers(problem)
    rank = problem.stage_rank.tolist()
    start = [0.0] * problem.num_stages
    before = {b: a for order in orders for a, b in itertools.pairwise(order)}
    while True:
        arrival = [0.0] * problem.num_stages
        for order in orders:
            free: dict[int, float] = defaultdict(float)
            for stage in order:
                for target, sent in after[stage]:
                    when = start[stage] + latency[stage]
                    if sent is not None:
                        when = free[rank[target]] = max(when, free[rank[target]]) + sent
                    arrival[target] = max(arrival[target], when)
        new = [0.0] * problem.num_stages
        for order in orders:
            for stage in order:
                earlier = before.get(stage)
                free_at = 0.0 if earlier is None else start[earlier] + latency[earlier]
                new[stage] = max(arrival[stage], free_at)
        if new == start:
            break
        start = new
    peaks = []
    for r, order in enumerate(orders):
        level = highest = 0
        for stage in order:
            highest = max(highest, level + peak[stage])
            level += -held[stage // 2] if stage % 2 else held[stage // 2]
        peaks.append(highest + int(problem.static_bytes[r]))
    return start, [a + b for a, b in zip(start, latency, strict=True)], peaks


def is_legal_sequence(space: OrderSpace, sequence: NDArray[np.int32]) -> bool:
    """Whether a sequence holds every item once, the kind due at each place, behind what the item needs."""
    if len(sequence) != space.num_items or not np.array_equal(np.sort(sequence), np.flatnonzero(space.exists)):
        return False
    if not np.array_equal((sequence >= space.num_groups).astype(np.int32), space.kinds):
        return False
    place = space.places(sequence)
    return all(place[before] < place[item] for item, own in enumerate(space.needs) for before in own)
