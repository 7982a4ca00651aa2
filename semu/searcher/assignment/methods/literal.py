"""``entrain-literal``: Entrain as its text has it: stratified samples, then pairwise deferral (001 algorithm 4)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from semu.searcher.assignment.deferral import pair_up
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
    count = dealt.num_microbatches
    microbatch, reader = np.empty_like(dealt.microbatch), np.empty_like(dealt.reader)
    order = np.argsort(dealt.bins, kind="stable")
    first = np.searchsorted(dealt.bins[order], np.arange(problem.dp * count + 1))
    held = np.bincount(dealt.bins, weights=problem.tokens, minlength=problem.dp * count).astype(np.int64)
    rooms = None if problem.limit is None else (problem.limit - held).reshape(problem.dp, count)
    weight, tokens = problem.backbone[order], problem.tokens[order]
    for replica in range(problem.dp):
        ptr = first[replica * count : (replica + 1) * count + 1]
        own = slice(ptr[0], ptr[-1])
        found = pair_up(ptr - ptr[0], weight[own], tokens[own], None if rooms is None else rooms[replica])
        members = [order[begin:end] for begin, end in pairwise(ptr.tolist())]
        for number, ((over, under), waits) in enumerate(zip(found.pairs, found.deferred, strict=True)):
            microbatch[members[over]], microbatch[members[under]] = 2 * number, 2 * number + 1
            reader[members[over]] = 2 * number + waits
            reader[members[under]] = 2 * number + 1
        if found.unpaired is not None:
            microbatch[members[found.unpaired]] = reader[members[found.unpaired]] = count - 1
    is_text = problem.encoder == 0  # nothing of it waits: it is in the microbatch that reads it
    return Dealt(dealt.replica, np.where(is_text, reader, microbatch), reader, count)
