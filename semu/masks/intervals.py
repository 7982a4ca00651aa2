"""Masks as intervals of keys in a file, one mask for every sequence: what neither a word nor bits can say.

``numpy.savez`` with the arrays of ``Seen``, tokens counted from the beginning of a sequence: ``ptr`` int64[runs + 1],
``first`` int64[runs + 1], ``low`` and ``high`` int64[intervals], ``is_causal`` bool[runs], and, where intervals have
windows, ``reach`` int64[intervals]. A lambda mask (sinks and a window, 2309.17453) is one causal run with the intervals
[0, sinks) and [sinks, length), the second with a reach; answers that share a question see it, and not one another.
"""

from __future__ import annotations

from dataclasses import astuple
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from semu.errors import ConfigError
from semu.masks.mask import Seen
from semu.masks.spans import IntArray

_NAMES = ("ptr", "first", "low", "high", "is_causal", "reach")


def write_intervals(seen: Seen, path: str | Path) -> None:
    """Write a mask of one sequence."""
    np.savez_compressed(path, **dict(zip(_NAMES, astuple(seen), strict=True)))


def read_intervals(path: str | Path) -> Seen:
    """A mask of one sequence.

    Raises:
        ConfigError: no such file, other arrays, runs or intervals that are out of order.
    """
    try:
        with np.load(BytesIO(Path(path).read_bytes()), allow_pickle=False) as data:
            found = {name: data[name] for name in _NAMES if name in data}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise ConfigError(
            f"cannot read the mask: {error}", where=str(path), expected="a file that numpy.savez wrote"
        ) from error
    missing = [name for name in _NAMES[:-1] if name not in found]
    if missing:
        raise ConfigError("not a mask", where=str(path), expected=", ".join(_NAMES), got=f"no {missing[0]}")
    ints = [np.ascontiguousarray(found[name], np.int64) for name in ("ptr", "first", "low", "high")]
    ptr, first, low, high = ints
    is_causal = np.ascontiguousarray(found["is_causal"], np.bool_)
    reach = np.ascontiguousarray(found["reach"] if len(found.get("reach", ())) else np.zeros_like(low), np.int64)
    for wrong, what, expected in (
        (len({len(ptr) - 1, len(first) - 1, len(is_causal)}) > 1 or len(ptr) < 2, "runs", "as many in all arrays"),
        (len({len(low), len(high), len(reach)}) > 1, "intervals", "as many in all arrays"),
        (ptr[0] != 0 or (np.diff(ptr) <= 0).any(), "ptr", "rising, from 0"),
        (first[0] != 0 or (np.diff(first) < 0).any() or first[-1] != len(low), "first", "0 to the number of intervals"),
        ((low < 0).any() or (high < low).any() or (high > ptr[-1]).any(), "low, high", "0 <= low <= high <= length"),
        ((reach < 0).any(), "reach", ">= 0"),
    ):
        if wrong:
            raise ConfigError(f"not a mask: {what}", where=str(path), expected=expected)
    own = np.repeat(np.arange(len(is_causal)), np.diff(first))
    if ((own[1:] == own[:-1]) & (low[1:] < high[:-1])).any():
        raise ConfigError("not a mask: intervals of a run overlap", where=str(path), expected="in order and apart")
    return Seen(ptr, first, low, high, is_causal, reach)


def in_sequences(mask: Seen, starts: IntArray, where: str) -> Seen:
    """The same mask in each of several sequences, which may be shorter.

    Args:
        mask: of one sequence. starts: int64[num_sequences + 1]. where: of the mask, for messages.
    Raises:
        ConfigError: a sequence longer than the mask.
    """
    longest, known = int(np.diff(starts).max(initial=0)), int(mask.ptr[-1])
    if longest > known:
        raise ConfigError(
            f"a sequence of {longest} tokens is longer than the mask",
            where=where,
            expected=f"at most {known} tokens",
            got=longest,
            nearest=f"training.seq_len = {known}",
        )
    ptr, first, parts, causal = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], [], []
    count = 0
    for begin, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        runs = int(np.searchsorted(mask.ptr, end - begin))
        last = int(mask.first[runs])
        ptr.append(np.minimum(mask.ptr[1 : runs + 1], end - begin) + begin)
        first.append(mask.first[1 : runs + 1] + count)
        clipped = [np.minimum(side[:last], end - begin) + begin for side in (mask.low, mask.high)]
        parts.append((*clipped, mask.reaches[:last]))
        causal.append(mask.is_causal[:runs])
        count += last
    low, high, reach = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Seen(np.concatenate(ptr), np.concatenate(first), low, high, np.concatenate(causal), reach)
