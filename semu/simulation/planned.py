"""``Planned``: a layout under a ``StagePlan``: variants of chunks, each block traced once per strategy, and which of
them every (sub-)microbatch runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, ScheduleError
from semu.graph.dim import symbols_of
from semu.job import Recompute, TrainingJob
from semu.parallel.layout import PipelineLayout
from semu.schedule.shape import PipelineShape
from semu.schedule.stage_plan import StagePlan
from semu.simulation.layout import ChunkStages, Cut, Layout
from semu.simulation.sub_microbatches import SubMicrobatches, check_symbols
from semu.simulation.template_cache import LIBRARIES, JoinedLibrary
from semu.simulation.tracer import Block, ModelTracer

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Planned:
    """What a plan adds to a layout.

    Attributes:
        plan: as told. cutting: how microbatches are cut; None: they are not.
        more: variants of chunks beside the first ones. numbers: per chunk, its variants' numbers in ``Layout.kinds``.
        parts: per chunk, the numbers of its parts (``StageKey``), in order: int64[num_parts].
        choice: per chunk, the kind that each of its parts runs: int64[num_parts].
    """

    plan: StagePlan
    cutting: SubMicrobatches | None
    more: tuple[ChunkStages, ...]
    numbers: tuple[tuple[int, ...], ...]
    parts: tuple[I64, ...]
    choice: tuple[I64, ...]

    @cached_property
    def _first(self) -> I64:
        """Where each chunk begins in a table of all chunks and numbers of parts."""
        return np.cumsum([0, *(int(own.max(initial=-1)) + 1 for own in self.parts)], dtype=np.int64)

    @cached_property
    def _kinds(self) -> I64:
        table = np.full(int(self._first[-1]), -1, dtype=np.int64)
        for first, parts, kinds in zip(self._first.tolist(), self.parts, self.choice, strict=False):
            table[first + parts] = kinds
        return table

    def kind_of(self, chunk: NDArray[np.integer], part: NDArray[np.integer]) -> I64:
        """See ``Layout.kind_of``."""
        found: I64 = self._kinds[self._first[chunk] + part]
        return found

    def column_of(self, layout: Layout, chunk: NDArray[np.integer], part: NDArray[np.integer]) -> I64:
        """See ``Layout.column_of``."""
        if self.cutting is None:
            return part.astype(np.int64)
        found: I64 = self._columns(layout)[self._first[chunk] + part]
        return found

    def _columns(self, layout: Layout) -> I64:
        known = self._known.get("columns")
        if known is None:
            assert self.cutting is not None
            known = np.full(int(self._first[-1]), -1, dtype=np.int64)
            for first, parts, chunk in zip(self._first.tolist(), self.parts, layout.chunks, strict=False):
                known[first + parts] = [self.cutting.column(chunk.module, part) for part in parts.tolist()]
            self._known["columns"] = known
        return known

    @cached_property
    def _known(self) -> dict[str, I64]:
        return {}

    def pipeline_shape(self, layout: Layout, shape: PipelineShape) -> PipelineShape:
        """What a schedule must order; ``shape``: where no microbatch is cut."""
        modules = tuple(chunk.module for chunk in layout.chunks)
        if self.cutting is None:
            return replace(shape, chunk_module=modules)
        counts = tuple(self.cutting.counts(module) for module in modules)
        split = tuple(max(1, *own) for own in counts)
        return replace(shape, chunk_module=modules, chunk_split=split, part_counts=counts, joins=True)


def planned_job(job: TrainingJob, plan: StagePlan) -> TrainingJob:
    """The job with the chunks, and in place of its schedule's name the orders, that a plan brings; then sends overlap
    unless the job says otherwise, as under every schedule from a file.

    Raises:
        ScheduleError: chunks that are not pp x K_i. ConfigError: what this version does not model under a plan.
    """
    _refuse(job, plan)
    if (plan.orders is not None or plan.layers is not None) and job.training.schedule_file is None:
        name = plan.orders.name if plan.orders is not None else ""
        job = replace(job, training=replace(job.training, schedule_file=name or "plan"))
    if plan.layers is None:
        return job
    pp = job.parallel.pp
    for name, counts in plan.layers.items():
        if len(counts) % pp or not counts:
            raise ScheduleError(
                "not as many chunks on every rank",
                where=f"plan.layers.{name}",
                expected=f"a multiple of pp = {pp}",
                got=len(counts),
                nearest=max(len(counts) // pp, 1) * pp,
            )
    vpp = sum(map(len, plan.layers.values())) // pp
    layout = PipelineLayout(modules=dict(plan.layers))
    return replace(job, parallel=replace(job.parallel, vpp=vpp, layout=layout, segments="mixed", shares={}))


def _refuse(job: TrainingJob, plan: StagePlan) -> None:
    """Say no to what this version would get wrong under a plan."""
    parallel, training = job.parallel, job.training
    if parallel.copies > 1:
        raise ConfigError(
            "a plan for a bidirectional placement is not modelled by this version",
            where="parallel.placement",
            expected="circular, or a schedule file without sub-microbatches and variants (text or .csv)",
            got=parallel.placement,
            nearest="circular",
        )
    is_cut, has_variants = bool(plan.parts), any(plan.variants)
    if not (is_cut or has_variants):
        return
    what = "sub-microbatches" if is_cut else "variants of chunks"
    for where, expected, got, is_bad in (
        ("parallel.zero", "0 or 1", parallel.zero, parallel.zero > 1),
        ("parallel.modules", "one parallelism for all modules", ", ".join(parallel.modules), bool(parallel.modules)),
        ("parallel.placement", "circular", parallel.placement, parallel.placement != "circular"),
        ("training.launch", "false", training.launch, training.launch),
        ("training.offload", "no offloaded weights", "weights", training.offload_plan.weights),
        ("training.recompute_layers", "nothing", training.recompute_layers, training.recompute_layers is not None),
        ("training.recompute_every", "nothing", training.recompute_every, training.recompute_every is not None),
        ("training.recompute_policy", "nothing", training.recompute_policy, training.recompute_policy is not None),
        (
            "training.offload_layers",
            "nothing",
            training.offload_layers,
            has_variants and training.offload_layers is not None,
        ),
        (
            "training.offload_fraction",
            "nothing",
            training.offload_fraction,
            has_variants and training.offload_fraction is not None,
        ),
        ("model", "a model whose losses stay within a replica", "contrastive", job.model.reads_replicas),
    ):
        if is_bad:
            raise ConfigError(
                f"{what} are not modelled with this by this version", where=where, expected=expected, got=got
            )


def refuse_split(layout: Layout) -> None:
    """Backwards under a plan are whole."""
    if layout.planned is not None:
        raise ConfigError(
            "split backwards under a plan of sub-microbatches and variants are not modelled by this version",
            where="training.schedule",
            expected="a schedule with whole backwards",
            got="split backwards",
            nearest="1f1b",
        )


def refuse_contention(layout: Layout) -> None:
    """Transfers under a plan run as if alone."""
    if layout.planned is not None:
        raise ConfigError(
            "shared links under a plan of sub-microbatches and variants are not modelled by this version",
            where="contention",
            expected="false",
            got=True,
            nearest=False,
        )


def plan_layout(layout: Layout, plan: StagePlan, cutting: SubMicrobatches | None) -> Layout:
    """A layout under a plan.

    Args:
        layout: of ``planned_job``, without a plan. plan: what to run. cutting: of the batch.
    Raises:
        ScheduleError: variants or choices for other chunks, layers or parts than there are.
        ConfigError: variants that this version cannot tell apart.
    """
    job = layout.job
    variants = _variants(layout, plan)
    strategies = sorted({word for own in variants for words in own for word in words})
    traced = _Traced(job, strategies)
    joined = traced.joined()
    chunks: list[ChunkStages] = []
    more: list[ChunkStages] = []
    numbers: list[list[int]] = []
    for number, base in enumerate(layout.chunks):
        own = [_join(layout, cutting, traced, joined, base, None, chunks)] if not variants[number] else []
        for words in variants[number]:
            own.append(_join(layout, cutting, traced, joined, base, words, chunks))
        _check_alike(layout, cutting, own)
        chunks.append(own[0])
        numbers.append([number, *range(len(layout.chunks) + len(more), len(layout.chunks) + len(more) + len(own) - 1)])
        more += own[1:]
    cut = Cut(tuple(chunks), layout.cut.num_ranks)
    parts = tuple(_parts(layout, cutting, chunk.module) for chunk in layout.chunks)
    choice = _choice(plan, parts, numbers)
    planned = Planned(plan, cutting, tuple(more), tuple(map(tuple, numbers)), parts, choice)
    result = Layout(job, layout.mesh, joined.library, joined.streams, cut, planned=planned)
    if cutting is not None:
        for module in cutting.modules.values():
            check_symbols(module, symbols_of_module(result, module.name))
    return result


def chosen(layout: Layout, plan: StagePlan) -> Layout:
    """A planned layout with another choice of variants and other orders."""
    planned = layout.planned
    assert planned is not None
    choice = _choice(plan, planned.parts, planned.numbers)
    return replace(layout, planned=replace(planned, plan=plan, choice=choice))


class _Traced:
    """A job's blocks as the job says, and under each strategy, in one list of templates."""

    def __init__(self, job: TrainingJob, strategies: Iterable[str]) -> None:
        self._tracer = ModelTracer(job)
        self.own = self._tracer.trace_model()
        self.is_lasting = self._tracer.is_lasting
        self.by_strategy: dict[str, list[list[Block]]] = {}
        for word in strategies:
            other = ModelTracer(_under(job, word))
            other.share(self._tracer)
            self.by_strategy[word] = other.trace_model()
            self.is_lasting &= other.is_lasting

    def joined(self) -> JoinedLibrary:
        """The library of all templates."""
        blocks = self._tracer.blocks
        if not self.is_lasting:
            return JoinedLibrary(blocks)
        return LIBRARIES.get(tuple(block.serial for block in blocks), lambda: JoinedLibrary(blocks))

    def blocks(self, base: ChunkStages, words: Sequence[str] | None) -> tuple[Block, ...]:
        """A chunk's blocks; ``words``: strategies of its layers, None: the job's own."""
        where = slice(base.chunk.first, base.chunk.last)
        own = self.own[base.chunk.module][where]
        if words is None:
            return tuple(own)
        left = iter(words)
        picked = [
            self.by_strategy[next(left)][base.chunk.module][number] if block.is_layer else block
            for number, block in enumerate(own, start=base.chunk.first)
        ]
        return tuple(picked)


def _under(job: TrainingJob, strategy: str) -> TrainingJob:
    """The job with one memory strategy for every layer."""
    training = job.training
    offload = tuple(word for word in training.offload or () if word != "activations")
    if strategy == "offload":
        offload = ("activations", *offload)
    recompute = Recompute.NONE if strategy == "offload" else Recompute(strategy)
    modules = training.recompute_modules if strategy == "selective" else None
    changed = replace(training, recompute=recompute, recompute_modules=modules, offload=offload or None)
    return replace(job, training=changed)


def _variants(layout: Layout, plan: StagePlan) -> list[tuple[tuple[str, ...], ...]]:
    """Per chunk, its variants as told."""
    if not plan.variants:
        return [()] * len(layout.chunks)
    if len(plan.variants) != len(layout.chunks):
        raise ScheduleError(
            "variants for another number of chunks",
            where="plan.variants",
            expected=f"{len(layout.chunks)} lists",
            got=len(plan.variants),
        )
    for number, (base, own) in enumerate(zip(layout.chunks, plan.variants, strict=True)):
        layers = sum(block.is_layer for block in base.blocks)
        for words in own:
            if len(words) != layers:
                raise ScheduleError(
                    f"strategies for another number of layers than chunk {number} has",
                    where=f"plan.variants[{number}]",
                    expected=f"{layers} words",
                    got=len(words),
                    nearest=layers,
                )
    return list(plan.variants)


def _join(
    layout: Layout,
    cutting: SubMicrobatches | None,
    traced: _Traced,
    joined: JoinedLibrary,
    base: ChunkStages,
    words: Sequence[str] | None,
    earlier: Sequence[ChunkStages],
) -> ChunkStages:
    job, chunk = layout.job, base.chunk
    blocks = traced.blocks(base, words)
    last = {c.module: c.chunk.index for c in layout.chunks}
    consumed = {source for module in job.model.modules for source in module.sources}
    borrowed = []
    for k, source in enumerate(base.arrivals):
        if source < 0 or layout.chunks[source].chunk.rank != chunk.rank:
            borrowed.append(False)
        elif cutting is not None and cutting.is_seam(layout.chunks[source].module, base.module):
            borrowed.append(False)  # parts are joined into a tensor of their own
        else:
            position = sum(1 for other in base.arrivals[:k] if other == source)
            borrowed.append(earlier[source].forward.leaving_kept[position])
    forward, backward = joined.stages(
        tuple(block.template for block in blocks),
        serial=not job.overlaps_tensor_parallel,
        has_consumer=chunk.index != last[base.module] or base.module in consumed,
        borrowed=tuple(borrowed),
    )
    return ChunkStages(chunk, base.module, blocks, forward, backward, base.arrivals)


def _check_alike(layout: Layout, cutting: SubMicrobatches | None, variants: Sequence[ChunkStages]) -> None:
    """Variants of a chunk train alike; and keep their results alike where a chunk of the same rank borrows them."""
    first = variants[0]
    number, rank = first.chunk.index, first.chunk.rank
    borrows = any(
        number in chunk.arrivals
        and chunk.chunk.rank == rank
        and not (cutting is not None and cutting.is_seam(first.module, chunk.module))
        for chunk in layout.chunks
    )
    for other in variants[1:]:
        is_kept_alike = other.forward.leaving_kept == first.forward.leaving_kept
        if (other.backward is None) != (first.backward is None) or (borrows and not is_kept_alike):
            raise ConfigError(
                "variants of a chunk of which some keep its result for their backward and others do not, where the "
                "next module runs on the same rank, are not modelled by this version",
                where=f"plan.variants[{number}]",
                expected="one strategy for the chunk's last layers",
            )


def _parts(layout: Layout, cutting: SubMicrobatches | None, module: str) -> I64:
    """Numbers of a module's parts, in order."""
    if cutting is None or module not in cutting.modules:
        return np.arange(layout.job.num_microbatches, dtype=np.int64)
    cut = cutting.modules[module]
    found = [cut.split * microbatch + part for microbatch, count in enumerate(cut.counts) for part in range(count)]
    return np.array(found, dtype=np.int64)


def _choice(plan: StagePlan, parts: Sequence[I64], numbers: Sequence[Sequence[int]]) -> tuple[I64, ...]:
    """Per chunk, the kind that each of its parts runs.

    Args:
        parts: per chunk. numbers: per chunk, of its variants in ``Layout.kinds``.
    """
    if plan.choice and len(plan.choice) != len(parts):
        raise ScheduleError(
            "choices for another number of chunks",
            where="plan.choice",
            expected=f"{len(parts)} lists",
            got=len(plan.choice),
        )
    result = []
    for number, mine in enumerate(parts):
        own = plan.choice[number] if plan.choice else (0,) * len(mine)
        if len(own) != len(mine):
            raise ScheduleError(
                "not a choice for every sub-microbatch",
                where=f"plan.choice[{number}]",
                expected=f"{len(mine)} numbers",
                got=len(own),
            )
        if own and max(own) >= len(numbers[number]):
            raise ScheduleError(
                "no such variant",
                where=f"plan.choice[{number}]",
                expected=f"0 to {len(numbers[number]) - 1}",
                got=max(own),
                nearest=len(numbers[number]) - 1,
            )
        result.append(np.array(numbers[number], dtype=np.int64)[np.array(own, dtype=np.int64)])
    return tuple(result)


def symbols_of_module(layout: Layout, module: str) -> set[str]:
    """Symbols that the stages of a module's chunks depend on."""
    library = layout.library
    rows: set[int] = set()
    sizes: set[int] = set()
    for kind in layout.kinds:
        if kind.module != module:
            continue
        for stage in (kind.forward, kind.backward):
            if stage is not None:
                rows.update(stage.rows.tolist())
                sizes.update(stage.size_row.tolist(), (row for row in (*stage.arriving, *stage.leaving) if row >= 0))
    operators = [library.operators[row] for row in rows]
    dims = [dim for op in operators for dim in (op.flop, op.mem_bytes, op.net_bytes, *op.key)]
    dims += [library.sizes[row] for row in sizes]
    return {name for dim in dims for name in symbols_of(dim)}


def described_plan(layout: Layout) -> dict[str, object]:
    """A layout's plan for ``result.json``: sub-microbatches by module, and how often every variant runs."""
    planned = layout.planned
    assert planned is not None
    found: dict[str, object] = {}
    if planned.cutting is not None:
        found["parts"] = {name: list(module.counts) for name, module in planned.cutting.modules.items()}
    if any(planned.plan.variants):
        found["variants"] = [
            [
                {"layers": dict(Counter(words)), "runs": int((choice == kind).sum())}
                for words, kind in zip(variants, kinds, strict=False)
            ]
            for variants, kinds, choice in zip(planned.plan.variants, planned.numbers, planned.choice, strict=True)
        ]
    return found
