"""``PlanData``: what an execution plan holds, checked for shapes, ranges and kinds when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_int32, check_integers, check_range, check_text, check_times, check_word
from semu.errors import ScheduleError
from semu.plan.action import ActionKind
from semu.plan.tables import (
    PlanChunk,
    PlanEstimates,
    PlanMemory,
    PlanMessages,
    PlanPairs,
    PlanReduction,
    RankActions,
)
from semu.records import dataclass
from semu.schedule.stage_plan import Reads, checked_reads

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PlanData:
    """An iteration as actions, checked.

    Attributes:
        name: of the schedule. model_hash: SHA-256 of what must be equal in a runtime: modules, chunks, layers, ranks.
        num_ranks, num_replicas, num_microbatches: pipeline ranks, data-parallel replicas, microbatches of each.
        chunks, pairs, messages: what there is. actions: per rank.
        limit_bytes: int64[num_ranks], memory within which it was planned; 0: not said.
        problem: what it was made for, as ``JobCheckpoint.described`` says. estimates: None: not said.
        reads: module -> the (microbatch, part) of it that every microbatch of its readers reads (``StagePlan``),
            where these are not those of the same microbatch: samples that are deferred.
        weights: of pipelines that share a batch, each a copy of the model with ranks and microbatches of its own: share
            of the batch's samples that each copy (``PlanChunk.flow``) runs, the factor of its gradients. Empty: no such
            pipelines; gradients of copies are summed as they are.
        reductions: of these pipelines, in the order in which every rank takes part, behind its actions.
    Raises:
        ScheduleError: numbers of chunks, pairs, messages or ranks that there are not; arrays that do not go together.
    """

    name: str
    model_hash: str
    num_ranks: int
    num_replicas: int
    num_microbatches: int
    chunks: tuple[PlanChunk, ...]
    pairs: PlanPairs
    messages: PlanMessages
    actions: tuple[RankActions, ...]
    limit_bytes: I64
    problem: Mapping[str, Any] | None = None
    estimates: PlanEstimates | None = None
    reads: Mapping[str, Reads] = field(default_factory=dict)
    weights: tuple[float, ...] = ()
    reductions: tuple[PlanReduction, ...] = ()

    def __post_init__(self) -> None:
        for name in ("name", "model_hash"):
            check_text(getattr(self, name), f"plan.{name}")
        for name in ("num_ranks", "num_replicas"):
            object.__setattr__(self, name, check_int32(getattr(self, name), f"plan.{name}", least=1))
        object.__setattr__(self, "num_microbatches", check_int32(self.num_microbatches, "plan.num_microbatches"))
        object.__setattr__(self, "chunks", tuple(self.chunks))
        object.__setattr__(self, "actions", tuple(self.actions))
        limits = check_integers(self.limit_bytes, np.int64, "plan.limit_bytes", (self.num_ranks,))
        object.__setattr__(self, "limit_bytes", limits)
        for number, chunk in enumerate(self.chunks):
            if chunk.rank >= self.num_ranks:
                expected = f"0 to {self.num_ranks - 1}"
                raise ScheduleError(
                    "no such rank", where=f"plan.chunks[{number}].rank", expected=expected, got=chunk.rank
                )
            for source in chunk.sources or ():
                if source >= number:
                    expected = f"chunks before {number}"
                    raise ScheduleError(
                        "no such source", where=f"plan.chunks[{number}].sources", expected=expected, got=source
                    )
        self._check_gangs()
        self._check_pairs()
        self._check_reads()
        self._check_messages()
        self._check_actions()
        self._check_estimates()
        self._check_reductions()

    def _check_gangs(self) -> None:
        for number, gang in enumerate(self.gangs):
            layers = {
                (c.module, c.first_layer, c.num_layers, c.has_backward, c.flow)
                for c in map(self.chunks.__getitem__, gang)
            }
            ranks = [self.chunks[chunk].rank for chunk in gang]
            if len(layers) > 1 or len(set(ranks)) < len(ranks):
                raise ScheduleError(
                    "members of a gang that are not the same layers on ranks of their own",
                    where=f"plan.chunks: gang {number}",
                    expected="one chunk per rank, of the same layers",
                    got=f"chunks {list(gang)}",
                )

    def _check_reads(self) -> None:
        object.__setattr__(self, "reads", dict(checked_reads(self.reads, "plan.reads")))  # processes are sent plans
        modules = [chunk.module for chunk in self.chunks]
        for name, reads in self.reads.items():
            check_word(name, modules, "module", f"plan.reads.{name}")
            if len(reads) != self.num_microbatches:
                raise ScheduleError(
                    "not a list for every microbatch",
                    where=f"plan.reads.{name}",
                    expected=f"{self.num_microbatches} lists",
                    got=len(reads),
                )
            own = np.flatnonzero(np.array([name == module for module in modules])[self.pairs.chunk])
            there = np.unique(np.stack((self.pairs.microbatch[own], self.pairs.part[own]), axis=1), axis=0)
            listed = sorted(pair for pairs in reads for pair in pairs)
            if listed != list(map(tuple, there.tolist())):
                raise ScheduleError(
                    "parts that are read never or twice, or that there are not",
                    where=f"plan.reads.{name}",
                    expected=f"each of {len(there)} parts once",
                    got=f"{len(listed)}, {len(set(listed))} different ones",
                )

    def _check_pairs(self) -> None:
        pairs = self.pairs
        check_range(pairs.chunk, "plan.pairs.chunk", 0, len(self.chunks) - 1)
        check_range(pairs.microbatch, "plan.pairs.microbatch", 0, self.num_microbatches - 1)
        variants = np.array([len(chunk.variants) for chunk in self.chunks], dtype=np.int64)[pairs.chunk]
        wrong = np.flatnonzero(pairs.variant >= variants)
        if len(wrong):
            at = int(wrong[0])
            raise ScheduleError(
                "no such variant",
                where=f"plan.pairs.variant[{at}]",
                expected=f"0 to {int(variants[at]) - 1}",
                got=int(pairs.variant[at]),
            )
        self._check_replicas(len(pairs.items), "plan.pairs.items")

    def _check_messages(self) -> None:
        messages, stages = self.messages, 2 * len(self.pairs)
        for name in ("source", "target"):
            check_range(getattr(messages, name), f"plan.messages.{name}", 0, stages - 1)
            check_range(getattr(messages, f"{name}_rank"), f"plan.messages.{name}_rank", 0, self.num_ranks - 1)
        wrong = np.flatnonzero(messages.source_rank == messages.target_rank)
        if len(wrong):
            at = int(wrong[0])
            raise ScheduleError(
                "a message to its own rank",
                where=f"plan.messages.target_rank[{at}]",
                expected="another rank: what stays on a rank is no message",
                got=int(messages.target_rank[at]),
            )
        for name in ("num_bytes", "items"):
            self._check_replicas(len(getattr(messages, name)), f"plan.messages.{name}")

    def _check_replicas(self, rows: int, where: str) -> None:
        if rows != self.num_replicas:
            raise ScheduleError("not a row for every replica", where=where, expected=str(self.num_replicas), got=rows)

    def _check_actions(self) -> None:
        if len(self.actions) != self.num_ranks:
            raise ScheduleError(
                "not actions of every rank", where="plan.actions", expected=str(self.num_ranks), got=len(self.actions)
            )
        for rank, own in enumerate(self.actions):
            of_pairs = (own.kind <= ActionKind.WEIGHT_BACKWARD_STAGE.code) | (own.kind >= ActionKind.EXCHANGE.code)
            most = np.where(of_pairs, len(self.pairs), len(self.messages))
            wrong = np.flatnonzero(own.target >= most)
            if len(wrong):
                at = int(wrong[0])
                raise ScheduleError(
                    "no such pair" if of_pairs[at] else "no such message",
                    where=f"plan.actions[{rank}].target[{at}]",
                    expected=f"0 to {int(most[at]) - 1}",
                    got=int(own.target[at]),
                )

    def _check_estimates(self) -> None:
        found = self.estimates
        if found is None:
            return
        where = "plan.estimates"
        for name in ("start_s", "end_s"):
            rows = getattr(found, name)
            if len(rows) != self.num_ranks or any(
                len(r) != len(own) for r, own in zip(rows, self.actions, strict=True)
            ):
                raise ScheduleError(
                    "not a time for every action",
                    where=f"{where}.{name}",
                    expected=", ".join(str(len(own)) for own in self.actions),
                    got=", ".join(str(len(row)) for row in rows),
                )
        for name, lots, may_lack in (
            ("peak_memory_bytes", self.num_ranks, False),
            ("buffer_bytes", self.num_ranks, True),
            ("transfer_start_s", len(self.messages), True),
            ("transfer_end_s", len(self.messages), True),
        ):
            length = len(getattr(found, name))
            if length != lots and not (may_lack and length == 0):
                raise ScheduleError("of another length", where=f"{where}.{name}", expected=str(lots), got=length)
        for item in fields(PlanMemory) if found.memory is not None else ():
            length, lots = len(getattr(found.memory, item.name)), len(self.pairs)
            lots = self.num_ranks if item.name == "static_bytes" else lots
            if length != lots:
                place = f"{where}.memory.{item.name}"
                raise ScheduleError("of another length", where=place, expected=str(lots), got=length)
        if found.replica >= self.num_replicas:
            raise ScheduleError(
                "no such replica", where=f"{where}.replica", expected=f"0 to {self.num_replicas - 1}", got=found.replica
            )

    def _check_reductions(self) -> None:
        weights = check_times(self.weights, "plan.weights", (None,))
        object.__setattr__(self, "weights", tuple(weights.tolist()))
        object.__setattr__(self, "reductions", tuple(self.reductions))
        flows = sorted({chunk.flow for chunk in self.chunks})
        if self.weights and flows != list(range(len(self.weights))):
            raise ScheduleError(
                "not a weight for every pipeline",
                where="plan.weights",
                expected=f"{len(flows)} numbers, for the copies 0 to {len(flows) - 1}",
                got=len(self.weights),
            )
        for number, one in enumerate(self.reductions):
            for chunk in one.chunks:
                if chunk >= len(self.chunks):
                    raise ScheduleError(
                        "no such chunk",
                        where=f"plan.reductions[{number}].chunks",
                        expected=f"0 to {len(self.chunks) - 1}",
                        got=chunk,
                    )

    # -- queries -----------------------------------------------------------------------------------------------------
    @cached_property
    def gangs(self) -> tuple[tuple[int, ...], ...]:
        """The chunks of every gang."""
        numbers = sorted({chunk.gang for chunk in self.chunks if chunk.gang >= 0})
        return tuple(tuple(n for n, c in enumerate(self.chunks) if c.gang == gang) for gang in numbers)

    @cached_property
    def meeting(self) -> tuple[bool, ...]:
        """Per chunk, whether it is of a gang whose ranks meet; members of others send one another what they read."""
        found = [False] * len(self.chunks)
        for members in self.gangs:
            own = [self.chunks[number] for number in members]
            meets = all(self.chunks[source].rank == chunk.rank for chunk in own for source in chunk.sources or ())
            for number in members:
                found[number] = meets
        return tuple(found)

    @property
    def num_actions(self) -> int:
        """Actions of all ranks."""
        return sum(map(len, self.actions))

    @property
    def num_stages(self) -> int:
        """Stages of all ranks."""
        last = ActionKind.WEIGHT_BACKWARD_STAGE.code
        return sum(int((own.kind <= last).sum()) for own in self.actions)
