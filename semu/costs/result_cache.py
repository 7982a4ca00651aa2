"""``ResultCache``: exact results by content, in memory and, where a path is given, in a file that processes share.

A result is a row of 8-byte words. It is found by a key, the hash of everything that it depends on but the shape
(``segment_keys`` makes them), and by the shape, a row of integers. Names of models, jobs or files play no part.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.costs.cache_file import CacheFile, Words, row_hash

MAX_ROWS = 1 << 20
"""Results kept in memory: some 100 MB."""


class ResultCache:
    """Results that were computed before. Threads may share it, processes share its file.

    Args:
        path: the file, or a folder for it; None: only in memory. An existing folder, and a new name without a suffix,
            are folders. The file may be deleted at any moment. One that cannot be used is ignored, and made anew where
            it is an old or damaged cache; results do not change.
        max_rows: results kept in memory; the keys that were not used for longest go first.
        warn: called at most once, with a sentence about a file that cannot be used as it is; by default a warning.

    Attributes:
        hits, misses: results found and not found so far.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        max_rows: int = MAX_ROWS,
        *,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.hits = 0
        self.misses = 0
        self._max_rows = max_rows
        self._tables: OrderedDict[bytes, ResultTable] = OrderedDict()
        self._num_rows = 0
        self._lock = threading.Lock()
        self._file: CacheFile | None = None
        if path is not None:
            self._file = CacheFile(path, warn if warn is not None else _warn)

    def lookup(self, queries: Sequence[tuple[bytes, Words]]) -> list[tuple[NDArray[np.bool_], Words]]:
        """Find results; the file is opened once.

        Args:
            queries: keys (content hashes) and shapes, int64[num_shapes, num_symbols], each once.
        Returns:
            per query: bool[num_shapes], which are known; int64[num_known, width], their words.
        """
        with self._lock:
            places = [self._find(key, shapes) for key, shapes in queries]
            late = [number for number, place in enumerate(places) if (place < 0).any()]
            if self._file is not None and late:
                wanted = [(queries[number][0], queries[number][1][places[number] < 0]) for number in late]
                for number, (shapes, values) in zip(late, self._file.read(wanted), strict=True):
                    if len(shapes):
                        self._keep(queries[number][0], shapes, values)
                        places[number] = self._find(*queries[number])
            results = []
            for (key, _), place in zip(queries, places, strict=True):
                found = place >= 0
                values = self._tables[key].values[place[found]] if key in self._tables else np.zeros((0, 0), np.int64)
                results.append((found, values))
                self.hits += len(values)
                self.misses += len(place) - len(values)
            self._shrink()
            return results

    def store(self, records: Sequence[tuple[bytes, Words, Words]]) -> None:
        """Keep results: keys, shapes as ``lookup``, words int64[num_shapes, width], the width is the key's."""
        with self._lock:
            for record in records:
                self._keep(*record)
            self._shrink()
            if self._file is not None:
                self._file.write(records)

    def _find(self, key: bytes, shapes: Words) -> NDArray[np.int64]:
        """Places of shapes in their key's table, -1: not there."""
        if key not in self._tables:
            return np.full(len(shapes), -1)
        self._tables.move_to_end(key)
        return self._tables[key].find(shapes)

    def _keep(self, key: bytes, shapes: Words, values: Words) -> None:
        table = self._tables.setdefault(key, ResultTable(shapes[:0], values[:0]))
        self._tables.move_to_end(key)
        self._num_rows += table.add(shapes, values)

    def _shrink(self) -> None:
        while self._num_rows > self._max_rows:
            _, table = self._tables.popitem(last=False)
            self._num_rows -= len(table.shapes)


class ResultTable:
    """Results of one key, found by a hash of the shape. Of two shapes with one hash the second is not kept.

    Args:
        shapes: int64[num_shapes, num_symbols], no two alike. values: int64[num_shapes, width].
    """

    def __init__(self, shapes: Words, values: Words) -> None:
        self.shapes, self.values = shapes, values
        self._hashes = row_hash(shapes)
        self._order = np.argsort(self._hashes)
        self._hashes = self._hashes[self._order]

    def find(self, shapes: Words) -> NDArray[np.int64]:
        """Place of each shape, -1: not here."""
        none = np.full(len(shapes), -1)
        if not len(self.shapes) or shapes.shape[1] != self.shapes.shape[1]:
            return none
        hashes = row_hash(shapes)
        rank = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        place = self._order[rank]
        return np.where((self.shapes[place] == shapes).all(axis=1), place, none)

    def add(self, shapes: Words, values: Words) -> int:
        """Add what is not here; returns how many."""
        hashes, first = np.unique(row_hash(shapes), return_index=True)
        rank = np.searchsorted(self._hashes, hashes)
        is_new = np.ones(len(hashes), dtype=np.bool_)
        inside = np.flatnonzero(rank < len(self._hashes))
        is_new[inside] = self._hashes[rank[inside]] != hashes[inside]
        chosen = first[is_new]
        self._order = np.insert(self._order, rank[is_new], len(self.shapes) + np.arange(len(chosen)))
        self._hashes = np.insert(self._hashes, rank[is_new], hashes[is_new])
        self.shapes = np.concatenate((self.shapes, shapes[chosen]))
        self.values = np.concatenate((self.values, values[chosen]))
        return len(chosen)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
