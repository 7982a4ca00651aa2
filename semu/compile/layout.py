"""From a job to its chunks: trace every distinct block once, cut the model into chunks, join chunks into stages."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import NamedTuple

from semu import memo
from semu.compile.chunk import ChunkStages, combined_chunks
from semu.compile.chunk_joining import join_chunks, second_copies
from semu.compile.combined.layers import Hiding, hiding_of
from semu.compile.model_memo import cut_key, placement_key, state_of, trace_key
from semu.compile.optimizer_share import OptimizerShare, share_of_pool
from semu.compile.parameter_pools import ParameterPool, PoolParameters, weight_bytes
from semu.compile.recipe.recipe import Recipe
from semu.compile.recomputed_layers import recompute_units
from semu.compile.template import TemplateLibrary
from semu.compile.template_cache import LIBRARIES, CompiledBlock, JoinedLibrary
from semu.compile.tracer import Block, HeldParameter, ModelTracer, parameters_on_host
from semu.compile.zero_exchange_plans import Costs, plan_exchanges
from semu.job import Fp8Weights, Optimizer, TrainingJob
from semu.nn.module import Parameter
from semu.parallel.mesh import Mesh
from semu.parallel.pipeline import Chunk, deal_chunks
from semu.parallel.segments import place_modules
from semu.parallel.stage_layers import stage_boundaries
from semu.parallel.towers import deal_towers
from semu.parallel.vocabulary import deal_between
from semu.records import dataclass
from semu.schedule.placement import both_ends
from semu.schedule.schedule import PipelineShape


@dataclass(frozen=True, eq=False)
class ModelCut:
    """The chunks of a model, shared by all jobs that cut it alike.

    Attributes:
        chunks: in order of data flow. num_ranks: pipeline ranks.
        combined: the chunks as they run in pairs; none: stages run one by one.
        identity: stands for these chunks where they must not be kept alive.
        is_shared: other jobs may have these chunks too.
    """

    chunks: tuple[ChunkStages, ...]
    num_ranks: int
    is_shared: bool = False
    combined: tuple[ChunkStages, ...] = ()
    identity: memo.Scope = field(default_factory=memo.Scope)

    @cached_property
    def held(self) -> tuple[tuple[tuple[int, int, HeldParameter], ...], ...]:
        """Per rank, (chunk, block, parameter) for every parameter that it stores, each once, in forward order."""
        by_rank: list[dict[Parameter, tuple[int, int, HeldParameter]]] = [{} for _ in range(self.num_ranks)]
        for chunks in self.by_rank:
            for chunk in chunks:
                for number, block in enumerate(chunk.blocks):
                    for held in block.parameters:
                        by_rank[chunk.chunk.rank].setdefault(held.parameter, (chunk.chunk.index, number, held))
        return tuple(tuple(found.values()) for found in by_rank)

    @cached_property
    def on_host(self) -> frozenset[Parameter]:
        """The parameters that live on the host."""
        return parameters_on_host(block for chunk in self.chunks[: self.num_stages] for block in chunk.blocks)

    @cached_property
    def trainable(self) -> tuple[int, ...]:
        """Per rank, the elements that are trained."""
        return self._by_likeness(lambda held: sum([h.elements for _, _, h in held if h.parameter.requires_grad]))

    @cached_property
    def replicated(self) -> tuple[int, ...]:
        """Per rank, the trained elements that every tensor-parallel rank has, routed experts left out."""
        return self._by_likeness(
            lambda held: sum(
                [h.elements for _, _, h in held if h.parameter.requires_grad and not (h.is_sharded or h.is_expert)]
            )
        )

    @cached_property
    def fp8(self) -> tuple[tuple[HeldParameter, ...], ...]:
        """Per rank, the weights that run in fp8."""
        return tuple(tuple(h for _, _, h in held if h.is_fp8) for held in self.held)

    @cached_property
    def contents(self) -> tuple[tuple[PoolParameters, ...], ...]:
        """Per rank, all else and routed experts, where the rank has any."""
        result = []
        for held in self.held:
            dense = tuple([h for _, _, h in held if not h.is_expert])
            experts = tuple([h for _, _, h in held if h.is_expert]) if len(dense) < len(held) else ()
            result.append(
                tuple(PoolParameters(own, is_expert) for is_expert, own in ((False, dense), (True, experts)) if own)
            )
        return tuple(result)

    @cached_property
    def by_rank(self) -> tuple[list[ChunkStages], ...]:
        """Per rank, its chunks in order of data flow; of several copies of the model, by their places in it, so that
        ranks which hold the same have it in the same order."""
        ordered = sorted(self.chunks, key=lambda c: c.chunk.index % self.num_stages) if self.copies > 1 else self.chunks
        return tuple([c for c in ordered if c.chunk.rank == rank] for rank in range(self.num_ranks))

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """Per rank, the first rank that stores parameters of the same sizes and kinds in the same order: itself, or one
        whose chunks run the same blocks."""
        first: dict[Hashable, int] = {}
        result = []
        for rank, (chunks, held) in enumerate(zip(self.by_rank, self.held, strict=True)):
            key: Hashable = rank
            if len(held) == sum(len(block.parameters) for own in chunks for block in own.blocks) and not self.on_host:
                key = tuple(
                    [
                        (own.module, own.chunk.slot, *[(block.template, block.is_layer) for block in own.blocks])
                        for own in chunks
                    ]
                )
            result.append(first.setdefault(key, rank))
        return tuple(result)

    def _by_likeness(self, count: Callable[[tuple[tuple[int, int, HeldParameter], ...]], int]) -> tuple[int, ...]:
        """A sum over what each rank holds, of which ranks alike have the same."""
        counted = {rank: count(self.held[rank]) for rank in dict.fromkeys(self.alike)}
        return tuple([counted[rank] for rank in self.alike])

    @cached_property
    def handed(self) -> dict[tuple[int, int], list[int]]:
        """(source, target) -> positions, in what arrives at chunk ``target``, of what chunk ``source`` hands to it."""
        found: dict[tuple[int, int], list[int]] = {}
        for target, chunk in enumerate(self.chunks):
            for position, source in enumerate(chunk.arrivals):
                found.setdefault((source, target), []).append(position)
        return found

    def has_own_reader(self, source: int, consumer: int) -> bool:
        """Whether a chunk that sends a result to a member of a gang has another member on its rank, which keeps it."""
        gang, rank = self.chunks[consumer].chunk.gang, self.chunks[source].chunk.rank
        return gang >= 0 and self.chunks[consumer].chunk.rank != rank

    @cached_property
    def copies(self) -> int:
        """How often the model is there."""
        return max(chunk.chunk.flow for chunk in self.chunks) + 1

    @property
    def num_stages(self) -> int:
        """Chunks of one copy of the model."""
        return len(self.chunks) // self.copies

    def recipe(self, num_microbatches: int) -> Recipe:
        """Every chunk runs whole microbatches as the job says."""
        return _RECIPES.get(
            self, num_microbatches, lambda: Recipe.trivial(self.chunks, num_microbatches, self.combined)
        )

    def pipeline_shape(self, num_microbatches: int) -> PipelineShape:
        """What the schedule must order."""
        return _SHAPES.get(
            self,
            num_microbatches,
            lambda: PipelineShape(
                num_ranks=self.num_ranks,
                num_microbatches=num_microbatches,
                chunk_rank=tuple(c.chunk.rank for c in self.chunks),
                sources=tuple(tuple(dict.fromkeys(a for a in c.arrivals if a >= 0)) for c in self.chunks),
                has_backward=tuple(c.backward is not None for c in self.chunks),
                chunk_slot=tuple(c.chunk.slot for c in self.chunks),
                chunk_flow=tuple(c.chunk.flow for c in self.chunks),
                microbatch_flow=both_ends(self.num_ranks, num_microbatches) if self.copies > 1 else (),
                chunk_module=tuple(c.module for c in self.chunks),
                chunk_gang=tuple(c.chunk.gang for c in self.chunks),
                combines=bool(self.combined),
            ),
        )


_RECIPES = memo.ScopedTable[Recipe]("recipes of a cut that runs whole microbatches, by their number", 64)
_SHAPES = memo.ScopedTable[PipelineShape]("shapes of a cut's pipeline, by number of microbatches", 64)


@dataclass(frozen=True)
class Layout:
    """A job's model, cut and compiled.

    Attributes:
        job: the job. mesh: where ranks live. library: templates with their cost rows. streams: stream names.
        cut: its chunks. recipe: what every stage runs.
        place: stands for the chunks in this place, whatever is in the batch; jobs with other batches share it.
    """

    job: TrainingJob
    mesh: Mesh
    library: TemplateLibrary
    streams: tuple[str, ...]
    cut: ModelCut
    recipe: Recipe
    place: memo.Scope = field(default_factory=memo.Scope, compare=False)

    @property
    def kinds(self) -> tuple[ChunkStages, ...]:
        """What stages run: the chunks in order of data flow, then their further variants."""
        return self.recipe.kinds

    def parts_differ(self, source: int, target: int) -> bool:
        """Whether microbatches are joined or cut between two chunks."""
        return self.recipe.cutting.parts_differ(self.chunks[source].module, self.chunks[target].module)

    @property
    def chunks(self) -> tuple[ChunkStages, ...]:
        """The chunks in order of data flow."""
        return self.cut.chunks

    def pipeline_shape(self, num_microbatches: int) -> PipelineShape:
        """What the schedule must order."""
        return self.recipe.pipeline_shape(self.cut.pipeline_shape(num_microbatches))

    def chunks_of(self, rank: int) -> list[ChunkStages]:
        """Chunks of a pipeline rank in order of data flow."""
        return self.cut.by_rank[rank]

    def held_by(self, rank: int) -> tuple[tuple[int, int, HeldParameter], ...]:
        """(chunk, block, parameter) for every parameter that a rank stores, each once, in forward order."""
        return self.cut.held[rank]

    def stepped_elements(self, rank: int) -> int:
        """Trainable elements whose gradients and optimizer state a rank keeps: all of its own, or its shards."""
        return sum(share.elements for share in self.optimizer_shares(rank))

    def optimizer_shares(self, rank: int) -> list[OptimizerShare]:
        """What a rank steps of each of its pools."""
        return [self.optimizer_share(pool) for pool in self.pools(rank)]

    def optimizer_share(self, pool: ParameterPool) -> OptimizerShare:
        """What a rank steps of a pool."""
        if self.job.training.optimizer is not Optimizer.MUON:
            return share_of_pool(self.job, pool)
        return _MUON_SHARES.get(self.place, pool.parameters, lambda: share_of_pool(self.job, pool))

    def narrower_bytes(self, pool: ParameterPool) -> int:
        """Bytes that a step writes less because weights of a pool exist in fp8 only."""
        trainable, written = pool.trained_elements, self.trained_bytes(pool)
        size = self.job.training.precision.tensor_dtype.size_bytes
        return (trainable * size - written) * self.optimizer_share(pool).elements // max(trainable, 1)

    def trained_bytes(self, pool: ParameterPool) -> int:
        """Bytes of a pool's trained parameters as the optimizer writes and gathers move them."""
        if self.job.moves_fp8_weights:
            return sum(self.weight_bytes(h) for h in pool.trained)
        return pool.trained_elements * self.job.training.precision.tensor_dtype.size_bytes

    def kept_fp8_elements(self, rank: int) -> int:
        """Elements of a rank's weights of which whole fp8 copies are kept from one iteration to the next."""
        if self.job.fp8_weights is Fp8Weights.MICROBATCH or self.job.gathers_fp8_weights:
            return 0
        return sum(held.elements for held in self.cut.fp8[rank])

    def kept_fp8_scale_bytes(self, rank: int) -> int:
        """Bytes of the scales of one such copy of each."""
        if self.job.fp8_weights is Fp8Weights.MICROBATCH or self.job.gathers_fp8_weights:
            return 0
        recipe = self.job.training.fp8_recipe
        return sum(recipe.scale_bytes(held.elements) for held in self.cut.fp8[rank])

    def primary_fp8_elements(self, rank: int) -> int:
        """Elements of a rank's weights that exist in fp8 only."""
        return self.kept_fp8_elements(rank) if self.job.fp8_weights is Fp8Weights.PRIMARY else 0

    def packed_elements(self, rank: int) -> int:
        """Elements of a rank's weights that are stored as ``training.frozen_weights`` says."""
        return sum(held.elements for _, _, held in self.held_by(rank) if held.is_packed)

    def likeness(self, rank: int) -> Hashable:
        """What the step of a rank's parameters and their gathers depend on, which ranks alike share."""
        return self.cut.alike[rank], *[pool.shard_group(rank) for pool in self.pools(rank)]

    def mesh_of(self, chunk: int) -> Mesh:
        """Where the ranks of a chunk's modality module live."""
        return self.mesh.of_module(self.chunks[chunk].module)

    def pools(self, rank: int) -> tuple[ParameterPool, ...]:
        """What a rank stores, by the ranks that hold the same."""
        return self._pools[rank]

    def weight_sizes(self, held: Sequence[HeldParameter]) -> list[int]:
        """``weight_bytes`` of several."""
        if self.job.moves_fp8_weights:
            return [self.weight_bytes(own) for own in held]
        size = self.job.training.precision.tensor_dtype.size_bytes
        return [own.elements * size for own in held]

    def weight_bytes(self, held: HeldParameter) -> int:
        """Bytes of a rank's part of a parameter as the optimizer writes and gathers move it."""
        return weight_bytes(self.job, held)

    @cached_property
    def _pools(self) -> tuple[tuple[ParameterPool, ...], ...]:
        if not self.job.parallel.modules:
            return tuple(tuple(ParameterPool(self.mesh, own) for own in pools) for pools in self.cut.contents)
        result = []
        for rank in range(self.job.parallel.pp):
            found: dict[tuple[bool, int], tuple[Mesh, list[HeldParameter]]] = {}
            for chunk, _, held in self.held_by(rank):
                mesh = self.mesh_of(chunk)
                found.setdefault((held.is_expert, -mesh.parallel.tp), (mesh, []))[1].append(held)
            result.append(
                tuple(
                    ParameterPool(mesh, PoolParameters(tuple(own), key[0]))
                    for key, (mesh, own) in sorted(found.items(), key=operator.itemgetter(0))
                )
            )
        return tuple(result)


_MUON_SHARES = memo.ScopedTable[OptimizerShare]("what the busiest rank of a pool steps under Muon, by pool", 1024)


def build_layout(
    job: TrainingJob,
    weigh: Callable[[TemplateLibrary], Sequence[float]],
    check: Callable[[Mapping[str, Sequence[str]]], None] | None = None,
) -> Layout:
    """Trace, cut and compile a job's model.

    Args:
        job: the job.
        weigh: weight of each template for balancing by simulated times; called only where ``parallel.partition`` asks.
        check: told which streams every module reads that spreads its items over groups of ranks.
    """
    mesh = Mesh(job.parallel, job.cluster)
    traced, tower_ends = _traced(job, mesh), tuple[int, ...]()
    if job.parallel.towers_meet:  # which ranks gather features is known when the towers are cut
        first = _deal(job, traced.blocks, traced.joined.library, weigh)
        tower_ends = tuple(chunk.rank for chunk in first if chunk.gang >= 0)
        traced = _traced(job, mesh, tower_ends)
    if check is not None:
        check(traced.spread_streams)
    blocks, silent, joined, library = traced.blocks, traced.silent, traced.joined, traced.joined.library
    part = cut_key(job) if traced.is_kept else None
    cut = _CUTS.of(traced).peek(part) if part is not None else None
    if cut is not None:
        return Layout(job, mesh, library, joined.streams, cut, cut.recipe(job.num_microbatches), _place(job, cut))
    chunks = _deal(job, blocks, library, weigh)
    compiled, is_lasting = traced.compiled, traced.is_lasting
    if job.training.recompute_layers is not None:
        units, chunks = recompute_units(job, blocks, chunks)
        tracer = ModelTracer(job, tower_ends)
        blocks, silent = tracer.trace_model(units), tracer.silent
        joined = library_of(tracer.blocks, (), is_lasting=tracer.is_lasting)
        compiled, is_lasting = tracer.blocks, tracer.is_lasting
    exchanges, plans = plan_exchanges(job, mesh, blocks, chunks, len(compiled))
    if exchanges:
        joined = library_of(compiled, exchanges, is_lasting=is_lasting, hides=hiding_of(job))
    stages = join_chunks(job, joined, blocks, silent, chunks, plans)
    if job.parallel.copies > 1:
        stages += second_copies(stages, job.parallel.pp)
    combined = combined_chunks(stages, joined.library.hidden) if job.hides_exchanges else ()
    made = cut = ModelCut(tuple(stages), job.parallel.pp, is_shared=part is not None, combined=combined)
    if part is not None:
        cut = _CUTS.get(traced, part, lambda: made)
    return Layout(job, mesh, joined.library, joined.streams, cut, cut.recipe(job.num_microbatches), _place(job, cut))


def trace_blocks(job: TrainingJob) -> TracedBlocks:
    """The blocks of a job's model by themselves, which are cut into no chunks. ``job``: has no gangs."""
    traced = _traced(job, Mesh(job.parallel, job.cluster))
    return TracedBlocks(traced.joined.library, traced.joined.streams, traced.blocks, traced.silent)


class TracedBlocks(NamedTuple):
    """A model's blocks.

    Attributes:
        library, streams: as ``Layout``. blocks: of every modality module. silent: of modules of a job with replicated
            encoders, as they run where no gradient arrives; else none.
    """

    library: TemplateLibrary
    streams: Sequence[str]
    blocks: list[list[Block]]
    silent: list[list[Block]]


def _deal(
    job: TrainingJob,
    blocks: Sequence[Sequence[Block]],
    library: TemplateLibrary,
    weigh: Callable[[TemplateLibrary], Sequence[float]],
) -> list[Chunk]:
    """Cut the model into chunks and place them."""
    flat = [block for group in blocks for block in group]
    counts = [len(group) for group in blocks]
    parallel, layout = job.parallel, job.parallel.stage_layout
    if parallel.cuts_by_time:
        by_template = weigh(library)
        weights = [by_template[block.template] for block in flat]
    else:
        weights = [float(sum(p.parameter.numel for p in block.parameters)) for block in flat]
    boundaries = None
    if layout is not None:
        boundaries = stage_boundaries(job.model, layout, parallel.pp, parallel.vpp)
    if parallel.spreads_vocabulary:
        return deal_between(parallel, weights, boundaries)
    if parallel.gathers_towers:
        return deal_towers(parallel, [module.name for module in job.model.modules], counts, weights, boundaries)
    if boundaries is not None:
        ranks = layout.ranks if layout is not None else None
        return deal_chunks(counts, boundaries, parallel.pp, parallel.placement, ranks)
    names = [module.name for module in job.model.modules]
    return place_modules(
        parallel.segments,
        names,
        counts,
        weights,
        parallel.pp,
        parallel.vpp,
        parallel.placement,
        parallel.shares,
        [module.sources for module in job.model.modules],
        job.model.encoders,
    )


def _place(job: TrainingJob, cut: ModelCut) -> memo.Scope:
    """Where chunks are and what happens to their parameters; another one for each job where no other has the chunks."""
    return _PLACES.get(cut, placement_key(job), memo.Scope) if cut.is_shared else memo.Scope()


_PLACES = memo.ScopedTable[memo.Scope]("places of a cut's chunks, by placement_key", 1024)


@dataclass(frozen=True, eq=False)
class _Traced:
    """A model's blocks under some settings, and the chunks into which it has been cut.

    Attributes:
        blocks: of every modality module. silent: of encoders that are replicated, where no gradient arrives; else none.
        compiled: what their templates are made of. is_lasting: as ``ModelTracer``.
        joined: their library. spread_streams: as ``ModelTracer``. is_kept: it is remembered.
    """

    blocks: list[list[Block]]
    silent: list[list[Block]]
    compiled: list[CompiledBlock]
    is_lasting: bool
    joined: JoinedLibrary
    spread_streams: Mapping[str, Sequence[str]]
    is_kept: bool


_TRACED = memo.ScopedTable[_Traced]("traced blocks of a model's state, by trace_key", 64)
_CUTS = memo.ScopedTable[ModelCut]("chunks of a traced model, by cut_key", 32)


def _traced(job: TrainingJob, mesh: Mesh, tower_ends: tuple[int, ...] = ()) -> _Traced:
    """A model's blocks; remembered where it hides nothing and there is a key.

    Args:
        tower_ends: as ``ModelTracer``; empty: not known, and taken as the first ranks.
    """
    ends = tower_ends or tuple(range(len(job.model.modules) - 1 if job.parallel.towers_meet else 0))
    state = state_of(job.model)
    key = trace_key(job, mesh, has_experts=state.has_experts, reads_replicas=state.reads_replicas, tower_ends=ends)
    before = _TRACED.of(state).peek(key) if key is not None else None
    if before is not None:
        return before
    tracer = ModelTracer(job, ends)
    blocks = tracer.trace_model()
    joined = library_of(tracer.blocks, (), is_lasting=tracer.is_lasting, hides=hiding_of(job))
    is_kept = key is not None and tracer.is_lasting and state.is_fixed
    traced = _Traced(blocks, tracer.silent, tracer.blocks, tracer.is_lasting, joined, tracer.spread_streams, is_kept)
    return _TRACED.get(state, key, lambda: traced) if is_kept else traced


def library_of(
    blocks: Sequence[CompiledBlock], exchanges: tuple[Costs, ...], *, is_lasting: bool, hides: Hiding | None = None
) -> JoinedLibrary:
    """The templates of a traced model; the same ones in the same order share what was joined of them before."""
    if not is_lasting:
        return JoinedLibrary(blocks, exchanges, hides=hides)
    key = tuple(block.serial for block in blocks)
    return LIBRARIES.get((key, exchanges, hides), lambda: JoinedLibrary(blocks, exchanges, hides=hides))
