"""``order``: samples in the order of the file, packed; what a data loader does that looks at nothing."""

from __future__ import annotations

from semu.searcher.assignment.dealing import spread
from semu.searcher.assignment.problem import AssignmentProblem, Dealt


def deal_in_order(problem: AssignmentProblem) -> Dealt:
    """The packed sequences of the file, in turn to the replicas."""
    return Dealt.together(*spread(problem), problem.num_microbatches)
