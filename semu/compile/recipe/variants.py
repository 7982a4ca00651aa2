"""Variants of chunks: every distinct block traced once under each memory strategy, all in one library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from semu.compile.chunk import ChunkStages
from semu.compile.chunk_joining import borrowed_tensors, has_consumer
from semu.compile.layout import Layout, library_of
from semu.compile.recipe.sub_microbatches import SubMicrobatches
from semu.compile.template_cache import JoinedLibrary
from semu.compile.tracer import Block, ModelTracer
from semu.errors import ConfigError, ScheduleError
from semu.graph.dim import symbols_of
from semu.job import Recompute, TrainingJob
from semu.schedule.stage_plan import StagePlan


class TracedVariants:
    """A job's blocks as the job says, and under each strategy, in one list of templates.

    It holds neither the job nor its model: what is remembered of a model must not keep it alive.

    Attributes:
        own, by_strategy: blocks of every modality module, as the job says and by strategy. is_lasting: as
            ``ModelTracer``, of all of them.
    """

    def __init__(self, job: TrainingJob, strategies: Iterable[str]) -> None:
        tracer = ModelTracer(job)
        self.own = tracer.trace_model()
        self._compiled, self._silent, self.is_lasting = tracer.blocks, tracer.silent, tracer.is_lasting
        self.by_strategy: dict[str, list[list[Block]]] = {}
        for word in strategies:
            other = ModelTracer(_under(job, word))
            other.share(tracer)
            self.by_strategy[word] = other.trace_model()
            self.is_lasting &= other.is_lasting

    def joined(self) -> JoinedLibrary:
        """The library of all templates."""
        return library_of(self._compiled, (), is_lasting=self.is_lasting)

    def blocks(self, base: ChunkStages, words: Sequence[str] | None) -> tuple[Block, ...]:
        """A chunk's blocks; ``words``: strategies of its layers, None: the job's own. What no backward follows saves
        nothing, whatever its strategy."""
        where = slice(base.chunk.first, base.chunk.last)
        if base.chunk.repeats:
            return tuple(self._silent[base.chunk.module][where])
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


def told_variants(layout: Layout, plan: StagePlan) -> list[tuple[tuple[str, ...], ...]]:
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


def join_variant(
    layout: Layout,
    cutting: SubMicrobatches,
    traced: TracedVariants,
    joined: JoinedLibrary,
    base: ChunkStages,
    words: Sequence[str] | None,
    earlier: Sequence[ChunkStages],
) -> ChunkStages:
    """One variant of a chunk: its two stages.

    Args:
        layout: without a plan. cutting: of the batch. traced, joined: the blocks, and their library.
        base: the chunk. words: strategies of its layers, None: the job's own. earlier: chunks before it.
    """
    job, chunk = layout.job, base.chunk
    blocks = traced.blocks(base, words)
    joins = [source >= 0 and cutting.parts_differ(earlier[source].module, base.module) for source in base.arrivals]
    kept = borrowed_tensors(base.arrivals, chunk, earlier)
    forward, backward = joined.stages(
        tuple(block.template for block in blocks),
        serial=not job.overlaps_tensor_parallel,
        has_consumer=has_consumer(job, chunk, [own.chunk for own in layout.chunks]),
        borrowed=tuple(is_kept and not is_joined for is_kept, is_joined in zip(kept, joins, strict=True)),
    )
    return ChunkStages(chunk, base.module, blocks, forward, backward, base.arrivals)


def check_alike(layout: Layout, cutting: SubMicrobatches, variants: Sequence[ChunkStages]) -> None:
    """Variants of a chunk train alike; and keep their results alike where a chunk of the same rank borrows them."""
    first = variants[0]
    number, rank = first.chunk.index, first.chunk.rank
    borrows = any(
        number in chunk.arrivals and chunk.chunk.rank == rank and not cutting.parts_differ(first.module, chunk.module)
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
