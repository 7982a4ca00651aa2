"""``stratified``: Entrain's first phase, without deferral (001 §4.3, §4.5.1, algorithm 4 lines 1 to 6)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.searcher.assignment.dealing import sorted_by, spread, to_microbatches, to_replicas
from semu.searcher.assignment.problem import I64, AssignmentProblem, Dealt


def deal_stratified(problem: AssignmentProblem) -> Dealt:
    """By the text's own rules: samples by encoder load descending to the replica with the least load of the backbone;
    within it coarse samples, then fine ones, each by encoder load descending, to the microbatch with the least encoder
    load. Coarse are samples whose load of the backbone is above the replica's median, which the text leaves open.

    The text's replicas may hold any number of samples, and a microbatch any number of tokens; where there is a limit
    that they do not keep, samples stay in their own order.
    """
    base = np.zeros(1, np.int64)
    by_encoder = sorted_by(-problem.backbone, -problem.encoder)
    replica = to_replicas(problem, by_encoder, problem.backbone[:, None].copy(), base, problem.num_microbatches)
    if replica is not None:
        count = effective_count(problem, replica)
        is_fine = problem.backbone <= medians(problem.backbone, replica, problem.dp)[replica]
        order = by_encoder[np.argsort(is_fine[by_encoder], kind="stable")]
        bins = to_microbatches(problem, replica, order, problem.encoder[:, None].copy(), base, count)
        if bins is not None:
            return Dealt.together(replica, bins - replica * count, count)
    return Dealt.together(*spread(problem), problem.num_microbatches)


def medians(values: I64, group: I64, count: int) -> NDArray[np.float64]:
    """Median of every group: float64[count]; 0 of an empty one.

    Args:
        values, group: int64[n]. count: groups.
    """
    ascending = values[sorted_by(values, group)]
    size = np.bincount(group, minlength=count)
    first = np.cumsum(size) - size
    lower, upper = (
        ascending[np.minimum(first + at, len(values) - 1)] for at in (np.maximum(size - 1, 0) // 2, size // 2)
    )
    return np.where(size > 0, (lower + upper) / 2, 0.0)


def effective_count(problem: AssignmentProblem, replica: I64) -> int:
    """K_eff = min(K, floor(sum of encoder loads / largest encoder load)), the same in all replicas: the least of them,
    even, and as many as the pipeline has ranks where K allows it; K where samples have no encoder load, or where a
    limit of tokens needs all of them.

    Args:
        replica: int64[n], of every sample.
    Source:
        001 algorithm 4 line 3. One number for all replicas, and an even one, is ours: replicas exchange gradients, and
        pairs need partners.
    """
    most = problem.num_microbatches
    largest = np.zeros(problem.dp, np.int64)
    np.maximum.at(largest, replica, problem.encoder)
    total = np.bincount(replica, weights=problem.encoder, minlength=problem.dp).astype(np.int64)
    count = int(np.min(total[largest > 0] // largest[largest > 0], initial=most))
    count = max(count - count % 2, min(problem.load.shape[1], most), 1)
    if problem.limit is not None:
        held = np.bincount(replica, weights=problem.tokens, minlength=problem.dp).max()
        count = max(count, min(most, -(-int(held) // problem.limit)))
    return most if count >= most - 1 else count
