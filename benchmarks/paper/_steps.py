"""DIP in steps, as its ablation takes them (Table 5): what each leaves to the one before it.

    partitioned     modules cut apart and into sub-microbatches (§4), under Megatron-LM's interleaved 1F1B: ``no-opt``
    interleaved     the order of stages by the dual queue (§5.2), segments in their natural order
    reordered       the order of segments searched (§5.1), without moves of single stages, which are semu's own
    optimised       memory strategies of every layer (§5.3), beside the search over orders
    best            what ``semu.search`` does beyond that

The first three recompute the same number of layers of every chunk, as the choices say of baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import semu
from benchmarks.paper._jobs import FEWEST, on_batch, planning_batches, search_options
from benchmarks.paper.choices import Choices
from semu.errors import MemoryLimitError
from semu.searcher.fit import settled
from semu.searcher.job_search import job_problem
from semu.searcher.orders.budgeted import SearchResult, search_problem
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.partitioning import partition
from semu.searcher.plain_jobs import plain_job
from semu.searcher.problem.build import JobProblem, build_problem
from semu.searcher.problem.search_problem import SearchProblem
from semu.simulation import JobCheckpoint, prepare
from semu.workload.batch import AbstractBatch


@dataclass(frozen=True)
class Step:
    """An iteration under one step.

    Attributes:
        time_s: [s]. fits: in the device's memory. mfu: model FLOP utilisation.
    """

    time_s: float
    fits: bool
    mfu: float

    @classmethod
    def of(cls, checkpoint: JobCheckpoint, schedule: str | None = None) -> Step:
        """A prepared job, simulated."""
        found = checkpoint.estimate(schedule)
        return cls(found.iteration_time_s, found.fits, found.mfu)


@dataclass(frozen=True)
class Cut:
    """A job under the partitioner, with so many layers of every chunk recomputed.

    Attributes:
        job: without layout and schedule. choices: of it. again: recomputed layers of a chunk, the first ones.
    """

    job: semu.TrainingJob
    choices: Choices
    again: int

    def prepared(self) -> JobCheckpoint:
        """Before its schedule: chunks, sub-microbatches of the job's batch, one variant of every chunk."""
        plan = partition(self.job, **search_options(self.job, self.choices)).plan()
        chunks = prepare(self.job, plan=plan).layout.chunks
        counts = [sum(block.is_layer for block in chunk.blocks) for chunk in chunks]
        words = [("full",) * min(self.again, n) + ("none",) * max(n - self.again, 0) for n in counts]
        return prepare(self.job, plan=replace(plan, variants=tuple((own,) for own in words)))

    def on(self, seed: int) -> Cut:
        """The same on another iteration's data; sub-microbatches follow it, chunks too, as the partitioner has them."""
        return replace(self, job=on_batch(self.job, self.choices, seed))

    def partitioned(self) -> Step:
        """Under Megatron-LM's interleaved 1F1B."""
        return Step.of(self.prepared(), "interleaved")

    def interleaved(self) -> Step:
        """Under the dual queue."""
        return ordered(build_problem(self.prepared()), self.choices, rollouts=0)

    def reordered(self) -> Step:
        """Under the dual queue and the best order of segments that was found."""
        return ordered(build_problem(self.prepared()), self.choices, rollouts=self.choices.rollouts.value)


def cut_of(job: semu.TrainingJob, choices: Choices, workload: Sequence[AbstractBatch] | None = None) -> Cut:
    """A job under the partitioner, recomputed as the choices say of baselines.

    Args:
        job: of ``job_of``. workload: batches in which recomputation must fit; None: ``planning_batches``.
    """
    plain, _ = plain_job(job)
    most = max(len(module.blocks()) for module in job.model.modules)
    how = choices.recompute.value
    if how != FEWEST:
        return Cut(plain, choices, 0 if how == "none" else most)
    batches = planning_batches(job, choices) if workload is None else workload
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        trials = [Cut(replace(plain, batch=batch), choices, middle) for batch in batches]
        if all(trial.partitioned().fits for trial in trials):
            high = middle
        else:
            low = middle + 1
    return Cut(plain, choices, low)


def optimised(job: semu.TrainingJob, choices: Choices) -> Step:
    """All of DIP: orders from the leanest candidates, memory strategies for each (§5.2, §5.3), no moves of stages."""
    return ordered(_problem(job, choices), choices, rollouts=choices.rollouts.value)


def best(job: semu.TrainingJob, choices: Choices) -> Step:
    """What ``semu.search`` finds: also from less lean candidates, and with moves of single stages."""
    budget = Budget(rollouts=choices.rollouts.value, workers=choices.workers.value)
    seed = choices.search_seed.value
    return _simulated(_problem(job, choices), lambda problem: search_levels(problem, budget, seed=seed))


def ordered(built: JobProblem, choices: Choices, *, rollouts: int) -> Step:
    """The best order of segments that was found, simulated in full; within memory where one was found.

    Args:
        built: the problem. rollouts: 0: segments in their natural order.
    """
    budget = Budget(rollouts=rollouts, workers=choices.workers.value)
    seed = choices.search_seed.value
    return _simulated(built, lambda problem: search_problem(problem, budget, seed=seed, refine=False))


def _problem(job: semu.TrainingJob, choices: Choices) -> JobProblem:
    return job_problem(plain_job(job)[0], **search_options(job, choices))[1]


def _simulated(built: JobProblem, find: Callable[[SearchProblem], SearchResult]) -> Step:
    """A schedule that fits in its full simulation, as ``semu.search`` settles for one; infinite: none was found."""
    try:
        _, fitting, solution = settled(built, lambda limited: find(limited.problem))
    except MemoryLimitError:
        return Step(np.inf, False, 0.0)
    return Step.of(fitting.simulated(fitting.plan_of(solution)))
