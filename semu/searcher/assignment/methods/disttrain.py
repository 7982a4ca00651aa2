"""``disttrain``: DistTrain's two reorderings (2408.04275 §5.1, §5.2), which keep numbers of samples.

Within a batch, samples are sorted by size and given to the replica that holds least (algorithm 1). Within a replica,
microbatches are reordered: the smallest first, the next smallest last, as many as there are ranks behind the first,
and in between always the one whose encoder takes closest to what the backbone takes meanwhile (algorithm 2).
The text is not among the papers at hand: algorithms are as remembered from it, sizes are simulated times.
"""

from __future__ import annotations

import numpy as np

from semu.searcher.assignment.dealing import spread, to_microbatches, to_replicas
from semu.searcher.assignment.problem import I64, AssignmentProblem, Dealt


def deal_disttrain(problem: AssignmentProblem) -> Dealt:
    """Algorithm 1, then algorithm 2 in every replica; the samples' own order where one finds no room."""
    count, n = problem.num_microbatches, problem.num_samples
    size = problem.encoder + problem.backbone
    order = np.argsort(-size, kind="stable")
    base = np.zeros(1, np.int64)
    replica = to_replicas(problem, order, size[:, None].copy(), base, count)
    ones = np.ones((n, 1), np.int64)
    bins = None if replica is None else to_microbatches(problem, replica, np.arange(n), ones, base, count)
    if replica is None or bins is None:
        replica, microbatch = spread(problem)
        bins = replica * count + microbatch
    encoder = np.bincount(bins, weights=problem.encoder, minlength=problem.dp * count).reshape(-1, count)
    backbone = np.bincount(bins, weights=problem.backbone, minlength=problem.dp * count).reshape(-1, count)
    place = np.concatenate([reordered(encoder[r], backbone[r], problem.load.shape[1]) for r in range(problem.dp)])
    return Dealt.together(replica, place[bins], count)


def reordered(
    encoder: np.ndarray[tuple[int], np.dtype[np.float64]],
    backbone: np.ndarray[tuple[int], np.dtype[np.float64]],
    num_ranks: int,
) -> I64:
    """Where every microbatch of a replica runs: int64[num_microbatches].

    Args:
        encoder, backbone: loads of its microbatches. num_ranks: of the pipeline.
    """
    size = encoder + backbone
    left = np.argsort(size, kind="stable").tolist()
    sequence = [left.pop(0)]
    rear = [left.pop(0) for _ in range(min(num_ranks - 1, max(0, len(left) - 1)))]
    while left:
        interval = backbone[sequence[-1]]
        closest = min(left, key=lambda number: (abs(encoder[number] - interval), number))
        left.remove(closest)
        sequence.append(closest)
    place = np.empty(len(size), np.int64)
    place[[*sequence, *reversed(rear)]] = np.arange(len(size))
    return place
