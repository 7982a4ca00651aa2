"""``parallel.vocabulary = "pipeline"``: embedding and head split over the vocabulary among all pipeline ranks.

Every pipeline rank holds rows of both tables. The ranks run the embedding of a microbatch together, and its head, as
tensor-parallel ranks do: such chunks are a *gang*, and their stages begin together (FlexPipe §7.1, "MLLM" of Fig. 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from semu.errors import ConfigError
from semu.nn.layers.elementary import Embedding
from semu.nn.layers.transformer import LMHead
from semu.nn.model import Model
from semu.parallel.config import Parallel
from semu.parallel.pipeline import Chunk, deal_chunks, place_chunks

_WHERE = "parallel.vocabulary"


def check_vocabulary(model: Model, parallel: Parallel) -> None:
    """Refuse what cannot be split, or is not modelled beside it.

    Raises:
        ConfigError: other models than a decoder between its embedding and its head; a vocabulary that tp x pp does not
            divide; settings that this version does not model beside it.
    """
    if not parallel.spreads_vocabulary:
        return
    blocks = [body for module in model.modules for _, body in module.blocks()]
    ends = (blocks[0], blocks[-1]) if blocks else (None, None)
    if len(model.modules) != 1 or not isinstance(ends[0], Embedding) or not isinstance(ends[1], LMHead):
        raise ConfigError(
            "embedding and head are split over the pipeline for models of one module that begins with the one and ends "
            "with the other",
            where=_WHERE,
            expected='"ends", or such a model',
            got=model.name,
            nearest="ends",
        )
    parts = parallel.tp * parallel.pp
    vocab = ends[0].weight.shape[0]
    if vocab % parts:
        raise ConfigError(
            f"a vocabulary of {vocab} does not divide among tp x pp = {parallel.tp} x {parallel.pp} ranks",
            where=_WHERE,
            expected=f"a vocabulary that is a multiple of {parts}",
            got=vocab,
            nearest=-(-vocab // parts) * parts,
        )
    for name, expected, fits, nearest in (
        ("placement", "circular or v-shape", parallel.copies == 1, "circular"),
        ("segments", "mixed", parallel.segments == "mixed", "mixed"),
        ("zero", "0 or 1", parallel.zero <= 1, 1),
    ):
        if not fits:
            raise ConfigError(
                f"{name} = {getattr(parallel, name)} beside a vocabulary that is split over the pipeline is not "
                "modelled by this version",
                where=f"parallel.{name}",
                expected=f'{expected}, or parallel.vocabulary = "ends"',
                got=getattr(parallel, name),
                nearest=nearest,
            )


def deal_between(parallel: Parallel, weights: Sequence[float], boundaries: Sequence[int] | None = None) -> list[Chunk]:
    """Chunks of a module whose first block, the embedding, and last block, the head, are gangs of all ranks.

    Args:
        parallel: sizes and placement. weights: of every block, for balancing those in between.
        boundaries: of the stages among all blocks, where they are given.
    Returns:
        Chunks in order of data flow: the members of the first gang, the layers, the members of the second.
    Raises:
        ConfigError: fewer layers than stages.
    """
    if boundaries is not None:
        places = parallel.placement, parallel.layout.ranks if parallel.layout is not None else None
        between = deal_chunks([len(weights)], _inner(boundaries, len(weights)), parallel.pp, *places)
    else:
        layers = place_chunks([len(weights) - 2], weights[1:-1], parallel.pp, parallel.vpp, parallel.placement)
        between = [replace(chunk, first=chunk.first + 1, last=chunk.last + 1) for chunk in layers]
    ranks, size, last_slot = range(parallel.pp), len(weights), max(chunk.slot for chunk in between)
    first = [Chunk(0, rank, 0, 0, 1, 0, gang=0) for rank in ranks]
    last = [Chunk(0, rank, 0, size - 1, size, last_slot, gang=1) for rank in ranks]
    return [replace(chunk, index=number) for number, chunk in enumerate([*first, *between, *last])]


def _inner(boundaries: Sequence[int], num_blocks: int) -> list[int]:
    """The same boundaries among the blocks between the first and the last one."""
    inner = [min(max(boundary, 1), num_blocks - 1) for boundary in boundaries]
    empty = next((n for n, (begin, end) in enumerate(pairwise(inner)) if begin == end), None)
    if empty is not None:
        raise ConfigError(
            f"stage {empty} has no layer beside embedding and head, which all ranks hold",
            where="parallel.layout",
            expected=">= 1 layer",
            got=0,
            nearest=1,
        )
    return inner
