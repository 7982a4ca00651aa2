"""``Floors``: how fast and how small a configuration can be at best, without simulating it.

Both figures are admissible: no configuration is faster or smaller (a test asks many). Time: on every pipeline rank all
its stages run one after another; before the first of them a microbatch passes the ranks in front, behind the last a
gradient passes them back (so 1F1B takes at least (m + p - 1)(f + b) of equal stages, 2104.04473 §2.2.1); then come the
reduction of the rank's gradients, which cannot begin before its last backward does, and the optimizer's step. Stages
take what their blocks add at least (``blocks``). Memory: parameters, gradients and optimizer state of the fullest
rank, and the activations of the forwards that the schedule runs there before the first backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from semu.hardware.kinds import OpKind
from semu.hardware.network import wire_factor
from semu.job import Fp8Weights, Precision, TrainingJob
from semu.nn.rules.optimizer import optimizer_bytes
from semu.parallel.config import Parallel
from semu.parallel.data import static_bytes
from semu.parallel.mesh import Mesh
from semu.parallel.pipeline import Chunk, deal_chunks
from semu.parallel.segments import OWN_RANKS, place_modules, sharing_ranks
from semu.parallel.stage_layers import stage_boundaries
from semu.records import dataclass
from semu.schedule.registry import ALL_SCHEDULES
from semu.searcher.grid.blocks import F64, I64, BlockTable, MicrobatchCosts
from semu.searcher.grid.space import Point, job_at, parallel_of
from semu.searcher.grid.splits import sizes_of


class Floor(NamedTuple):
    """No configuration of this kind takes less time [s] or less memory on its fullest rank [bytes]."""

    time_s: float
    memory_bytes: int


class _Outer(NamedTuple):
    """What every rank does and holds whatever the microbatches: float64[num_ranks] each.

    Attributes:
        reduce_s, step_s: reduction of its gradients, its optimizer step [s]. static: parameters, gradients and
            optimizer state [bytes].
    """

    reduce_s: F64
    step_s: F64
    static: F64


@dataclass(frozen=True)
class _Cut:
    """The chunks of a pipeline.

    Attributes:
        first, last: int64[num_chunks], their blocks among all. rank, slot: int64[num_chunks].
        entry: int64[num_ranks], the first chunk of every rank. repeats: bool[num_chunks], copies of encoders whose
            forwards nobody reads.
    """

    first: I64
    last: I64
    rank: I64
    slot: I64
    entry: I64
    repeats: NDArray[np.bool_]

    def of_chunks(self, running: NDArray[Any]) -> NDArray[Any]:
        """Sums over the blocks of every chunk: [..., num_blocks + 1] -> [..., num_chunks]."""
        sums: NDArray[Any] = running[..., self.last] - running[..., self.first]
        return sums

    def of_ranks(self, by_chunk: NDArray[Any]) -> F64:
        """Sums over the chunks of every rank: [num_rows, num_chunks] -> [num_rows, num_ranks]."""
        rows, ranks = len(by_chunk), len(self.entry)
        cell = self.rank + ranks * np.arange(rows)[:, np.newaxis]
        sums = np.bincount(cell.ravel(), weights=by_chunk.ravel(), minlength=rows * ranks)
        return sums.astype(np.float64, copy=False).reshape(rows, ranks)


class Floors:
    """Bounds of the configurations of one job; what configurations share is computed once.

    Args:
        job: the base. points: all that will be asked for.
    """

    def __init__(self, job: TrainingJob, points: Iterable[Point]) -> None:
        self._job = job
        sizes: dict[tuple[object, ...], set[int]] = {}
        for point in points:
            sizes.setdefault(_policy(point), set()).add(point.micro_batch)
        self._sizes = {policy: tuple(sorted(own)) for policy, own in sizes.items()}
        self._tables: dict[tuple[object, ...], BlockTable] = {}
        self._cuts: dict[tuple[object, ...], _Cut | None] = {}
        self._outer: dict[tuple[object, ...], _Outer] = {}
        self._parallels: dict[tuple[object, ...], Parallel] = {}
        self._floors: dict[tuple[object, ...], dict[int, Floor]] = {}
        names = [module.name for module in job.model.modules]
        self._is_chain = all(names[k] in module.sources for k, module in enumerate(job.model.modules[1:]))
        training = job.training
        primary = training.precision is Precision.FP8 and training.fp8_weights is Fp8Weights.PRIMARY
        is_plain = training.offload is None and not primary
        self._knows_static = is_plain and training.frozen_weights is None
        self._knows_step = is_plain and training.software.value == "megatron"

    def of(self, point: Point) -> Floor:
        """The bounds of a legal configuration."""
        key = (*point[:6], *point[7:])  # all but the size of a microbatch: all sizes are bounded at once
        if key not in self._floors:
            self._floors[key] = self._of_sizes(point)
        return self._floors[key][point.micro_batch]

    def _of_sizes(self, point: Point) -> dict[int, Floor]:
        """The bounds of a configuration with every size of a microbatch that divides the batch."""
        training = self._job.training
        sizes = np.array(self._sizes[_policy(point)])
        rows = np.flatnonzero(training.global_batch % (point.dp * sizes) == 0)
        table = self._table(point)
        costs = table.costs.of_rows(rows)
        cut = self._cut(point, table)
        if cut is None or point.placement.endswith("bidirectional"):
            all_s = costs.all_s[:, -1] + (point.pp - 1) * costs.silent_s[:, -1]  # copies are on all ranks but one
            times, memories = all_s / (point.dp * point.pp), np.zeros(len(rows))
            times = np.maximum(times, self._places_s(point, table, costs))
        else:
            outer = self._outside(point, table, cut)
            times = self._times(point, costs, cut, outer)
            memories = self._memories(point, costs, cut, outer, training.global_batch // (point.dp * sizes[rows]))
        floors = map(Floor, (times + training.overhead_s).tolist(), memories.astype(np.int64).tolist())
        return dict(zip(sizes[rows].tolist(), floors, strict=True))

    def _places_s(self, point: Point, table: BlockTable, costs: MicrobatchCosts) -> F64:
        """What the busiest ranks of a place work at least, wherever its blocks are cut, as far as shares are known:
        float64[num_sizes] [s]."""
        shares = self._parallel(point).shares
        if point.segments not in OWN_RANKS or not shares:
            return np.zeros(len(costs.all_s))
        model = self._job.model
        names = [module.name for module in model.modules]
        ends = np.cumsum([0, *table.blocks_per_module])
        work = costs.all_s[:, ends[1:]] - costs.all_s[:, ends[:-1]]
        places = sharing_ranks(point.segments, names, model.encoders)
        each = [work[:, place].sum(axis=1) / (point.dp * shares[names[place[0]]]) for place in places]
        return cast("F64", np.max(each, axis=0))

    # -- what is shared ------------------------------------------------------------------------------------------
    def _parallel(self, point: Point) -> Parallel:
        """The parallelism of a configuration."""
        key = point[:6], point[9:]  # whatever the microbatches, recomputation and schedule
        if key not in self._parallels:
            self._parallels[key] = replace(self._job.parallel, **parallel_of(point))
        return self._parallels[key]

    def _table(self, point: Point) -> BlockTable:
        etp = self._parallel(point).expert_tensor_ranks  # follows dp where it is left open
        context = point.attention_split, point.cp_kind, *_policy(point)
        is_replicated = point.segments == "replicated" and point.pp > 1
        widths = tuple((own["tp"], own["cp"]) for own in sizes_of(point.modules).values())
        key = (point.tp, point.ep, etp, point.zero, point.recompute, is_replicated, *context, widths)
        if key not in self._tables:
            self._tables[key] = BlockTable.of(self._job, point, self._sizes[_policy(point)])
        return self._tables[key]

    def _cut(self, point: Point, table: BlockTable) -> _Cut | None:
        """Where the blocks lie; None: that depends on more than the sizes, or blocks lie on several ranks."""
        key = (point.pp, point.vpp, point.placement, point.segments, point.partition, point.shares, point.modules)
        if key not in self._cuts:
            own = job_at(self._job, point)
            self._cuts[key] = None
            has_gangs = own.parallel.spreads_vocabulary or own.parallel.gathers_towers
            if not (own.parallel.cuts_by_time or has_gangs):
                chunks = _chunks(own, table)
                rank = np.array([chunk.rank for chunk in chunks])
                offset = np.cumsum([0, *table.blocks_per_module])
                start = offset[[chunk.module for chunk in chunks]]
                self._cuts[key] = _Cut(
                    start + [chunk.first for chunk in chunks],
                    start + [chunk.last for chunk in chunks],
                    rank,
                    np.array([chunk.slot for chunk in chunks]),
                    np.unique(rank, return_index=True)[1],
                    np.array([chunk.repeats for chunk in chunks]),
                )
        return self._cuts[key]

    def _outside(self, point: Point, table: BlockTable, cut: _Cut) -> _Outer:
        """What does not depend on the microbatches."""
        bounded = ALL_SCHEDULES[point.schedule].is_bounded
        key = (*point[:6], point.zero, point.placement, point.segments, point.partition, bounded, *point[-2:])
        if key not in self._outer:
            parallel = self._parallel(point)
            trained = cut.of_ranks(cut.of_chunks(table.trained)).astype(np.int64)
            none = np.zeros(point.pp)
            known = not parallel.modules
            alone = known and not cut.repeats.any()  # gradients of copies are summed over ranks
            self._outer[key] = _Outer(
                self._reduce_s(point, table, parallel, trained) if alone and self._knows_step and bounded else none,
                self._step_s(point, table, parallel, trained) if alone and self._knows_step else none,
                self._static(point, table, cut, parallel, trained) if known and self._knows_static else none,
            )
        return self._outer[key]

    # -- time ----------------------------------------------------------------------------------------------------
    def _times(self, point: Point, costs: MicrobatchCosts, cut: _Cut, outer: _Outer) -> F64:
        """Time of an iteration at least, without what is outside of any device: float64[num_sizes] [s]."""
        post_validates = self._job.training.optimizer_post_validation
        read = np.where(cut.repeats, 0.0, cut.of_chunks(costs.all_s))
        copied = cut.of_ranks(np.where(cut.repeats, cut.of_chunks(costs.silent_s), 0.0)) / point.dp
        busy = cut.of_ranks(read) / point.dp
        if post_validates:
            return cast("F64", (busy + copied + outer.step_s).max(axis=1))
        head = tail = np.zeros(point.pp)
        if self._is_chain:
            head = costs.forward_s[:, cut.first[cut.entry]]
            if ALL_SCHEDULES[point.schedule].is_bounded:
                tail = costs.backward_s[:, cut.first[cut.entry]]
        last = cut.of_ranks(np.where(cut.repeats, 0.0, cut.of_chunks(costs.dearest_s)))
        ends = np.maximum(head + busy + tail, head + busy - last + outer.reduce_s)
        ends = np.maximum(ends, busy + copied)  # copies run before the head has passed, or behind all else
        return cast("F64", ends.max(axis=1) + outer.step_s.max())

    def _step_s(self, point: Point, table: BlockTable, parallel: Parallel, trained: I64) -> F64:
        """Optimizer's step of every rank [s]; ``trained``: int64[2, num_ranks], elements, then of routed experts."""
        training = self._job.training
        shards = (parallel.shard_ranks, parallel.expert_shard_ranks) if point.zero else (1, 1)
        stepped = sum(-(-own // count) for own, count in zip(trained, shards, strict=True))
        traffic = optimizer_bytes(
            stepped,
            training.optimizer.fewest_moments,
            tensor_dtype=training.precision.tensor_dtype,
            grad_dtype=training.grad_dtype,
            master_dtype=training.master_dtype,
            state_dtype=training.optimizer_state_dtype,
        )
        return np.where(stepped > 0, table.model.outer_latency(OpKind.OPTIMIZER, "adam", mem_bytes=traffic), 0.0)

    def _reduce_s(self, point: Point, table: BlockTable, parallel: Parallel, trained: I64) -> F64:
        """Reduction of the gradients of every rank, where it cannot begin before the last backward does [s]."""
        training = self._job.training
        is_behind = point.vpp == 1 and point.zero <= 1 and parallel.zero_group is None
        if not is_behind or parallel.data_ranks == 1 or training.optimizer_post_validation:
            return np.zeros(point.pp)
        kind = OpKind.REDUCE_SCATTER if point.zero else OpKind.ALL_REDUCE
        factor = wire_factor(kind, parallel.gradient_ranks)
        wire = trained[0] * training.grad_dtype.size_bytes * factor.numerator // factor.denominator
        mesh = Mesh(parallel, self._job.cluster)
        return np.array(
            [
                float(table.model.outer_latency(kind, "", group=mesh.dp_group(rank), net_bytes=int(size))[0])
                for rank, size in enumerate(wire)
            ]
        )

    # -- memory --------------------------------------------------------------------------------------------------
    def _memories(self, point: Point, costs: MicrobatchCosts, cut: _Cut, outer: _Outer, counts: I64) -> F64:
        """Memory of the fullest rank at least: float64[num_sizes] [bytes].

        Args:
            counts: int64[num_sizes], microbatches of a replica.
        """
        family = ALL_SCHEDULES[point.schedule]
        is_known = self._is_chain and family.is_bounded and point.placement == "circular" and point.zero < 2
        if not self._knows_static or not is_known:
            return np.full(len(counts), outer.static.max())
        p, v, m = point.pp, point.vpp, counts[:, np.newaxis]
        steps = np.array([family.activations(p, count, v) for count in counts.tolist()], dtype=np.int64)[:, cut.rank]
        whole, rest = np.divmod(steps, p * v)  # p microbatches through one slot, the same through the next
        before = np.where(steps == m * v, m, whole * p + np.clip(rest - cut.slot * p, 0, p))  # the first backward
        left = np.maximum(cut.of_chunks(costs.kept) - costs.handed[:, cut.last - 1], 0) * ~cut.repeats
        return cast("F64", (outer.static + cut.of_ranks(left * before)).max(axis=1))

    def _static(self, point: Point, table: BlockTable, cut: _Cut, parallel: Parallel, trained: I64) -> F64:
        """Parameters, gradients and optimizer state of every rank [bytes]."""
        job, training = self._job, self._job.training
        total = np.zeros(point.pp)
        elements = cut.of_ranks(cut.of_chunks(table.elements)).astype(np.int64)
        for own, trains, shards in zip(
            elements, trained, (parallel.shard_ranks, parallel.expert_shard_ranks), strict=True
        ):
            found = static_bytes(
                own,  # of all ranks at once
                trains,
                dp=shards,
                zero=point.zero,
                tensor_dtype=training.precision.tensor_dtype,
                grad_dtype=training.grad_dtype,
                master_dtype=training.master_dtype,
                state_dtype=training.optimizer_state_dtype,
                moments=training.optimizer.fewest_moments,
                shards_are_masters=point.zero >= 3 and job_at(job, point).shards_are_masters,
                bucket_dtype=job.bucket_dtype,
                has_two_gradients=job.sums_gradients_twice,
            )
            total = total + found.total
        return total


def _policy(point: Point) -> tuple[object, ...]:
    """On what it depends which sizes of a microbatch context ranks can share."""
    return point.cp, point.cp_balance


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
        [module.sources for module in job.model.modules],
        job.model.encoders,
    )
