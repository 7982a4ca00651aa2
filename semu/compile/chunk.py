"""``ChunkStages``: consecutive blocks of a modality module on one pipeline rank, with their forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.compile.combined.hidden_exchanges import HiddenExchanges
from semu.compile.combined.layers import hiding_programs
from semu.compile.stage import StageProgram
from semu.compile.tracer import Block
from semu.parallel.pipeline import Chunk
from semu.records import dataclass


@dataclass(frozen=True)
class ChunkStages:
    """A chunk with its two stages.

    Attributes:
        chunk: where it is. module: of which modality module. blocks: its blocks.
        forward, backward: its stages; backward None: nothing to do.
        arrivals: per arriving tensor, the chunk that makes it, or -1 for the data loader.
    """

    chunk: Chunk
    module: str
    blocks: tuple[Block, ...]
    forward: StageProgram
    backward: StageProgram | None
    arrivals: tuple[int, ...]


def combined_chunks(chunks: Sequence[ChunkStages], hidden: Sequence[HiddenExchanges]) -> tuple[ChunkStages, ...]:
    """Chunks as they run in pairs of a forward and a backward; those of the same stages share them again."""
    hiding = hiding_programs(hidden)
    return tuple(
        replace(own, forward=hiding(own.forward), backward=None if own.backward is None else hiding(own.backward))
        for own in chunks
    )
