"""Kernels of the policy ``hybrid``: stretches of text to groups of context ranks. Input is ``semu.masks.groups``'s."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel, part, zeros

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Group = tuple[Any, ...]


@part
def _add(u: int, width: int, first: int, sign: int, weight: I64, load: I64) -> None:
    """Put a stretch on a group of ranks, or take it off."""
    for kind in range(weight.shape[1]):
        share = sign * (weight[u, kind] * len(load) // width)
        for r in range(first, first + width):
            load[r, kind] += share


@part
def _more_above(u: int, width: int, first: int, weight: I64, load: I64, limit: I64) -> int:
    """How much more loads are above their limits with a stretch on a group."""
    more = 0
    for kind in range(weight.shape[1]):
        share = weight[u, kind] * len(load) // width
        for r in range(first, first + width):
            more += max(load[r, kind] + share - limit[kind], 0) - max(load[r, kind] - limit[kind], 0)
    return more


@part
def _fullest(width: int, first: int, load: I64) -> int:
    """The largest load in a group, of any kind."""
    most = 0
    for r in range(first, first + width):
        for kind in range(load.shape[1]):
            most = max(most, load[r, kind])
    return most


@part
def _best(u: int, widths: I64, weight: I64, load: I64, limit: I64) -> tuple[int, int, int]:
    """Where a stretch that is on no group goes: where least comes above the limits, of such the fewest ranks, of such
    the emptiest; what comes above, width, first rank."""
    best_more, best_width, best_first, best_full = -1, 0, 0, 0
    for width in widths:
        for first in range(0, len(load), width):
            more = _more_above(u, width, first, weight, load, limit)
            if best_more >= 0 and more > best_more:
                continue
            full = _fullest(width, first, load)
            if best_more < 0 or more < best_more or (width == best_width and full < best_full):
                best_more, best_width, best_first, best_full = more, int(width), first, full
    return best_more, best_width, best_first


@part
def _take_both(u: int, v: int, places: tuple[I32, I32], weight: I64, load: I64, limit: I64) -> int:
    """Take two stretches off their groups; how much less comes above the limits."""
    width, first = places
    less = 0
    for one in (u, v):
        _add(one, width[one], first[one], -1, weight, load)
        less += _more_above(one, width[one], first[one], weight, load, limit)
    return less


@part
def _swap(places: tuple[I32, I32], weight: I64, size: I64, load: I64, limit: I64) -> bool:
    """Swap stretches where that is better; whether any was."""
    width, first = places
    is_better = False
    for u in range(len(weight)):
        for v in range(u + 1, len(weight)):
            if width[u] == width[v] and (first[u] == first[v] or size[u] == size[v]):
                continue
            travels = (size[u] - size[v]) * (width[v] - width[u])
            before = _take_both(u, v, places, weight, load, limit)
            after = _more_above(u, width[v], first[v], weight, load, limit)
            _add(u, width[v], first[v], 1, weight, load)
            after += _more_above(v, width[u], first[u], weight, load, limit)
            _add(u, width[v], first[v], -1, weight, load)
            if after < before or (after == before and travels < 0):
                width[u], width[v], first[u], first[v] = width[v], width[u], first[v], first[u]
                is_better = True
            _add(u, width[u], first[u], 1, weight, load)
            _add(v, width[v], first[v], 1, weight, load)
    return is_better


@part
def _move_two(places: tuple[I32, I32], widths: I64, weight: I64, size: I64, load: I64, limit: I64) -> bool:
    """Put two stretches anywhere where that is better; whether any was."""
    width, first = places
    is_better = False
    for u in range(len(weight)):
        for v in range(len(weight)):
            if u == v:
                continue
            least = _take_both(u, v, places, weight, load, limit)
            travels = size[u] * width[u] + size[v] * width[v]
            for w in widths:
                for f in range(0, len(load), w):
                    above = _more_above(u, w, f, weight, load, limit)
                    if above > least:
                        continue
                    _add(u, w, f, 1, weight, load)
                    more, other_width, other_first = _best(v, widths, weight, load, limit)
                    _add(u, w, f, -1, weight, load)
                    above, moved = above + more, size[u] * w + size[v] * other_width
                    if above < least or (above == least and moved < travels):
                        least, travels, is_better = above, moved, True
                        width[u], first[u], width[v], first[v] = w, f, other_width, other_first
            _add(u, width[u], first[u], 1, weight, load)
            _add(v, width[v], first[v], 1, weight, load)
    return is_better


@kernel
def place_stretches(
    weight: I64, size: I64, order: I64, widths: I64, limit: I64, ranks: int, pairs: int, places: tuple[I32, I32]
) -> tuple[int, int]:
    """Put stretches on groups of neighbouring ranks, then move them, one or two at once, as long as less is above the
    limits, or as much and fewer tokens travel: a stretch's to all ranks of its group but their own.

    Args:
        weight: int64[num_stretches, num_kinds], what stretches weigh in several ways, shared evenly by a group.
        size: int64[num_stretches] [tokens]. order: int64[num_stretches], in which they are put first; empty: all are on
            all ranks. widths: int64[num_widths], ranks of a group, rising, divisors of ``ranks``.
        limit: int64[num_kinds], of a rank's weight, times ``ranks``.
        pairs: 0: only one is moved, 1: two are swapped, 2: two go anywhere.
        places: int32[num_stretches] each, written: ranks of the group, its first rank.
    Returns:
        Weight above the limits, times ``ranks``; tokens that travel.
    """
    count = len(weight)
    width, first = places
    load = zeros((ranks, weight.shape[1]), np.int64)
    for u in order:
        _, width[u], first[u] = _best(u, widths, weight, load, limit)
        _add(u, width[u], first[u], 1, weight, load)
    if len(order) == 0:
        for u in range(count):
            width[u], first[u] = ranks, 0
            _add(u, ranks, 0, 1, weight, load)
    is_better, passes = True, 0
    while is_better and passes < 32:
        is_better, passes = False, passes + 1
        for u in range(count):
            _add(u, width[u], first[u], -1, weight, load)
            here = _more_above(u, width[u], first[u], weight, load, limit)
            more, w, f = _best(u, widths, weight, load, limit)
            if more < here or w < width[u]:
                width[u], first[u] = w, f
                is_better = True
            _add(u, width[u], first[u], 1, weight, load)
        if not is_better and pairs > 0:
            is_better = _swap(places, weight, size, load, limit)
        if not is_better and pairs > 1:
            is_better = _move_two(places, widths, weight, size, load, limit)
    above, travels = 0, 0
    for r in range(ranks):
        for kind in range(weight.shape[1]):
            above += max(load[r, kind] - limit[kind], 0)
    for u in range(count):
        travels += size[u] * (width[u] - 1)
    return above, travels
