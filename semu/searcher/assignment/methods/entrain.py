"""``entrain``: starts coupled, and defers only where the simulated iteration gains.

Balance does not decide: microbatches that deferral has made even can take longer, as encoders run their backwards in
two parts and late. So the slowest replica under fitted costs does; deferral must gain more than these costs are off,
as it asks something of a data loader. Candidates are ``coupled``, ``disttrain``, the
text's own rules, stratified samples without deferral, and coupled samples with pairs that defer.
"""

from __future__ import annotations

from semu.errors import ConfigError, ScheduleError
from semu.searcher.assignment.methods.coupled import deal_coupled
from semu.searcher.assignment.methods.disttrain import deal_disttrain
from semu.searcher.assignment.methods.literal import deferred
from semu.searcher.assignment.methods.stratified import deal_stratified
from semu.searcher.assignment.problem import AssignmentProblem, Dealt

LEAST_GAIN = 2e-3
"""Of the iteration, below which nothing is deferred: pipelines of fitted costs are 0.04 to 0.4 % off the simulated ones
(DECISIONS 141)."""


def deal_entrain(problem: AssignmentProblem) -> Dealt:
    """The candidate with the shortest iteration; of equal ones the first, which defers nothing."""
    coupled = deal_coupled(problem)
    candidates = [coupled, deal_disttrain(problem)]
    if problem.encoder.any():
        stratified = deal_stratified(problem)
        candidates += [stratified, deferred(problem, stratified), deferred(problem, coupled)]
    best, shortest = coupled, problem.worst_s(coupled)
    for candidate in candidates[1:]:
        try:
            lasts = problem.worst_s(candidate)
        except (ConfigError, ScheduleError):  # a job that cannot defer: another schedule, another sharding
            continue
        if lasts < shortest * (1 - LEAST_GAIN if candidate.is_deferred.any() else 1):
            best, shortest = candidate, lasts
    return best
