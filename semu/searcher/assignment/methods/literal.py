"""``entrain-literal``: Entrain as its text has it: stratified samples, then pairwise deferral (001 algorithm 4)."""

from __future__ import annotations

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
        dealt: without deferral. An unpaired microbatch comes last.
    """
    count = dealt.num_microbatches
    microbatch, reader = np.empty_like(dealt.microbatch), np.empty_like(dealt.reader)
    order = np.argsort(dealt.bins, kind="stable")
    first = np.searchsorted(dealt.bins[order], np.arange(problem.dp * count + 1))
    held = np.bincount(dealt.bins, weights=problem.tokens, minlength=problem.dp * count).astype(np.int64)
    for replica in range(problem.dp):
        at = replica * count
        members = [order[first[at + k] : first[at + k + 1]] for k in range(count)]
        room = None
        if problem.limit is not None:
            room = [(problem.tokens[own], problem.limit - int(held[at + k])) for k, own in enumerate(members)]
        found = pair_up([problem.backbone[own] for own in members], room)
        for number, (pair, waits) in enumerate(zip(found.pairs, found.deferred, strict=True)):
            for place, own in ((2 * number, members[pair[0]]), (2 * number + 1, members[pair[1]])):
                microbatch[own] = reader[own] = place
            reader[members[pair[0]][waits]] = 2 * number + 1
        if found.unpaired is not None:
            own = members[found.unpaired]
            microbatch[own] = reader[own] = count - 1
    return Dealt(dealt.replica, microbatch, reader, count)
