"""``TileLists``: which tiles of a mask every row of queries computes, as block-sparse kernels take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.masks.balance import Cut
from semu.masks.mask import Seen
from semu.masks.spans import IntArray
from semu.masks.tiles import Pieces, key_pieces, packed
from semu.records import dataclass

_TOGETHER = 1 << 20
"""Rows x tiles of keys that are looked at together."""


@dataclass(frozen=True, eq=False)
class TileLists:
    """Tiles that are not empty; row i has those from ptr[i] to ptr[i + 1], by rising tile of keys.

    Attributes:
        ptr: int64[num_rows + 1]. key: int32[num_tiles], tile of keys. is_full: bool[num_tiles], no pair is masked.
        rank: int32[num_rows]. size: int64[num_rows], queries of a row.
    """

    ptr: IntArray
    key: NDArray[np.int32]
    is_full: NDArray[np.bool_]
    rank: NDArray[np.int32]
    size: IntArray

    @classmethod
    def of(cls, seen: Seen, cut: Cut) -> TileLists:
        """Of all sequences as one, which is how kernels without lengths of sequences see them: rows are 128 queries of
        a rank in its order, tiles of keys 128 keys in order."""
        starts = np.array([0, cut.bounds[-1]])
        rows, keys = packed(cut, starts), packed(Cut(starts, np.zeros(1, np.int32), 1), starts)
        return cls(*_listed(seen, rows, keys, np.arange(len(keys.size), dtype=np.int32)), rows.rank, rows.size)


def reads_of_blocks(seen: Seen, starts: IntArray, bounds: IntArray) -> tuple[IntArray, NDArray[np.int32]]:
    """Blocks of keys that every block of queries reads a tile of, itself left out.

    Args:
        seen: the mask. starts: of the sequences. bounds: int64[num_blocks + 1].
    Returns:
        ptr: int64[num_blocks + 1], block: int32[ptr[-1]].
    """
    numbers = np.arange(len(bounds) - 1, dtype=np.int32)
    tiles = packed(Cut(bounds, numbers, len(numbers)), starts)
    ptr, key, _ = _listed(seen, tiles, tiles, tiles.rank)
    pairs = sorted_distinct(np.repeat(tiles.rank, np.diff(ptr)).astype(np.int64) * len(numbers) + key)
    block, other = np.divmod(pairs, len(numbers))
    is_other = block != other
    counts = np.bincount(block[is_other], minlength=len(numbers))
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), other[is_other].astype(np.int32)


def _listed(
    seen: Seen, rows: Pieces, keys: Pieces, owner: NDArray[np.int32]
) -> tuple[IntArray, NDArray[np.int32], NDArray[np.bool_]]:
    """Tiles of rows that are not empty, by the owner of the keys: ptr, owner and is_full, as ``TileLists``."""
    from semu.masks.kernels import count_tiles

    num_keys = int(owner.max(initial=-1)) + 1
    by_tile = (*key_pieces(keys)[:4], owner)
    counts, found, full = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, np.bool_)]
    step = max(_TOGETHER // max(num_keys, 1), 1)
    for first in range(0, len(rows.size), step):
        last = min(first + step, len(rows.size))
        pieces = slice(int(rows.ptr[first]), int(rows.ptr[last]))
        part = rows.ptr[first : last + 1] - rows.ptr[first], rows.start[pieces], rows.end[pieces]
        shape = last - first, num_keys
        tables = np.zeros(shape, np.int64), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        columns = np.zeros((1, len(keys.size)), np.int32)
        count_tiles((*part, np.zeros(last - first, np.int32)), seen.arrays, by_tile, *tables, columns)
        row, key = np.nonzero(tables[1])
        counts.append(np.bincount(row, minlength=last - first))
        found.append(key.astype(np.int32))
        full.append(tables[2][row, key] == 0)
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))))
    return ptr, np.concatenate(found), np.concatenate(full)
