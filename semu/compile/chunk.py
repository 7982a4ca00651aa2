"""``ChunkStages``: consecutive blocks of a modality module on one pipeline rank, with their forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

from semu.compile.stage import StageProgram
from semu.compile.tracer import Block
from semu.parallel.pipeline import Chunk


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
