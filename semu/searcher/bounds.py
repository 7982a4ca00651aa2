"""``lower_bounds``: times before which no schedule of a search problem ends, whatever its candidates.

- ``critical path``: the longest way through the stages.
- ``load``: on a rank, the shortest way to its first stage, its work, the shortest way from its last stage to the end.
- ``one machine``: the same for the best subset of a rank's stages (Jackson's preemptive schedule, Carlier 1982), with
  heads and tails that count stages of one microbatch on one rank one after another.
- ``memory``: memory in use over time on a rank is at least what its pairs hold, each for at least as long as its way
  from forward to backward, and at most its room times the time that it has; a candidate saves one or the other.
- ``refuted``: makespans that edge-finding on all ranks at once refutes (Klein and Scholl 1999, destructive bounds);
  where effort is left, also by trying both orders of two stages of a rank (Martin and Shmoys 1996, shaving).

All use the least time of a stage over its candidates, save ``load`` and ``memory``, which use that of pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semu import memo
from semu.records import dataclass
from semu.searcher.problem.problem_arrays import F64, I32
from semu.searcher.problem.search_problem import SearchProblem
from semu.units import TIME_GRID_PER_S

_LARGE_COMPONENT = 1500
"""Stages beyond which sets are not gathered: the square of it is held at once."""
_LARGE_RANK = 5000
"""Stages of a rank beyond which its subsets are not looked at: that takes the square of it."""
EFFORT = 2e8
"""Steps that ``refuted`` may take, about as many nanoseconds."""


@dataclass(frozen=True)
class LowerBounds:
    """Lower bounds of the makespan.

    Attributes:
        by_name: [s], see the module.
    """

    by_name: dict[str, float]

    @property
    def name(self) -> str:
        """Of the highest one, the simplest of equals."""
        return max(self.by_name, key=lambda name: self.by_name[name])

    @property
    def value_s(self) -> float:
        """The highest one [s]."""
        return self.by_name[self.name]


NO_BOUNDS = LowerBounds({"none": 0.0})
"""What is known of a problem that nobody bounded."""


def lower_bounds(problem: SearchProblem, *, effort: float = EFFORT) -> LowerBounds:
    """Bounds by name.

    Args:
        problem: with or without memory limits. effort: steps for ``refuted``, about as many nanoseconds; 0: without.
    """
    return _BOUNDS.get(problem, effort, lambda: _find_bounds(problem, effort))


_BOUNDS = memo.ScopedTable[LowerBounds]("lower bounds of a search problem, by effort", 2)


def _find_bounds(problem: SearchProblem, effort: float) -> LowerBounds:
    from semu.searcher.kernels import bounds as kernels

    if not problem.num_pairs:
        return LowerBounds({"critical path": 0.0})
    time = np.stack((problem.forward_s.min(axis=1), problem.backward_s.min(axis=1)), axis=1).reshape(-1)
    graph = (problem.topological, problem.pred_ptr, problem.pred, problem.transfer_s, time)
    head, tail = np.zeros(problem.num_stages), np.zeros(problem.num_stages)
    kernels.heads_and_tails(*graph, head, tail)
    found = {"critical path": float(np.max((head + time + tail)[problem.exists], initial=0.0))}
    away = _gather(problem, time, head, tail)
    kernels.heads_and_tails(*graph, head, tail)
    by_rank = [np.flatnonzero((problem.stage_rank == r) & problem.exists) for r in range(problem.num_ranks)]
    by_rank = [stages[np.argsort(head[stages], kind="stable")] for stages in by_rank]
    pair_s = (problem.forward_s + problem.backward_s).min(axis=1)
    load, machine, memory = 0.0, 0.0, 0.0
    for rank, stages in enumerate(by_rank):
        if not len(stages):
            continue
        mine = problem.rank == rank
        around = float(head[stages].min() + tail[stages].min())
        load = max(load, around + float(pair_s[mine].sum()))
        if len(stages) <= _LARGE_RANK:
            machine = max(machine, kernels.one_machine(head[stages], time[stages], tail[stages]))
        memory = max(memory, around + _memory(problem, rank, away))
    found |= {"load": load, "one machine": max(machine, float((head + time + tail)[problem.exists].max()))}
    if memory > load:
        found["memory"] = memory
    if effort > 0:
        best = max(found.values())
        ptr = np.concatenate(([0], np.cumsum([len(stages) for stages in by_rank]))).astype(np.int64)
        where = (head, tail, ptr, np.concatenate(by_rank))
        found["refuted"] = max(best, _refuted(graph, where, best, effort))
    return LowerBounds(found)


def _refuted(graph: tuple[Any, ...], where: tuple[Any, ...], least: float, effort: float) -> float:
    """The highest makespan that is refuted, to 2^-11 of what is known, by halving steps from there up; then twelve
    trials more with probing."""
    from semu.searcher.kernels import bounds as bound_kernels

    refute: Any = bound_kernels.refute
    cost = float((np.diff(where[2]).astype(np.float64) ** 2).sum()) * 4.0
    rounds = int(np.clip(effort / (16 * cost), 2, 50))

    def _highest(low: float, max_probes: int, trials: float) -> float:
        step, top = least * 2.0**-5, np.inf
        if trials < 1 or not refute(_on_grid(low), *graph, *where, rounds, max_probes):
            return low
        while trials > 0 and step > least * 2.0**-12:
            trials -= 1
            middle = _on_grid(low + step)
            if middle < top and refute(middle, *graph, *where, rounds, max_probes):
                low = middle
            else:
                top, step = min(top, middle), step / 2
        return low

    found = _highest(least, 0, effort / (3 * cost))
    return _highest(found, int(effort / (3 * cost * 12)), 12) if effort > 3 * cost * 12 * 50 else found


def _on_grid(time_s: float) -> float:
    return float(np.rint(time_s * TIME_GRID_PER_S) / TIME_GRID_PER_S)


def _memory(problem: SearchProblem, rank: int, away: F64) -> float:
    """The least time T in which a rank's pairs can run: their times fit in T and what they hold for how long fits in
    T x room. For any share z of the second one, T is at least the sum over pairs of the least (1 - z) x time + z x held
    x time held / room."""
    mine = np.flatnonzero((problem.rank == rank) & problem.has_backward)
    room = int(problem.limit_bytes[rank] - problem.static_bytes[rank])
    alone = np.flatnonzero((problem.rank == rank) & ~problem.has_backward)
    rest = float(problem.forward_s[alone].min(axis=1, initial=np.inf).sum()) if len(alone) else 0.0
    if room <= 0 or not len(mine) or problem.held_bytes[mine].sum(axis=0).max() <= 0:
        return 0.0
    took = problem.forward_s[mine] + problem.backward_s[mine]
    volume = problem.held_bytes[mine] * ((took + away[mine][:, None]) / room)
    shares = np.linspace(0.0, 1.0, 65)[:, None, None]
    values = ((1 - shares) * took + shares * volume).min(axis=2).sum(axis=1) + (1 - shares[:, 0, 0]) * rest
    return float(values.max()) * (1 - 1e-12)


def _gather(problem: SearchProblem, time: F64, head: F64, tail: F64) -> F64:
    """Raise heads and tails by what sets of stages need, one component of the graph after another.

    Returns:
        float64[num_pairs] [s], the least time between the end of a pair's forward and the start of its backward.
    """
    from semu.searcher.kernels.bounds import gather_sets

    before, after = problem.edges
    around = np.lexsort((after, before))
    sizes = np.bincount(before, minlength=problem.num_stages)
    reader_ptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    readers, sent = after[around].astype(np.int32), problem.transfer_s[around]
    rank, away = problem.stage_rank.astype(np.int32), np.zeros(problem.num_pairs)
    place, nothing = np.zeros(problem.num_stages, dtype=np.int64), np.zeros(0)
    for part in _components(problem):
        if len(part) <= _LARGE_COMPONENT:
            way = np.empty((len(part), len(part)))
            onward = (problem.pred_ptr, problem.pred, problem.transfer_s, time, rank, head, way, place, away)
            gather_sets(part, *onward)
            gather_sets(part[::-1].copy(), reader_ptr, readers, sent, time, rank, tail, way, place, nothing)
    return away


def _components(problem: SearchProblem) -> list[I32]:
    """Stages that hang together, each set in topological order."""
    label = np.arange(problem.num_stages)
    before, after = problem.edges
    while True:  # every edge hands on the lower label, then every label its own one
        least = np.minimum(label[before], label[after])
        new = label.copy()
        np.minimum.at(new, before, least)
        np.minimum.at(new, after, least)
        new = new[new]
        if np.array_equal(new, label):
            break
        label = new
    order = problem.topological
    by_label = order[np.argsort(label[order], kind="stable")]
    cuts = np.flatnonzero(np.diff(label[by_label])) + 1
    return np.split(by_label, cuts)
