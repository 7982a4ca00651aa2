"""``PlannedIteration``: a plan for one batch, where it comes from, and what it cost to make."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from semu.job import TrainingJob
from semu.records import dataclass
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.problem.build import JobProblem
from semu.workload.batch import AbstractBatch


class Outcome(Enum):
    """How far planning had come when the plan was needed."""

    PLANNED = "planned"
    BEST_SO_FAR = "best so far"
    HEURISTIC = "heuristic"
    FALLBACK = "fallback"


@dataclass(frozen=True, eq=False)
class PlannedIteration:
    """A batch with the plan to train it by.

    Attributes:
        index: of the iteration, from 0. batch: of it. given: the caller's job with the batch, in which nothing is
            deferred. assigned: which samples are in it, where they are assigned; its deferral is the plan's.
        job: what the plan is for; ``semu.simulate(job, plan=plan)`` runs it. plan: never None.
        outcome: where the plan comes from. heuristic: the heuristic's plan; None: planning did not come so far.
        problem: the job prepared; None: planning did not come so far.
        latency_s: planning until the plan was there, or needed [s]. prepare_s: of that, until the search began [s].
        cpu_s: time of processors that the process used meanwhile [s]; as much as planning, where nothing else ran.
        waited_s: how long the trainer waited for the plan [s]. rollouts, moves: of the search.
        ended_by: why the search ended; empty: it did not. error: what planning raised; None: nothing.
    """

    index: int
    batch: AbstractBatch
    given: TrainingJob
    job: TrainingJob
    plan: StagePlan
    outcome: Outcome
    heuristic: StagePlan | None = field(repr=False)
    problem: JobProblem | None = field(repr=False)
    latency_s: float
    prepare_s: float
    cpu_s: float
    waited_s: float
    rollouts: int
    moves: int
    ended_by: str
    error: str | None
    assigned: Assignment | None = None
