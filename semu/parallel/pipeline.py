"""Cutting a model into pipeline stages: contiguous groups of blocks, balanced by parameters or by latency."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from semu.errors import ConfigError


@dataclass(frozen=True)
class Chunk:
    """Consecutive blocks of one modality module on one pipeline rank.

    Attributes:
        index: global number, module by module. rank: pipeline rank. module: number of the modality module.
        first, last: its blocks are ``first <= i < last`` of the module's blocks.
    """

    index: int
    rank: int
    module: int
    first: int
    last: int


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
        Linear partition problem, exact by dynamic programming, O(num_parts x blocks^2); DIP §2.2 enumerates instead.
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
    total = [0.0, *itertools.accumulate(float(weight) for weight in weights)]
    heaviest = _lightest_heaviest(total, num_parts)
    rest: dict[int, tuple[float, int]] = {n: (0.0, n)}
    rows = [rest]
    for part in range(1, num_parts + 1):
        row: dict[int, tuple[float, int]] = {}
        for start in range(num_parts - part, n - part + 1):
            options = (
                ((total[end] - total[start]) ** 2 + squares, end)
                for end, (squares, _) in rest.items()
                if start < end and total[end] - total[start] <= heaviest
            )
            best = min(options, default=None)
            if best is not None:
                row[start] = best
        rows.append(row)
        rest = row
    boundaries = [0]
    for row in reversed(rows[1:]):
        boundaries.append(row[boundaries[-1]][1])
    return boundaries


def _lightest_heaviest(total: Sequence[float], num_parts: int) -> float:
    """Weight of the heaviest part in the best cut, from running sums of the weights."""
    n = len(total) - 1
    best = {0: 0.0}
    for part in range(1, num_parts + 1):
        best = {
            end: min(max(heaviest, total[end] - total[cut]) for cut, heaviest in best.items() if cut < end)
            for end in range(part, n - (num_parts - part) + 1)
        }
    return best[n]


def place_chunks(blocks_per_module: Sequence[int], weights: Sequence[float], num_ranks: int) -> list[Chunk]:
    """Cut all modules' blocks, in order, into one contiguous group per rank; a group that crosses a module boundary
    becomes several chunks (mixed partitioning, DIP Fig. 5a).

    Args:
        blocks_per_module: number of blocks of each modality module.
        weights: weight of every block, module by module.
        num_ranks: pipeline ranks.
    Returns:
        Chunks in the order of data flow, which is also their numbering.
    Raises:
        ConfigError: fewer blocks than ranks.
    """
    boundaries = partition(weights, num_ranks)
    chunks: list[Chunk] = []
    offset = 0
    for module, count in enumerate(blocks_per_module):
        for rank in range(num_ranks):
            first = max(boundaries[rank], offset)
            last = min(boundaries[rank + 1], offset + count)
            if first < last:
                chunks.append(Chunk(len(chunks), rank, module, first - offset, last - offset))
        offset += count
    return chunks
