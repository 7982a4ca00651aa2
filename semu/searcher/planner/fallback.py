"""``Fallback``: a schedule that is legal for every batch, made before the first batch.

Where a plan must be there and nothing has been planned, the chunks stay where they are (DIP §3.2), all modules run
whole microbatches, every chunk under its leanest variant, and the stages run in the dual queue's order for microbatches
of the mean size. What must be ordered then depends on the number of microbatches alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.distinct import sorted_distinct
from semu.errors import MemoryLimitError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.schedule.passes import defer_backward
from semu.schedule.schedule import Schedule, StageKey
from semu.schedule.stage_plan import StagePlan
from semu.searcher.orders.interleave import Interleaver
from semu.searcher.orders.space import OrderSpace
from semu.searcher.problem.build import JobProblem, build_problem
from semu.searcher.problem.problem_arrays import I32
from semu.searcher.problem.search_problem import SearchProblem
from semu.simulation import prepare

ROOM = 0.9
"""Part of the memory above the static one that microbatches of the mean size may take; others are larger."""
NAME = "fallback"
"""Of its schedules."""


class Fallback:
    """Schedules of whole microbatches, by their number.

    Args:
        job: with a batch to take sizes from. template: chunks and variants.
    """

    def __init__(self, job: TrainingJob, template: StagePlan) -> None:
        self._template = replace(template, parts={}, choice=(), orders=None, problem=None)
        self._built = build_problem(prepare(job, plan=self._template))

    def plan(self, num_microbatches: int) -> StagePlan:
        """The plan for a number of microbatches per replica."""
        return _PLANS.get(self, num_microbatches, lambda: self._made(num_microbatches))

    def deferring(self, job: TrainingJob, cut: StagePlan) -> StagePlan:
        """The plan for what an assignment defers: that of whole microbatches, in which encoders' backwards of samples
        that wait come behind those of their readers. The order depends on the number of microbatches alone.

        Args:
            job: with the assignment's batch. cut: ``Assignment.cut`` without sizes.
        """
        key = job.num_microbatches
        return replace(_DEFERRING.get(self, key, lambda: self._deferred(job, cut)), items=cut.items)

    def _deferred(self, job: TrainingJob, cut: StagePlan) -> StagePlan:
        count = job.num_microbatches
        whole = self.plan(count)
        assert whole.orders is not None
        template = replace(self._template, parts=cut.parts, items=cut.items, reads=cut.reads)
        shape = prepare(job, plan=template).pipeline_shape
        runs = [len(shape.every_part(chunk)) for chunk in range(shape.num_chunks)]
        choice = tuple((variants[0],) * n for variants, n in zip(whole.choice, runs, strict=True))
        return replace(template, choice=choice, orders=defer_backward(whole.orders, shape, NAME))

    def _made(self, count: int) -> StagePlan:
        problem, chunk = _repeated(self._built, count)
        space = OrderSpace.of(problem)
        forward, backward = space.orders(space.default[None])
        try:
            found = Interleaver(problem).solution(forward[0], backward[0])
            orders = found.orders()
        except MemoryLimitError:
            orders = _one_by_one(problem)
        stages = [
            [StageKey(int(chunk[s // 2]), _PHASE[s % 2], int(problem.microbatch[s // 2])) for s in own.tolist()]
            for own in orders
        ]
        costs, leanest = self._built.costs, self._built.variant[:, 0]
        variant = [int(np.bincount(leanest[costs.chunk == c]).argmax()) for c in range(costs.shape.num_chunks)]
        choice = tuple((own,) * count for own in variant)
        return replace(self._template, choice=choice, orders=Schedule.build(NAME, stages))


_DEFERRING = memo.ScopedTable[StagePlan]("plans of a fallback that defer, by number of microbatches", 8)
_PLANS = memo.ScopedTable[StagePlan]("plans of a fallback, by number of microbatches", 8)
_PHASE = (Phase.FORWARD, Phase.BACKWARD)


def _repeated(built: JobProblem, count: int) -> tuple[SearchProblem, I32]:
    """``count`` microbatches of the mean size with the leanest candidates, and the chunk of every pair."""
    problem, order = built.problem, np.lexsort((built.problem.chunk, built.problem.microbatch))
    before = len(sorted_distinct(problem.microbatch))
    n = problem.num_pairs // before
    one = order[:n]  # of the first microbatch; the others have the same pairs

    def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = values[order].reshape(before, n).mean(axis=0)
        return found

    def _most(values: NDArray[np.int64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = values[order].reshape(before, n).max(axis=0)
        return found

    place = np.zeros(problem.num_pairs, dtype=np.int64)
    place[order] = np.arange(problem.num_pairs)
    ends = [2 * place[end // 2] + end % 2 for end in problem.edges]
    by_end = np.lexsort(ends)
    source, target = ends[0][by_end], ends[1][by_end]
    edges = len(source) // before
    sent = problem.transfer_s[by_end].reshape(before, edges).mean(axis=0)
    again, modules = np.repeat(np.arange(count), n), len(problem.module_names)
    pred = np.concatenate([source[:edges] + 2 * n * i for i in range(count)])
    readers = np.bincount(target[:edges], minlength=2 * n)
    room = problem.limit_bytes - problem.static_bytes
    labels = {name: np.tile(getattr(problem, name)[one], count) for name in ("rank", "has_backward", "module", "slot")}
    costs = {name: np.tile(_mean(getattr(problem, name)[:, 0]), count) for name in ("forward_s", "backward_s")}
    sizes = ("held_bytes", "forward_peak_bytes", "backward_peak_bytes")
    costs |= {name: np.tile(_most(getattr(problem, name)[:, 0]), count) for name in sizes}
    chunk = np.tile(problem.chunk[one], count).astype(np.int32)
    found = SearchProblem.of(
        **labels,
        **costs,
        microbatch=again,
        part=np.zeros(n * count),
        chunk=chunk,
        group=modules * again + labels["module"],
        segment=np.unique(np.stack((labels["module"], labels["slot"], again), 1), axis=0, return_inverse=True)[
            1
        ].reshape(-1),
        num_candidates=np.ones(n * count),
        pred_ptr=np.concatenate(([0], np.cumsum(np.tile(readers, count)))),
        pred=pred,
        transfer_s=np.tile(sent, count),
        static_bytes=problem.static_bytes,
        limit_bytes=problem.static_bytes + (ROOM * room).astype(np.int64),
        module_names=problem.module_names,
    )
    return found, chunk


def _one_by_one(problem: SearchProblem) -> list[I32]:
    """Microbatch after microbatch, forwards and then backwards: what needs the least memory."""
    stages = problem.topological
    order = stages[np.lexsort((np.arange(len(stages)), stages % 2, problem.microbatch[stages // 2]))]
    return [order[problem.stage_rank[order] == rank] for rank in range(problem.num_ranks)]
