"""``random``: samples in a drawn order, as evenly by number as they fit; a shuffling data loader."""

from __future__ import annotations

import numpy as np

from semu.searcher.assignment.dealing import ALIKE, spread
from semu.searcher.assignment.problem import AssignmentProblem, Dealt


def deal_at_random(problem: AssignmentProblem) -> Dealt:
    """Every sample, in a drawn order, to the microbatch with the fewest samples that has room for its tokens; where one
    finds no room, to that with the fewest tokens; then the same, samples of more than half a microbatch
    first; where that fails too, the samples' own order.

    Source:
        ``numpy.random.PCG64`` of the seed; ours.
    """
    from semu.searcher.assignment.kernels.bins import deal

    order = np.random.Generator(np.random.PCG64([problem.seed, 0xA551])).permutation(problem.num_samples)
    ones, first = np.ones((problem.num_samples, 1), np.int64), np.zeros(problem.num_samples, np.int64)
    bins, count = np.empty(problem.num_samples, np.int64), problem.num_microbatches
    base = np.zeros(1, np.int64)
    tokens = problem.tokens[:, None].copy()
    is_small = problem.tokens[order] <= (problem.limit or 0) / 2
    large_first = order[np.argsort(is_small, kind="stable")]
    for size, sequence in ((ones, order), (tokens, order), (tokens, large_first)):
        if not deal(sequence, first, problem.dp * count, size, base, problem.tokens, problem.cap, ALIKE, bins):
            return Dealt.together(bins % problem.dp, bins // problem.dp, count)
    return Dealt.together(*spread(problem), count)
