"""``entrain-literal``: Entrain as its text has it: stratified samples, then pairwise deferral (001 algorithm 4)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from semu.searcher.assignment.dealing import sorted_by
from semu.searcher.assignment.deferral import FEW, pair_up
from semu.searcher.assignment.methods.stratified import deal_stratified
from semu.searcher.assignment.problem import AssignmentProblem, Dealt


def deal_literal(problem: AssignmentProblem) -> Dealt:
    """Stratified samples (``stratified``), and in every replica pairs of microbatches of which the one with more load
    of the backbone leaves samples to the one behind it."""
    return deferred(problem, deal_stratified(problem))


def deferred(problem: AssignmentProblem, dealt: Dealt) -> Dealt:
    """Microbatches paired, reordered (overloaded, underloaded, overloaded, ...) and partly deferred.

    Args:
        dealt: without deferral. An unpaired microbatch comes last. Samples without items change microbatches whole.
    """
    from semu.searcher.assignment.kernels.pairs import pair_replicas

    dp, count = problem.dp, dealt.num_microbatches
    order = sorted_by(dealt.bins)
    first = np.searchsorted(dealt.bins[order], np.arange(dp * count + 1))
    held = np.bincount(dealt.bins, weights=problem.tokens, minlength=dp * count).astype(np.int64)
    rooms = np.full((dp, count), -1) if problem.limit is None else (problem.limit - held).reshape(dp, count)
    weight, tokens = problem.backbone[order], problem.tokens[order]
    place, waits, is_left = np.empty((dp, count), np.int64), np.empty((dp, count), np.int64), np.empty(dp, np.int64)
    pair_replicas(first, weight, tokens, rooms, FEW, place, waits, is_left)
    number = dealt.bins[order]
    microbatch, reader = np.empty_like(dealt.microbatch), np.empty_like(dealt.reader)
    microbatch[order] = place.ravel()[number]
    reader[order] = microbatch[order] + (
        waits.ravel()[number] >> np.minimum(np.arange(len(number)) - first[number], 62) & 1
    )
    for replica in np.flatnonzero(is_left).tolist():  # microbatches of many samples
        ptr = first[replica * count : (replica + 1) * count + 1]
        own = slice(ptr[0], ptr[-1])
        found = pair_up(ptr - ptr[0], weight[own], tokens[own], None if problem.limit is None else rooms[replica])
        members = [order[begin:end] for begin, end in pairwise(ptr.tolist())]
        for pair, ((over, under), some) in enumerate(zip(found.pairs, found.deferred, strict=True)):
            microbatch[members[over]], microbatch[members[under]] = 2 * pair, 2 * pair + 1
            reader[members[over]] = 2 * pair + some
            reader[members[under]] = 2 * pair + 1
        if found.unpaired is not None:
            microbatch[members[found.unpaired]] = reader[members[found.unpaired]] = count - 1
    is_text = problem.encoder == 0  # nothing of it waits: it is in the microbatch that reads it
    return Dealt(dealt.replica, np.where(is_text, reader, microbatch), reader, count)
