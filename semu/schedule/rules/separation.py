"""``separate``: gradient separation of any schedule (FlexPipe §5.2, Fig. 10); ``Separated``: of a rule's order.

Where a rank idles, something that it waits for is held up by a backward elsewhere. That backward is split: its input
gradient goes on at once, its weight gradient is put off into a later bubble of its rank. Forwards and input gradients
keep their order, or move up into gaps where that makes the pipeline shorter; memory bounds how much is put off.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu import memo
from semu.records import dataclass
from semu.schedule.graph import Wait, pointers, waiting_graph
from semu.schedule.passes import merge_backward
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, WEIGHT
from semu.schedule.rules.expressions import Number
from semu.schedule.rules.limits import activation_limit
from semu.schedule.rules.rule import Rule, by_rank, one_value
from semu.schedule.schedule import Schedule, StageColumns
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
WAYS = tuple(
    (window, slack, is_eager, is_patient)
    for window, is_patient in ((1, True), (64, True), (64, False))
    for slack, is_eager in ((0.0, False), (0.5, False), (0.0, True))
)
"""What is tried: how far stages may move up, how readily weight gradients fill gaps; see ``separate_orders``."""


class _Flow(NamedTuple):
    """Forwards and input gradients by stage number, and what they wait for; see ``separate_orders``.

    Attributes:
        given, taken: int64, positions of ``pred`` and of ``succ`` among the graph's predecessors.
    """

    succ_ptr: I32
    succ: I32
    waits: I32
    pred_ptr: I32
    pred: I32
    rank: I32
    given: I64
    taken: I64


@memo.remembered(64, is_large=True)
def _flow_of(shape: PipelineShape, waits: tuple[Wait, ...]) -> _Flow:
    graph = waiting_graph(shape, waits)
    after = np.repeat(np.arange(graph.num_stages), np.diff(graph.pred_ptr))
    place = np.flatnonzero((after % 4 == FORWARD) | (after % 4 == INPUT))
    before = graph.pred[place] + np.where(graph.pred[place] % 4 == BACKWARD, INPUT - BACKWARD, 0)
    after = after[place]
    by_before = np.argsort(before, kind="stable")
    return _Flow(
        pointers(before, graph.num_stages),
        after[by_before].astype(np.int32),
        np.bincount(after, minlength=graph.num_stages).astype(np.int32),
        pointers(after, graph.num_stages),
        before.astype(np.int32),
        graph.rank,
        place,
        place[by_before],
    )


def separate(schedule: Schedule, study: PipelineStudy, limit_bytes: ArrayLike | None = None) -> Schedule:
    """A schedule with weight gradients in its bubbles.

    Never longer than the schedule; separated again, it stays as it is. A backward stays whole where its weight gradient
    would follow at once and nothing is gained.

    Args:
        schedule: legal for the study's pipeline; its backwards may be split already.
        study: the pipeline with its costs, of input and weight gradients too.
        limit_bytes: of activations, one number or one per rank [bytes]; by default what the schedule itself holds.
    Raises:
        MemoryLimitError: the schedule itself does not fit. ScheduleError: it deadlocks.
    """
    found = study.evaluate(schedule)
    limit = np.array(found.peak_bytes, dtype=np.int64)
    if limit_bytes is not None:
        limit = np.array(np.broadcast_to(np.asarray(limit_bytes, dtype=np.int64), limit.shape))
        found.check_memory(limit)
    best, reached = schedule, found.makespan_s
    while True:
        better = _shortest(best, study, limit)
        if better is None or better[1] >= reached:
            break
        best, reached = better
    return best if best is schedule else _whole_where_free(best, study, limit, reached)


def _shortest(schedule: Schedule, study: PipelineStudy, limit: I64) -> tuple[Schedule, float] | None:
    """The shortest of the ways to separate a schedule's order of forwards and input gradients [s]."""
    from semu.schedule.rules.kernels.separation import separate_orders

    arrays, costs = study.arrays, study.costs
    flow = _flow_of(study.shape, study.waits)
    columns, numbers = schedule.columns, arrays.numbers(schedule)
    kept = columns.phase != WEIGHT
    rank = np.repeat(np.arange(len(columns.ptr) - 1), np.diff(columns.ptr))[kept]
    stages = (numbers + np.where(columns.phase == BACKWARD, INPUT - BACKWARD, 0)).astype(np.int32)[kept]
    ptr = np.concatenate(([0], np.cumsum(np.bincount(rank, minlength=len(limit))))).astype(np.int64)
    total = len(stages) + int(np.count_nonzero(stages % 4 == INPUT))
    edges = (*flow[:6], study.delay_s[flow.given], study.delay_s[flow.taken])
    best: tuple[Schedule, float] | None = None
    for way in WAYS:
        order = np.zeros(total, dtype=np.int32)
        spent = (costs.latency_s, costs.delta_bytes, costs.internal_bytes)
        if separate_orders((ptr, stages), edges, spent, limit, way, order) < total:
            continue  # what moved up took the room of something that others wait for
        made = Schedule(schedule.name, by_rank(arrays, order))
        found = study.evaluate(made)
        if np.all(found.peak_bytes <= limit) and (best is None or found.makespan_s < best[1]):
            best = made, found.makespan_s
    return best


def _whole_where_free(schedule: Schedule, study: PipelineStudy, limit: I64, reached: float) -> Schedule:
    """Backwards whole again, rank by rank, where the weight gradient follows at once and nothing gets longer."""
    whole = merge_backward(schedule)
    orders = [*schedule.orders]
    for rank, order in enumerate(whole.orders):
        before, orders[rank] = orders[rank], order
        found = study.evaluate(Schedule(schedule.name, orders))
        if found.makespan_s > reached or np.any(found.peak_bytes > limit):
            orders[rank] = before
    return Schedule(schedule.name, orders)


@dataclass(frozen=True)
class Separated(Rule):
    """The order of a rule, its weight gradients in its bubbles (FlexPipe Fig. 10).

    Attributes:
        inner: the rule. activations: a rank may hold the activations of so many microbatches, or as much as the rule's
            own order needs where that is more; None: as much as that.
    """

    inner: Rule
    activations: Number | None = None

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return True

    def waiting(self, study: PipelineStudy) -> PipelineStudy:
        """See ``Rule``."""
        return self.inner.waiting(study)

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        return self.on(PipelineStudy.of(shape))

    def on(self, study: PipelineStudy, limit_bytes: ArrayLike | None = None) -> StageColumns:
        """See ``Rule``."""
        study = self.waiting(study)
        given = Schedule("separated", self.inner.on(study, limit_bytes))
        held = study.evaluate(given).peak_bytes
        if limit_bytes is None and self.activations is not None:
            limit_bytes = activation_limit(study, one_value(self.activations, study.shape, "activations", 1))
        return separate(given, study, held if limit_bytes is None else np.maximum(limit_bytes, held)).columns
