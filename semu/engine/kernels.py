"""The engine's numeric core: numba kernels on plain arrays, seconds, bytes and FLOP.

Objects: ``quantize``, ``roofline_latency`` (cost columns); ``fixed_order_times``, ``fixed_order_roofline_times`` (start and
end times when every stream's order is given); ``ordered_peak_memory`` (peaks of devices that run in order);
``merge_events``, ``replay_memory``, ``memory_steps`` (the memory of a pool that several streams share).

Kernels trust their input: whoever builds the arrays validates them (a wrong index is undefined behaviour). They hold no
state, release the GIL and are compiled on first use into numba's on-disk cache. All kernels that call each other are in
this file, because that cache does not notice a change in another.

``num_nodes`` operators are numbered by stream, in execution order: stream ``s`` runs the nodes ``stream_ptr[s]`` to
``stream_ptr[s + 1] - 1`` one after the other. ``np.uint64`` indices appear in inner loops because a signed index costs a
test for negative values at each access (measured: 25 % of ``fixed_order_times``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit  # type: ignore[import-untyped]
from numpy.typing import NDArray

from semu.units import TIME_GRID_PER_S, TIME_STEP_S

_Function = TypeVar("_Function", bound=Callable[..., Any])

_INFINITY = np.inf
_ONE = np.uint64(1)


def _kernel(function: _Function) -> _Function:
    """Compile with numba; the type checker keeps the plain signature."""
    compiled: _Function = njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


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
    """Cube root for 1 <= x <= 3: a quadratic guess (error 2e-3), then two of Halley's steps, each cubing the error.

    Unlike ``cbrt`` it vectorises and gives the same bits whatever the C library.
    """
    y = 0.6265 + x * (0.4113 - 0.0345 * x)
    cube = y * y * y
    y = y * (cube + 2.0 * x) / (2.0 * cube + x)
    cube = y * y * y
    return y * (cube + 2.0 * x) / (2.0 * cube + x)


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
    latency: NDArray[np.float64],
) -> None:
    """Latency of every operator for every shape: ``t0 + (sum of terms^p)^(1/p)``, on the time grid.

    The terms are amount / rate for FLOP, memory and network; an amount of 0 takes no time whatever the rate, a positive
    amount at rate 0 takes infinitely long. p = infinity is the maximum of the terms.

    Args:
        flop: float64[num_ops, num_shapes] [FLOP], >= 0.
        mem_bytes: float64[num_ops, num_shapes] [bytes], >= 0.
        net_bytes: float64[num_ops, num_shapes] wire bytes per rank [bytes], >= 0.
        flop_per_s: float64[num_ops] effective rate (efficiency x peak) [FLOP/s], >= 0.
        mem_bytes_per_s: float64[num_ops] effective rate [bytes/s], >= 0.
        net_bytes_per_s: float64[num_ops] effective rate [bytes/s], >= 0.
        t0_s: float64[num_ops] fixed device time of the kernel [s], >= 0.
        exponent: float64[num_ops] p >= 1; infinity, 1, 2 and 3 have fast paths.
        latency: written: float64[num_ops, num_shapes] [s].
    Source:
        DIP (ASPLOS'26) §6.1 for the maximum; t0 and the p-norm are semu's (DESIGN §3.2).
    """
    num_ops, num_shapes = flop.shape
    for op in range(num_ops):
        p = exponent[op]
        t0 = t0_s[op]
        out = latency[op]
        for shape in range(num_shapes):
            a = _seconds(flop[op, shape], flop_per_s[op])
            b = _seconds(mem_bytes[op, shape], mem_bytes_per_s[op])
            c = _seconds(net_bytes[op, shape], net_bytes_per_s[op])
            largest = max(a, max(b, c))
            if p == _INFINITY:
                norm = largest
            elif p == 1.0:
                norm = a + b + c
            elif p == 2.0:
                norm = np.sqrt(a * a + b * b + c * c)
            elif p == 3.0:
                a, b, c = _share(a, largest), _share(b, largest), _share(c, largest)
                norm = largest * _cube_root(a * a * a + b * b * b + c * c * c)
            else:
                a, b, c = _share(a, largest), _share(b, largest), _share(c, largest)
                norm = largest * (a**p + b**p + c**p) ** (1.0 / p)
            out[shape] = quantize(t0 + norm)
