"""From a job to its chunks: trace every distinct block once, cut the model into chunks, join chunks into stages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from semu.engine.exchange import ExchangeCosts, ExchangePlan
from semu.engine.stage import StageProgram
from semu.engine.template import TemplateLibrary
from semu.hardware.kinds import DType
from semu.job import Fp8Weights, TrainingJob
from semu.nn.model import ModalityModule
from semu.parallel.mesh import Mesh
from semu.parallel.pipeline import Chunk, deal_chunks, place_chunks
from semu.parallel.stage_layers import stage_boundaries
from semu.schedule.schedule import PipelineShape
from semu.simulation.exchanges import plan_exchanges
from semu.simulation.model_memo import ModelMemo, ModelMemos, cut_key, trace_key
from semu.simulation.recompute_units import recompute_units
from semu.simulation.template_cache import LIBRARIES, CompiledBlock, JoinedLibrary, Recent
from semu.simulation.tracer import Block, HeldParameter, ModelTracer

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class ChunkStages:
    """A chunk with its two stages.

    Attributes:
        chunk: where it is. blocks: its blocks. forward, backward: its stages; backward None: nothing to do.
        arrivals: per arriving tensor, the chunk that makes it, or -1 for the data loader.
    """

    chunk: Chunk
    module: str
    blocks: tuple[Block, ...]
    forward: StageProgram
    backward: StageProgram | None
    arrivals: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cut:
    """The chunks of a model, shared by all jobs that cut it alike.

    Attributes:
        chunks: in order of data flow. num_ranks: pipeline ranks.
        identity: stands for these chunks where they must not be kept alive.
        facts: what was found about the chunks, by name and by whatever else tells it apart.
    """

    chunks: tuple[ChunkStages, ...]
    num_ranks: int
    identity: object = field(default_factory=object)
    facts: Recent[Any] = field(default_factory=lambda: Recent(2048))

    @cached_property
    def held(self) -> tuple[tuple[tuple[int, int, HeldParameter], ...], ...]:
        """Per rank, (chunk, block, parameter) for every parameter that it stores, each once, in forward order."""
        by_rank: list[dict[int, tuple[int, int, HeldParameter]]] = [{} for _ in range(self.num_ranks)]
        for chunk in self.chunks:
            for number, block in enumerate(chunk.blocks):
                for held in block.parameters:
                    by_rank[chunk.chunk.rank].setdefault(id(held.parameter), (chunk.chunk.index, number, held))
        return tuple(tuple(found.values()) for found in by_rank)

    @cached_property
    def trainable(self) -> tuple[int, ...]:
        """Per rank, the elements that are trained."""
        return tuple(sum(h.elements for _, _, h in held if h.parameter.requires_grad) for held in self.held)

    @cached_property
    def replicated(self) -> tuple[int, ...]:
        """Per rank, the trained elements that every tensor-parallel rank has."""
        return tuple(
            sum(h.elements for _, _, h in held if h.parameter.requires_grad and not h.is_sharded) for held in self.held
        )

    @cached_property
    def elements(self) -> tuple[tuple[int, int], ...]:
        """Per rank, the elements of all parameters, and of those that run in fp8."""
        return tuple(
            (sum(h.elements for _, _, h in held), sum(h.elements for _, _, h in held if h.is_fp8)) for held in self.held
        )

    @cached_property
    def by_rank(self) -> tuple[list[ChunkStages], ...]:
        """Per rank, its chunks in order of data flow."""
        return tuple([c for c in self.chunks if c.chunk.rank == rank] for rank in range(self.num_ranks))

    def pipeline_shape(self, num_microbatches: int) -> PipelineShape:
        """What the schedule must order."""
        shape: PipelineShape = self.facts.get(
            ("shape", num_microbatches),
            lambda: PipelineShape(
                num_ranks=self.num_ranks,
                num_microbatches=num_microbatches,
                chunk_rank=tuple(c.chunk.rank for c in self.chunks),
                sources=tuple(tuple(dict.fromkeys(a for a in c.arrivals if a >= 0)) for c in self.chunks),
                has_backward=tuple(c.backward is not None for c in self.chunks),
                chunk_slot=tuple(c.chunk.slot for c in self.chunks),
            ),
        )
        return shape


@dataclass(frozen=True)
class Layout:
    """A job's model, cut and compiled.

    Attributes:
        job: the job. mesh: where ranks live. library: templates with their cost rows. streams: stream names.
        cut: its chunks.
    """

    job: TrainingJob
    mesh: Mesh
    library: TemplateLibrary
    streams: tuple[str, ...]
    cut: Cut

    @property
    def chunks(self) -> tuple[ChunkStages, ...]:
        """The chunks in order of data flow."""
        return self.cut.chunks

    def pipeline_shape(self, num_microbatches: int) -> PipelineShape:
        """What the schedule must order."""
        return self.cut.pipeline_shape(num_microbatches)

    def chunks_of(self, rank: int) -> list[ChunkStages]:
        """Chunks of a pipeline rank in order of data flow."""
        return self.cut.by_rank[rank]

    def held_by(self, rank: int) -> tuple[tuple[int, int, HeldParameter], ...]:
        """(chunk, block, parameter) for every parameter that a rank stores, each once, in forward order."""
        return self.cut.held[rank]

    def kept_fp8_elements(self, rank: int) -> int:
        """Elements of a rank's weights of which fp8 copies are kept from one iteration to the next."""
        if self.job.fp8_weights is Fp8Weights.MICROBATCH:
            return 0
        return self.cut.elements[rank][1]

    def primary_fp8_elements(self, rank: int) -> int:
        """Elements of a rank's weights that exist in fp8 only."""
        return self.kept_fp8_elements(rank) if self.job.fp8_weights is Fp8Weights.PRIMARY else 0

    def trained_bytes(self, rank: int) -> int:
        """Bytes of a rank's trained parameters as the optimizer writes and gathers move them."""
        dtype = self.job.training.precision.tensor_dtype
        size: int = self.cut.facts.get(
            ("trained bytes", rank, self.job.fp8_weights, dtype),
            lambda: sum(self.weight_bytes(h) for _, _, h in self.held_by(rank) if h.parameter.requires_grad),
        )
        return size

    def weight_bytes(self, held: HeldParameter) -> int:
        """Bytes of a rank's part of a parameter as the optimizer writes and gathers move it."""
        is_fp8 = held.is_fp8 and self.job.fp8_weights is Fp8Weights.PRIMARY
        dtype = DType.FP8 if is_fp8 else self.job.training.precision.tensor_dtype
        return held.elements * dtype.size_bytes


def build_layout(job: TrainingJob, weigh: Callable[[TemplateLibrary], Sequence[float]]) -> Layout:
    """Trace, cut and compile a job's model.

    Args:
        job: the job.
        weigh: weight of each template for balancing by latency; called only where ``parallel.partition`` asks.
    """
    mesh = Mesh(job.parallel, job.cluster)
    memo = MODELS.of(job.model)
    key = trace_key(job, mesh)
    traced = memo.values.peek(key) or _trace(job, mesh, memo, key)
    blocks, joined, library = traced.blocks, traced.joined, traced.joined.library
    part = cut_key(job)
    known = traced.cuts.peek(part) if part is not None else None
    if known is not None:
        return Layout(job, mesh, library, joined.streams, known)
    flat = [block for group in blocks for block in group]
    counts = [len(group) for group in blocks]
    layout = job.parallel.stage_layout
    if layout is not None:
        chunks = deal_chunks(
            counts, stage_boundaries(job.model, layout, job.parallel.pp, job.parallel.vpp), job.parallel.pp
        )
    else:
        if job.parallel.partition == "latency":
            by_template = weigh(library)
            weights = [by_template[block.template] for block in flat]
        else:
            weights = [float(sum(p.parameter.numel for p in block.parameters)) for block in flat]
        chunks = place_chunks(counts, weights, job.parallel.pp, job.parallel.vpp)
    compiled, is_lasting = traced.compiled, traced.is_lasting
    if job.training.recompute_layers is not None:
        units, chunks = recompute_units(job, blocks, chunks)
        tracer = ModelTracer(job)
        blocks = tracer.trace_model(units)
        joined = _library(tracer.blocks, (), is_lasting=tracer.is_lasting)
        compiled, is_lasting = tracer.blocks, tracer.is_lasting
    exchanges, plans = plan_exchanges(job, mesh, blocks, chunks, len(compiled))
    if exchanges:
        joined = _library(compiled, exchanges, is_lasting=is_lasting)
    cut = Cut(tuple(_join(job, joined, blocks, chunks, plans)), job.parallel.pp)
    if part is not None:
        cut = traced.cuts.get(part, lambda: cut)
    return Layout(job=job, mesh=mesh, library=joined.library, streams=joined.streams, cut=cut)


@dataclass(frozen=True, eq=False)
class _Traced:
    """A model's blocks under some settings, and the chunks into which it has been cut.

    Attributes:
        blocks: of every modality module. compiled: what their templates are made of. is_lasting: as ``ModelTracer``.
        joined: their library. cuts: by ``cut_key``.
    """

    blocks: list[list[Block]]
    compiled: list[CompiledBlock]
    is_lasting: bool
    joined: JoinedLibrary
    cuts: Recent[Cut] = field(default_factory=lambda: Recent(32))


MODELS: ModelMemos[_Traced] = ModelMemos()
"""Traced models, as long as they live and stay as they are."""


def _trace(job: TrainingJob, mesh: Mesh, memo: ModelMemo[_Traced], key: Hashable) -> _Traced:
    """Trace a model; remembered where it hides nothing."""
    tracer = ModelTracer(job)
    blocks = tracer.trace_model()
    joined = _library(tracer.blocks, (), is_lasting=tracer.is_lasting)
    traced = _Traced(blocks, tracer.blocks, tracer.is_lasting, joined)
    return memo.values.get(key, lambda: traced) if tracer.is_lasting and memo.is_fixed else traced


def _library(
    blocks: Sequence[CompiledBlock], exchanges: tuple[ExchangeCosts, ...], *, is_lasting: bool
) -> JoinedLibrary:
    """The templates of a traced model; the same ones in the same order share what was joined of them before."""
    if not is_lasting:
        return JoinedLibrary(blocks, exchanges)
    key = tuple(block.serial for block in blocks)
    return LIBRARIES.get((key, exchanges) if exchanges else key, lambda: JoinedLibrary(blocks, exchanges))


def _join(
    job: TrainingJob,
    joined: JoinedLibrary,
    blocks: Sequence[Sequence[Block]],
    chunks: Sequence[Chunk],
    plans: Sequence[ExchangePlan | None],
) -> list[ChunkStages]:
    last_chunk = {job.model.modules[chunk.module].name: chunk.index for chunk in chunks}
    consumed = {source for module in job.model.modules for source in module.sources}
    library = joined.library
    result: list[ChunkStages] = []
    for chunk in chunks:
        module = job.model.modules[chunk.module]
        own = tuple(blocks[chunk.module][chunk.first : chunk.last])
        numbers = tuple(block.template for block in own)
        num_arriving = len(library.templates[numbers[0]].carry_in)
        if chunk.first:
            arrivals = (chunk.index - 1,) * num_arriving
        else:
            arrivals = _module_arrivals(module, last_chunk, library, blocks, job)
        has_consumer = chunk.index != last_chunk[module.name] or module.name in consumed
        forward, backward = joined.stages(
            numbers,
            serial=not job.overlaps_tensor_parallel,
            has_consumer=has_consumer,
            borrowed=_borrowed(arrivals, chunk, result),
            exchanges=plans[chunk.index],
        )
        result.append(ChunkStages(chunk, module.name, own, forward, backward, arrivals))
    return result


def _borrowed(arrivals: Sequence[int], chunk: Chunk, earlier: Sequence[ChunkStages]) -> tuple[bool, ...]:
    """Per arriving tensor: it comes from a chunk of the same rank that keeps it for its own backward."""
    result = []
    for k, source in enumerate(arrivals):
        if source < 0 or earlier[source].chunk.rank != chunk.rank:
            result.append(False)
        else:
            position = sum(1 for other in arrivals[:k] if other == source)
            result.append(earlier[source].forward.leaving_kept[position])
    return tuple(result)


def _module_arrivals(
    module: ModalityModule,
    last_chunk: dict[str, int],
    library: TemplateLibrary,
    blocks: Sequence[Sequence[Block]],
    job: TrainingJob,
) -> tuple[int, ...]:
    arrivals = [-1] * len(module.inputs)
    names = [m.name for m in job.model.modules]
    for source in module.sources:
        last_block = blocks[names.index(source)][-1]
        arrivals += [last_chunk[source]] * len(library.templates[last_block.template].carry_out)
    return tuple(arrivals)
