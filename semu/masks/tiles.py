"""Tiles of a mask on every context rank: what kernels of 128 x 128 scores compute, skip and mask.

A kernel on a rank reads its queries, packed sequence by sequence, in rows of 128, and skips a tile of 128 keys in which
no pair is allowed (FlashAttention, FlexAttention 2412.05496). Gathered keys are in order; those that come around a ring
are packed as the rank that owns them packed them. A tile in which some pairs are masked is *partial*.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.masks.balance import Cut, blocks_of
from semu.masks.mask import Seen
from semu.masks.spans import IntArray
from semu.nn.masked_kernel import TILE_EDGE
from semu.records import dataclass


@dataclass(frozen=True, eq=False)
class Pieces:
    """Tokens in tiles: tile t has the pieces ptr[t] to ptr[t + 1].

    Attributes:
        ptr: int64[num_tiles + 1]. start, end: int64[num_pieces]. rank: int32[num_tiles]. size: int64[num_tiles].
    """

    ptr: IntArray
    start: IntArray
    end: IntArray
    rank: NDArray[np.int32]
    size: IntArray


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles of every row of queries, by the rank that owns the keys (ring), or together (one column).

    Attributes:
        rank: int32[num_rows], ascending. size: int64[num_rows], queries of a row.
        pairs: int64[num_rows, num_owners]. tiles, partial: int32[num_rows, num_owners].
        columns: int32[num_ranks, num_key_tiles], rows of a rank that read a tile of keys.
        key_size: int64[num_key_tiles]. key_owner: int32[num_key_tiles], 0 where they are together.
    """

    rank: NDArray[np.int32]
    size: IntArray
    pairs: IntArray
    tiles: NDArray[np.int32]
    partial: NDArray[np.int32]
    columns: NDArray[np.int32]
    key_size: IntArray
    key_owner: NDArray[np.int32]

    def sums(self, table: NDArray[np.integer]) -> IntArray:
        """Sums over the rows of every rank: int64[num_ranks, num_owners]. ``table``: pairs, tiles or partial."""
        total = np.zeros((len(self.columns), table.shape[1]), np.int64)
        np.add.at(total, self.rank, table)
        return total

    def rows_of(self, rank: int) -> slice:
        """The rows of a rank."""
        first, last = np.searchsorted(self.rank, (rank, rank + 1))
        return slice(int(first), int(last))

    def keys_read(self) -> IntArray:
        """Keys in tiles that are not skipped: int64[num_ranks, num_owners]."""
        read = (self.columns > 0) * self.key_size
        total = np.zeros((len(read), self.tiles.shape[1]), np.int64)
        np.add.at(total.T, self.key_owner, read.T)
        return total


def count(seen: Seen, starts: IntArray, cut: Cut, *, by_owner: bool, width: int = 0) -> Tiles:
    """Count the tiles of a mask.

    Args:
        seen: the mask. starts: of the sequences. cut: who has which tokens.
        by_owner: keys stay with the ranks that own them, as around a ring; else they are gathered, in order.
        width: only what lies on groups of so many ranks, keys gathered within a group; 0: everything.
    """
    rows = packed(cut, starts, width)
    if by_owner and cut.num_ranks > 1:
        return _counted(seen, rows, rows, cut.num_ranks, cut.num_ranks)
    keys = packed(replace(cut, rank=cut.rank // width) if width else _whole(starts), starts, width)
    keys = replace(keys, rank=np.zeros_like(keys.rank))
    return _counted(seen, rows, keys, cut.num_ranks, cut.num_ranks if by_owner else 1)


def _whole(starts: IntArray) -> Cut:
    """Every sequence on one rank."""
    return Cut(starts, np.zeros(len(starts) - 1, np.int32), 1)


def _counted(seen: Seen, rows: Pieces, keys: Pieces, num_ranks: int, owners: int) -> Tiles:
    from semu.masks.kernels import count_tiles

    shape = len(rows.size), owners
    pairs, tiles, partial = np.zeros(shape, np.int64), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    columns = np.zeros((num_ranks, len(keys.size)), np.int32)
    row_arrays = rows.ptr, rows.start, rows.end, rows.rank
    count_tiles(row_arrays, seen.arrays, key_pieces(keys), pairs, tiles, partial, columns)
    return Tiles(rows.rank, rows.size, pairs, tiles, partial, columns, keys.size, keys.rank)


def key_pieces(keys: Pieces) -> tuple[IntArray, IntArray, NDArray[np.int32], IntArray, NDArray[np.int32]]:
    """``keys`` of the kernel: pieces of tiles in the order of tokens."""
    order = np.argsort(keys.start, kind="stable")
    tile = np.repeat(np.arange(len(keys.size)), np.diff(keys.ptr)).astype(np.int32)
    return keys.start[order], keys.end[order], tile[order], keys.size, keys.rank


def packed(cut: Cut, starts: IntArray, width: int = 0) -> Pieces:
    """The tokens of every rank, packed sequence by sequence, in tiles; rank by rank. ``width``: as ``count``."""
    bounds = np.union1d(cut.bounds, starts)
    source = np.searchsorted(cut.bounds, bounds[:-1], side="right") - 1
    rank = cut.rank[source]
    sequence = np.searchsorted(starts, bounds[:-1], side="right") - 1
    order = np.lexsort((bounds[:-1], sequence, rank))
    order = order[cut.width[source[order]] == width] if width else order
    start, size = bounds[:-1][order], np.diff(bounds)[order]
    group = rank[order].astype(np.int64) * len(starts) + sequence[order]
    local = np.concatenate((np.zeros(1, np.int64), np.cumsum(size)))
    is_first = np.ones(len(group), np.bool_)
    is_first[1:] = group[1:] != group[:-1]
    borders = np.append(local[:-1][is_first], local[-1])
    edges = blocks_of(borders, TILE_EDGE)
    cuts = np.union1d(local, edges)
    piece = np.searchsorted(local, cuts[:-1], side="right") - 1
    begin = start[piece] + cuts[:-1] - local[piece]
    ptr = np.searchsorted(cuts, edges).astype(np.int64)
    ranks = rank[order][np.searchsorted(local, edges[:-1], side="right") - 1]
    return Pieces(ptr, begin, begin + np.diff(cuts), ranks.astype(np.int32), np.diff(edges))


def work_of_blocks(seen: Seen, starts: IntArray, bounds: IntArray) -> IntArray:
    """Tiles of every block, its queries in rows of their own: int64[num_blocks]. ``bounds``: int64[num_blocks + 1]."""
    numbers = np.arange(len(bounds) - 1, dtype=np.int32)
    rows = packed(Cut(bounds, numbers, len(numbers)), starts)
    alone = Pieces(rows.ptr, rows.start, rows.end, np.zeros_like(rows.rank), rows.size)
    found = _counted(seen, alone, packed(_whole(starts), starts), 1, 1)
    return np.bincount(rows.rank, weights=found.tiles[:, 0], minlength=len(numbers)).astype(np.int64)
