"""Kernel of the caching allocator: replays allocations and frees, and says how much device memory stays reserved.

The rules are those of PyTorch's ``CUDACachingAllocator`` (c10/cuda/CUDACachingAllocator.cpp), see ``allocator``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, inlined, kernel, trailing_zeros, zeros

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
LISTS = 2048
"""Lists of free blocks of a pool, by size: 32 to every power of two."""
ADDRESS, LENGTH, BEFORE, AFTER, PLACE, BEHIND, AHEAD, POOL = range(8)
"""Columns of the table of blocks, each block a line of the processor's cache: bytes of all segments made before its
own, and from there to its beginning; bytes; neighbours in the segment, -1: none; list of free blocks, -1: in use;
neighbours in that list; pool."""


@inlined
def _round_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


@inlined
def _list_of(pool: int, size: int) -> int:
    """The list of free blocks of a size; larger sizes are in later lists."""
    bits = int(np.float64(size).view(np.int64))  # exponent from bit 52 on, below it the digits behind the first
    return pool * LISTS + (bits >> 47) - 32 * 1023


@inlined
def _bit(at: int) -> np.uint64:
    """Of a list in its word of 64 lists."""
    return np.uint64(1) << np.uint64(at & 63)


@inlined
def _next_list(at: int, stop: int, filled: U64) -> int:
    """The first list from ``at`` on that has a block, or one from ``stop`` on, a multiple of 64: none before it has."""
    word = at >> 6
    mask = filled[word] & ~(_bit(at) - np.uint64(1))
    while mask == 0:
        word += 1
        if word << 6 >= stop:
            return stop
        mask = filled[word]
    return (word << 6) + int(trailing_zeros(mask))


@inlined
def _push(b: int, at: int, head: I64, last: I64, filled: U64, block: I64) -> None:
    """Put a block into a list of free blocks: the smallest come first, of equal ones the lowest address. Its place is
    looked for from where the last one was put: blocks are freed by rising or falling address."""
    length, address = block[b, LENGTH], block[b, ADDRESS]
    ahead, behind = -1, head[at]
    if behind >= 0:
        behind = last[at]
        while behind >= 0 and (
            block[behind, LENGTH] < length or (block[behind, LENGTH] == length and block[behind, ADDRESS] < address)
        ):
            ahead, behind = behind, block[behind, BEHIND]
        if ahead < 0:
            ahead = block[behind, AHEAD]
            while ahead >= 0 and (
                block[ahead, LENGTH] > length or (block[ahead, LENGTH] == length and block[ahead, ADDRESS] > address)
            ):
                behind, ahead = ahead, block[ahead, AHEAD]
    block[b, PLACE], block[b, AHEAD], block[b, BEHIND] = at, ahead, behind
    last[at] = b
    if behind >= 0:
        block[behind, AHEAD] = b
    if ahead < 0:
        head[at] = b
        filled[at >> 6] |= _bit(at)
    else:
        block[ahead, BEHIND] = b


@inlined
def _remove(b: int, head: I64, last: I64, filled: U64, block: I64) -> None:
    """Take a block out of its list of free blocks."""
    behind, ahead, at = block[b, BEHIND], block[b, AHEAD], block[b, PLACE]
    if ahead < 0:
        head[at] = behind
        if behind < 0:
            filled[at >> 6] &= ~_bit(at)
    else:
        block[ahead, BEHIND] = behind
    if behind >= 0:
        block[behind, AHEAD] = ahead
    if last[at] == b:
        last[at] = ahead if ahead >= 0 else behind
    block[b, PLACE] = -1


@kernel
def order_turns(place: I64, time: NDArray[np.float64], number: I64, num_places: int, order: I64) -> None:
    """Order turns by place, then time, then number, then as they stand. Few have one place.

    Args:
        place: int64[num_turns], each below ``num_places``. time, number: float64, int64[num_turns].
        order: int64[num_turns], written: the turns.
    """
    first = zeros(num_places + 1, np.int64)
    for own in place:
        first[own + 1] += 1
    for own in range(num_places):
        first[own + 1] += first[own]
    count = zeros(num_places, np.int64)
    for turn in range(len(place)):
        begin = first[place[turn]]
        at = begin + count[place[turn]]
        count[place[turn]] += 1
        while at > begin and (
            time[order[at - 1]] > time[turn]
            or (time[order[at - 1]] == time[turn] and number[order[at - 1]] > number[turn])
        ):
            order[at] = order[at - 1]
            at -= 1
        order[at] = turn


@kernel
def write_tape(turns: I64, first: I64, entries: I64, num_cells: int, tape: I64) -> int:
    """Write changes of memory as a tape of allocations and frees, in the order of ``turns``. A cell is allocated and
    freed many times; every allocation gets a new slot.

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

    Blocks of a segment form a list in order of address; free blocks of a pool form lists by size, each in order of
    size and address. Of those that are large enough the smallest is taken, of equal ones that with the lowest address,
    in the segment made first.

    Args:
        slot: int64[num_events], what is allocated or freed, < num_slots.
        size: int64[num_events] [bytes], > 0: allocate so much; 0: free.
        first: event at which the repeated part begins. repeats: how often it runs at most; it stops before where a
            repetition has reserved nothing more.
        rules: int64[6] [bytes]: smallest block (a power of two), largest request of the small pool, its segment, the
            large pool's segment, smallest request with a segment of its own, and what that one's size is a multiple of.
        capacity: [bytes] that may be reserved; where more is asked for, segments without a block in use go first.
        out: int64[4], written: highest and final reserved [bytes], highest sum of blocks in use [bytes], how often
            segments were given back.
    """
    smallest, small_limit, small_segment = rules[0], rules[1], rules[2]
    large_segment, own_segment, unit = rules[3], rules[4], rules[5]
    n = len(slot)
    cap = 2 * num_slots + 2 * (first + (n - first) * max(repeats, 1)) + 16
    block = empty((cap, 8), np.int64)
    spare = empty(cap, np.int64)
    num_spare, num_blocks, made = 0, 0, 0
    head, last = np.full(2 * LISTS, -1, dtype=np.int64), np.full(2 * LISTS, -1, dtype=np.int64)
    filled = zeros((2 * LISTS >> 6) + 1, np.uint64)
    held = np.full(num_slots, -1, dtype=np.int64)
    reserved, highest, used, most, releases = 0, 0, 0, 0, 0
    for turn in range(max(repeats, 1)):
        known = reserved
        for event in range(0 if turn == 0 else first, n):
            s = slot[event]
            if size[event] > 0:
                need = (size[event] + smallest - 1) & -smallest
                pool = 0 if need <= small_limit else 1
                at, stop = _list_of(pool, need), (pool + 1) * LISTS
                best = head[at]
                while best >= 0 and block[best, LENGTH] < need:
                    best = block[best, BEHIND]
                if best < 0:
                    at = _next_list(at + 1, stop, filled)
                    if at < stop:
                        best = head[at]
                if best < 0:
                    if pool == 0:
                        whole = small_segment
                    elif need < own_segment:
                        whole = large_segment
                    else:
                        whole = _round_up(need, unit)
                    if reserved + whole > capacity:
                        returned = False
                        at = _next_list(0, 2 * LISTS, filled)
                        while at < 2 * LISTS:
                            b = head[at]
                            while b >= 0:
                                later = block[b, BEHIND]
                                if block[b, BEFORE] < 0 and block[b, AFTER] < 0:
                                    reserved -= block[b, LENGTH]
                                    _remove(b, head, last, filled, block)
                                    spare[num_spare] = b
                                    num_spare += 1
                                    returned = True
                                b = later
                            at = _next_list(at + 1, 2 * LISTS, filled)
                        if returned:
                            releases += 1
                    if num_spare > 0:
                        num_spare -= 1
                        best = spare[num_spare]
                    else:
                        best = num_blocks
                        num_blocks += 1
                    block[best, ADDRESS], block[best, LENGTH] = made, whole
                    block[best, BEFORE], block[best, AFTER], block[best, POOL] = -1, -1, pool
                    made += whole
                    reserved += whole
                    highest = max(highest, reserved)
                else:
                    _remove(best, head, last, filled, block)
                rest = block[best, LENGTH] - need
                if (rest >= smallest) if pool == 0 else (rest > small_limit):
                    if num_spare > 0:
                        num_spare -= 1
                        b = spare[num_spare]
                    else:
                        b = num_blocks
                        num_blocks += 1
                    block[b, ADDRESS], block[b, LENGTH], block[b, POOL] = block[best, ADDRESS] + need, rest, pool
                    block[b, BEFORE], block[b, AFTER] = best, block[best, AFTER]
                    if block[best, AFTER] >= 0:
                        block[block[best, AFTER], BEFORE] = b
                    block[best, AFTER] = b
                    block[best, LENGTH] = need
                    _push(b, _list_of(pool, rest), head, last, filled, block)
                block[best, PLACE] = -1
                held[s] = best
                used += block[best, LENGTH]
                most = max(most, used)
            elif held[s] >= 0:
                b = held[s]
                held[s] = -1
                pool = block[b, POOL]
                used -= block[b, LENGTH]
                for side in range(2):
                    other = block[b, BEFORE] if side == 0 else block[b, AFTER]
                    if other < 0 or block[other, PLACE] < 0:
                        continue
                    _remove(other, head, last, filled, block)
                    block[b, LENGTH] += block[other, LENGTH]
                    if side == 0:
                        block[b, ADDRESS] = block[other, ADDRESS]
                        block[b, BEFORE] = block[other, BEFORE]
                        if block[b, BEFORE] >= 0:
                            block[block[b, BEFORE], AFTER] = b
                    else:
                        block[b, AFTER] = block[other, AFTER]
                        if block[b, AFTER] >= 0:
                            block[block[b, AFTER], BEFORE] = b
                    spare[num_spare] = other
                    num_spare += 1
                _push(b, _list_of(pool, block[b, LENGTH]), head, last, filled, block)
        if turn > 0 and reserved == known:
            break
    out[0], out[1], out[2], out[3] = highest, reserved, most, releases
