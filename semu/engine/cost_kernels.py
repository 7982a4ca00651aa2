"""Kernel for operator latencies over columns: the roofline of DESIGN §3.2 with a fixed time and a soft corner."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

TIME_GRID_PER_S = float(1 << 40)


@njit(cache=True, nogil=True)
def column_latency(
    flop: F64,
    mem_bytes: I64,
    net_bytes: I64,
    flop_rate: F64,
    mem_rate: F64,
    net_rate: F64,
    fixed: F64,
    p: F64,
    corner: F64,
    out: F64,
) -> None:
    """Latency = fixed + ((flop / F)^p + (mem / B)^p + T^p)^(1/p) + sqrt(corner T), T = net / N, on the time grid.

    Args:
        flop: float64[num_ops, num_shapes]. mem_bytes, net_bytes: int64[num_ops, num_shapes].
        flop_rate, mem_rate, net_rate: float64[num_ops], efficiency included [1/s].
        fixed: float64[num_ops] [s]. p: float64[num_ops], infinity: the maximum. corner: float64[num_ops] [s].
        out: float64[num_ops, num_shapes] [s], written; half to even on multiples of 2^-40 s.
    Source:
        DIP §6.1 (p infinite); p and t0 are DESIGN §3.2, the square root is the collectives' form there.
    """
    for i in range(flop.shape[0]):
        for b in range(flop.shape[1]):
            compute = flop[i, b] / flop_rate[i]
            memory = mem_bytes[i, b] / mem_rate[i]
            network = net_bytes[i, b] / net_rate[i]
            longest = max(compute, memory, network)
            busy = longest
            if longest > 0.0 and p[i] != np.inf:
                x, y, z = compute / longest, memory / longest, network / longest
                if p[i] == 3.0:
                    busy = longest * np.cbrt(x * x * x + y * y * y + z * z * z)
                elif p[i] == 2.0:
                    busy = longest * np.sqrt(x * x + y * y + z * z)
                elif p[i] == 1.0:
                    busy = compute + memory + network
                else:
                    busy = longest * (x ** p[i] + y ** p[i] + z ** p[i]) ** (1.0 / p[i])
            latency = fixed[i] + busy + np.sqrt(corner[i] * network)
            out[i, b] = np.rint(latency * TIME_GRID_PER_S) / TIME_GRID_PER_S
