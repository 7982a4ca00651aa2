"""``partition``: sub-microbatches, pipeline segments and layers of chunks for every modality module (DIP §4).

Every module has pipeline segments of its own (separated partitioning). B_i is the smallest number of items that runs
at ``EFFICIENT`` of the best rate of all numbers up to those of the largest microbatch; items of the typical (median)
length, latencies of the simulator. A module whose stages read other items than it would cut, as a backbone does, runs
microbatches whole. K_i = floor(T_i / T_1), T_i forward and backward of the whole module at B_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from semu.baselines import megatron_1f1b
from semu.checks import check_integer, check_word
from semu.compile.join import build_stages
from semu.compile.recipe.sub_microbatches import check_symbols, cut_batch
from semu.compile.recipe.variants import symbols_of_module
from semu.compile.template import stream_names
from semu.compile.tracer import Block
from semu.costs.evaluation import distinct_shapes
from semu.costs.ranks import Ranked
from semu.costs.segment_costs import stage_costs
from semu.costs.shape_costs import ShapeCosts
from semu.errors import ConfigError, ScheduleError
from semu.graph.rounding import with_rounded
from semu.job import TrainingJob
from semu.nn.model import ModalityModule
from semu.nn.streams import derived_in
from semu.nn.window import windows_in
from semu.parallel.stage_layers import layer_parts
from semu.records import dataclass
from semu.schedule.stage_plan import StagePlan
from semu.searcher.layer_placement import ModuleLayers, place_layers
from semu.searcher.problem.problem_arrays import F64
from semu.simulation import JobCheckpoint, prepare
from semu.workload.batch import Microbatch

MOST_ITEMS = 1_000_000
"""Of a sub-microbatch, and of segments, that a caller asks for."""
EFFICIENT = 0.95
"""Part of the best rate that a sub-microbatch must reach (DIP §4)."""


@dataclass(frozen=True)
class ModulePartition:
    """What was decided for a module.

    Attributes:
        name: of the module. sub_batch: B_i, items of a sub-microbatch; None: microbatches run whole.
        rates: of 1, 2, ... typical items, over the best of them; empty where microbatches run whole.
        time_s: T_i [s]. segments: K_i. layers: of its P x K_i chunks.
        parts: per microbatch, sub-microbatches of every replica. waits: samples of it are deferred.
    """

    name: str
    sub_batch: int | None
    rates: tuple[float, ...]
    time_s: float
    segments: int
    layers: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]
    waits: bool = False


@dataclass(frozen=True)
class Partition:
    """A job's modules, in order of data flow.

    Attributes:
        modules: of them. num_ranks: of the pipeline.
    """

    modules: tuple[ModulePartition, ...]
    num_ranks: int

    def plan(self) -> StagePlan:
        """Chunks and parts, nothing else; a pipeline of one rank needs no chunks in its plan."""
        return StagePlan(
            parts={m.name: _plain(m.parts) for m in self.modules if m.sub_batch is not None},
            layers={m.name: m.layers for m in self.modules} if self.num_ranks > 1 else None,
        )

    @property
    def sizes(self) -> dict[str, int | None]:
        """Module -> items of a sub-microbatch; None: microbatches run whole."""
        return {m.name: m.sub_batch for m in self.modules}

    def deferring(self, own: StagePlan, dp: int) -> tuple[Partition, StagePlan]:
        """The same chunks with what an assignment defers, if anything: the partition, and its plan.

        Args:
            own: parts, items and reads (``Assignment.cut``). dp: replicas.
        """
        modules = []
        for m in self.modules:
            if m.name in own.reads:
                counts = tuple((n,) * dp if isinstance(n, int) else n for n in own.parts[m.name])
                m = replace(m, parts=counts, waits=True)
            modules.append(m)
        found = replace(self, modules=tuple(modules))
        plan = found.plan()
        return found, replace(plan, parts={**plan.parts, **own.parts}, items=own.items, reads=own.reads)

    def to_json(self) -> dict[str, object]:
        """By module."""
        return {
            m.name: {
                "sub_batch": m.sub_batch,
                "segments": m.segments,
                "layers": list(m.layers),
                "parts": [list(own) for own in m.parts],
                "time_s": m.time_s,
                "rates": list(m.rates),
            }
            for m in self.modules
        }

    def lines(self) -> list[str]:
        """For people: a line per module."""
        found = []
        for m in self.modules:
            counts = [max(own) for own in m.parts]
            how = (
                "whole microbatches"
                if m.sub_batch is None
                else f"sub-microbatches of at most {m.sub_batch}, {min(counts)} to {max(counts)} per microbatch"
            )
            sizes = f"{min(m.layers)}" if min(m.layers) == max(m.layers) else f"{min(m.layers)} to {max(m.layers)}"
            if not any(counts):
                how = "no items in this batch"
            elif m.waits:
                how = f"samples that stay, then samples that wait, {how}"
            layers = "layer" if max(m.layers) == 1 else "layers"
            chunks = f"{m.segments} segment{'s' if m.segments > 1 else ''} of chunks of {sizes} {layers}"
            found.append(f"{m.name}: {chunks}, {how}")
        return found


def partition(
    job: TrainingJob, *, sub_batch: Mapping[str, int] | None = None, segments: Mapping[str, int] | None = None
) -> Partition:
    """Cut a job's model and batch.

    Args:
        job: its layout and schedule do not matter. sub_batch: module -> B_i, 0: whole microbatches. segments: module ->
            K_i. Both in place of what would be chosen.
    Raises:
        ConfigError: no such module, sizes that are none, a module with fewer layers than chunks.
        ScheduleError: sub-microbatches of a module that cannot be cut.
    """
    sub_batch, segments = dict(sub_batch or {}), dict(segments or {})
    _check_given(job, sub_batch, segments)
    base = prepare(megatron_1f1b(job).job)
    parallel, training = job.parallel, job.training
    batch = job.batch.microbatches(job.num_microbatches * parallel.replicas, training.micro_batch, training.seq_len)
    blocks = _blocks(base)
    rows = []
    for module in job.model.modules:
        cut = _cuttable(base, module, batch, is_asked=bool(sub_batch.get(module.name)))
        size: int | None = None
        rates: tuple[float, ...] = ()
        sample = list(batch)
        if cut is not None and sub_batch.get(module.name) != 0:
            items = _typical(batch, cut)
            times = _seconds(base, blocks[module.name], items).sum(axis=0)
            size, rates = _smallest(times)
            size = sub_batch.get(module.name, size)
            sample = items[size - 1 : size] if size <= len(items) else [_repeated(items[0], cut, size)]
            if not any(len(item.lengths[min(cut)]) for item in batch):
                sample = []
        each = _seconds(base, blocks[module.name], sample).mean(axis=1) if sample else np.zeros(0)
        rows.append((module, cut, size, rates, each))
    fastest = min((float(each.sum()) for *_, each in rows if each.sum() > 0), default=1.0)
    placed, found = [], []
    for module, cut, size, rates, each in rows:
        numbered = layer_parts(module)
        layers, total = len(numbered), float(each.sum())
        count = min(max(int(total / fastest + 1e-9), 1), max(layers // parallel.pp, 1)) if parallel.pp > 1 else 1
        count = segments.get(module.name, count)
        parts = _parts(batch, cut, size, parallel.replicas)
        runs = sum(max(own) for own in parts)
        before, behind = numbered[0].layer, numbered[-1].last - 1 - numbered[-1].layer
        first, last = float(each[:before].sum()), float(each[len(each) - behind :].sum())
        per_layer = (total - first - last) / max(layers, 1)
        placed.append(
            ModuleLayers(module.name, layers, count, per_layer, first, last, bool(before), bool(behind), float(runs))
        )
        found.append(ModulePartition(module.name, size, rates, total, count, (), parts))
    layouts = place_layers(placed, parallel.pp)
    return Partition(tuple(replace(m, layers=own) for m, own in zip(found, layouts, strict=True)), parallel.pp)


def recut(cut: Partition, job: TrainingJob) -> Partition:
    """The same chunks and sizes of sub-microbatches for another batch: during training only the numbers of
    sub-microbatches change (DIP §3.2, §4).

    Args:
        cut: of another batch of the same model. job: with the batch.
    """
    dp, training = job.parallel.replicas, job.training
    batch = job.batch.microbatches(job.num_microbatches * dp, training.micro_batch, training.seq_len)
    streams = {module.name: module.inputs[0].stream for module in job.model.modules if module.inputs}
    found = []
    for m in cut.modules:
        own = None if m.sub_batch is None else frozenset((streams[m.name],))
        found.append(replace(m, parts=_parts(batch, own, m.sub_batch, dp)))
    return replace(cut, modules=tuple(found))


def _check_given(job: TrainingJob, sub_batch: Mapping[str, int], segments: Mapping[str, int]) -> None:
    names = [module.name for module in job.model.modules]
    for table, given, least in (("sub_batch", sub_batch, 0), ("segments", segments, 1)):
        for name, value in given.items():
            check_word(name, names, "modality module", f"{table}.{name}")
            check_integer(value, f"{table}.{name}", "a size", least=least, most=MOST_ITEMS)
    for name, value in segments.items():
        if value > 1 and job.parallel.pp == 1:
            raise ConfigError(
                "one rank has nothing to take turns with",
                where=f"segments.{name}",
                expected="1 segment",
                got=value,
                nearest=1,
            )


def _blocks(base: JobCheckpoint) -> dict[str, list[Block]]:
    """The blocks of every module, in order."""
    blocks: dict[str, list[Block]] = {module.name: [] for module in base.job.model.modules}
    for chunk in base.layout.chunks:
        blocks[chunk.module] += chunk.blocks
    return blocks


def _cuttable(
    base: JobCheckpoint, module: ModalityModule, batch: Sequence[Microbatch], *, is_asked: bool
) -> frozenset[str] | None:
    """Streams that are cut with a module's items; None: it must run microbatches whole."""
    if not module.inputs:
        if is_asked:
            raise ScheduleError(f"{module.name} has no items to cut", where=f"sub_batch.{module.name}", nearest=0)
        return None
    stream, dp = module.inputs[0].stream, base.job.parallel.replicas
    by_microbatch = [batch[i : i + dp] for i in range(0, len(batch), dp)]
    most = [max(len(item.lengths[stream]) for item in own) for own in by_microbatch]
    if max(most, default=0) < 2 and not is_asked:
        return None if min(most, default=0) else _alone(stream, batch)
    try:
        cut = cut_batch(base.job.model, StagePlan(parts={module.name: tuple(min(2, n) for n in most)}), batch, dp)
        if not cut.modules:
            return _alone(stream, batch)
        check_symbols(cut.modules[module.name], symbols_of_module(base.layout, module.name))
    except ScheduleError:
        if is_asked:
            raise
        return None
    return cut.modules[module.name].streams


def _alone(stream: str, batch: Sequence[Microbatch]) -> frozenset[str]:
    lengths = [item.lengths for item in batch]
    return frozenset(k for k in lengths[0] if all(len(own[k]) == len(own[stream]) for own in lengths))


def _typical(batch: Sequence[Microbatch], streams: frozenset[str]) -> list[Microbatch]:
    """1, 2, ... items of median length, up to as many as the largest microbatch has."""
    most = max(len(item.lengths[next(iter(streams))]) for item in batch)
    lengths = {}
    for name in batch[0].lengths:
        own = np.concatenate([item.lengths[name] for item in batch]) if name in streams else np.zeros(0)
        lengths[name] = int(np.sort(own)[len(own) // 2]) if len(own) else 0
    return [
        Microbatch({name: [value] * size if name in streams else [] for name, value in lengths.items()}, samples=0)
        for size in range(1, max(most, 1) + 1)
    ]


def _repeated(item: Microbatch, streams: frozenset[str], size: int) -> Microbatch:
    return Microbatch(
        {name: own.tolist() * size if name in streams else [] for name, own in item.lengths.items()}, samples=0
    )


def _seconds(base: JobCheckpoint, blocks: Sequence[Block], items: Sequence[Microbatch]) -> F64:
    """Forward plus backward of every block: float64[num_blocks, num_items] [s]."""
    library, job = base.layout.library, base.job
    symbols = library.symbols
    sizes = 1, job.parallel.token_divisor, job.parallel.sequence_parts
    ranked = Ranked.of(job, symbols)
    given = distinct_shapes(items, *sizes, (), windows_in(symbols), ranked, derived_in(symbols))
    by_shape = ShapeCosts(base.evaluation.by_shape.model, with_rounded(given.columns, symbols))
    streams, serial = stream_names(library), not job.overlaps_tensor_parallel
    numbers = sorted({block.template for block in blocks})
    halves = {number: build_stages(library, [number], streams, serial=serial) for number in numbers}
    programs = [stage for stages in halves.values() for stage in stages if stage is not None]
    costs = dict(zip(programs, stage_costs(programs, by_shape, None), strict=True))
    by_template = {
        number: sum((costs[s].latency[given.index[0]] for s in stages if s is not None), np.zeros(len(items)))
        for number, stages in halves.items()
    }
    return np.stack([by_template[block.template] for block in blocks])


def _smallest(times: F64) -> tuple[int, tuple[float, ...]]:
    """B_i and the rates of all sizes over the best one. ``times``: float64[N] [s], of 1, 2, ... items."""
    if not times.any():
        return 1, (1.0,) * len(times)
    rate = np.arange(1, len(times) + 1) / times
    rate /= rate.max()
    return int(np.argmax(rate >= EFFICIENT)) + 1, tuple(rate.tolist())


def _parts(
    batch: Sequence[Microbatch], streams: frozenset[str] | None, size: int | None, dp: int
) -> tuple[tuple[int, ...], ...]:
    """M_i = ceil(N_i / B_i) of every microbatch and replica; 0 where there is nothing."""
    m = len(batch) // dp
    if streams is None or size is None:
        return ((1,) * dp,) * m
    stream = min(streams)
    counts = [-(-len(item.lengths[stream]) // size) for item in batch]
    return tuple(tuple(counts[i * dp : (i + 1) * dp]) for i in range(m))


def _plain(parts: Sequence[tuple[int, ...]]) -> tuple[int | tuple[int, ...], ...]:
    return tuple(own[0] if len(set(own)) == 1 else own for own in parts)
