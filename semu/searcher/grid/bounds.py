"""``Floors``: how fast and how small a configuration can be at best, without simulating it.

Both figures are admissible: no configuration is faster or smaller (a test asks many). Time: on every pipeline rank all
its stages run one after another; before the first of them a microbatch passes the ranks in front, behind the last a
gradient passes them back (so 1F1B takes at least (m + p - 1)(f + b) of equal stages, 2104.04473 §2.2.1); then come the
reduction of the rank's gradients, which cannot begin before its last backward does, and the optimizer's step. Stages
take what their blocks add at least (``blocks``). Memory: parameters, gradients and optimizer state of the fullest
rank, and the activations of the forwards that the schedule runs there before the first backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.hardware.kinds import OpKind
from semu.hardware.network import wire_factor
from semu.job import Fp8Weights, Precision, TrainingJob
from semu.nn.rules.optimizer import adam_bytes
from semu.parallel.config import Parallel
from semu.parallel.data import static_bytes
from semu.parallel.mesh import Mesh
from semu.parallel.pipeline import Chunk, deal_chunks
from semu.parallel.segments import place_modules
from semu.parallel.stage_layers import stage_boundaries
from semu.schedule.registry import ALL_SCHEDULES
from semu.searcher.grid.blocks import BlockTable, MicrobatchCosts
from semu.searcher.grid.space import Point, job_at

F64: TypeAlias = NDArray[np.float64]
I64: TypeAlias = NDArray[np.int64]


class Floor(NamedTuple):
    """No configuration of this kind takes less time [s] or less memory on its fullest rank [bytes]."""

    time_s: float
    memory_bytes: int


@dataclass(frozen=True)
class _Cut:
    """The chunks of a pipeline.

    Attributes:
        first, last: int64[num_chunks], their blocks among all. rank, slot: int64[num_chunks].
        entry: int64[num_ranks], the first chunk of every rank.
    """

    first: I64
    last: I64
    rank: I64
    slot: I64
    entry: I64

    def of_chunks(self, running: NDArray[Any]) -> NDArray[Any]:
        """Sums over the blocks of every chunk."""
        sums: NDArray[Any] = running[..., self.last] - running[..., self.first]
        return sums

    def of_ranks(self, by_chunk: NDArray[Any]) -> F64:
        """Sums over the chunks of every rank."""
        return np.bincount(self.rank, weights=by_chunk, minlength=len(self.entry)).astype(np.float64)


class Floors:
    """Bounds of the configurations of one job; what configurations share is computed once.

    Args:
        job: the base. micro_batches: all sizes of a microbatch that will be asked for.
    """

    def __init__(self, job: TrainingJob, micro_batches: Sequence[int]) -> None:
        self._job, self._sizes = job, tuple(micro_batches)
        self._tables: dict[tuple[object, ...], BlockTable] = {}
        self._cuts: dict[tuple[object, ...], _Cut | None] = {}
        self._memories: dict[tuple[object, ...], F64] = {}
        self._tails: dict[tuple[object, ...], tuple[F64, F64]] = {}
        names = [module.name for module in job.model.modules]
        self._is_chain = all(names[k] in module.sources for k, module in enumerate(job.model.modules[1:]))
        training = job.training
        primary = training.precision is Precision.FP8 and training.fp8_weights is Fp8Weights.PRIMARY
        self._knows_static = training.offload is None and not primary
        self._knows_step = self._knows_static and training.software.value == "megatron"

    def of(self, point: Point) -> Floor:
        """The bounds of a legal configuration."""
        table = self._table(point)
        costs, cut = table.costs[point.micro_batch], self._cut(point, table)
        overhead = self._job.training.overhead_s
        if cut is None or point.placement == "bidirectional":
            return Floor(float(costs.all_s[-1]) / (point.dp * point.pp) + overhead, 0)
        return Floor(self._time(point, table, costs, cut) + overhead, int(self._memory(point, table, costs, cut).max()))

    # -- what is shared ------------------------------------------------------------------------------------------
    def _table(self, point: Point) -> BlockTable:
        key = (point.tp, point.cp, point.ep, point.zero, point.recompute)
        if key not in self._tables:
            self._tables[key] = BlockTable.of(self._job, point, self._sizes)
        return self._tables[key]

    def _cut(self, point: Point, table: BlockTable) -> _Cut | None:
        """Where the blocks lie; None: that depends on more than the sizes."""
        key = (point.pp, point.vpp, point.placement)
        if key not in self._cuts:
            parallel = self._job.parallel
            self._cuts[key] = None
            if parallel.partition != "latency":
                chunks = _chunks(job_at(self._job, point), table)
                rank = np.array([chunk.rank for chunk in chunks])
                offset = np.cumsum([0, *table.blocks_per_module])
                start = offset[[chunk.module for chunk in chunks]]
                self._cuts[key] = _Cut(
                    start + [chunk.first for chunk in chunks],
                    start + [chunk.last for chunk in chunks],
                    rank,
                    np.array([chunk.slot for chunk in chunks]),
                    np.unique(rank, return_index=True)[1],
                )
        return self._cuts[key]

    # -- time ----------------------------------------------------------------------------------------------------
    def _time(self, point: Point, table: BlockTable, costs: MicrobatchCosts, cut: _Cut) -> float:
        training = self._job.training
        busy = cut.of_ranks(cut.of_chunks(costs.all_s)) / point.dp
        head = tail = np.zeros(point.pp)
        if self._is_chain and not training.optimizer_post_validation:
            head = costs.forward_s[cut.first[cut.entry]]
            if ALL_SCHEDULES[point.schedule].is_bounded:
                tail = costs.backward_s[cut.first[cut.entry]]
        reduce_s, step_s = self._tail(point, table, cut)
        last = cut.of_ranks(cut.of_chunks(costs.dearest_s))
        ends = np.maximum(head + busy + tail, head + busy - last + reduce_s)
        if training.optimizer_post_validation:
            return float((busy + step_s).max())
        return float(ends.max() + step_s.max())

    def _tail(self, point: Point, table: BlockTable, cut: _Cut) -> tuple[F64, F64]:
        """Reduction of the gradients, and step, of every rank [s]."""
        key = (*_sizes(point), ALL_SCHEDULES[point.schedule].is_bounded)
        if key not in self._tails:
            self._tails[key] = self._find_tail(point, table, cut)
        return self._tails[key]

    def _find_tail(self, point: Point, table: BlockTable, cut: _Cut) -> tuple[F64, F64]:
        job, training = self._job, self._job.training
        parallel = _parallel(job, point)
        trained = np.stack([cut.of_ranks(own) for own in cut.of_chunks(table.trained)]).astype(np.int64)
        none = np.zeros(point.pp)
        if not self._knows_step or parallel.modules:
            return none, none
        shards = (parallel.shard_ranks, parallel.expert_shard_ranks) if point.zero else (1, 1)
        stepped = sum(-(-own // count) for own, count in zip(trained, shards, strict=True))
        traffic = adam_bytes(
            stepped,
            tensor_dtype=training.precision.tensor_dtype,
            grad_dtype=training.grad_dtype,
            master_dtype=training.master_dtype,
            state_dtype=training.optimizer_state_dtype,
        )
        step_s = np.where(stepped > 0, table.model.outer_latency(OpKind.OPTIMIZER, "adam", mem_bytes=traffic), 0.0)
        is_behind = (
            ALL_SCHEDULES[point.schedule].is_bounded
            and point.vpp == 1
            and point.zero <= 1
            and parallel.zero_group is None
        )
        if not is_behind or parallel.data_ranks == 1 or training.optimizer_post_validation:
            return none, step_s
        kind = OpKind.REDUCE_SCATTER if point.zero else OpKind.ALL_REDUCE
        factor = wire_factor(kind, parallel.gradient_ranks)
        wire = trained[0] * training.grad_dtype.size_bytes * factor.numerator // factor.denominator
        mesh = Mesh(parallel, job.cluster)
        reduce_s = [
            float(table.model.outer_latency(kind, "", group=mesh.dp_group(rank), net_bytes=int(size))[0])
            for rank, size in enumerate(wire)
        ]
        return np.array(reduce_s), step_s

    # -- memory --------------------------------------------------------------------------------------------------
    def _memory(self, point: Point, table: BlockTable, costs: MicrobatchCosts, cut: _Cut) -> F64:
        """Bytes of every rank."""
        if not self._knows_static:
            return np.zeros(point.pp)
        key = _sizes(point)
        if key not in self._memories:
            self._memories[key] = self._static(point, table, cut)
        static = self._memories[key]
        if not ALL_SCHEDULES[point.schedule].is_bounded or point.placement != "circular" or point.zero >= 2:
            return static
        left = np.maximum(cut.of_chunks(costs.kept) - costs.handed[cut.last - 1], 0)
        return static + cut.of_ranks(left * _waiting(point, self._job, cut))

    def _static(self, point: Point, table: BlockTable, cut: _Cut) -> F64:
        job, training = self._job, self._job.training
        parallel = _parallel(job, point)
        if parallel.modules:
            return np.zeros(point.pp)
        total = np.zeros(point.pp)
        elements, trained = cut.of_chunks(table.elements), cut.of_chunks(table.trained)
        for own, trains, shards in zip(
            elements, trained, (parallel.shard_ranks, parallel.expert_shard_ranks), strict=True
        ):
            found = static_bytes(
                cut.of_ranks(own).astype(np.int64),  # type: ignore[arg-type]  # of all ranks at once
                cut.of_ranks(trains).astype(np.int64),  # type: ignore[arg-type]
                dp=shards,
                zero=point.zero,
                tensor_dtype=training.precision.tensor_dtype,
                grad_dtype=training.grad_dtype,
                master_dtype=training.master_dtype,
                state_dtype=training.optimizer_state_dtype,
                shards_are_masters=point.zero >= 3 and job_at(job, point).shards_are_masters,
            )
            total = total + found.total
        return total


def _sizes(point: Point) -> tuple[object, ...]:
    return (point.dp, point.tp, point.cp, point.ep, point.pp, point.vpp, point.zero, point.placement)


def _parallel(job: TrainingJob, point: Point) -> Parallel:
    return job_at(job, point).parallel


def _chunks(job: TrainingJob, table: BlockTable) -> list[Chunk]:
    """As ``build_layout`` cuts the model."""
    parallel, counts = job.parallel, table.blocks_per_module
    layout = parallel.stage_layout
    if layout is not None:
        bounds = stage_boundaries(job.model, layout, parallel.pp, parallel.vpp)
        return deal_chunks(counts, bounds, parallel.pp, parallel.placement)
    names = [module.name for module in job.model.modules]
    return place_modules(
        parallel.segments,
        names,
        counts,
        table.weights,
        parallel.pp,
        parallel.vpp,
        parallel.placement,
        parallel.shares,
    )


def _waiting(point: Point, job: TrainingJob, cut: _Cut) -> I64:
    """Forwards of every chunk that its rank has run before its first backward: int64[num_chunks]."""
    p, v = point.pp, point.vpp
    m = job.training.global_batch // (point.dp * point.micro_batch)
    steps = np.array(ALL_SCHEDULES[point.schedule].activations(p, m, v), dtype=np.int64)[cut.rank]
    whole, rest = np.divmod(steps, p * v)  # p microbatches through one slot, the same through the next
    return np.where(steps == m * v, m, whole * p + np.clip(rest - cut.slot * p, 0, p))
