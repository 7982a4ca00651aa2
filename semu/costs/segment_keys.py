"""``SegmentKeys``: what the costs of a segment depend on, as a hash for the result cache, and which symbols.

A key covers the segment's structure, the symbolic costs of its operators and storages, and every coefficient behind
their latencies. It holds no name but those of the symbols, so that equal work has an equal key in whatever model, job
or process it occurs.
"""

from __future__ import annotations

import hashlib

from semu import memo
from semu.compile.segments import Segment, WholeStage
from semu.costs.roofline import CostModel
from semu.costs.shape_factors import used_positions
from semu.graph.dim import Dim, Poly, symbols_of

_DIGEST_BYTES = 16
_KEYS = memo.ScopedTable[tuple[bytes, tuple[str, ...]]](
    "keys and symbols under a cost model, by content of a segment", 4096
)


class SegmentKeys:
    """Keys of segments under one cost model.

    Args:
        model: rates, and the library that the segments' rows are of. Its custom rules are no part of a key.
    """

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._operators: dict[int, tuple[bytes, frozenset[str]]] = {}
        self._sizes: dict[int, tuple[bytes, frozenset[str]]] = {}

    def key(self, segment: Segment | WholeStage) -> bytes:
        """Hash of everything that the segment's costs depend on but the shape."""
        return self._read(segment)[0]

    def symbols(self, segment: Segment | WholeStage) -> tuple[str, ...]:
        """Symbols that the segment's costs depend on, sorted."""
        return self._read(segment)[1]

    def _read(self, segment: Segment | WholeStage) -> tuple[bytes, tuple[str, ...]]:
        """Key and symbols of a segment."""
        return _KEYS.get(self, segment.content, lambda: (self._key(segment), self._symbols(segment)))

    def _key(self, segment: Segment | WholeStage) -> bytes:
        content = hashlib.blake2b(segment.structure, digest_size=_DIGEST_BYTES)
        content.update(b"".join([self._operator(row)[0] for row in segment.rows.tolist()]))
        content.update(b"".join([self._size(row)[0] for row in segment.size_rows.tolist()]))
        return content.digest()

    def _symbols(self, segment: Segment | WholeStage) -> tuple[str, ...]:
        names = [self._operator(row)[1] for row in set(segment.rows.tolist())]
        names += [self._size(row)[1] for row in set(segment.size_rows.tolist())]
        return tuple(sorted(frozenset().union(*names)))

    def _operator(self, row: int) -> tuple[bytes, frozenset[str]]:
        if row not in self._operators:
            operator = self._model.library.operators[row]
            dims: list[Dim] = [operator.flop, operator.mem_bytes, operator.net_bytes]
            efficiency = self._model.efficiencies[row]
            if efficiency is not None:
                dims += [operator.key[position] for position in used_positions(operator, efficiency)]
            content, symbols = _content(dims, self._model.numbers[row].tobytes())
            for layer in self._model.library.hidden:
                if layer.hidden <= row < layer.hidden + layer.count:
                    others = [self._operator(source) for source in layer.sources.tolist()]
                    place = b"hidden %d" % (row - layer.hidden)
                    content = b"".join((place, layer.key, content, *(own for own, _ in others)))
                    symbols = symbols.union(*(own for _, own in others))
            self._operators[row] = content, symbols
        return self._operators[row]

    def _size(self, row: int) -> tuple[bytes, frozenset[str]]:
        if row not in self._sizes:
            self._sizes[row] = _content([self._model.library.sizes[row]], b"")
        return self._sizes[row]


@memo.remembered(64)
def keys_under(model: CostModel) -> SegmentKeys:
    """Keys of segments under a cost model, remembered with it."""
    return SegmentKeys(model)


def _content(dims: list[Dim], numbers: bytes) -> tuple[bytes, frozenset[str]]:
    """Hash of sizes and numbers, and the symbols of the sizes."""
    spelt = [list(dim.terms.items()) if isinstance(dim, Poly) else dim for dim in dims]
    digest = hashlib.blake2b(repr(spelt).encode() + numbers, digest_size=_DIGEST_BYTES).digest()
    return digest, frozenset().union(*(symbols_of(dim) for dim in dims))
