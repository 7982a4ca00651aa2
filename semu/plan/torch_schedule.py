"""Schedules of torch.distributed.pipelining as CSV, out and in: a row per rank, a cell per action.

torch's runtime (``_PipelineScheduleRuntime``, as torch 2.13 has it) reads two forms. *compute_only* has the stages
alone, ``2F0``; torch places all communication itself. *compute_comms* has sends and receives as well, ``2SEND_F0`` and
``3RECV_F0`` where their launches stand in the plan; torch waits for a receive just before the stage that takes it and
for sends at the end, and batches nothing. It has ``2REDUCE_GRAD`` behind the last backward of every stage, but nothing
for modules that FSDP shards: for these the other form is right.

Its rules (``TorchRule``) are those of ``_validate_schedule``, of the runtime's dataflow, and of how it keeps losses.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.plan.action import KINDS, ActionKind
from semu.plan.flow import chunk_edges
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass
from semu.schedule.files import from_csv, to_csv
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey


class TorchRule(StrEnum):
    """What torch.distributed.pipelining asks of a schedule."""

    CHAIN = "a chain of stages: each reads the one before it, and nothing else"
    BACKWARD = "a backward for every microbatch of every stage"
    EQUAL_COUNTS = "every stage runs every microbatch once, in one piece"
    ONE_COPY = "every stage is on one rank"
    EVERY_RANK = "every rank has a stage"
    LOSS_ORDER = "the last stage runs the forwards of the microbatches in their order"
    """torch keeps losses in a list as they come, and looks up a microbatch's by its number."""


@dataclass(frozen=True)
class _Pipeline:
    """What the rules are about.

    Attributes:
        num_ranks: of the pipeline. ranks: of each chunk. sources: per chunk. trains: per chunk.
        counts: per chunk and microbatch, into how many parts it is cut.
        names: of the chunks, for people.
    """

    num_ranks: int
    ranks: Sequence[int]
    sources: Sequence[Sequence[int]]
    trains: Sequence[bool]
    counts: Sequence[Sequence[int]]
    names: Sequence[str]


def schedule_to_torch_csv(schedule: Schedule, shape: PipelineShape) -> str:
    """A schedule in the form compute_only.

    Args:
        schedule: stages in order. shape: of its pipeline.
    Raises:
        ScheduleError: it is illegal, or breaks a rule of torch's, which is named with the place.
    """
    schedule.validate(shape)
    chunks = range(shape.num_chunks)
    names = [f"chunk {c}" + (f" ({shape.chunk_module[c]})" if shape.chunk_module[c] else "") for c in chunks]
    counts = [
        [
            shape.count(c, mb) if shape.chunk_flow[c] == shape.microbatch_flow[mb] else 0
            for mb in range(shape.num_microbatches)
        ]
        for c in chunks
    ]
    pipeline = _Pipeline(shape.num_ranks, shape.chunk_rank, shape.sources, shape.has_backward, counts, names)
    _check_rules(pipeline, schedule.name)
    last = shape.num_chunks - 1
    _check_losses(_forwards(schedule, shape, last), last, shape.chunk_rank[last], schedule.name)
    return to_csv(schedule)


def plan_to_torch_csv(plan: ExecutionPlan, *, communication: bool = False) -> str:
    """An execution plan in the form compute_only, or compute_comms.

    Args:
        plan: one that ``verify`` lets pass. communication: write compute_comms, with the plan's own launches.
    Raises:
        ScheduleError: it breaks a rule of torch's, which is named with the place.
    """
    pairs = plan.pairs
    if plan.reads:
        raise ScheduleError(
            "torch runs every microbatch in one piece",
            where="plan.reads",
            expected="modules that read their own microbatches",
            got=", ".join(plan.reads),
        )
    sources: list[list[int]] = [[] for _ in plan.chunks]
    for source, reader in chunk_edges(plan).tolist():
        sources[reader].append(source)
    counts = np.zeros((len(plan.chunks), plan.num_microbatches), dtype=np.int64)
    np.add.at(counts, (pairs.chunk, pairs.microbatch), 1)
    pipeline = _Pipeline(
        num_ranks=plan.num_ranks,
        ranks=[chunk.rank for chunk in plan.chunks],
        sources=sources,
        trains=[chunk.has_backward for chunk in plan.chunks],
        counts=counts.tolist(),
        names=[f"chunk {c} ({chunk.module})" for c, chunk in enumerate(plan.chunks)],
    )
    _check_rules(pipeline, plan.name)
    last, rank = len(plan.chunks) - 1, plan.chunks[-1].rank
    own = plan.actions[rank]
    forwards = own.target[own.kind == ActionKind.FORWARD_STAGE.code]
    _check_losses(pairs.microbatch[forwards[pairs.chunk[forwards] == last]].tolist(), last, rank, plan.name)
    buffer = io.StringIO()
    rows = [_row(plan, rank, communication) for rank in range(plan.num_ranks)]
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _row(plan: ExecutionPlan, rank: int, communication: bool) -> list[str]:
    """The cells of a rank."""
    own, pairs, messages = plan.actions[rank], plan.pairs, plan.messages
    chunk, microbatch = pairs.chunk.tolist(), pairs.microbatch.tolist()
    cells: list[str] = []
    last: dict[int, int] = {}
    for code, target in zip(own.kind.tolist(), own.target.tolist(), strict=True):
        kind = KINDS[code]
        if kind.is_stage:
            if kind in (ActionKind.BACKWARD_STAGE, ActionKind.WEIGHT_BACKWARD_STAGE):
                last[chunk[target]] = len(cells)
            cells.append(f"{chunk[target]}{kind.phase.value}{microbatch[target]}")
        elif communication and kind in (ActionKind.ISEND, ActionKind.IRECV):
            word, end = ("SEND", messages.source) if kind is ActionKind.ISEND else ("RECV", messages.target)
            pair, way = divmod(int(end[target]), 2)
            cells.append(f"{chunk[pair]}{word}_{'FB'[way]}{microbatch[pair]}")
    if communication:
        for stage, place in sorted(last.items(), key=lambda item: -item[1]):
            cells.insert(place + 1, f"{stage}REDUCE_GRAD")
    return cells


def schedule_from_torch_csv(text: str, name: str = "csv") -> tuple[Schedule, PipelineShape]:
    """Read a schedule of torch's, in either form, and the pipeline that it is for.

    Steps without a stage, communication and sharding are left out: they follow from the order.

    Args:
        text: of the CSV. name: of the schedule, and of the file in messages.
    Returns:
        The schedule, and a chain of its stages.
    Raises:
        ScheduleError: a cell that is none, a rule of torch's that is broken, an order that deadlocks.
    """
    schedule = from_csv(text, name)
    ranks: dict[int, int] = {}
    most = -1
    for rank, order in enumerate(schedule.orders):
        for position, stage in enumerate(order):
            known = ranks.setdefault(stage.chunk, rank)
            most = max(most, stage.microbatch)
            if known != rank:
                where = f"{name}: rank {rank}, position {position}"
                raise _broken(TorchRule.ONE_COPY, where, f"stage {stage.chunk} on rank {known}", stage)
    stages = range(max(ranks, default=-1) + 1)
    absent = [stage for stage in stages if stage not in ranks]
    if absent or not ranks:
        raise _broken(TorchRule.EQUAL_COUNTS, name, f"stages from {absent[0] if absent else 0} on", "no action of it")
    done = {stage for order in schedule.orders for stage in order}
    for chunk in stages:
        for microbatch in range(most + 1):
            place = f"{name}: rank {ranks[chunk]}"
            if StageKey(chunk, Phase.FORWARD, microbatch) not in done:
                raise _broken(TorchRule.EQUAL_COUNTS, place, f"{chunk}F{microbatch}", "nothing")
            back = [StageKey(chunk, phase, microbatch) for phase in (Phase.BACKWARD, Phase.INPUT_GRADIENT)]
            if not any(stage in done for stage in back):
                raise _broken(TorchRule.BACKWARD, place, f"{chunk}B{microbatch}, or {chunk}I{microbatch}", "nothing")
    slots: dict[int, int] = {}
    slot = []
    for chunk in stages:
        slot.append(slots.setdefault(ranks[chunk], 0))
        slots[ranks[chunk]] += 1
    shape = PipelineShape(
        num_ranks=len(schedule.orders),
        num_microbatches=most + 1,
        chunk_rank=tuple(ranks[chunk] for chunk in stages),
        sources=tuple((chunk - 1,) if chunk else () for chunk in stages),
        has_backward=(True,) * len(stages),
        chunk_slot=tuple(slot),
    )
    _check_ranks(shape.num_ranks, shape.chunk_rank, name)
    schedule.validate(shape)
    last = shape.num_chunks - 1
    _check_losses(_forwards(schedule, shape, last), last, ranks[last], name)
    return schedule, shape


def _check_rules(pipeline: _Pipeline, name: str) -> None:
    for chunk, sources in enumerate(pipeline.sources):
        expected = [chunk - 1] if chunk else []
        if sorted(sources) != expected:
            wanted = f"it reads chunk {chunk - 1}" if chunk else "it reads no chunk"
            got = f"it reads {', '.join(map(str, sorted(sources))) or 'none'}"
            raise _broken(TorchRule.CHAIN, f"{name}: {pipeline.names[chunk]}", wanted, got)
    for chunk, trains in enumerate(pipeline.trains):
        if not trains:
            raise _broken(TorchRule.BACKWARD, f"{name}: {pipeline.names[chunk]}", "a backward", "it has none")
    for chunk, counts in enumerate(pipeline.counts):
        for microbatch, parts in enumerate(counts):
            if parts != 1:
                where = f"{name}: {pipeline.names[chunk]}, microbatch {microbatch}"
                raise _broken(TorchRule.EQUAL_COUNTS, where, "1 part", f"{parts} parts")
    _check_ranks(pipeline.num_ranks, pipeline.ranks, name)


def _check_ranks(num_ranks: int, ranks: Sequence[int], name: str) -> None:
    for rank in range(num_ranks):
        if rank not in ranks:
            raise _broken(TorchRule.EVERY_RANK, f"{name}: rank {rank}", "a stage", "none")


def _forwards(schedule: Schedule, shape: PipelineShape, chunk: int) -> list[int]:
    order = schedule.orders[shape.chunk_rank[chunk]]
    return [stage.microbatch for stage in order if stage.chunk == chunk and stage.phase is Phase.FORWARD]


def _check_losses(microbatches: Sequence[int], chunk: int, rank: int, name: str) -> None:
    """``microbatches``: in the order of the last chunk's forwards."""
    for expected, microbatch in enumerate(microbatches):
        if microbatch != expected:
            where = f"{name}: rank {rank}, chunk {chunk}"
            raise _broken(TorchRule.LOSS_ORDER, where, f"{chunk}F{expected}", f"{chunk}F{microbatch}")


def _broken(rule: TorchRule, where: str, expected: str, got: object) -> ScheduleError:
    return ScheduleError(
        f"not a schedule of torch.distributed.pipelining: {rule}", where=where, expected=expected, got=got
    )
