"""Kernel of the caching allocator: replays allocations and frees, and says how much device memory stays reserved.

The rules are those of PyTorch's ``CUDACachingAllocator`` (c10/cuda/CUDACachingAllocator.cpp), see ``allocator``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel, part, zeros

I64 = NDArray[np.int64]
LISTS = 256
"""Lists of free blocks of a pool, by size."""


@part
def _round_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


@part
def _list_of(pool: int, size: int) -> int:
    """The list of free blocks of a size: four to every power of two, larger sizes in later lists."""
    exponent = math.frexp(float(size))[1]
    return pool * LISTS + 4 * exponent + (size >> (exponent - 3) & 3)


@part
def _push(b: int, at: int, head: I64, behind: I64, ahead: I64, place: I64) -> None:
    """Put a block at the head of a list of free blocks."""
    place[b], ahead[b], behind[b] = at, -1, head[at]
    if head[at] >= 0:
        ahead[head[at]] = b
    head[at] = b


@part
def _remove(b: int, head: I64, behind: I64, ahead: I64, place: I64) -> None:
    """Take a block out of its list of free blocks."""
    if ahead[b] < 0:
        head[place[b]] = behind[b]
    else:
        behind[ahead[b]] = behind[b]
    if behind[b] >= 0:
        ahead[behind[b]] = ahead[b]
    place[b] = -1


@kernel
def write_tape(turns: I64, first: I64, entries: I64, num_cells: int, tape: I64) -> int:
    """Write changes out in the order of their turns, each allocation with a slot of its own: cells are allocated and
    freed many times.

    Args:
        turns: int64[3, num_turns], cells that the change's entries and their sources are counted from, and the change.
        first: int64[num_changes + 1], where the entries of each change begin.
        entries: int64[3, num_entries], cell; size [bytes], > 0: allocated, 0: freed; source, a cell whose slot it has
            from now on, if that was allocated, -1: not shared.
        tape: int64[2, num_events], written: slots from 0, and sizes; what is shared, was never allocated or is free
            already is left out.

    Returns:
        How many events were written.
    """
    now, is_free = np.full(num_cells, -1, dtype=np.int64), zeros(tape.shape[1], np.bool_)
    count, event = 0, 0
    for turn in range(turns.shape[1]):
        for entry in range(first[turns[2, turn]], first[turns[2, turn] + 1]):
            cell, size = turns[0, turn] + entries[0, entry], entries[1, entry]
            if entries[2, entry] >= 0:
                shared = now[turns[1, turn] + entries[2, entry]]
                now[cell] = shared if shared >= 0 else now[cell]
                continue
            if size > 0:
                now[cell] = count
                count += 1
            elif now[cell] < 0 or is_free[now[cell]]:
                continue
            else:
                is_free[now[cell]] = True
            tape[0, event], tape[1, event] = now[cell], size
            event += 1
    return event


@kernel
def replay(slot: I64, size: I64, first: int, repeats: int, num_slots: int, rules: I64, capacity: int, out: I64) -> None:
    """Replay a sequence of allocations and frees: its beginning once, then the rest several times.

    Blocks of a segment form a list in order of address; free blocks of a pool form lists by size. Of those that are
    large enough the smallest is taken, of equal ones that with the lowest (segment, address).

    Args:
        slot: int64[num_events], what is allocated or freed, < num_slots.
        size: int64[num_events] [bytes], > 0: allocate so much; 0: free.
        first: event at which the repeated part begins. repeats: how often it runs at most; it stops before where a
            repetition has reserved nothing more.
        rules: int64[6] [bytes]: smallest block, largest request of the small pool, its segment, the large pool's
            segment, smallest request with a segment of its own, and what that one's size is a multiple of.
        capacity: [bytes] that may be reserved; where more is asked for, segments without a block in use go first.
        out: int64[4], written: highest and final reserved [bytes], highest sum of blocks in use [bytes], how often
            segments were given back.
    """
    smallest, small_limit, small_segment = rules[0], rules[1], rules[2]
    large_segment, own_segment, unit = rules[3], rules[4], rules[5]
    n = len(slot)
    cap = 2 * num_slots + 2 * (first + (n - first) * max(repeats, 1)) + 16
    begin = empty(cap, np.int64)
    length = empty(cap, np.int64)
    segment = empty(cap, np.int64)
    before = empty(cap, np.int64)
    after = empty(cap, np.int64)
    place = empty(cap, np.int64)
    pool_of = empty(cap, np.int64)
    spare = empty(cap, np.int64)
    num_spare, num_blocks, num_segments = 0, 0, 0
    head = np.full(2 * LISTS, -1, dtype=np.int64)
    behind = empty(cap, np.int64)
    ahead = empty(cap, np.int64)
    held = np.full(num_slots, -1, dtype=np.int64)
    reserved, highest, used, most, releases = 0, 0, 0, 0, 0
    for turn in range(max(repeats, 1)):
        known = reserved
        for event in range(0 if turn == 0 else first, n):
            s = slot[event]
            if size[event] > 0:
                need = max(_round_up(size[event], smallest), smallest)
                pool = 0 if need <= small_limit else 1
                best = -1
                for at in range(_list_of(pool, need), (pool + 1) * LISTS):
                    b = head[at]
                    while b >= 0:
                        if length[b] >= need and (
                            best < 0
                            or length[b] < length[best]
                            or (
                                length[b] == length[best]
                                and (
                                    segment[b] < segment[best]
                                    or (segment[b] == segment[best] and begin[b] < begin[best])
                                )
                            )
                        ):
                            best = b
                        b = behind[b]
                    if best >= 0:
                        break
                if best < 0:
                    if pool == 0:
                        whole = small_segment
                    elif need < own_segment:
                        whole = large_segment
                    else:
                        whole = _round_up(need, unit)
                    if reserved + whole > capacity:
                        returned = False
                        for at in range(2 * LISTS):
                            b = head[at]
                            while b >= 0:
                                later = behind[b]
                                if before[b] < 0 and after[b] < 0:
                                    reserved -= length[b]
                                    _remove(b, head, behind, ahead, place)
                                    spare[num_spare] = b
                                    num_spare += 1
                                    returned = True
                                b = later
                        if returned:
                            releases += 1
                    if num_spare > 0:
                        num_spare -= 1
                        best = spare[num_spare]
                    else:
                        best = num_blocks
                        num_blocks += 1
                    begin[best], length[best], segment[best] = 0, whole, num_segments
                    before[best], after[best], pool_of[best] = -1, -1, pool
                    num_segments += 1
                    reserved += whole
                    highest = max(highest, reserved)
                else:
                    _remove(best, head, behind, ahead, place)
                rest = length[best] - need
                if (rest >= smallest) if pool == 0 else (rest > small_limit):
                    if num_spare > 0:
                        num_spare -= 1
                        b = spare[num_spare]
                    else:
                        b = num_blocks
                        num_blocks += 1
                    begin[b], length[b], segment[b], pool_of[b] = begin[best] + need, rest, segment[best], pool
                    before[b], after[b] = best, after[best]
                    if after[best] >= 0:
                        before[after[best]] = b
                    after[best] = b
                    length[best] = need
                    _push(b, _list_of(pool, rest), head, behind, ahead, place)
                place[best] = -1
                held[s] = best
                used += length[best]
                most = max(most, used)
            elif held[s] >= 0:
                b = held[s]
                held[s] = -1
                pool = pool_of[b]
                used -= length[b]
                for side in range(2):
                    other = before[b] if side == 0 else after[b]
                    if other < 0 or place[other] < 0:
                        continue
                    _remove(other, head, behind, ahead, place)
                    length[b] += length[other]
                    if side == 0:
                        begin[b] = begin[other]
                        before[b] = before[other]
                        if before[b] >= 0:
                            after[before[b]] = b
                    else:
                        after[b] = after[other]
                        if after[b] >= 0:
                            before[after[b]] = b
                    spare[num_spare] = other
                    num_spare += 1
                _push(b, _list_of(pool, length[b]), head, behind, ahead, place)
        if turn > 0 and reserved == known:
            break
    out[0], out[1], out[2], out[3] = highest, reserved, most, releases
