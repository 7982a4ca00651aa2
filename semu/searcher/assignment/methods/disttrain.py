"""``disttrain``: DistTrain's two reorderings (2408.04275 §5.1, §5.2), which keep numbers of samples.

Within a batch, samples are sorted by size and given to the replica that holds least (algorithm 1). Within a replica,
microbatches are reordered: the smallest first, the next smallest last, as many as there are ranks behind the first,
and in between always the one whose encoder takes closest to what the backbone takes meanwhile (algorithm 2).
The text is not among the papers at hand: algorithms are as remembered from it, sizes are simulated times.
"""

from __future__ import annotations

import numpy as np

from semu.searcher.assignment.dealing import sorted_by, spread, to_microbatches, to_replicas
from semu.searcher.assignment.problem import AssignmentProblem, Dealt


def deal_disttrain(problem: AssignmentProblem) -> Dealt:
    """Algorithm 1, then algorithm 2 in every replica; the samples' own order where one finds no room."""
    from semu.searcher.assignment.kernels.bins import reorder

    count, n = problem.num_microbatches, problem.num_samples
    size = problem.encoder + problem.backbone
    order = sorted_by(-size)
    base = np.zeros(1, np.int64)
    replica = to_replicas(problem, order, size[:, None].copy(), base, count)
    ones = np.ones((n, 1), np.int64)
    bins = None if replica is None else to_microbatches(problem, replica, np.arange(n), ones, base, count)
    if replica is None or bins is None:
        replica, microbatch = spread(problem)
        bins = replica * count + microbatch
    encoder, backbone = (
        np.bincount(bins, weights=load, minlength=problem.dp * count).astype(np.float64).reshape(-1, count)
        for load in (problem.encoder, problem.backbone)
    )
    place = np.empty((problem.dp, count), np.int64)
    reorder(encoder, backbone, problem.load.shape[1], place)
    return Dealt.together(replica, place.ravel()[bins], count)
