"""``BlockTable``: what the blocks of a model cost at least, each by itself, for every size of a microbatch at once.

All configurations with the same (tp, cp, ep, zero, recompute, cp_balance, attention_split, cp_kind) are made of the
same blocks; pp, vpp, segments and dp only put them together differently. Where context ranks do different work, blocks
are those of the rank with most tiles: a stage of all ranks ends no sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from semu import memo
from semu.compile.combined.layers import EXPERT_STREAMS
from semu.compile.join import build_stages
from semu.compile.layout import TracedBlocks, trace_blocks
from semu.compile.module_sharding import spreads
from semu.compile.parameter_pools import weight_bytes
from semu.compile.stage import StageCosts, StageProgram
from semu.compile.tracer import Block
from semu.costs.evaluation import BatchShapes, cost_model_of, distinct_shapes
from semu.costs.ranks import Ranked
from semu.costs.roofline import CostModel
from semu.costs.segment_costs import stage_costs
from semu.costs.shape_costs import ShapeCosts, num_shapes
from semu.graph.rounding import with_rounded
from semu.job import Recompute, TrainingJob
from semu.nn.module import Parameter
from semu.nn.streams import derived_in
from semu.nn.window import windows_in
from semu.parallel.own_gpus import on_own_gpus
from semu.parallel.segments import sharing_ranks
from semu.records import dataclass
from semu.searcher.grid.columns import F64, I64, running_sums
from semu.searcher.grid.exchanges import ExchangedBytes
from semu.searcher.grid.space import Point, changed, job_at

REPEATS = 4
"""Copies of a repeated block that are joined to measure what one more of them adds."""
FEW = 256
"""So many shapes of a batch, at most, are looked up one by one."""
MOST_KNOWN = 1024
"""Shapes of a block after which what they cost is forgotten."""


@dataclass(frozen=True)
class MicrobatchCosts:
    """Running sums over the blocks, for every size of a microbatch: [num_sizes, num_blocks + 1], the first 0.

    Attributes:
        all_s: forward and backward of all microbatches of all replicas together [s].
        silent_s: of encoders that are replicated, forwards of all microbatches where no gradient arrives [s]; else 0.
        forward_s, backward_s: of one microbatch, the cheapest [s]. dearest_s: backward of the dearest [s].
        forwards_s: of ``all_s`` the forwards [s].
        kept: what a forward leaves allocated at least, with what it hands on [bytes].
        handed: int64[num_sizes, num_blocks], what every block hands on at most [bytes].
    """

    all_s: F64
    silent_s: F64
    forward_s: F64
    backward_s: F64
    dearest_s: F64
    forwards_s: F64
    kept: I64
    handed: I64

    def of_rows(self, rows: I64) -> MicrobatchCosts:
        """The same for some sizes of a microbatch."""
        return MicrobatchCosts(*(column[rows] for column in vars(self).values()))


@dataclass(frozen=True)
class BlockTable:
    """The blocks of a model under one (tp, cp, ep, zero, recompute, cp_balance, attention_split, cp_kind).

    Attributes:
        model: prices. weights: of the blocks, for the balance of stages. blocks_per_module: of every module.
        elements, trained: int64[2, num_blocks + 1], running sums of local elements: all else, then routed experts; of
            a parameter that several blocks have, the first counts.
        costs: for every size of a microbatch. exchanged: what units of sharded parameters move.
    """

    model: CostModel
    weights: tuple[float, ...]
    blocks_per_module: tuple[int, ...]
    elements: I64
    trained: I64
    costs: MicrobatchCosts
    exchanged: ExchangedBytes

    @classmethod
    def of(
        cls, job: TrainingJob, point: Point, micro_batches: Sequence[int], shapes: KnownShapes | None = None
    ) -> BlockTable:
        """Trace the model in a configuration and cost its blocks.

        Args:
            job: the base. point: a legal configuration. micro_batches: all sizes of a microbatch.
            shapes: of the base's batch, where several tables are made.
        """
        own = job_at(job, point)
        if own.parallel.cuts_by_time:  # only where blocks lie depends on it
            own = replace(own, parallel=replace(own.parallel, partition="parameters"))
        if own.parallel.spreads_vocabulary or own.parallel.gathers_towers:  # each block once: no part of it is faster
            own = replace(
                own, parallel=replace(own.parallel, vocabulary="ends", loss="head", segments="mixed", shares={})
            )
        is_partial = own.training.recompute_layers is not None
        if is_partial:  # which ones depends on the chunks: for a bound, none is recomputed and none keeps anything
            without = replace(own.training, recompute=Recompute.NONE, recompute_layers=None, recompute_method=None)
            own = replace(own, training=without)
        traced = trace_blocks(_aligned(own) if point.modules else own)
        blocks = [*chain(*traced.blocks)]
        repeats = own.model.encoders if own.parallel.segments == "replicated" and own.parallel.pp > 1 else ()
        copies = [
            [block.template for block in traced.silent[number]] if module.name in repeats else [-1] * len(held)
            for number, (module, held) in enumerate(zip(own.model.modules, traced.blocks, strict=True))
        ]
        model = cost_model_of(traced.library, own.profile, None)
        elements, trained, exchanged = _held(own, traced, blocks)
        templates = [(block.template, copy) for block, copy in zip(blocks, chain(*copies), strict=True)]
        shapes = shapes if shapes is not None else KnownShapes(job)
        costs = _costs(own, traced, model, templates, [shapes.of(own, traced, size) for size in micro_batches])
        if is_partial:
            costs = replace(costs, kept=np.zeros_like(costs.kept))
        return cls(
            model,
            tuple(float(sum(held.parameter.numel for held in block.parameters)) for block in blocks),
            tuple(len(module.blocks()) for module in job.model.modules),
            running_sums(elements),
            running_sums(trained),
            costs,
            exchanged,
        )


def _aligned(job: TrainingJob) -> TrainingJob:
    """A job whose modules have the same sizes on nodes of their own: groups of ranks lie as well as they can, wherever
    a configuration puts them. It is no legal job."""
    own = job.parallel
    names = [module.name for module in job.model.modules]
    places = sharing_ranks(own.segments, names, job.model.encoders)
    nodes = [math.lcm(*((own.modules[names[k]].tp or 1) * (own.modules[names[k]].cp or 1) for k in p)) for p in places]
    each = job.cluster.gpus_per_node
    modules = {
        names[k]: replace(own.modules[names[k]], pp=1, dp=None, gpus=each * count, first_rank=None)
        for place, count in zip(places, nodes, strict=True)
        for k in place
    }
    cluster = replace(job.cluster, nodes=sum(nodes))
    parallel = replace(own, dp=each, pp=len(places), shares={}, modules={name: modules[name] for name in names})
    placed = on_own_gpus(parallel, names, job.model.encoders, cluster.num_gpus)
    return changed(job, cluster=cluster, parallel=placed)


def _held(job: TrainingJob, traced: TracedBlocks, blocks: Sequence[Block]) -> tuple[I64, I64, ExchangedBytes]:
    """Local elements of blocks, and of these what is trained, int64[2, num_blocks] each: all else, then routed experts;
    and what units move. Blocks of one template with parameters of their own hold as much."""
    held = np.zeros((4, 2, len(blocks)), dtype=np.int64)
    seen: set[Parameter] = set()
    shared: set[Parameter] = set()
    parameters = [{held.parameter for held in block.parameters} for block in blocks]
    alike: dict[tuple[int, int], int] = {}
    for number, (block, own) in enumerate(zip(blocks, parameters, strict=True)):
        if len(own) == len(block.parameters) and seen.isdisjoint(own):
            first = alike.setdefault((block.template, len(own)), number)
            if first < number:
                held[:, :, number] = held[:, :, first]
                seen |= own
                continue
        shared |= seen & own
        held[:, :, number] = _held_by(job, block, seen)
        seen |= own
    gathered, reduced = held[2:]
    if shared:
        mixed = [number for number, own in enumerate(parameters) if not shared.isdisjoint(own)]
        gathered[:, mixed] = reduced[:, mixed] = 0
    backward = [bool(traced.library.templates[block.template].backward.operators) for block in blocks]
    return held[0], held[1], ExchangedBytes(gathered, reduced, np.array(backward, dtype=np.bool_))


def _held_by(job: TrainingJob, block: Block, seen: set[Parameter]) -> I64:
    """Elements, trained elements, bytes that are gathered and reduced: int64[4, 2], of parameters not seen before."""
    found, size = np.zeros((4, 2), dtype=np.int64), job.training.grad_dtype.size_bytes
    for own in {held.parameter: held for held in block.parameters if held.parameter not in seen}.values():
        trained = own.elements if own.parameter.requires_grad else 0
        written = own.elements * size if own.writers else 0
        found[:, int(own.is_expert)] += own.elements, trained, weight_bytes(job, own), written
    return found


class KnownShapes:
    """The distinct shapes of a base's batch in microbatches of a size, as blocks of its configurations read them.

    Those of a job whose blocks read nothing but sequences are the same for many configurations, and found once.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._known: dict[object, BatchShapes] = {}

    def of(self, job: TrainingJob, traced: TracedBlocks, micro_batch: int) -> BatchShapes:
        """Of one size; ``job``: one of the base's, in a configuration."""
        symbols, parallel = traced.library.symbols, job.parallel
        windows, derived, ranked = windows_in(symbols), derived_in(symbols), Ranked.of(job, symbols)
        sizes = 1, parallel.token_divisor, parallel.sequence_parts
        spread = spreads(job)

        def _find() -> BatchShapes:
            count = self._job.training.global_batch // micro_batch
            items = self._job.batch.microbatches(count, micro_batch, self._job.training.seq_len)
            return distinct_shapes(items, *sizes, spread, windows, ranked, derived)

        if windows or derived or spread or ranked is not None:
            return _find()
        key = micro_batch, sizes
        if key not in self._known:
            self._known[key] = _find()
        return self._known[key]


def _costs(
    job: TrainingJob,
    traced: TracedBlocks,
    model: CostModel,
    templates: Sequence[tuple[int, int]],
    shapes: Sequence[BatchShapes],
) -> MicrobatchCosts:
    """For every size of a microbatch; the shapes of all sizes are costed in one go. ``templates``: of every block, and
    of its copy where no gradient arrives, -1: there is none."""
    columns, index = [], []
    for own in shapes:
        columns += [(name, column.dtype.str, column.tobytes()) for name, column in own.columns.items()]
        index += [own.index.shape, own.index.dtype.str, own.index.tobytes()]
    settings = job.overlaps_tensor_parallel, job.training.overlap.expert_parallel
    key = memo.Same((traced.library,)), (*map(tuple, templates),), (*traced.streams,), settings, (*columns, *index)
    return _COSTS.get(model, key, lambda: _costs_of_shapes(job, traced, model, templates, shapes))


_COSTS = memo.ScopedTable[MicrobatchCosts](
    "least costs of blocks under a cost model, by templates, shapes of microbatches and what overlaps", 4
)


def _costs_of_shapes(
    job: TrainingJob,
    traced: TracedBlocks,
    model: CostModel,
    templates: Sequence[tuple[int, int]],
    shapes: Sequence[BatchShapes],
) -> MicrobatchCosts:
    """``_costs`` of the distinct shapes of every size of a microbatch."""
    joined = {name: np.concatenate([own.columns[name] for own in shapes]) for name in shapes[0].columns}
    pairs, block, count = np.unique(templates, axis=0, return_inverse=True, return_counts=True)
    block = block.reshape(-1)
    maker = _Floors(job, traced, model, joined)
    floors = [
        maker.of(number, copy, times > 1) for (number, copy), times in zip(pairs.tolist(), count.tolist(), strict=True)
    ]
    last = np.cumsum([len(own.columns[next(iter(own.columns))]) for own in shapes]).tolist()
    sums = []  # of every size and distinct block
    for own, begin, end in zip(shapes, [0, *last[:-1]], last, strict=True):
        uses = np.bincount(own.index.ravel(), minlength=end - begin).astype(np.float64)
        sums.append([floor.over(uses, slice(begin, end)) for floor in floors])
    columns = [np.array([[cell[k] for cell in row] for row in sums])[:, block] for k in range(8)]
    columns[:-1] = map(running_sums, columns[:-1])
    return MicrobatchCosts(*columns)


class _Floor(NamedTuple):
    """What one block adds to a stage at least, for every shape; ``dearest_s``: what its backward takes at most."""

    forward_s: F64
    backward_s: F64
    dearest_s: F64
    kept: I64
    handed: I64
    silent_s: F64

    def over(self, uses: F64, shapes: slice) -> tuple[Any, ...]:
        """As the columns of ``MicrobatchCosts``, over the shapes of one size of a microbatch; ``uses``: of each."""
        used = np.flatnonzero(uses) + shapes.start
        return (
            uses @ (self.forward_s[shapes] + self.backward_s[shapes]),
            uses @ self.silent_s[shapes],
            self.forward_s[used].min(),
            self.backward_s[used].min(),
            self.dearest_s[used].max(),
            uses @ self.forward_s[shapes],
            self.kept[used].min(),
            self.handed[used].max(),
        )


class _Floors:
    """Floors of traced blocks for some shapes: what was found for a block and a shape is looked up.

    Args:
        job, traced, model: which blocks, and their costs. columns: int64[num_shapes] each, distinct or not, before
            rounding.
    """

    def __init__(self, job: TrainingJob, traced: TracedBlocks, model: CostModel, columns: Mapping[str, I64]) -> None:
        self._traced, self._model, self._columns = traced, model, columns
        self._serial, self._may_hide = not job.overlaps_tensor_parallel, job.training.overlap.expert_parallel
        self._settings = job.profile, self._serial, self._may_hide, (*traced.streams,), (*columns,)
        self._shapes = [*zip(*(column.tolist() for column in columns.values()), strict=True)]
        self._costs: dict[tuple[int, ...], ShapeCosts] = {}

    def of(self, number: int, copy: int, is_repeated: bool) -> _Floor:
        """Of one block.

        Args:
            number: of its template. copy: of the template of its copy where no gradient arrives; -1: there is none.
            is_repeated: a layout holds it more often than once.
        """
        templates = self._traced.library.templates
        key = memo.Same(templates[own] for own in (number, copy) if own >= 0), is_repeated, self._settings
        known = _KNOWN.get(key, dict) if len(self._shapes) <= FEW else {}
        if len(known) > MOST_KNOWN:
            known = _KNOWN.put(key, {})
        missing = {shape: row for row, shape in enumerate(self._shapes) if shape not in known}
        if missing:
            found = self._find(number, copy, is_repeated, self._costs_of([*missing.values()]))
            if len(missing) == len(self._shapes) > FEW:
                return found
            known.update(zip(missing, zip(*found, strict=True), strict=True))
        return _Floor(*map(np.array, zip(*(known[shape] for shape in self._shapes), strict=True)))

    def _costs_of(self, rows: Sequence[int]) -> ShapeCosts:
        """What operators cost for some of the shapes."""
        if (key := tuple(rows)) not in self._costs:
            some = {name: column[list(rows)] for name, column in self._columns.items()}
            self._costs[key] = ShapeCosts(self._model, with_rounded(some, self._traced.library.symbols))
        return self._costs[key]

    def _find(self, number: int, copy: int, is_repeated: bool, by_shape: ShapeCosts) -> _Floor:
        """Least times [s] and bytes of a block; arguments as ``of``."""
        stages = self._copies(number, is_repeated)
        programs = [stage for pair in stages for stage in pair if stage is not None]
        costs = dict(zip(programs, stage_costs(programs, by_shape, None), strict=True))
        forward = [pair[0] for pair in stages]
        backward = [pair[1] for pair in stages if pair[1] is not None]
        first = costs[forward[0]]
        none = np.zeros(len(first.latency))
        hidden = [
            _exchanged(self._traced, pair, by_shape) if self._may_hide else none for pair in (forward[:1], backward[:1])
        ]
        handed = by_shape.sizes_of_rows([row for row in forward[0].leaving if row >= 0]).sum(axis=0)
        silent = [stage for stage, _ in self._copies(copy, is_repeated)] if copy >= 0 else []
        of_silent = dict(zip(silent, stage_costs(silent, by_shape, None), strict=True))
        return _Floor(
            forward_s=np.maximum(_least(forward, costs) - hidden[0], 0.0),
            backward_s=np.maximum(_least(backward, costs) - hidden[1], 0.0) if backward else none,
            dearest_s=costs[backward[0]].latency if backward else none,
            kept=first.net,
            handed=handed if len(handed) else np.zeros(len(first.latency), dtype=np.int64),
            silent_s=_least(silent, of_silent) if silent else none,
        )

    def _copies(self, number: int, is_repeated: bool) -> list[tuple[StageProgram, StageProgram | None]]:
        """Stages of one block, of two like it, and so on, where one more may add less than one alone takes."""
        stages: list[tuple[StageProgram, StageProgram | None]] = []
        while len(stages) < (REPEATS if is_repeated else 1):
            chunk = [number] * (len(stages) + 1)
            stages.append(build_stages(self._traced.library, chunk, self._traced.streams, serial=self._serial))
            if self._serial and all(stage is None or stage.is_serial for stage in stages[0]):
                break
        return stages


_KNOWN = memo.Table[dict[tuple[int, ...], tuple[Any, ...]]](
    "least costs of a block by shape, by its template and that of its silent copy, whether it repeats, and settings",
    512,
)


def _exchanged(traced: TracedBlocks, programs: Sequence[StageProgram], by_shape: ShapeCosts) -> F64:
    """Time of all exchanges of experts' tokens in stages, which may hide: float64[num_shapes] [s]."""
    streams = [number for number, name in enumerate(traced.streams) if name in EXPERT_STREAMS]
    rows = [program.rows[np.isin(program.stream, streams)] for program in programs]
    return sum((by_shape.latency[:, own].sum(axis=1) for own in rows), np.zeros(num_shapes(by_shape.symbols)))


def _least(programs: Sequence[StageProgram], costs: Mapping[StageProgram, StageCosts]) -> F64:
    """What one more block adds to the latency of a stage at least.

    Args:
        programs: stages of one block, of two like it, and so on.

    Where operators run one after another that is the block's own latency. Else its kernels take that long at least;
    and where the stage grows by the same time with each further block, it grows so for ever: the latency of n blocks
    is subadditive in n, and the growth its limit (the maximum cycle mean of the block's max-plus matrix).
    """
    own = costs[programs[0]]
    if all(program.is_serial for program in programs):
        return own.latency
    least: F64 = own.latency - own.exposed.sum(axis=1)
    if len(programs) > 1:
        latencies = np.stack([costs[program].latency for program in programs])
        growth = np.diff(latencies, axis=0)
        least = np.where(growth[-1] == growth[-2], np.maximum(least, np.minimum(growth[-1], latencies[0])), least)
    return least
