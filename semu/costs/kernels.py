"""The engine's numeric core: numba kernels on plain arrays, seconds, bytes and FLOP.

Objects: ``quantize``, ``roofline_latency`` (cost columns); ``fixed_order_times``, ``fixed_order_roofline_times`` (start
and end times when every stream's order is given); ``ordered_peak_memory`` (peaks of devices that run in order). The
memory of a pool that several streams share is in ``stage_kernels``.

Kernels trust their input: whoever builds the arrays validates them (a wrong index is undefined behaviour). They hold no
state, release the GIL and are compiled on first use into numba's on-disk cache. All kernels that call each other are in
this file, because that cache does not notice a change in another.

``num_nodes`` operators are numbered by stream, in execution order: stream ``s`` runs the nodes ``stream_ptr[s]`` to
``stream_ptr[s + 1] - 1`` one after the other. Inner loops index with ``np.uint64``, because numba tests a signed index
for negative values at each access (that took a fifth of the time of ``fixed_order_times``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from semu.units import TIME_GRID_PER_S, TIME_STEP_S

_Function = TypeVar("_Function", bound=Callable[..., Any])

_INFINITY = np.inf
_ONE = np.uint64(1)


def _kernel(function: _Function) -> _Function:
    """Compile with numba; the type checker keeps the plain signature."""
    return cast(_Function, njit(cache=True, nogil=True, error_model="numpy")(function))


# --------------------------------------------------------------------------------------------- latencies


@_kernel
def quantize(latency_s: float) -> float:
    """Round a latency [s] to the time grid of 2^-40 s, half to even (DESIGN §3.3)."""
    return np.rint(latency_s * TIME_GRID_PER_S) * TIME_STEP_S  # type: ignore[no-any-return]


@_kernel
def _seconds(amount: float, rate_per_s: float) -> float:
    if amount == 0.0:
        return 0.0
    if rate_per_s == 0.0:
        return _INFINITY
    return amount / rate_per_s


@_kernel
def _share(term: float, largest: float) -> float:
    """``term / largest`` for ``term <= largest``; 1 also where both are 0 or both infinite."""
    return term / largest if term < largest else 1.0


@_kernel
def _cube_root(x: float) -> float:
    """Cube root for 1 <= x <= 3: a quadratic guess (error 3e-3), then two of Halley's steps, each cubing the error.

    Unlike ``cbrt`` it vectorises and gives the same bits whatever the C library.
    """
    y = 0.6616 + x * (0.3818 - 0.0409 * x)
    for _ in range(2):
        cube = y * y * y
        y = y * (cube + 2.0 * x) / (2.0 * cube + x)
    return y


@_kernel
def _norm_3(a: float, b: float, c: float) -> float:
    largest = max(a, max(b, c))
    a, b, c = _share(a, largest), _share(b, largest), _share(c, largest)
    return largest * _cube_root(a * a * a + b * b * b + c * c * c)


@_kernel
def _norm(a: float, b: float, c: float, p: float) -> float:
    largest = max(a, max(b, c))
    a, b, c = _share(a, largest), _share(b, largest), _share(c, largest)
    return largest * (a**p + b**p + c**p) ** (1.0 / p)  # type: ignore[no-any-return]


@_kernel
def roofline_latency(
    flop: NDArray[np.float64],
    mem_bytes: NDArray[np.float64],
    net_bytes: NDArray[np.float64],
    flop_per_s: NDArray[np.float64],
    mem_bytes_per_s: NDArray[np.float64],
    net_bytes_per_s: NDArray[np.float64],
    t0_s: NDArray[np.float64],
    exponent: NDArray[np.float64],
    corner_s: NDArray[np.float64],
    latency: NDArray[np.float64],
) -> None:
    """Latency of every operator for every shape: ``t0 + (sum of terms^p)^(1/p) + sqrt(c n)``, on the time grid.

    The terms are amount / rate for FLOP, memory and network; an amount of 0 takes no time whatever the rate, a positive
    amount at rate 0 takes infinitely long. p = infinity is the maximum of the terms; n is the network term.

    Args:
        flop: float64[num_ops, num_shapes] [FLOP], >= 0.
        mem_bytes: float64[num_ops, num_shapes] [bytes], >= 0.
        net_bytes: float64[num_ops, num_shapes] wire bytes per rank [bytes], >= 0.
        flop_per_s: float64[num_ops] effective rate (efficiency x peak) [FLOP/s], >= 0.
        mem_bytes_per_s: float64[num_ops] effective rate [bytes/s], >= 0.
        net_bytes_per_s: float64[num_ops] effective rate [bytes/s], >= 0.
        t0_s: float64[num_ops] fixed device time of the kernel [s], >= 0.
        exponent: float64[num_ops] p >= 1; infinity, 1, 2 and 3 have fast paths.
        corner_s: float64[num_ops] c [s], >= 0, the soft corner of collectives between latency and bandwidth.
        latency: written: float64[num_ops, num_shapes] [s].
    Source:
        DIP (ASPLOS'26) §6.1 for the maximum; t0 and the p-norm are semu's (DESIGN §3.2).
    """
    num_ops, num_shapes = flop.shape
    for op in range(num_ops):
        rate_f, rate_m, rate_n = flop_per_s[op], mem_bytes_per_s[op], net_bytes_per_s[op]
        t0, p = t0_s[op], exponent[op]
        f, m, n, out = flop[op], mem_bytes[op], net_bytes[op], latency[op]
        # One loop per norm: LLVM vectorises each of them, but not one loop that chooses inside.
        if corner_s[op] > 0.0:
            for i in range(num_shapes):
                a, b, c = _seconds(f[i], rate_f), _seconds(m[i], rate_m), _seconds(n[i], rate_n)
                norm = max(a, max(b, c)) if p == _INFINITY else _norm(a, b, c, p)
                out[i] = quantize(t0 + norm + np.sqrt(corner_s[op] * c))
        elif p == _INFINITY:
            for i in range(num_shapes):
                a, b, c = _seconds(f[i], rate_f), _seconds(m[i], rate_m), _seconds(n[i], rate_n)
                out[i] = quantize(t0 + max(a, max(b, c)))
        elif p == 1.0:
            for i in range(num_shapes):
                a, b, c = _seconds(f[i], rate_f), _seconds(m[i], rate_m), _seconds(n[i], rate_n)
                out[i] = quantize(t0 + (a + b + c))
        elif p == 2.0:
            for i in range(num_shapes):
                a, b, c = _seconds(f[i], rate_f), _seconds(m[i], rate_m), _seconds(n[i], rate_n)
                out[i] = quantize(t0 + np.sqrt(a * a + b * b + c * c))
        elif p == 3.0:
            for i in range(num_shapes):
                a, b, c = _seconds(f[i], rate_f), _seconds(m[i], rate_m), _seconds(n[i], rate_n)
                out[i] = quantize(t0 + _norm_3(a, b, c))
        else:
            for i in range(num_shapes):
                a, b, c = _seconds(f[i], rate_f), _seconds(m[i], rate_m), _seconds(n[i], rate_n)
                out[i] = quantize(t0 + _norm(a, b, c, p))


# --------------------------------------------------------------------------------------------- times


@_kernel
def _stream_of(stream_ptr: NDArray[np.int64], node: int) -> int:
    low, high = 0, len(stream_ptr) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if stream_ptr[middle] <= node:
            low = middle
        else:
            high = middle
    return low


@_kernel
def _wait_for(
    stream: int,
    node: int,
    stream_ptr: NDArray[np.int64],
    awaited: NDArray[np.int64],
    first_waiter: NDArray[np.int64],
    next_waiter: NDArray[np.int64],
) -> None:
    """Put ``stream`` on the list of those that wait for the stream of ``node``."""
    awaited[stream] = node
    owner = _stream_of(stream_ptr, node)
    next_waiter[stream] = first_waiter[owner]
    first_waiter[owner] = stream


@_kernel
def _resume_waiters(
    stream: int,
    cursor: int,
    runnable: NDArray[np.int64],
    num_runnable: int,
    awaited: NDArray[np.int64],
    first_waiter: NDArray[np.int64],
    next_waiter: NDArray[np.int64],
) -> int:
    """Move the streams that waited for a node of ``stream`` below ``cursor`` to the runnable ones."""
    kept = -1
    waiter = first_waiter[stream]
    while waiter >= 0:
        following = next_waiter[waiter]
        if awaited[waiter] < cursor:
            runnable[num_runnable] = waiter
            num_runnable += 1
        else:
            next_waiter[waiter] = kept
            kept = waiter
        waiter = following
    first_waiter[stream] = kept
    return num_runnable


@_kernel
def fixed_order_times(
    stream_ptr: NDArray[np.int64],
    pred_ptr: NDArray[np.int32],
    pred: NDArray[np.int32],
    latency: NDArray[np.float64],
    release: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    cursor: NDArray[np.int64],
) -> int:
    """Start and end times when every stream runs its nodes in the order given (DESIGN §3.3).

    A node starts at the latest of: the end of its predecessors, the end of the node before it on its stream, its
    release time, 0. A stream runs ahead until a predecessor has no end yet, then waits for that predecessor's stream:
    no heap, no in-degrees, no successor lists. An end of infinity marks a node that is not timed yet. The end of a
    predecessor earlier on the same stream is not read, since the order binds no less (saves a quarter of the time).

    Args:
        stream_ptr: int64[num_streams + 1], first node of each stream, non-decreasing from 0 to num_nodes.
        pred_ptr: int32[num_nodes + 1], first edge of each node.
        pred: int32[num_edges], predecessors in any order, duplicates allowed.
        latency: float64[num_nodes] [s], >= 0, finite, on the time grid.
        release: float64[num_nodes] earliest start [s], finite, on the time grid; float64[0] for none.
        start: written: float64[num_nodes] [s]; undefined for nodes that are not timed.
        end: written: float64[num_nodes] [s]; infinity for nodes that are not timed.
        cursor: written: int64[num_streams], first node of each stream that is not timed; the next stream's first node
            when all are.
    Returns:
        Number of nodes timed; less than num_nodes when the rest waits in a circle (the nodes at ``cursor``).
    """
    num_streams = len(stream_ptr) - 1
    has_release = len(release) > 0
    runnable = np.empty(num_streams, np.int64)
    awaited = np.empty(num_streams, np.int64)
    first_waiter = np.full(num_streams, -1, np.int64)
    next_waiter = np.empty(num_streams, np.int64)
    end[:] = _INFINITY
    for stream in range(num_streams):
        cursor[stream] = stream_ptr[stream]
        runnable[stream] = num_streams - 1 - stream
    num_runnable, num_timed = num_streams, 0
    while num_runnable > 0:
        num_runnable -= 1
        stream = runnable[num_runnable]
        first, node, stop = np.uint64(stream_ptr[stream]), np.uint64(cursor[stream]), np.uint64(stream_ptr[stream + 1])
        free = end[node - _ONE] if node > first else 0.0
        edge = np.uint64(pred_ptr[node])
        while node < stop:
            last_edge = np.uint64(pred_ptr[node + _ONE])
            time = free
            while edge < last_edge:
                other = np.uint64(pred[edge])
                if other < first or other >= node:
                    other_end = end[other]
                    if other_end > time:
                        time = other_end
                edge += _ONE
            if has_release and release[node] > time:
                time = release[node]
            if time == _INFINITY:
                break
            start[node] = time
            free = time + latency[node]
            end[node] = free
            node += _ONE
        num_timed += np.int64(node) - cursor[stream]
        if node < stop:
            for waiting in range(pred_ptr[node], pred_ptr[node + _ONE]):
                if end[pred[waiting]] == _INFINITY:
                    _wait_for(stream, pred[waiting], stream_ptr, awaited, first_waiter, next_waiter)
                    break
        if np.int64(node) > cursor[stream]:
            cursor[stream] = np.int64(node)
            num_runnable = _resume_waiters(
                stream, cursor[stream], runnable, num_runnable, awaited, first_waiter, next_waiter
            )
    return num_timed


@_kernel
def fixed_order_roofline_times(
    stream_ptr: NDArray[np.int64],
    pred_ptr: NDArray[np.int32],
    pred: NDArray[np.int32],
    flop: NDArray[np.float32],
    mem_bytes: NDArray[np.float32],
    net_bytes: NDArray[np.float32],
    s_per_flop: NDArray[np.float64],
    s_per_mem_byte: NDArray[np.float64],
    s_per_net_byte: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    cursor: NDArray[np.int64],
) -> int:
    """``fixed_order_times`` with latencies computed on the way: the largest cost of a node at its stream's rates.

    The latency is ``quantize(max(flop x s_per_flop, mem_bytes x s_per_mem_byte, net_bytes x s_per_net_byte))`` in
    float64. Rates come as reciprocals, 0 where the stream's device has no such resource: dividing would take up to a
    third longer. Against amount / rate the result may differ by one step of the time grid.

    Args:
        stream_ptr, pred_ptr, pred, start, end, cursor: as in ``fixed_order_times``; the last three are written.
        flop: float32[num_nodes] [FLOP], >= 0. mem_bytes, net_bytes: float32[num_nodes] [bytes], >= 0.
        s_per_flop: float64[num_streams] [s/FLOP]. s_per_mem_byte, s_per_net_byte: float64[num_streams] [s/byte].
    Returns:
        Number of nodes timed, as in ``fixed_order_times``.
    """
    num_streams = len(stream_ptr) - 1
    runnable = np.empty(num_streams, np.int64)
    awaited = np.empty(num_streams, np.int64)
    first_waiter = np.full(num_streams, -1, np.int64)
    next_waiter = np.empty(num_streams, np.int64)
    end[:] = _INFINITY
    for stream in range(num_streams):
        cursor[stream] = stream_ptr[stream]
        runnable[stream] = num_streams - 1 - stream
    num_runnable, num_timed = num_streams, 0
    while num_runnable > 0:
        num_runnable -= 1
        stream = runnable[num_runnable]
        first, node, stop = np.uint64(stream_ptr[stream]), np.uint64(cursor[stream]), np.uint64(stream_ptr[stream + 1])
        per_flop, per_mem, per_net = s_per_flop[stream], s_per_mem_byte[stream], s_per_net_byte[stream]
        free = end[node - _ONE] if node > first else 0.0
        edge = np.uint64(pred_ptr[node])
        while node < stop:
            last_edge = np.uint64(pred_ptr[node + _ONE])
            time = free
            while edge < last_edge:
                other = np.uint64(pred[edge])
                if other < first or other >= node:
                    other_end = end[other]
                    if other_end > time:
                        time = other_end
                edge += _ONE
            if time == _INFINITY:
                break
            start[node] = time
            latency, mem_s, net_s = flop[node] * per_flop, mem_bytes[node] * per_mem, net_bytes[node] * per_net
            if mem_s > latency:
                latency = mem_s
            if net_s > latency:
                latency = net_s
            free = time + quantize(latency)
            end[node] = free
            node += _ONE
        num_timed += np.int64(node) - cursor[stream]
        if node < stop:
            for waiting in range(pred_ptr[node], pred_ptr[node + _ONE]):
                if end[pred[waiting]] == _INFINITY:
                    _wait_for(stream, pred[waiting], stream_ptr, awaited, first_waiter, next_waiter)
                    break
        if np.int64(node) > cursor[stream]:
            cursor[stream] = np.int64(node)
            num_runnable = _resume_waiters(
                stream, cursor[stream], runnable, num_runnable, awaited, first_waiter, next_waiter
            )
    return num_timed


# --------------------------------------------------------------------------------------------- memory


@_kernel
def ordered_peak_memory(
    device_ptr: NDArray[np.int64],
    storage_ptr: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    writer: NDArray[np.int32],
    reader_ptr: NDArray[np.int32],
    reader: NDArray[np.int32],
    peak_bytes: NDArray[np.int64],
    peak_node: NDArray[np.int64],
) -> None:
    """Peak memory of devices whose storages are touched by one in-order stream each, without times and without sorting.

    A storage lives from the start of its writer to the end of its last reader (to the end of its writer, when nothing
    reads it: a workspace). On one stream an end never comes after the next start, so the order alone decides: what a
    node frees is gone when the next one allocates, and a node's inputs, outputs and workspace coexist (DESIGN §3.5).
    For storages that several streams touch see ``replay_memory``.

    Args:
        device_ptr: int64[num_devices + 1], first node of each device, non-decreasing from 0.
        storage_ptr: int64[num_devices + 1], first storage of each device: storages are grouped by device. The writer
            and the readers of a storage are nodes of its device.
        size_bytes: int64[num_storages] [bytes].
        writer: int32[num_storages], the first node that writes it.
        reader_ptr: int32[num_storages + 1], first reader of each storage.
        reader: int32[num_readers], nodes that read or write it later, in any order.
        peak_bytes: written: int64[num_devices] [bytes]; 0 for a device without nodes.
        peak_node: written: int64[num_devices], the first node that reaches the peak; -1 for a device without nodes.
    """
    num_devices = len(device_ptr) - 1
    longest = 0
    for device in range(num_devices):
        longest = max(longest, device_ptr[device + 1] - device_ptr[device])
    # What a node allocates less what the node before it frees. One device at a time, so that it stays in cache.
    change = np.zeros(longest + 1, np.int64)
    edge = np.uint64(0)
    for device in range(num_devices):
        base = np.uint64(device_ptr[device])
        for storage in range(np.uint64(storage_ptr[device]), np.uint64(storage_ptr[device + 1])):
            first = np.uint64(writer[storage])
            last, last_edge = first, np.uint64(reader_ptr[storage + _ONE])
            while edge < last_edge:
                node = np.uint64(reader[edge])
                if node > last:
                    last = node
                edge += _ONE
            change[first - base] += size_bytes[storage]
            change[last - base + _ONE] -= size_bytes[storage]
        live, peak, at = 0, -1, -1
        num_nodes = device_ptr[device + 1] - device_ptr[device]
        for position in range(num_nodes):
            live += change[position]
            change[position] = 0
            if live > peak:
                peak, at = live, position
        change[num_nodes] = 0
        peak_bytes[device] = max(peak, 0)
        peak_node[device] = device_ptr[device] + at if at >= 0 else -1
