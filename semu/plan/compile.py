"""``compile_plan``: a schedule becomes the actions of every rank (PipeWeaver §7.3, Table 2; DIP §6.3).

Stages keep the schedule's order. Launches of sends and receives come where the simulated timeline has messages begin
(``semu.plan.order``, which also says why no plan deadlocks); a send is waited for at the first stage that begins after
the message has arrived, when the simulated timeline frees what was sent; a receive just before the stage that takes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_integer
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.plan.action import ActionKind
from semu.plan.contents import MixedContents, PlanContents, plan_chunks
from semu.plan.order import LaunchOrder, launch_order
from semu.plan.plan import ExecutionPlan, PlanEstimates, PlanMessages, PlanPairs, RankActions, model_hash_of
from semu.plan.postponed import put_off
from semu.plan.timeline import SimulatedStages, simulated_stages
from semu.present.estimate import Estimate
from semu.present.report import Report
from semu.schedule.phases import FORWARD, WEIGHT
from semu.schedule.schedule import Schedule
from semu.schedule.stage_plan import StagePlan
from semu.simulation import JobCheckpoint, prepare
from semu.simulation.memory.reserved import device_room

if TYPE_CHECKING:
    from semu.searcher.report import SearchReport

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

RECEIVES_AHEAD = 16
"""Receives launched before a stage during which their messages begin, at most."""
_LAUNCH, _WAIT_SEND, _WAIT_RECEIVE, _STAGE = range(4)


def compile_plan(
    source: TrainingJob | JobCheckpoint | SearchReport,
    schedule: Schedule | StagePlan | str | None = None,
    *,
    estimate: Estimate | Report | None = None,
    memory_limit_bytes: int | None = None,
    receives_ahead: int = RECEIVES_AHEAD,
) -> ExecutionPlan:
    """Compile a schedule into an execution plan.

    Where stages and messages last as long as simulated, every stage runs exactly when the simulation has it, whether
    sends wait for their receives or not, unless receives had to be put off (``semu.plan.postponed``).

    Args:
        source: a job; a prepared job; or the report of a search, which holds a schedule.
        schedule: an order, a plan, a generator's name; None: that of the job.
        estimate: report of this schedule; None: the schedule is simulated.
        memory_limit_bytes: of every rank; None: what the search had, or the device's memory.
        receives_ahead: most receive buffers that a rank takes before a stage because their messages begin during it,
            as far as its memory goes; the senders of further messages wait for the end of the stage.
    Returns:
        The plan, with estimates of the slowest data-parallel replica.
    Raises:
        ConfigError: a job that this version does not model, memory strategies that a plan cannot say.
        ScheduleError: a schedule for another problem, or one that deadlocks.
    """
    check_integer(receives_ahead, "receives_ahead", "a number of receives", least=0)
    if memory_limit_bytes is not None:
        check_integer(memory_limit_bytes, "memory_limit_bytes", "a size")
    checkpoint, order, searched, limit_bytes = _prepared(source, schedule)
    stages = simulated_stages(checkpoint, order)
    estimate = estimate or searched or checkpoint.estimate(order)
    return _compiled(stages, estimate, memory_limit_bytes or limit_bytes, receives_ahead)


def compile_views(
    views: Sequence[JobCheckpoint], of_ranks: Sequence[int], estimate: Report, stage_gpus: Sequence[int]
) -> ExecutionPlan:
    """Compile a pipeline whose ranks are costed in several jobs, alike but for the GPUs of a rank.

    Args:
        views: the jobs, one whose tensors on a GPU are largest first, all with the latencies of the pipeline itself.
        of_ranks: which of them each rank is costed in. estimate: of the pipeline. stage_gpus: of each rank.
    Returns:
        The plan. Memory of a stage is that of its own view; a message has the bytes of a GPU at the end where they are
        more.
    """
    every = [simulated_stages(view, has_hosts=False) for view in views]
    mixed = MixedContents(every[0], tuple(map(PlanContents, every)), tuple(of_ranks))
    found = _compiled(every[0], estimate, None, RECEIVES_AHEAD, mixed)
    return replace(found, problem={**(found.problem or {}), "stage_gpus": list(stage_gpus)})


def _prepared(
    source: TrainingJob | JobCheckpoint | SearchReport, schedule: Schedule | StagePlan | str | None
) -> tuple[JobCheckpoint, Schedule | str | None, Report | None, int | None]:
    """The job under its plan, the order, its report, and the memory of a rank."""
    plan = schedule if isinstance(schedule, StagePlan) else None
    order = None if isinstance(schedule, StagePlan) else schedule
    if isinstance(source, JobCheckpoint):
        return source if plan is None else source.decided(plan), order, None, None
    if isinstance(source, TrainingJob):
        return prepare(source, plan=plan), order, None, None
    from semu.searcher.report import SearchReport

    if not isinstance(source, SearchReport):
        raise ConfigError(
            "not something to compile",
            where="source",
            expected="a TrainingJob, what prepare() makes of one, or what search() found",
            got=type(source).__name__,
        )
    if schedule is None:
        return source.problem.simulated(source.plan), None, source.report, source.limit_bytes
    checkpoint = source.problem.checkpoint
    return checkpoint.decided(plan if plan is not None else source.plan), order, None, source.limit_bytes


def _compiled(
    stages: SimulatedStages,
    estimate: Estimate | Report,
    limit_bytes: int | None,
    receives_ahead: int,
    contents: PlanContents | None = None,
) -> ExecutionPlan:
    layout, shape = stages.checkpoint.layout, stages.units.shape
    limit = device_room(layout.job).usable_bytes if limit_bytes is None else limit_bytes
    peaks = np.array(estimate.peak_memory_bytes, dtype=np.int64)
    contents = contents or PlanContents(stages)
    num_bytes = contents.message_bytes()
    largest = num_bytes.max(axis=0, initial=0)
    simulated_s = _makespan(stages)
    room = np.where(peaks <= limit, limit - peaks, np.iinfo(np.int64).max)  # else it does not fit anyway
    stages, position = put_off(stages, largest, receives_ahead, room)
    order = launch_order(stages, position)
    chunks = plan_chunks(layout)
    messages = _messages(stages, contents, order, num_bytes)
    actions, spans = _actions(stages, order)
    problem = stages.checkpoint.described()
    return ExecutionPlan(
        name=stages.schedule.name,
        model_hash=model_hash_of(chunks, shape.num_ranks),
        num_ranks=shape.num_ranks,
        num_replicas=layout.job.parallel.replicas,
        num_microbatches=shape.num_microbatches,
        chunks=chunks,
        pairs=contents.pairs,
        messages=messages,
        actions=actions,
        limit_bytes=np.full(shape.num_ranks, limit, dtype=np.int64),
        problem=problem,
        estimates=PlanEstimates(
            inputs_hash=_inputs_hash(stages, problem, contents.pairs, messages),
            iteration_time_s=float(estimate.iteration_time_s) + (_makespan(stages) - simulated_s),
            makespan_s=_makespan(stages),
            peak_memory_bytes=peaks,
            start_s=tuple(begin for begin, _ in spans),
            end_s=tuple(end for _, end in spans),
            replica=int(stages.checkpoint.replicas.first[stages.replica]),
            transfer_start_s=order.time,
            transfer_end_s=order.end,
            memory=contents.memory(),
            buffer_bytes=_buffers(stages, order, largest[order.transfer]),
        ),
        reads={} if layout.recipe.plan is None else dict(layout.recipe.plan.reads),
    )


def _makespan(stages: SimulatedStages) -> float:
    return float(max((stages.end[own].max(initial=0.0) for own in stages.orders), default=0.0))


def _inputs_hash(stages: SimulatedStages, problem: object, pairs: PlanPairs, messages: PlanMessages) -> str:
    """SHA-256 of what a plan was made of: the problem, all latencies and bytes, variants, and the order."""
    digest = hashlib.sha256(json.dumps(problem, sort_keys=True).encode())
    nodes = stages.checkpoint.nodes
    arrays: list[NDArray[Any]] = [nodes.latency, pairs.variant, pairs.items, messages.num_bytes, *stages.orders]
    for array in arrays:
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _messages(stages: SimulatedStages, contents: PlanContents, order: LaunchOrder, num_bytes: I64) -> PlanMessages:
    """The messages in the order of their launches; tags count those of a directed pair of ranks."""
    pair = order.source * stages.num_ranks + order.target
    by_pair = np.argsort(pair, kind="stable")
    tag = np.empty(len(pair), dtype=np.int32)
    tag[by_pair] = np.arange(len(pair)) - np.searchsorted(pair[by_pair], pair[by_pair])
    way = contents.is_gradient[order.transfer].astype(np.int64)
    return PlanMessages(
        source=(2 * stages.pair[stages.producer[order.transfer]] + way).astype(np.int32),
        target=(2 * stages.pair[stages.consumer[order.transfer]] + way).astype(np.int32),
        source_rank=order.source.astype(np.int16),
        target_rank=order.target.astype(np.int16),
        tag=tag,
        num_bytes=num_bytes[:, order.transfer],
        items=contents.message_items()[:, order.transfer],
    )


def _actions(stages: SimulatedStages, order: LaunchOrder) -> tuple[tuple[RankActions, ...], list[tuple[F64, F64]]]:
    """Actions of every rank, and when they begin and end [s].

    Before a stage stand, in this order, launches, waits for what has been sent, and waits for what the stage takes;
    then, where the stage is a gang's, the ranks of the gang meet.
    """
    orders, m = stages.orders, len(order.transfer)
    lengths = [len(own) for own in orders]
    unit = np.concatenate([np.zeros(0, dtype=np.int64), *orders]).astype(np.int64)
    message, no_batch, at_once = np.arange(m), np.full(m, -1), np.full(m, -np.inf)
    columns = [  # rank, stages before it, place among what stands there, kind, target, batch, when it is over
        (order.source, order.source_gap, 0, ActionKind.ISEND, message, order.batch, at_once),
        (order.target, order.target_gap, 0, ActionKind.IRECV, message, order.batch, at_once),
        (order.source, order.freed_gap, 1, ActionKind.WAIT_ISEND, message, no_batch, order.end),
        (order.target, order.taken_gap, 2, ActionKind.WAIT_IRECV, message, no_batch, order.end),
    ]
    stage_rank = np.repeat(np.arange(len(orders)), lengths)
    turn = np.concatenate([np.arange(length) for length in lengths]) if lengths else np.zeros(0, dtype=np.int64)
    meets = np.flatnonzero(stages.in_gang[unit] & (stages.code[unit] < WEIGHT))
    exchange = np.where(
        stages.code[unit[meets]] == FORWARD, ActionKind.EXCHANGE.code, ActionKind.EXCHANGE_GRADIENT.code
    )
    rank = np.concatenate([*(own[0] for own in columns), stage_rank[meets], stage_rank])
    gap = np.concatenate([*(own[1] for own in columns), turn[meets], turn])
    place = np.repeat([*(own[2] for own in columns), 3, 4], [m] * len(columns) + [len(meets), len(unit)])
    kind = np.concatenate([*(np.full(m, own[3].code) for own in columns), exchange, stages.code[unit]])
    target = np.concatenate([*(own[4] for own in columns), stages.pair[unit[meets]], stages.pair[unit]])
    batch = np.concatenate([*(own[5] for own in columns), np.full(len(meets) + len(unit), -1)])
    over = np.concatenate([*(own[6] for own in columns), stages.start[unit[meets]], stages.end[unit]])
    sequence = np.lexsort((target, over, (rank * (len(unit) + 1) + gap) * 5 + place))
    bounds = np.searchsorted(rank[sequence], np.arange(len(orders) + 1)).tolist()
    found, spans = [], []
    for number, (a, b) in enumerate(pairwise(bounds)):
        own = sequence[a:b]
        found.append(RankActions(kind[own].astype(np.int8), target[own].astype(np.int32), batch[own].astype(np.int32)))
        end = np.maximum.accumulate(np.maximum(over[own], 0.0))
        begin = np.concatenate(([0.0], end[:-1]))[: len(own)]
        begin[place[own] == 4] = stages.start[orders[number]]
        spans.append((begin, end))
    return tuple(found), spans


def _buffers(stages: SimulatedStages, order: LaunchOrder, num_bytes: I64) -> I64:
    """See ``PlanEstimates.buffer_bytes``. ``num_bytes``: int64[m], of the replica with most."""
    found = np.zeros(stages.num_ranks, dtype=np.int64)
    for rank, own in enumerate(stages.orders):
        begin, end = stages.start[own], stages.end[own]
        more = np.zeros(len(own) + 1, dtype=np.int64)
        mine = np.flatnonzero(order.target == rank)
        gap = order.target_gap[mine]
        early = (gap < len(own)) & (np.append(begin, np.inf)[gap] < order.time[mine])
        np.add.at(more, gap[early], num_bytes[mine[early]])
        mine = np.flatnonzero(order.source == rank)
        gap = order.freed_gap[mine] - 1
        late = (gap >= 0) & (np.append(end, -np.inf)[gap] > order.end[mine])
        np.add.at(more, gap[late], num_bytes[mine[late]])
        found[rank] = more.max()
    return found
