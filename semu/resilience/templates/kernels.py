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
    work: F64, best: F64,
) -> None:  # fmt: skip
    """Least sums of stages from a layer to the end, for one time of the slowest stage (``planner`` has the formula).

    A stage has no more work than its GPUs do in the slowest stage's time, so that a suffix on some GPUs can begin in a
    band of layers only: others have a pipeline before or behind them that does not fit.

    Args:
        time: float64[num_degrees, L + 1], forward and backward of the first layers on so many GPUs [s], running sums;
            state, held: bytes of a GPU for them, and for each microbatch in flight. degrees: int64[num_degrees], GPUs
            of a stage. room: bytes of a GPU. per_node: GPUs of a node. microbatches: N_b.
        slowest: t*, the time of the slowest stage [s]. work: float64[L + 1], GPU-seconds of the first layers, at least.
        best: float64[2, S + 1, G + 1, L + 1], infinite or from a call before; written inside the bands: [0] of suffixes
            without the slowest stage, [1] with it, by number of stages, GPUs, first layer.
    """
    stages, gpus, layers = best.shape[1] - 1, best.shape[2] - 1, best.shape[3] - 1
    low, high = zeros(gpus + 1, np.int64), zeros(gpus + 1, np.int64)  # the band of each number of GPUs
    room_s = slowest * (1.0 + 1e-9)
    begin, end = layers, layers
    for g in range(gpus + 1):
        while begin > 0 and work[layers] - work[begin - 1] <= room_s * g:
            begin -= 1
        while work[end] > room_s * (gpus - g):
            end -= 1
        low[g], high[g] = begin, end
    last = zeros((len(degrees), layers + 1), np.int64)  # where a stage can end at most
    best[:, 0, 0, :] = np.inf
    best[0, 0, 0, layers] = 0.0
    for s in range(1, stages + 1):
        in_flight = min(s, microbatches)
        for d in range(len(degrees)):
            v = 0
            for u in range(layers):
                v = max(v, u)
                while v < layers and time[d, v + 1] - time[d, u] <= slowest:
                    if state[d, v + 1] - state[d, u] + (held[d, v + 1] - held[d, u]) * in_flight > room:
                        break
                    v += 1
                last[d, u] = v
        for g in range(s, min(gpus, s * degrees[-1]) + 1):
            best[:, s, g, low[g] : high[g] + 1] = np.inf
            for d in range(len(degrees)):
                rest = g - degrees[d]
                if rest < s - 1 or rest > (s - 1) * degrees[-1] or rest // per_node != (g - 1) // per_node:
                    continue
                before, beyond = best[0, s - 1, rest], best[1, s - 1, rest]
                first, most = low[rest], min(high[rest], layers - s + 1)
                for u in range(low[g], min(high[g], layers - s) + 1):
                    without, behind = best[0, s, g, u], best[1, s, g, u]
                    for v in range(max(u + 1, first), min(last[d, u], most) + 1):
                        t = time[d, v] - time[d, u]
                        without = min(without, before[v] + 2.0 * t - slowest)
                        behind = min(behind, beyond[v] + t)
                        if t == slowest:
                            behind = min(behind, before[v] + slowest)
                    best[0, s, g, u], best[1, s, g, u] = without, behind


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
