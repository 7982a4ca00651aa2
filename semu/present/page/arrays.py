"""``Arrays``: the numbers of a page, one behind the other, compressed once."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_TYPES = {"f8": "<f8", "f4": "<f4", "u4": "<u4", "u2": "<u2", "u1": "|u1"}
"""Name in a page -> numpy's."""
_ALIGNED = 8
"""Arrays begin at multiples of this, as the widest type asks [bytes]."""


class Arrays:
    """Arrays by their place; equal arrays are kept once."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._known: dict[tuple[str, bytes], dict[str, object]] = {}

    def add(self, values: ArrayLike, kind: str) -> dict[str, object]:
        """Keep an array; returns what a page needs to find it: ``at`` [bytes], ``n`` values, ``type``.

        Args:
            values: of one dimension, or more in row order. kind: ``f8``, ``f4``, ``u4``, ``u2`` or ``u1``.
        """
        array = np.ascontiguousarray(values, dtype=_TYPES[kind])
        raw = array.tobytes()
        if (known := self._known.get((kind, raw))) is not None:
            return known
        place: dict[str, object] = {"at": self._size, "n": array.size, "type": kind}
        padded = raw + b"\0" * (-len(raw) % _ALIGNED)
        self._parts.append(padded)
        self._size += len(padded)
        self._known[kind, raw] = place
        return place

    def text(self) -> str:
        """All arrays, deflated, as base64."""
        return packed(b"".join(self._parts))


def packed(raw: bytes) -> str:
    """Bytes, deflated, as base64."""
    return base64.b64encode(zlib.compress(raw, 6)).decode()


def smallest(highest: int) -> Any:
    """The narrowest kind that holds numbers from 0 on."""
    return "u1" if highest < 1 << 8 else "u2" if highest < 1 << 16 else "u4"
