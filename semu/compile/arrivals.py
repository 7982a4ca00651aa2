"""What arrives at a chunk, and from which chunk; ``semu.compile.layout`` joins chunks by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semu.compile.chunk import ChunkStages
from semu.compile.template import TemplateLibrary
from semu.compile.tracer import Block
from semu.job import TrainingJob
from semu.nn.model import ModalityModule
from semu.parallel.pipeline import Chunk


def source_of(chunks: Sequence[Chunk], chunk: Chunk) -> int:
    """The chunk whose result a chunk reads within its module; -1: the module's first, or a member of a gang that gets
    it within the stage from the member that is on the same rank as the chunk before."""
    if not chunk.first:
        return -1
    before = [other for other in chunks[: chunk.index] if other.module == chunk.module and other.last == chunk.first]
    before = [other for other in before if other.flow == chunk.flow]
    if len(before) == 1 and chunk.gang < 0:
        return before[0].index
    return next((other.index for other in before if other.rank == chunk.rank), -1)


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


def module_arrivals(
    module: ModalityModule,
    last_chunk: Mapping[str, int],
    library: TemplateLibrary,
    blocks: Sequence[Sequence[Block]],
    job: TrainingJob,
) -> tuple[int, ...]:
    """For every tensor that arrives at a module, the chunk that makes it; -1: it is loaded.

    Args:
        last_chunk: of every module. blocks: of every module, by number.
    """
    arrivals = [-1] * len(module.inputs)
    names = [m.name for m in job.model.modules]
    for source in module.sources:
        last_block = blocks[names.index(source)][-1]
        arrivals += [last_chunk[source]] * len(library.templates[last_block.template].carry_out)
    return tuple(arrivals)
