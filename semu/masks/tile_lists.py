"""``TileLists``: which tiles of a mask every row of queries computes, as block-sparse kernels take them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.masks.balance import Cut
from semu.masks.mask import Seen
from semu.masks.spans import IntArray
from semu.masks.tiles import key_pieces, packed

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
        from semu.masks.kernels import count_tiles

        starts = np.array([0, cut.bounds[-1]])
        rows, keys = packed(cut, starts), key_pieces(packed(Cut(starts, np.zeros(1, np.int32), 1), starts))
        num_keys = len(keys[3])
        by_tile = (*keys[:4], np.arange(num_keys, dtype=np.int32))
        counts, found, full = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, np.bool_)]
        step = max(_TOGETHER // max(num_keys, 1), 1)
        for first in range(0, len(rows.size), step):
            last = min(first + step, len(rows.size))
            pieces = slice(int(rows.ptr[first]), int(rows.ptr[last]))
            part = rows.ptr[first : last + 1] - rows.ptr[first], rows.start[pieces], rows.end[pieces]
            shape = last - first, num_keys
            pairs, tiles, partial = np.zeros(shape, np.int64), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
            count_tiles(
                (*part, np.zeros(last - first, np.int32)),
                seen.arrays,
                by_tile,
                pairs,
                tiles,
                partial,
                np.zeros((1, num_keys), np.int32),
            )
            row, key = np.nonzero(tiles)
            counts.append(np.bincount(row, minlength=last - first))
            found.append(key.astype(np.int32))
            full.append(partial[row, key] == 0)
        ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))))
        return cls(ptr, np.concatenate(found), np.concatenate(full), rows.rank, rows.size)
