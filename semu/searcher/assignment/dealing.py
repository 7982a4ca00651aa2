"""Dealing samples to replicas and microbatches greedily; what methods are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.searcher.assignment.problem import I64, AssignmentProblem
from semu.workload.packing import offsets

MOST_STEPS = 4_000_000
"""Pairs of samples that a local search looks at in all replicas together, about."""


ALIKE = np.empty(0, np.int64)
"""Slowness of bins that are alike."""


def sorted_by(*keys: I64) -> I64:
    """Numbers of items by the last key, ascending; of equal ones by the key before it, in the end by number: int64[n].

    As ``np.lexsort``, several times as fast: keys are sorted as whole numbers with the place of each item behind them.

    Args:
        keys: int64[n] each.
    """
    order = np.arange(len(keys[0]))
    bits = len(order).bit_length()
    for key in keys:
        own = key[order]
        least = own.min(initial=np.iinfo(np.int64).max)
        if len(order) and int(own.max()) - int(least) >= 1 << (62 - bits):
            order = order[np.argsort(own, kind="stable")]
            continue
        order = order[np.sort((own - least << bits) + np.arange(len(order))) & ((1 << bits) - 1)]
    return order


def to_replicas(
    problem: AssignmentProblem, order: I64, load: I64, base: I64, count: int, slowness: I64 = ALIKE
) -> I64 | None:
    """Every sample, in order, to the replica that is lowest with it, and at least ``count`` of them to each: int64[n];
    None: they do not fit.

    Args:
        order: int64[n]. load: int64[n, num_columns]. base: int64[num_columns], of every bin.
        count: microbatches of a replica. slowness: int64[dp], of replicas that are not alike.
    """
    cap = -1 if problem.limit is None else problem.limit * count
    bin_of = _dealt(order, np.zeros_like(order), problem.dp, load, base, problem.tokens, cap, slowness)
    if bin_of is None:
        return None
    held = np.bincount(bin_of, minlength=problem.dp)
    while held.min() < count <= problem.num_samples // problem.dp:  # the last, smallest one of the fullest replica
        few, many = int(held.argmin()), int(held.argmax())
        bin_of[order[bin_of[order] == many][-1]] = few
        held += np.bincount([few], minlength=problem.dp) - np.bincount([many], minlength=problem.dp)
    return bin_of


def to_microbatches(
    problem: AssignmentProblem, replica: I64, order: I64, load: I64, base: I64, count: int
) -> I64 | None:
    """Every sample, in order, to the microbatch of its replica that is lowest with it: int64[n], bins of all replicas;
    None: they do not fit.

    Args:
        replica: int64[n]. order, load, base, count: as ``to_replicas``.
    """
    order = order[sorted_by(replica[order])]
    return _dealt(order, replica * count, count, load, base, problem.tokens, problem.cap, ALIKE)


def _dealt(
    order: I64, first_bin: I64, num_bins: int, load: I64, base: I64, tokens: I64, limit: int, slowness: I64
) -> I64 | None:
    """As the kernel; None: an item finds no room. Items are laid in order first, as many do not fit into a cache."""
    from semu.searcher.assignment.kernels.bins import deal

    number, found, bin_of = np.arange(len(order)), np.empty_like(order), np.empty_like(order)
    own = np.take(load, order, axis=0)
    if deal(number, first_bin[order], num_bins, own, base, tokens[order], limit, slowness, found):
        return None
    bin_of[order] = found
    return bin_of


def improved(problem: AssignmentProblem, bins: I64, count: int, load: I64, base: I64) -> I64:
    """Bins after a local search within every replica.

    Args:
        bins: int64[n], replica x count + microbatch. count: microbatches of a replica. load, base: as ``to_replicas``.
    """
    from semu.searcher.assignment.kernels.bins import improve

    replica = bins // count
    items = sorted_by(replica)
    ptr = offsets(np.bincount(replica, minlength=problem.dp))
    own = problem.num_samples / problem.dp
    rounds = int(max(4, min(8 * count, MOST_STEPS / problem.dp / max(1.0, own * own / count))))
    result = bins.copy()
    improve(ptr, items, count, load, base, problem.tokens, problem.cap, rounds, result)
    return result


def spread(problem: AssignmentProblem) -> tuple[I64, I64]:
    """The samples in their own order, packed: replicas and microbatches, int64[n] each; packed sequence j is microbatch
    j // dp of replica j % dp, as a job's batch has it."""
    number = np.repeat(np.arange(len(problem.bounds) - 1), np.diff(problem.bounds))
    return number % problem.dp, number // problem.dp


def summed(values: I64, bins: I64, count: int) -> NDArray[np.float64]:
    """Sums of columns of samples by bin: float64[count, num_columns], exact below 2^53."""
    from semu.searcher.assignment.kernels.bins import sum_by_bin

    total = np.zeros((count, values.shape[1]))
    sum_by_bin(values, bins, total)
    return total


def check_filled(problem: AssignmentProblem, bins: I64, count: int) -> None:
    """Refuse an empty microbatch.

    Raises:
        ConfigError: there is one.
    """
    empty = np.flatnonzero(np.bincount(bins, minlength=problem.dp * count) == 0)
    if empty.size:
        replica, microbatch = divmod(int(empty[0]), count)
        raise ConfigError(
            f"an empty microbatch: {microbatch} of replica {replica}",
            where="samples",
            expected=f"at least {problem.dp * count} samples, one for every microbatch",
            got=problem.num_samples,
            nearest=problem.dp * count,
        )
