"""``Floors``: how fast and how small a configuration can be at best, without simulating it.

Both figures are admissible: no configuration is faster or smaller (a test asks many). Time: on every pipeline rank all
its stages run one after another; before the first of them a microbatch passes the ranks in front, behind the last a
gradient passes them back (so 1F1B takes at least (m + p - 1)(f + b) of equal stages, 2104.04473 §2.2.1); then come the
reduction of the rank's gradients, which cannot begin before its last backward does, and the optimizer's step. Stages
take what their blocks add at least (``blocks``). Memory: parameters, gradients and optimizer state of the fullest
rank, and the activations of the forwards that the schedule runs there before the first backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.hardware.kinds import OpKind
from semu.hardware.network import wire_factor
from semu.job import Fp8Weights, Precision, TrainingJob
from semu.nn.model import Model
from semu.nn.rules.optimizer import optimizer_bytes
from semu.parallel.config import Parallel
from semu.parallel.data import static_bytes
from semu.parallel.mesh import Mesh
from semu.parallel.pipeline import Chunk, deal_chunks
from semu.parallel.segments import OWN_RANKS, place_modules, sharing_ranks
from semu.parallel.stage_layers import stage_boundaries
from semu.records import dataclass
from semu.schedule.problem import members_of
from semu.schedule.registry import ALL_SCHEDULES
from semu.searcher.grid.blocks import BlockTable, KnownShapes, MicrobatchCosts
from semu.searcher.grid.columns import F64, I64, Points, groups_of, running_sums
from semu.searcher.grid.exchanges import LEAST, ExchangeFloors, StageExchanges
from semu.searcher.grid.space import OPTIONS, Point, job_at, parallel_of
from semu.searcher.grid.splits import widths_of

_CUT = ("pp", "vpp", "placement", "segments", "partition", "shares", "modules")
"""Fields on which it depends where blocks lie."""
_SPREAD = ("dp", "tp", "cp", "ep", *(axis.value for axis in OPTIONS), "pp", "vpp", "shares", "modules")
"""Fields of the parallelism of a configuration."""
_BLOCKS = ("tp", "ep", "zero", "recompute", "attention_split", "cp_kind", "cp", "cp_balance")
"""Fields on which it depends what blocks cost, with what follows from others."""
CELLS = 1 << 20
"""Stages of configurations that are bounded at once, about."""


class Floor(NamedTuple):
    """No configuration of this kind takes less time [s] or less memory on its fullest rank [bytes]."""

    time_s: float
    memory_bytes: int


class _Outer(NamedTuple):
    """What every rank does and holds whatever the microbatches: float64[num_kinds, num_ranks] each.

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


class _Some(NamedTuple):
    """Configurations with one cut.

    Attributes:
        points: which. costs, at: of microbatches, and int64[num_rows], which row of them.
        dp: int64[num_rows]. outer, kind: what is outside of microbatches, and int64[num_rows], which row of it.
        exchanges: inside stages, of every row of ``outer``. bounded: bool[num_rows], whether the schedule is.
    """

    points: Points
    costs: MicrobatchCosts
    at: I64
    dp: I64
    outer: _Outer
    kind: I64
    exchanges: list[StageExchanges | None]
    bounded: NDArray[np.bool_]


class Floors(Mapping[Point, Floor]):
    """Bounds of the configurations of one job; what configurations share is computed once, and all with one cut of the
    model into chunks are bounded at once.

    Args:
        job: the base. points: which, all legal.
    Attributes:
        points: the same as columns. time_s, memory_bytes: float64, int64[num_points], as ``Floor``.
    """

    def __init__(self, job: TrainingJob, points: Iterable[Point]) -> None:
        self.points = points if isinstance(points, Points) else Points.of(points)
        self.time_s, self.memory_bytes = _Bounds(job, self.points).all()

    @cached_property
    def _rows(self) -> dict[Point, int]:
        return {point: row for row, point in enumerate(self.points)}

    def __getitem__(self, point: Point) -> Floor:
        row = self._rows[point]
        return Floor(float(self.time_s[row]), int(self.memory_bytes[row]))

    def __iter__(self) -> Iterator[Point]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)


class _Bounds:
    """``Floors`` under way."""

    def __init__(self, job: TrainingJob, points: Points) -> None:
        self._job, self._points = job, points
        names = [module.name for module in job.model.modules]
        self._is_chain = all(names[k] in module.sources for k, module in enumerate(job.model.modules[1:]))
        training = job.training
        primary = training.precision is Precision.FP8 and training.fp8_weights is Fp8Weights.PRIMARY
        is_plain = training.offload is None and not primary
        self._knows_static = is_plain and training.frozen_weights is None
        self._knows_step = is_plain and training.software.value == "megatron"
        self._masters: bool | None = None
        self._exchanges = ExchangeFloors(job)
        self._tables, self._row = self._tabulate()
        self._costs = MicrobatchCosts(
            *(np.concatenate(own) for own in zip(*(vars(t.costs).values() for t in self._tables), strict=True))
        )

    def all(self) -> tuple[F64, I64]:
        """Time [s] and memory [bytes] of every configuration at least."""
        points = self._points
        time_s, memory = np.zeros(len(points)), np.zeros(len(points))
        firsts, place = points.groups(*_CUT)
        for first, rows in zip(firsts.tolist(), members_of(place, len(firsts)), strict=True):
            point = points[first]
            cut = self._cut(point, first, self._tables[self._table_of[first]])
            for some in np.array_split(rows, -(-len(rows) * point.pp * point.vpp // CELLS)):
                if cut is None or point.placement.endswith("bidirectional"):
                    time_s[some] = self._uncut(point, some)
                else:
                    time_s[some], memory[some] = self._of_cut(point, cut, some)
        return time_s + self._job.training.overhead_s, memory.astype(np.int64)

    def _tabulate(self) -> tuple[list[BlockTable], I64]:
        """What blocks cost in all configurations; int64[num_points], the row of each among all tables' sizes of a
        microbatch."""
        points = self._points
        firsts, self._parallel_of = points.groups(*_SPREAD)
        self._parallels = [replace(self._job.parallel, **parallel_of(points[row])) for row in firsts.tolist()]
        experts = np.array([own.expert_tensor_ranks for own in self._parallels], dtype=np.int64)[self._parallel_of]
        replicated = points.mapped("segments", lambda word: word == "replicated") & (points.column("pp") > 1)
        every = [widths_of(word) for word in points.values_of("modules")]
        widths = np.array([*map(every.index, every)] or [0])[points.codes_of("modules")]
        firsts, self._table_of = points.groups(*_BLOCKS, experts, replicated, widths)
        _, policy = points.groups("cp", "cp_balance")  # on these depends which sizes context ranks can share
        micro, tables, row, last = points.column("micro_batch"), [], np.zeros(len(points), dtype=np.int64), 0
        members, shapes = members_of(self._table_of, len(firsts)), KnownShapes(self._job)
        sizes_of = [sorted_distinct(micro[rows]) for rows in members_of(policy, int(policy.max(initial=-1)) + 1)]
        for first, rows in zip(firsts.tolist(), members, strict=True):
            sizes = sizes_of[policy[first]]
            tables.append(BlockTable.of(self._job, points[first], sizes.tolist(), shapes))
            row[rows] = last + np.searchsorted(sizes, micro[rows])
            last += len(sizes)
        return tables, row

    def _uncut(self, point: Point, rows: I64) -> F64:
        """Times of configurations whose blocks lie nobody knows where [s]."""
        costs, at = np.unique(self._row[rows], return_inverse=True)
        own, dp, at = self._costs.of_rows(costs), self._points.take(rows).column("dp"), at.reshape(-1)
        all_s = own.all_s[at, -1] + (point.pp - 1) * own.silent_s[at, -1]  # copies are on all ranks but one
        times: F64 = np.maximum(all_s / (dp * point.pp), self._places_s(point, rows[0], own, at, dp))
        return times

    def _places_s(self, point: Point, row: int, costs: MicrobatchCosts, at: I64, dp: I64) -> F64:
        """What the busiest ranks of a place work at least, wherever its blocks are cut, as far as shares are known:
        float64[num_rows] [s]."""
        shares = self._parallels[self._parallel_of[row]].shares
        if point.segments not in OWN_RANKS or not shares:
            return np.zeros(len(at))
        model = self._job.model
        names = [module.name for module in model.modules]
        ends = np.cumsum([0, *self._tables[0].blocks_per_module])
        work = costs.all_s[:, ends[1:]] - costs.all_s[:, ends[:-1]]
        places = sharing_ranks(point.segments, names, model.encoders)
        each = [work[:, place].sum(axis=1)[at] / (dp * shares[names[place[0]]]) for place in places]
        return cast("F64", np.max(each, axis=0))

    def _of_cut(self, point: Point, cut: _Cut, rows: I64) -> tuple[F64, F64]:
        """Times [s] and memories [bytes] of configurations with one cut."""
        points = self._points.take(rows)
        bounded = points.mapped("schedule", lambda name: ALL_SCHEDULES[name].is_bounded)
        costs, at = np.unique(self._row[rows], return_inverse=True)
        outer, exchanges, kind = self._outside(cut, rows, points, bounded)
        own, dp = self._costs.of_rows(costs), points.column("dp")
        some = _Some(points, own, at.reshape(-1), dp, outer, kind, exchanges, bounded)
        return self._times(cut, some), self._memories(point, cut, some)

    # -- what is shared ------------------------------------------------------------------------------------------
    def _cut(self, point: Point, row: int, table: BlockTable) -> _Cut | None:
        """Where the blocks of a row lie; None: that depends on more than the sizes, or blocks lie on several ranks."""
        parallel = self._parallels[self._parallel_of[row]]
        if parallel.modules:  # the job says where they lie
            parallel = job_at(self._job, point).parallel
        if parallel.cuts_by_time or parallel.spreads_vocabulary or parallel.gathers_towers:
            return None
        chunks = _chunks(self._job.model, parallel, table)
        rank = np.array([chunk.rank for chunk in chunks])
        offset = np.cumsum([0, *table.blocks_per_module])
        start = offset[[chunk.module for chunk in chunks]]
        return _Cut(
            start + [chunk.first for chunk in chunks],
            start + [chunk.last for chunk in chunks],
            rank,
            np.array([chunk.slot for chunk in chunks]),
            np.unique(rank, return_index=True)[1],
            np.array([chunk.repeats for chunk in chunks]),
        )

    def _outside(
        self, cut: _Cut, rows: I64, points: Points, bounded: NDArray[np.bool_]
    ) -> tuple[_Outer, list[StageExchanges | None], I64]:
        """What does not depend on the microbatches; int64[num_rows], whose is which."""
        firsts, place = points.groups(*_SPREAD, bounded)
        held: dict[int, tuple[bytes, I64, I64]] = {}
        known: dict[tuple[object, ...], tuple[F64, F64]] = {}
        found, exchanges = [], []
        for first in firsts.tolist():
            point, row = points[first], rows[first]
            number, parallel = int(self._table_of[row]), self._parallels[self._parallel_of[row]]
            table = self._tables[number]
            if number not in held:
                sums = (cut.of_ranks(cut.of_chunks(own)).astype(np.int64) for own in (table.elements, table.trained))
                elements, trained = sums
                held[number] = elements.tobytes() + trained.tobytes(), elements, trained
            content, elements, trained = held[number]
            is_simple = not parallel.modules
            alone = is_simple and self._knows_step and not cut.repeats.any()  # copies' gradients are summed over ranks
            none, shards = np.zeros(point.pp), (parallel.shard_ranks, parallel.expert_shard_ranks)
            key = content, shards, point.zero, is_simple
            if key not in known:
                static = is_simple and self._knows_static
                known[key] = (
                    self._step_s(table, trained, shards if point.zero else (1, 1)) if alone else none,
                    self._static(point, elements, trained, shards) if static else none,
                )
            reduce_s = self._reduce_s(point, table, parallel, trained) if alone and bounded[first] else none
            found.append((reduce_s, *known[key]))
            has_copies = bool(cut.repeats.any())
            places = table.exchanged, cut.first, cut.last, cut.rank
            exchanges.append(None if has_copies else self._exchanges.of(parallel, table.model, *places))
        return _Outer(*map(np.array, zip(*found, strict=True))), exchanges, place

    # -- time ----------------------------------------------------------------------------------------------------
    def _times(self, cut: _Cut, some: _Some) -> F64:
        """Time of an iteration at least, without what is outside of any device: float64[num_rows] [s]."""
        costs, at, outer, kind = some.costs, some.at, some.outer, some.kind
        dp = some.dp[:, np.newaxis]
        busy = cut.of_ranks(np.where(cut.repeats, 0.0, cut.of_chunks(costs.all_s)))[at] / dp
        copied = cut.of_ranks(np.where(cut.repeats, cut.of_chunks(costs.silent_s), 0.0))[at] / dp
        if self._job.training.optimizer_post_validation:
            return cast("F64", (busy + copied + outer.step_s[kind]).max(axis=1))
        ends = busy
        if self._is_chain:
            ends = costs.forward_s[:, cut.first[cut.entry]][at] + busy
        last = cut.of_ranks(np.where(cut.repeats, 0.0, cut.of_chunks(costs.dearest_s)))[at]
        reduced = ends - last + outer.reduce_s[kind]
        if self._is_chain:
            tail = costs.backward_s[:, cut.first[cut.entry]][at]
            ends = ends + np.where(some.bounded[:, np.newaxis], tail, 0.0)
        ends = np.maximum(ends, reduced)
        ends = np.maximum(ends, busy + copied)  # copies run before the head has passed, or behind all else
        ends = ends.max(axis=1)
        exchanging = np.array([own is not None for own in some.exchanges], dtype=np.bool_)[kind]
        exchanging &= ~some.points.mapped("schedule", lambda name: ALL_SCHEDULES[name].splits_backward)
        if (rows := np.flatnonzero(exchanging)).size:
            ends[rows] = np.maximum(ends[rows], self._exchanging(cut, some, rows))
        return cast("F64", ends + outer.step_s.max(axis=1)[kind])

    def _exchanging(self, cut: _Cut, some: _Some, rows: I64) -> F64:
        """When the last rank has run and reduced all at least, of rows with exchanges inside stages [s]."""
        at, dp, costs = some.at[rows], some.dp[rows, np.newaxis], some.costs
        numbers, kind = np.unique(some.kind[rows], return_inverse=True)
        known = [own for own in map(some.exchanges.__getitem__, numbers.tolist()) if own is not None]
        by_chunk = StageExchanges(*(np.array(own)[kind.reshape(-1)] for own in zip(*known, strict=True)))
        count = self._job.training.global_batch // (dp * some.points.column("micro_batch")[rows, np.newaxis])
        forwards = cut.of_chunks(costs.forwards_s)[at] / dp
        backwards = cut.of_chunks(costs.all_s)[at] / dp - forwards
        last = (costs.forward_s[:, cut.last] - costs.forward_s[:, cut.last - 1])[at]
        first = (costs.backward_s[:, cut.first + 1] - costs.backward_s[:, cut.first])[at]
        ends = cut.of_ranks(by_chunk.forward_s(forwards, last, count) + by_chunk.backward_s(backwards, first, count))
        if self._is_chain:
            passes = (
                by_chunk.forward_s(cut.of_chunks(costs.forward_s)[at], last),
                by_chunk.handing_on_s(cut.of_chunks(costs.backward_s)[at], first),
            )
            head, tail = (running_sums(own)[:, cut.entry] for own in passes)
            ends = ends + head
            tail = np.where(some.bounded[rows, np.newaxis], tail - by_chunk.reductions[:, cut.entry], 0.0)
            ends = np.maximum(ends, ends + tail)
        found: F64 = ends.max(axis=1) * LEAST
        return found

    def _step_s(self, table: BlockTable, trained: I64, shards: tuple[int, int]) -> F64:
        """Optimizer's step of every rank [s]; ``trained``: int64[2, num_ranks], elements, then of routed experts;
        ``shards``: ranks that share either."""
        training = self._job.training
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
    def _memories(self, point: Point, cut: _Cut, some: _Some) -> F64:
        """Memory of the fullest rank at least: float64[num_rows] [bytes]. ``point``: one with the cut."""
        static, points = some.outer.static, some.points
        found: F64 = static.max(axis=1)[some.kind]
        known = some.bounded
        if not (self._knows_static and self._is_chain and point.placement == "circular" and known.any()):
            return found
        p, v = point.pp, point.vpp
        counts = self._job.training.global_batch // (some.dp * points.column("micro_batch"))
        points, counts, at, kind = points.take(known), counts[known], some.at[known], some.kind[known]
        firsts, order = points.groups("schedule", counts)
        family = [ALL_SCHEDULES[points[row].schedule] for row in firsts.tolist()]
        m = counts[firsts][:, np.newaxis]
        ran = [own.activations(p, count, v) for own, count in zip(family, counts[firsts].tolist(), strict=True)]
        steps = np.array(ran, dtype=np.int64)[:, cut.rank]
        whole, rest = np.divmod(steps, p * v)  # p microbatches through one slot, the same through the next
        before = np.where(steps == m * v, m, whole * p + np.clip(rest - cut.slot * p, 0, p))  # the first backward
        left = np.maximum(cut.of_chunks(some.costs.kept) - some.costs.handed[:, cut.last - 1], 0) * ~cut.repeats
        firsts, each = groups_of((at, order), len(at))
        kept = cut.of_ranks(left[at[firsts]] * before[order[firsts]])
        found[known] = (static[kind] + kept[each]).max(axis=1)
        return found

    def _has_master_shards(self, point: Point) -> bool:
        """As ``shards_are_masters``, which depends on no other axis than zero; ``point``: one with ZeRO-3."""
        if self._masters is None:
            self._masters = job_at(self._job, point).shards_are_masters
        return self._masters

    def _static(self, point: Point, elements: I64, trained: I64, shards: tuple[int, int]) -> F64:
        """Parameters, gradients and optimizer state of every rank [bytes]; ``trained``, ``shards``: as ``_step_s``."""
        job, training = self._job, self._job.training
        total = np.zeros(point.pp)
        for own, trains, count in zip(elements, trained, shards, strict=True):
            found = static_bytes(
                own,  # of all ranks at once
                trains,
                dp=count,
                zero=point.zero,
                tensor_dtype=training.precision.tensor_dtype,
                grad_dtype=training.grad_dtype,
                master_dtype=training.master_dtype,
                state_dtype=training.optimizer_state_dtype,
                moments=training.optimizer.fewest_moments,
                shards_are_masters=point.zero >= 3 and self._has_master_shards(point),
                bucket_dtype=job.bucket_dtype,
                has_two_gradients=job.sums_gradients_twice,
            )
            total = total + found.total
        return total


def _chunks(model: Model, parallel: Parallel, table: BlockTable) -> list[Chunk]:
    """As ``build_layout`` cuts the model."""
    counts, layout = table.blocks_per_module, parallel.stage_layout
    if layout is not None:
        bounds = stage_boundaries(model, layout, parallel.pp, parallel.vpp)
        return deal_chunks(counts, bounds, parallel.pp, parallel.placement)
    return place_modules(
        parallel.segments,
        [module.name for module in model.modules],
        counts,
        table.weights,
        parallel.pp,
        parallel.vpp,
        parallel.placement,
        parallel.shares,
        [module.sources for module in model.modules],
        model.encoders,
    )
