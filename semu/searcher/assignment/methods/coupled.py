"""``coupled``: greedy in the loads of all pipeline ranks together, then local search; no sample is deferred."""

from __future__ import annotations

import numpy as np

from semu.searcher.assignment.dealing import improved, spread, summed, to_microbatches, to_replicas
from semu.searcher.assignment.problem import I64, AssignmentProblem, Dealt


def deal_coupled(problem: AssignmentProblem) -> Dealt:
    """Samples by size to the replica, then to the microbatch, whose busiest rank is least busy with them, at the
    replica's speed; moves and swaps that lower the highest microbatch of a replica; then the order of microbatches that
    is fastest when simulated.

    Where a limit of tokens leaves samples without room, samples begin in their own order.
    """
    return ordered(problem, dealt_by(problem, problem.columns, problem.base))[0]


def dealt_by(problem: AssignmentProblem, load: I64, base: I64) -> Dealt:
    """``deal_coupled`` by other loads, without an order of microbatches.

    Args:
        load: int64[n, num_columns] [ticks]. base: int64[num_columns] [ticks], of a microbatch without samples.
    """
    count = problem.num_microbatches
    replica = to_replicas(problem, problem.by_size, load, base * count, count, problem.slowness)
    bins = None if replica is None else to_microbatches(problem, replica, problem.by_size, load, base, count)
    if replica is None or bins is None:
        replica, microbatch = spread(problem)
        bins = replica * count + microbatch
    bins = improved(problem, bins, count, load, base)
    return Dealt.together(replica, bins - replica * count, count)


def ordered(problem: AssignmentProblem, dealt: Dealt) -> tuple[Dealt, float]:
    """The microbatches of every replica in the order that is fastest under fitted costs: as dealt, lightest first,
    heaviest first, or light ones at both ends; and the end of the slowest replica then [s]. Replicas choose by
    themselves."""
    count = dealt.num_microbatches
    height = summed(problem.load, dealt.bins, problem.dp * count).max(axis=1).reshape(problem.dp, count)
    up = np.argsort(height, axis=1, kind="stable")
    ends = np.concatenate((up[:, ::2], up[:, 1::2][:, ::-1]), axis=1)
    best = np.tile(np.arange(count), (problem.dp, 1))
    shortest = problem.times(dealt)
    for sequence in (up, up[:, ::-1], ends):
        place = np.empty_like(sequence)
        np.put_along_axis(place, sequence, np.arange(count)[None], axis=1)
        times = problem.times(_placed(dealt, place))
        better = times < shortest
        best[better], shortest = place[better], np.minimum(times, shortest)
    return _placed(dealt, best), float(shortest.max())


def _placed(dealt: Dealt, place: I64) -> Dealt:
    """The same with microbatch m of replica r as number place[r, m]."""
    return Dealt.together(dealt.replica, place[dealt.replica, dealt.microbatch], dealt.num_microbatches)
