"""Kernels of masks: tiles of a mask, blocks to ranks, tiles to multiprocessors.

They trust their input (``semu.masks.tiles``, ``semu.masks.balance`` make it), hold no state and release the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel, part, zeros

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]
Group = tuple[Any, ...]


@part
def _clipped_sum(x: int, m: int) -> int:
    """Sum over y <= x of min(max(y, 0), m)."""
    if x <= 0:
        return 0
    if x <= m:
        return x * (x + 1) // 2
    return m * (m + 1) // 2 + (x - m) * m


@part
def _up_to(q0: int, q1: int, k0: int, k1: int, lag: int) -> int:
    """Pairs of queries [q0, q1) and keys [k0, k1) with key <= query - lag."""
    first = q0 - lag + 1 - k0
    return _clipped_sum(first + q1 - q0 - 1, k1 - k0) - _clipped_sum(first - 1, k1 - k0)


@part
def _pairs(q0: int, q1: int, k0: int, k1: int, causal: bool, reach: int) -> int:
    """Pairs that a rectangle lets through."""
    if causal:
        seen = _up_to(q0, q1, k0, k1, 0)
    elif reach > 0:
        seen = _up_to(q0, q1, k0, k1, 1 - reach)
    else:
        seen = (q1 - q0) * (k1 - k0)
    return seen - _up_to(q0, q1, k0, k1, reach) if reach > 0 else seen


@part
def _find(bounds: I64, value: int) -> int:
    """The last position whose bound is <= value."""
    low, high = 0, len(bounds)
    while high - low > 1:
        middle = (low + high) // 2
        if bounds[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@part
def _count_row(
    q: int, stop: int, causal: bool, k: int, last: int, keys: Group, row: int, tables: Group, columns: I32
) -> None:
    """A row that is one piece of one run with one interval and no window, where every tile of keys is one piece: every
    tile is met once. Arguments as ``count_tiles``; keys [k, last)."""
    key_start, key_end, key_tile, _, owner = keys
    pairs, tiles, partial = tables
    n = stop - q
    if causal:
        last = min(last, stop)
    at = _find(key_start, k) if k < last else len(key_start)
    while at < len(key_start) and key_start[at] < last:
        k0, k1 = max(k, key_start[at]), min(last, key_end[at])
        size, tile = key_end[at] - key_start[at], key_tile[at]
        by = owner[tile]
        seen = n * (k1 - k0) if not causal or k1 <= q + 1 else _up_to(q, stop, k0, k1, 0)
        if seen > 0:
            pairs[row, by] += seen
            tiles[row, by] += 1
            columns[tile] += 1
            if seen < n * size:
                partial[row, by] += 1
        at += 1


@kernel
def count_tiles(rows: Group, seen: Group, keys: Group, pairs: I64, tiles: I32, partial: I32, columns: I32) -> None:
    """Pairs and tiles of rows of a mask.

    Args:
        rows: ptr: int64[num_rows + 1], start, end: int64[num_pieces], pieces of queries of every row.
            rank: int32[num_rows].
        seen: ptr, first, low, high: int64, is_causal: bool, reach: int64, see ``Seen``.
        keys: start: int64[num_pieces], pieces of keys in order, no gaps. end: int64[num_pieces].
            tile: int32[num_pieces], of which tile. size: int64[num_tiles] [tokens]. owner: int32[num_tiles].
        pairs: int64[num_rows, num_owners], tiles, partial: int32[num_rows, num_owners], zeros, written: allowed pairs,
            tiles with any, of which some pairs are masked.
        columns: int32[num_ranks, num_tiles], zeros, written: rows of every rank that read a tile of keys.
    """
    ptr, start, end, rank = rows
    run_ptr, first, low, high, is_causal, reach = seen
    key_start, key_end, key_tile, size, owner = keys
    inside = zeros(len(size), np.int64)
    touched = empty(len(size), np.int32)
    is_plain = len(key_start) == len(size)
    for row in range(len(ptr) - 1):
        if is_plain and ptr[row + 1] == ptr[row] + 1 and start[ptr[row]] < end[ptr[row]]:
            q, stop = start[ptr[row]], end[ptr[row]]
            run = _find(run_ptr, q)
            while run_ptr[run + 1] <= q:
                run += 1
            if stop <= run_ptr[run + 1] and first[run + 1] == first[run] + 1 and reach[first[run]] == 0:
                k, last, causal = low[first[run]], high[first[run]], is_causal[run]
                _count_row(q, stop, causal, k, last, keys, row, (pairs, tiles, partial), columns[rank[row]])
                continue
        count, tokens = 0, 0
        for piece in range(ptr[row], ptr[row + 1]):
            q, stop = start[piece], end[piece]
            tokens += stop - q
            if q == stop:
                continue
            run = _find(run_ptr, q)
            while q < stop:
                while run_ptr[run + 1] <= q:
                    run += 1
                q1 = min(stop, run_ptr[run + 1])
                for interval in range(first[run], first[run + 1]):
                    k, last, window = low[interval], high[interval], reach[interval]
                    if is_causal[run]:
                        last = min(last, q1)
                    if window > 0:
                        k = max(k, q - window + 1)
                        last = min(last, q1 + window - 1)
                    if k >= last:
                        continue
                    at = _find(key_start, k)
                    while at < len(key_start) and key_start[at] < last:
                        k0, k1 = max(k, key_start[at]), min(last, key_end[at])
                        if k0 < k1:
                            seen_here = _pairs(q, q1, k0, k1, is_causal[run], window)
                            if seen_here > 0:
                                tile = key_tile[at]
                                if inside[tile] == 0:
                                    touched[count] = tile
                                    count += 1
                                inside[tile] += seen_here
                        at += 1
                q = q1
        for number in range(count):
            tile = touched[number]
            by = owner[tile]
            pairs[row, by] += inside[tile]
            tiles[row, by] += 1
            if inside[tile] < tokens * size[tile]:
                partial[row, by] += 1
            columns[rank[row], tile] += 1
            inside[tile] = 0


@part
def _sink(heap: I64, owner: I64, at: int, size: int) -> None:
    """Let an element of a heap, ordered by (value, owner), sink to its place."""
    while True:
        child = 2 * at + 1
        if child >= size:
            return
        if child + 1 < size and (
            heap[child + 1] < heap[child] or (heap[child + 1] == heap[child] and owner[child + 1] < owner[child])
        ):
            child += 1
        if heap[at] < heap[child] or (heap[at] == heap[child] and owner[at] < owner[child]):
            return
        heap[at], heap[child] = heap[child], heap[at]
        owner[at], owner[child] = owner[child], owner[at]
        at = child


@kernel
def longest_first(weight: I64, order: I64, load: I64, capacity: int, rank: I32) -> None:
    """Give blocks, in order, to the rank with the least load; ties to the lower rank.

    Args:
        weight: int64[num_blocks]. order: int64[num_blocks]. load: int64[num_ranks], what ranks have, written.
        capacity: blocks that a rank takes. rank: int32[num_blocks], written.
    """
    size = len(load)
    heap, owner, left = load.copy(), empty(size, np.int64), empty(size, np.int64)
    for r in range(size):
        owner[r], left[r] = r, capacity
    for at in range(size // 2 - 1, -1, -1):
        _sink(heap, owner, at, size)
    for block in order:
        r = owner[0]
        rank[block] = r
        load[r] += weight[block]
        left[r] -= 1
        if left[r] > 0:
            heap[0] += weight[block]
        else:
            size -= 1
            heap[0], owner[0] = heap[size], owner[size]
        _sink(heap, owner, 0, size)


@kernel
def busy_until(work: I64, copies: int, machines: int) -> int:
    """When the last of ``machines`` is done that take items as they come, ``copies`` times the list.

    Args:
        work: int64[num_items] >= 0; 0 takes no time. copies: >= 1. machines: >= 1.
    """
    heap, owner = zeros(machines, np.int64), zeros(machines, np.int64)
    last = np.int64(0)
    for _ in range(copies):
        for item in work:
            if item > 0:
                heap[0] += item
                last = max(last, heap[0])
                _sink(heap, owner, 0, machines)
    return int(last)


@kernel
def time_ranks(latency: F64, program: Group, exchange: I32, span: I32, turn: I32, start: F64, end: F64) -> None:
    """Start and end of every operator of one stage on every context rank; all ranks begin at 0.

    A collective begins when the last of its ranks is there; what comes around a ring begins when the rank and the one
    before it are there. They take as long as on the rank of the collective, or of the ring, where they take longest;
    what takes no time on any of these is not called, and nobody waits for it.

    Args:
        latency: float64[num_ranks, num_ops] [s]. program: see ``semu.compile.kernels``.
        exchange: int32[num_ops], 0: within a rank, 1: a collective, 2: a transfer around the ring, to the next rank,
            3: to the rank before.
        span: int32[num_ops], neighbours that share a collective, a divisor of num_ranks; or how far the next rank of a
            ring is. turn: int32[num_ops], neighbours of a ring, after which it turns back, a divisor of num_ranks.
        start, end: float64[num_ranks, num_ops] [s], written.
    """
    pred_ptr, pred, stream, num_streams = program
    ranks, num_ops = latency.shape
    free = zeros((ranks, num_streams), np.float64)
    begin = empty(ranks, np.float64)
    for op in range(num_ops):
        s = stream[op]
        for r in range(ranks):
            begin[r] = free[r, s]
            for e in range(pred_ptr[op], pred_ptr[op + 1]):
                begin[r] = max(begin[r], end[r, pred[e]])
        together = ranks if exchange[op] == 0 else span[op] if exchange[op] == 1 else turn[op]
        for first in range(0, ranks, together):
            latest, longest = 0.0, 0.0
            if exchange[op] > 0:
                for r in range(first, first + together):
                    latest, longest = max(latest, begin[r]), max(longest, latency[r, op])
            for r in range(first, first + together):
                if longest == 0.0:
                    start[r, op] = begin[r]
                    end[r, op] = begin[r] + latency[r, op]
                    continue
                start[r, op] = latest
                if exchange[op] > 1:
                    ahead = together - span[op] if exchange[op] == 2 else span[op]
                    start[r, op] = max(begin[r], begin[first + (r - first + ahead) % together])
                end[r, op] = start[r, op] + longest
        for r in range(ranks):
            free[r, s] = end[r, op]


@kernel
def exchange_blocks(weight: I64, rank: I32, load: I64, moves: bool) -> None:
    """Move a block off the rank with the most load, or swap it, as long as that rank's load falls below the present
    largest and nobody's reaches it; of several ways the one that leaves the least.

    Args:
        weight: int64[num_blocks]. rank: int32[num_blocks], written. load: int64[num_ranks], written.
        moves: a block may go without another in its place.
    """
    while True:
        worst = np.argmax(load)
        best, give, take, to = load[worst], -1, -1, -1
        for a in range(len(weight)):
            if rank[a] != worst:
                continue
            if moves:
                for r in range(len(load)):
                    after = max(load[worst] - weight[a], load[r] + weight[a])
                    if r != worst and after < best:
                        best, give, take, to = after, a, -1, r
            for b in range(len(weight)):
                r = rank[b]
                gain = weight[a] - weight[b]
                if r != worst and gain > 0:
                    after = max(load[worst] - gain, load[r] + gain)
                    if after < best:
                        best, give, take, to = after, a, b, r
        if give < 0:
            return
        load[worst] -= weight[give]
        load[to] += weight[give]
        rank[give] = to
        if take >= 0:
            load[worst] += weight[take]
            load[to] -= weight[take]
            rank[take] = worst


@part
def _share_out(weight: I64, blocks: I64, count: int, most: int, one: int, other: int, rank: I32) -> int:
    """Share blocks of two ranks as evenly as can be; the load of the fuller one, or ``most`` where it is not less."""
    total = 0
    for number in range(count):
        total += weight[blocks[number]]
    half = total // 2
    if total - half >= most:
        return most
    reached = zeros((count + 1, half + 1), np.uint8)
    reached[0, 0] = 1
    for number in range(count):
        w = weight[blocks[number]]
        for size in range(half + 1):
            if reached[number, size] or (size >= w and reached[number, size - w]):
                reached[number + 1, size] = 1
    while reached[count, half] == 0:
        half -= 1
    if total - half >= most:
        return most
    size = half
    for number in range(count - 1, -1, -1):
        if reached[number, size]:
            rank[blocks[number]] = one
        else:
            rank[blocks[number]] = other
            size -= weight[blocks[number]]
    return total - half


@kernel
def even_pairs(weight: I64, rank: I32, load: I64) -> None:
    """Share the blocks of the rank with the most load and of another anew, as evenly as can be, as long as both come
    out below the present largest load.

    Args:
        weight: int64[num_blocks]. rank: int32[num_blocks], written. load: int64[num_ranks], written.
    """
    blocks = empty(len(weight), np.int64)
    is_better = True
    while is_better:
        is_better = False
        worst = np.argmax(load)
        for r in range(len(load)):
            if r == worst:
                continue
            count = 0
            for b in range(len(weight)):
                if rank[b] == worst or rank[b] == r:
                    blocks[count] = b
                    count += 1
            total = load[worst] + load[r]
            largest = _share_out(weight, blocks, count, load[worst], int(worst), r, rank)
            if largest < load[worst]:
                load[worst], load[r] = 0, 0
                for number in range(count):
                    load[rank[blocks[number]]] += weight[blocks[number]]
                is_better = load[worst] + load[r] == total
                break


@part
def _change(b: int, to: int, reads: Group, size: I64, rank: I32, uses: I32) -> int:
    """Tokens that travel more if a block goes to another rank."""
    ptr, block = reads
    r = rank[b]
    more = 0
    for at in range(ptr[b], ptr[b + 1]):
        k = block[at]
        if uses[r, k] == 1 and rank[k] != r:
            more -= size[k]
        if uses[to, k] == 0 and rank[k] != to:
            more += size[k]
    if uses[to, b] > 0:
        more -= size[b]
    if uses[r, b] > 0:
        more += size[b]
    return more


@part
def _move(b: int, to: int, reads: Group, weight: I64, rank: I32, uses: I32, load: I64) -> None:
    """Move a block to another rank."""
    ptr, block = reads
    for at in range(ptr[b], ptr[b + 1]):
        uses[rank[b], block[at]] -= 1
        uses[to, block[at]] += 1
    for kind in range(2):
        load[rank[b], kind] -= weight[b, kind]
        load[to, kind] += weight[b, kind]
    rank[b] = to


@part
def _more_above(b: int, c: int, to: int, weight: I64, rank: I32, load: I64, limit: I64) -> int:
    """How much more loads are above their limits if block b goes to another rank, and c, if it is one, comes back."""
    r, more = rank[b], 0
    for kind in range(2):
        step = weight[b, kind] - (weight[c, kind] if c >= 0 else 0)
        before = max(load[r, kind] - limit[kind], 0) + max(load[to, kind] - limit[kind], 0)
        more += max(load[r, kind] - step - limit[kind], 0) + max(load[to, kind] + step - limit[kind], 0) - before
    return more


@kernel
def bring_near(weight: I64, reads: Group, size: I64, limit: I64, ranks: int, swaps: bool, rank: I32) -> tuple[int, int]:
    """Move blocks, or swap two, as long as less is above the limits, or as much and fewer tokens travel.

    A block of keys travels to every rank but its own that has a block of queries which reads it.

    Args:
        weight: int64[num_blocks, 2], what blocks weigh in two ways. limit: int64[2], of a rank's weight.
        reads: see ``reads_of_blocks``. size: int64[num_blocks] [tokens]. ranks: how many. swaps: blocks are swapped.
        rank: int32[num_blocks], written.
    Returns:
        Tokens that travel, weight above the limits.
    """
    ptr, block = reads
    num_blocks = len(weight)
    uses, load = zeros((ranks, num_blocks), np.int32), zeros((ranks, 2), np.int64)
    for b in range(num_blocks):
        for kind in range(2):
            load[rank[b], kind] += weight[b, kind]
        for at in range(ptr[b], ptr[b + 1]):
            uses[rank[b], block[at]] += 1
    is_better, passes = True, 0
    while is_better and passes < 32:
        is_better, passes = False, passes + 1
        for b in range(num_blocks):
            best_above, best_change, best_to = 0, 0, -1
            for to in range(ranks):
                if to == rank[b]:
                    continue
                above = _more_above(b, -1, to, weight, rank, load, limit)
                if above > best_above:
                    continue
                change = _change(b, to, reads, size, rank, uses)
                if above < best_above or change < best_change:
                    best_above, best_change, best_to = above, change, to
            if best_to >= 0:
                _move(b, best_to, reads, weight, rank, uses, load)
                is_better = True
        if is_better or not swaps:
            continue
        for b in range(num_blocks):
            for c in range(b + 1, num_blocks):
                here, there = rank[b], rank[c]
                if here == there:
                    continue
                above = _more_above(b, c, there, weight, rank, load, limit)
                if above > 0:
                    continue
                change = _change(b, there, reads, size, rank, uses)
                _move(b, there, reads, weight, rank, uses, load)
                change += _change(c, here, reads, size, rank, uses)
                if above < 0 or change < 0:
                    _move(c, here, reads, weight, rank, uses, load)
                    is_better = True
                else:
                    _move(b, here, reads, weight, rank, uses, load)
    moved, excess = 0, 0
    for r in range(ranks):
        for kind in range(2):
            excess += max(load[r, kind] - limit[kind], 0)
        for b in range(num_blocks):
            if uses[r, b] > 0 and rank[b] != r:
                moved += size[b]
    return moved, excess
