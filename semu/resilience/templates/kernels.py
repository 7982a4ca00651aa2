"""Kernels of pipeline templates: cuts of layers and GPUs, and how many pipelines of each size.

They trust their input (``planner``, ``composing`` make it) and release the GIL.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel, zeros

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@kernel
def fill_cuts(
    time: F64, state: F64, held: F64, degrees: I64, room: float, per_node: int, microbatches: int, slowest: float,
    best: F64,
) -> None:  # fmt: skip
    """Least sums of stages from a layer to the end, for one time of the slowest stage (``planner`` has the formula).

    Args:
        time: float64[num_degrees, L + 1], forward and backward of the first layers on so many GPUs [s], running sums;
            state, held: bytes of a GPU for them, and for each microbatch in flight. degrees: int64[num_degrees], GPUs
            of a stage. room: bytes of a GPU. per_node: GPUs of a node. microbatches: N_b.
        slowest: t*, the time of the slowest stage [s].
        best: float64[2, S + 1, L + 1, G + 1], written: [0] of suffixes without the slowest stage, [1] with it, by
            number of stages, first layer, GPUs.
    """
    stages, layers, gpus = best.shape[1] - 1, best.shape[2] - 1, best.shape[3] - 1
    best[:] = np.inf
    best[0, 0, layers, 0] = 0.0
    for s in range(1, stages + 1):
        in_flight = min(s, microbatches)
        for d in range(len(degrees)):
            degree = degrees[d]
            for g in range(max(degree, s), min(gpus, s * degrees[-1]) + 1):
                if (g - degree) // per_node != (g - 1) // per_node:
                    continue
                for u in range(layers - s, -1, -1):
                    without, behind = np.inf, np.inf
                    for v in range(u + 1, layers - s + 2):
                        t = time[d, v] - time[d, u]
                        if t > slowest:
                            break
                        if state[d, v] - state[d, u] + (held[d, v] - held[d, u]) * in_flight > room:
                            break
                        after = best[0, s - 1, v, g - degree]
                        if after < np.inf:
                            without = min(without, after + 2.0 * t - slowest)
                            if t == slowest:
                                behind = min(behind, after + slowest)
                        behind = min(behind, best[1, s - 1, v, g - degree] + t)
                    best[0, s, u, g] = min(best[0, s, u, g], without)
                    best[1, s, u, g] = min(best[1, s, u, g], behind)


@kernel
def most_work(sizes: I64, capacity: I64, nodes: int, least: int, most: int) -> I64:
    """How many pipelines of each size take the most microbatches in a time: all nodes are used, at least ``least``
    pipelines, and of equals the fewest pipelines.

    Args:
        sizes: int64[p], nodes of a template. capacity: int64[p], microbatches that it takes; 0: none, it is not used.
        nodes: N'. least: f + 1. most: pipelines at most; 0: as many as there are room for.
    Returns:
        int64[p + 1]: the counts, then the microbatches; -1: there is no such set.
    """
    p = len(sizes)
    scale = nodes + 1
    none = -(1 << 62)
    last = least if most == 0 else most
    value = zeros((last + 1, nodes + 1), np.int64)
    pick = zeros((last + 1, nodes + 1), np.int64)
    value[:] = none
    value[0, 0] = 0
    for n in range(1, nodes + 1):
        for k in range(1, last + 1):
            for i in range(p):
                if sizes[i] > n or capacity[i] <= 0:
                    continue
                for before in (k - 1, k) if k == last and most == 0 else (k - 1, k - 1):
                    if value[before, n - sizes[i]] == none:
                        continue
                    found = value[before, n - sizes[i]] + capacity[i] * scale - 1
                    if found > value[k, n]:
                        value[k, n] = found
                        pick[k, n] = i * (last + 1) + before
    counts = zeros(p + 1, np.int64)
    k, n = least, nodes
    for other in range(least + 1, last + 1):
        if value[other, nodes] > value[k, nodes]:
            k = other
    if value[k, nodes] == none:
        counts[p] = -1
        return counts
    while n > 0:
        i, before = pick[k, n] // (last + 1), pick[k, n] % (last + 1)
        counts[i] += 1
        counts[p] += capacity[i]
        n -= sizes[i]
        k = before
    return counts
