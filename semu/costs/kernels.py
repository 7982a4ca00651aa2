"""Kernels of latencies: ``quantize`` (the time grid) and ``roofline_latency`` (cost columns of operators).

Kernels trust their input: whoever builds the arrays validates them (a wrong index is undefined behaviour). They hold no
state, release the GIL and are compiled on first use into numba's on-disk cache. Kernels that call each other share a
file, because that cache does not notice a change in another file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel_ieee, part_ieee
from semu.units import TIME_GRID_PER_S, TIME_STEP_S

_INFINITY = np.inf


@kernel_ieee
def quantize(latency_s: float) -> float:
    """Round a latency [s] to the time grid of 2^-40 s, half to even (DESIGN §3.3)."""
    return np.rint(latency_s * TIME_GRID_PER_S) * TIME_STEP_S  # type: ignore[no-any-return]


@part_ieee
def _seconds(amount: float, rate_per_s: float) -> float:
    if amount == 0.0:
        return 0.0
    if rate_per_s == 0.0:
        return _INFINITY
    return amount / rate_per_s


@part_ieee
def _share(term: float, largest: float) -> float:
    """``term / largest`` for ``term <= largest``; 1 also where both are 0 or both infinite."""
    return term / largest if term < largest else 1.0


@part_ieee
def _cube_root(x: float) -> float:
    """Cube root for 1 <= x <= 3: a quadratic guess (error 3e-3), then two of Halley's steps, each cubing the error.

    Unlike ``cbrt`` it vectorises and gives the same bits whatever the C library.
    """
    y = 0.6616 + x * (0.3818 - 0.0409 * x)
    for _ in range(2):
        cube = y * y * y
        y = y * (cube + 2.0 * x) / (2.0 * cube + x)
    return y


@part_ieee
def _norm_3(a: float, b: float, c: float) -> float:
    largest = max(a, max(b, c))
    a, b, c = _share(a, largest), _share(b, largest), _share(c, largest)
    return largest * _cube_root(a * a * a + b * b * b + c * c * c)


@part_ieee
def _norm(a: float, b: float, c: float, p: float) -> float:
    largest = max(a, max(b, c))
    a, b, c = _share(a, largest), _share(b, largest), _share(c, largest)
    return largest * (a**p + b**p + c**p) ** (1.0 / p)  # type: ignore[no-any-return]


@kernel_ieee
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
