"""``entrain``: starts coupled, and defers only where the simulated iteration gains.

Balance does not decide: microbatches that deferral has made even can take longer, as encoders run their backwards in
two parts and late. So the slowest replica under fitted costs does; deferral must gain more than these costs are off,
as it asks something of a data loader. Candidates are ``coupled``, ``disttrain``, ``even``, the text's own rules,
stratified samples without deferral, and coupled samples with pairs that defer. Where sequences are nearly full, samples
are hard to move, most of these begin at the order of the file, and a drawn order is a candidate too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semu.errors import ConfigError, ScheduleError
from semu.searcher.assignment.dealing import summed
from semu.searcher.assignment.methods.coupled import dealt_by, ordered
from semu.searcher.assignment.methods.disttrain import deal_disttrain
from semu.searcher.assignment.methods.even import dealt_evenly
from semu.searcher.assignment.methods.literal import deferred
from semu.searcher.assignment.methods.shuffled import deal_at_random
from semu.searcher.assignment.methods.stratified import deal_stratified
from semu.searcher.assignment.problem import AssignmentProblem, Dealt

LEAST_GAIN = 2e-3
"""Of the iteration, below which nothing is deferred: pipelines of fitted costs are 0.04 to 0.4 % off the simulated ones
(DECISIONS 141)."""
FULL = 0.9
"""Share of their tokens from which microbatches count as full."""
FEW_REPLICAS = 4
"""Below which all replicas of a candidate are looked at together."""
Finish = Callable[[AssignmentProblem, Dealt], tuple[Dealt, float]]
"""What a candidate does inside every replica by itself, after samples went to replicas and microbatches; and the end of
the slowest replica then [s]."""


def deal_entrain(problem: AssignmentProblem) -> Dealt:
    """The candidate with the shortest iteration; of equal ones the first, which defers nothing.

    Of a candidate the busiest replica is looked at first, alone: where it takes longer than the shortest iteration, the
    others need not be.
    """
    coupled, shortest = ordered(problem, dealt_by(problem, problem.columns, problem.base))
    candidates: list[tuple[Dealt, Finish]] = [(deal_disttrain(problem), _as_dealt)]
    if problem.encoder.any():
        stratified = deal_stratified(problem)
        even = dealt_evenly(problem), ordered
        candidates += [even, (stratified, _as_dealt), (stratified, _deferred), (coupled, _deferred)]
    if (
        problem.limit is not None
        and problem.tokens.sum() > FULL * problem.limit * problem.dp * problem.num_microbatches
    ):
        candidates.append((deal_at_random(problem), ordered))
    best = coupled
    for dealt, finish in candidates:
        try:
            if problem.dp >= FEW_REPLICAS and not _is_shorter(*finish(*_busiest(problem, dealt)), shortest):
                continue
            found, lasts = finish(problem, dealt)
        except (ConfigError, ScheduleError):  # a job that cannot defer: another schedule, another sharding
            continue
        if _is_shorter(found, lasts, shortest):
            best, shortest = found, lasts
    return best


def _as_dealt(problem: AssignmentProblem, dealt: Dealt) -> tuple[Dealt, float]:
    return dealt, problem.worst_s(dealt)


def _deferred(problem: AssignmentProblem, dealt: Dealt) -> tuple[Dealt, float]:
    return _as_dealt(problem, deferred(problem, dealt))


def _is_shorter(dealt: Dealt, lasts: float, shortest: float) -> bool:
    """Whether a candidate is shorter, by enough where it defers."""
    return lasts < shortest * (1 - LEAST_GAIN if dealt.is_deferred.any() else 1)


def _busiest(problem: AssignmentProblem, dealt: Dealt) -> tuple[AssignmentProblem, Dealt]:
    """The replica with the rank that has most to do, alone."""
    load = summed(problem.load, dealt.replica, problem.dp) * problem.slowdown[:, None]
    return problem.of_replica(dealt, int(np.argmax(load.max(axis=1))))
