"""From chunks to their stages: which chunk's results arrive at each, and who takes what it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from semu.compile.chunk import ChunkStages
from semu.compile.template import TemplateLibrary
from semu.compile.template_cache import JoinedLibrary
from semu.compile.tracer import Block
from semu.compile.zero_exchange import ExchangePlan
from semu.job import TrainingJob
from semu.nn.model import ModalityModule
from semu.parallel.pipeline import Chunk, second_copy


def join_chunks(
    job: TrainingJob,
    joined: JoinedLibrary,
    blocks: Sequence[Sequence[Block]],
    silent: Sequence[Sequence[Block]],
    chunks: Sequence[Chunk],
    plans: Sequence[ExchangePlan | None],
) -> list[ChunkStages]:
    """The stages of every chunk, in order of data flow.

    Args:
        job: the job. joined: library of its blocks. blocks: of every modality module. silent: of encoders that are
            replicated, as they run where no gradient arrives. chunks: their places. plans: exchanges of each chunk.
    """
    last_chunk = {job.model.modules[chunk.module].name: chunk.index for chunk in chunks}
    library = joined.library
    result: list[ChunkStages] = []
    for chunk in chunks:
        module = job.model.modules[chunk.module]
        own = tuple((silent if chunk.repeats else blocks)[chunk.module][chunk.first : chunk.last])
        numbers = tuple(block.template for block in own)
        num_arriving = len(library.templates[numbers[0]].carry_in)
        source = _source(chunks, chunk)
        if chunk.first:
            arrivals = (source,) * num_arriving
        else:
            ends = _ends_on(chunk.rank, chunks, job) if job.parallel.segments == "replicated" else last_chunk
            arrivals = _module_arrivals(module, ends, library, blocks, job)
        is_here = tuple(s >= 0 and (chunk.gang < 0 or chunks[s].rank == chunk.rank) for s in arrivals)
        if job.parallel.towers_meet and chunk.gang >= 0:  # what is on other ranks comes within the stage
            arrivals = tuple(s if own else -1 for s, own in zip(arrivals, is_here, strict=True))
        forward, backward = joined.stages(
            numbers,
            serial=not job.overlaps_tensor_parallel,
            has_consumer=has_consumer(job, chunk, chunks),
            produced=is_here,
            borrowed=borrowed_tensors(arrivals, chunk, result),
            exchanges=plans[chunk.index],
        )
        result.append(ChunkStages(chunk, module.name, own, forward, backward, arrivals))
    return result


def has_consumer(job: TrainingJob, chunk: Chunk, chunks: Sequence[Chunk]) -> bool:
    """Whether another chunk reads what a chunk makes."""
    name = job.model.modules[chunk.module].name
    if chunk.repeats:
        return any(name in job.model.modules[other.module].sources for other in chunks if other.repeats)
    is_last = [other for other in chunks if other.module == chunk.module][-1].first == chunk.first
    if chunk.gang >= 0 and not is_last:
        return any(_source(chunks, other) == chunk.index for other in chunks)
    return not is_last or any(name in module.sources for module in job.model.modules)


def _ends_on(rank: int, chunks: Sequence[Chunk], job: TrainingJob) -> dict[str, int]:
    """Last chunk of every module; of one that is replicated, that on a rank."""
    ends = {job.model.modules[chunk.module].name: chunk.index for chunk in chunks}
    own = {job.model.modules[c.module].name: c.index for c in chunks if c.rank == rank}
    return ends | {name: index for name, index in own.items() if name in job.model.encoders}


def _source(chunks: Sequence[Chunk], chunk: Chunk) -> int:
    """The chunk whose result a chunk reads within its module; -1: the module's first, or a member of a gang that gets
    it within the stage from the member that is on the same rank as the chunk before."""
    if not chunk.first:
        return -1
    before = [other for other in chunks[: chunk.index] if other.module == chunk.module and other.last == chunk.first]
    before = [other for other in before if other.flow == chunk.flow]
    if len(before) == 1 and chunk.gang < 0:
        return before[0].index
    return next((other.index for other in before if other.rank == chunk.rank), -1)


def second_copies(stages: Sequence[ChunkStages], num_ranks: int) -> list[ChunkStages]:
    """The chunks of the other copy of the model: the same stages, on mirrored ranks."""
    n, slots = len(stages), max(own.chunk.slot for own in stages) + 1
    return [
        replace(
            own,
            chunk=second_copy(own.chunk, n, num_ranks, slots),
            arrivals=tuple(source + n if source >= 0 else source for source in own.arrivals),
        )
        for own in stages
    ]


def borrowed_tensors(arrivals: Sequence[int], chunk: Chunk, earlier: Sequence[ChunkStages]) -> tuple[bool, ...]:
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
    last_chunk: Mapping[str, int],
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
