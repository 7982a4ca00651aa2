"""Cutting a model into pipeline stages: contiguous groups of blocks, balanced by parameters or by simulated times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.errors import ConfigError
from semu.records import dataclass

PARTITIONS = ("parameters", "latency", "forward", "layers")
"""What stages are balanced by; the first is the default."""
TIMED_PARTITIONS = ("latency", "forward")
"""Those of simulated times: forward plus backward as autograd has it (aware of what is frozen), or forward alone, which
every tool that takes backward for a fixed multiple of forward balances."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive blocks of one modality module in one virtual stage of a pipeline rank.

    Attributes:
        index: global number, module by module. rank: pipeline rank. module: number of the modality module.
        first, last: its blocks are ``first <= i < last`` of the module's blocks.
        slot: which of its rank's virtual stages it belongs to. flow: of which copy of the model it is.
        gang: number of the gang of which it is the rank's member, as ``PipelineShape.chunk_gang``; -1: of none.
        repeats: an encoder that runs on this rank too, where no other module reads it: forwards alone.
    """

    index: int
    rank: int
    module: int
    first: int
    last: int
    slot: int = 0
    flow: int = 0
    gang: int = -1
    repeats: bool = False


def partition(weights: Sequence[float], num_parts: int) -> list[int]:
    """Cut a sequence into contiguous, non-empty parts so that the heaviest part is as light as possible.

    Args:
        weights: weight of each block, >= 0. num_parts: number of parts, at most as many as blocks.
    Returns:
        ``num_parts + 1`` boundaries, first 0, last ``len(weights)``. Among the cuts with the lightest heaviest part,
        the one whose sum of squared part weights is smallest, then the lexicographically first.
    Raises:
        ConfigError: fewer blocks than parts, or no parts.
    Source:
        Linear partition problem, exact by dynamic programming, O(num_parts x blocks^2): Cornstarch eq. 3.5, which says
        nothing of equals; DIP §2.2 enumerates instead.
    """
    n = len(weights)
    if num_parts < 1:
        raise ConfigError("no stages to cut into", where="parallel.pp", expected=">= 1", got=num_parts, nearest=1)
    if num_parts > n:
        raise ConfigError(
            f"{n} blocks cannot be cut into {num_parts} stages: only members of a Sequential can be cut apart",
            where="parallel.pp",
            expected=f"<= {n}",
            got=num_parts,
            nearest=n,
        )
    return list(_cut(tuple(float(weight) for weight in weights), num_parts))


@memo.remembered(64)
def _cut(weights: tuple[float, ...], num_parts: int) -> tuple[int, ...]:
    """``partition``, remembered: a job that is simulated again is cut in the same places."""
    n = len(weights)
    total = np.array([0.0, *itertools.accumulate(weights)])
    weight = np.where(np.arange(n + 1) > np.arange(n + 1)[:, None], total - total[:, None], np.inf)
    heaviest = _lightest_heaviest(weight, num_parts)
    squares = np.full((n + 1, n + 1), np.inf)
    allowed = weight <= heaviest
    squares[allowed] = [part**2 for part in weight[allowed].tolist()]
    rest = np.full(n + 1, np.inf)
    rest[n] = 0.0
    ends: list[NDArray[np.int64]] = []
    for _ in range(num_parts):
        sums = squares + rest
        ends.append(sums.argmin(axis=1))
        rest = sums.min(axis=1)
    boundaries = [0]
    for end in reversed(ends):
        boundaries.append(int(end[boundaries[-1]]))
    return tuple(boundaries)


def _lightest_heaviest(weight: NDArray[np.float64], num_parts: int) -> float:
    """Weight of the heaviest part in the best cut.

    Args:
        weight: float64[num_blocks + 1, num_blocks + 1], weight of the blocks ``start <= i < end`` at [start, end],
            infinite where there are none.
    """
    best = np.full(len(weight), np.inf)
    best[0] = 0.0
    for _ in range(num_parts):
        best = np.maximum(best[:, None], weight).min(axis=0)
    return float(best[-1])


def place_chunks(
    blocks_per_module: Sequence[int],
    weights: Sequence[float],
    num_ranks: int,
    num_slots: int = 1,
    placement: str = "circular",
) -> list[Chunk]:
    """Cut all modules' blocks, in order, into contiguous groups, one per rank and slot; group g is on rank
    g mod num_ranks, slot g div num_ranks (2104.04473 §2.2). A group that crosses a module boundary becomes several
    chunks (mixed partitioning, DIP Fig. 5a).

    Args:
        blocks_per_module: number of blocks of each modality module.
        weights: weight of every block, module by module.
        num_ranks: pipeline ranks. num_slots: virtual stages per rank. placement: as ``Parallel``.
    Returns:
        Chunks in the order of data flow, which is also their numbering.
    Raises:
        ConfigError: fewer blocks than groups.
    """
    if num_slots > 1 and num_ranks <= len(weights) < num_ranks * num_slots:
        most = len(weights) // num_ranks
        raise ConfigError(
            f"{len(weights)} blocks cannot be cut into {num_ranks} x {num_slots} virtual stages: only members of a "
            "Sequential can be cut apart",
            where="parallel.vpp",
            expected=f"<= {most}",
            got=num_slots,
            nearest=most,
        )
    boundaries = partition(weights, num_ranks if num_ranks > len(weights) else num_ranks * num_slots)
    return deal_chunks(blocks_per_module, boundaries, num_ranks, placement)


def deal_chunks(
    blocks_per_module: Sequence[int],
    boundaries: Sequence[int],
    num_ranks: int,
    placement: str = "circular",
    ranks: Sequence[int] | None = None,
) -> list[Chunk]:
    """The chunks of groups that are cut already, dealt out as by ``place_chunks``.

    Args:
        blocks_per_module: number of blocks of each modality module.
        boundaries: of the groups among all blocks, one more than groups. num_ranks: pipeline ranks.
        placement: as ``Parallel``; in a V odd slots run from the last rank to the first.
        ranks: of the groups; None: as ``placement`` says.
    """
    chunks: list[Chunk] = []
    offset = 0
    count_of = len(boundaries) - 1
    places = list(ranks) if ranks is not None else [group % num_ranks for group in range(count_of)]
    if placement.startswith("v-"):
        places = [num_ranks - 1 - r if group // num_ranks % 2 else r for group, r in enumerate(places)]
    slots = [places[:group].count(rank) for group, rank in enumerate(places)]
    for module, count in enumerate(blocks_per_module):
        for group, (begin, end) in enumerate(itertools.pairwise(boundaries)):
            first, last = max(begin, offset), min(end, offset + count)
            if first < last:
                place = len(chunks), places[group], module
                chunks.append(Chunk(*place, first - offset, last - offset, slots[group]))
        offset += count
    return chunks


def second_copy(chunk: Chunk, num_chunks: int, num_ranks: int, num_slots: int = 1) -> Chunk:
    """The chunk of the copy that runs from the last rank to the first (Chimera, 2107.06925 §3.1); ``num_slots``: of
    either copy."""
    rank, slot = num_ranks - 1 - chunk.rank, chunk.slot + num_slots
    return replace(chunk, index=num_chunks + chunk.index, rank=rank, slot=slot, flow=1)


def nearest_multiple(count: int, size: int) -> int:
    """The multiple of ``size`` that lies nearest to ``count``, at least ``size``; the lower one of two as near."""
    below = count // size * size
    return below if below and count - below <= below + size - count else below + size
