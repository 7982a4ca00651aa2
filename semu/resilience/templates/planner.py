"""``cut_pipeline``: the cut of layers and GPUs with the least iteration time, exactly.

With stages of times t_0 .. t_{S-1} (forward and backward of a microbatch) and the slowest stage k*, Oobleck's time of
N_b microbatches is

    T = T1 + T2 + T3 = sum t_k + (N_b - S + k* - 1) t_k* + sum_{k >= k*} t_k .

For a given t* = t_k* this is a sum over stages, (N_b - 1) t* + sum_{k < k*} t_k + sum_{k >= k*} (2 t_k - t*), so that
a dynamic program over (stages to the end, first layer, GPUs) finds its minimum among all cuts whose slowest stage takes
t*; all t* that a stage can take are tried. The halves of equations 2.1 to 2.3 (2309.08125 §4.1.2) find the same minimum
only where stages are balanced, and as printed lose layer l_k.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.records import dataclass
from semu.resilience.templates.kernels import fill_cuts


@dataclass(frozen=True)
class Stage:
    """A stage of a template: layers first to last - 1, on so many GPUs of one node."""

    first: int
    last: int
    gpus: int


@dataclass(frozen=True, eq=False)
class LayerTable:
    """What layers cost on some GPUs of a node.

    Attributes:
        degrees: int64[num_degrees], GPUs that a stage may have. time_s: float64[num_degrees, L], forward and backward
            of a microbatch [s]. state_bytes, held_bytes: the same shape, bytes of a GPU for parameters, gradients and
            optimizer state, and for each microbatch in flight. room_bytes: what a GPU has for them.
    """

    degrees: NDArray[np.int64]
    time_s: NDArray[np.float64]
    state_bytes: NDArray[np.float64]
    held_bytes: NDArray[np.float64]
    room_bytes: float

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.time_s.shape[1])


def pipeline_time(stage_s: NDArray[np.float64], microbatches: int) -> float:
    """T1 + T2 + T3 of stages with these times [s]; of equally slow stages the first is k*."""
    k = int(np.argmax(stage_s))
    return float(stage_s.sum() + (microbatches - len(stage_s) + k - 1) * stage_s[k] + stage_s[k:].sum())


def cut_pipeline(
    table: LayerTable, nodes: int, per_node: int, microbatches: int, slack: float = 0.0
) -> list[tuple[float, tuple[Stage, ...]]]:
    """The best cuts of a pipeline, at most one of each number of stages.

    Args:
        table: costs of the layers. nodes: of the pipeline; all of their GPUs are used. per_node: GPUs of each.
        microbatches: N_b. slack: cuts are found that are slower than the best one by up to this share.
    Returns:
        (T [s], stages), the fastest first; nothing where no cut fits in memory.
    """
    layers, gpus = table.num_layers, nodes * per_node
    most = min(layers, gpus)
    quantum = 2.0**-40  # sums of whole multiples are exact, so that equal stages take equal times
    time = _running(np.round(table.time_s / quantum) * quantum)
    state, held = _running(table.state_bytes), _running(table.held_bytes)
    work = np.concatenate(([0.0], np.cumsum((table.time_s * table.degrees[:, None]).min(axis=0))))
    best = np.full((2, most + 1, gpus + 1, layers + 1), np.inf)

    def _fill(slowest: float) -> None:
        fill_cuts(time, state, held, table.degrees, table.room_bytes, per_node, microbatches, slowest, work, best)

    of_stages = np.full(most + 1, np.inf)
    slowest_of = np.zeros(most + 1)
    total = float(time[:, -1].min())
    spans = _slowest(time, state, held, table.room_bytes)
    for slowest in spans[spans >= work[-1] / gpus * (1.0 - 1e-9)].tolist():
        bound = total + (microbatches - most) * slowest
        if microbatches > most and bound > of_stages.min() * (1.0 + slack):
            break
        _fill(slowest)
        found = best[1, :, gpus, 0] + (microbatches - 1) * slowest
        better = found < of_stages
        of_stages[better], slowest_of[better] = found[better], slowest
    limit = of_stages.min() * (1.0 + slack)
    results = []
    for s in np.flatnonzero(np.isfinite(of_stages) & (of_stages <= limit)).tolist():
        best.fill(np.inf)
        _fill(float(slowest_of[s]))
        stages = _read((time, state, held), table, best, per_node, microbatches, float(slowest_of[s]), s)
        results.append((float(of_stages[s]), stages))
    return sorted(results, key=lambda one: one[0])


def _running(values: NDArray[np.float64]) -> NDArray[np.float64]:
    zero = np.zeros((len(values), 1))
    return np.ascontiguousarray(np.concatenate((zero, np.cumsum(values, axis=1)), axis=1))


def _slowest(
    time: NDArray[np.float64], state: NDArray[np.float64], held: NDArray[np.float64], room_bytes: float
) -> NDArray[np.float64]:
    """Times that the slowest stage can take: of all runs of layers that fit with one microbatch in flight, from the
    least that leaves each layer a stage on."""
    first, last = np.triu_indices(time.shape[1], 1)
    spans = time[:, last] - time[:, first]
    fits = state[:, last] - state[:, first] + held[:, last] - held[:, first] <= room_bytes
    least = np.diff(time, axis=1).min(axis=0).max(initial=0.0)
    found: NDArray[np.float64] = sorted_distinct(spans[fits & (spans >= least)])
    return found


def _read(
    sums: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    table: LayerTable,
    best: NDArray[np.float64],
    per_node: int,
    microbatches: int,
    slowest: float,
    stages: int,
) -> tuple[Stage, ...]:
    """The stages behind the least sum: the first that attain it, fewest GPUs and layers first."""
    time, state, held = sums
    flag, u, g, found = 1, 0, best.shape[2] - 1, []
    for s in range(stages, 0, -1):
        value, step = best[flag, s, g, u], None
        for d, degree in enumerate(table.degrees.tolist()):
            if degree > g or (g - degree) // per_node != (g - 1) // per_node:
                continue
            for v in range(u + 1, time.shape[1]):
                t = time[d, v] - time[d, u]
                size = state[d, v] - state[d, u] + (held[d, v] - held[d, u]) * min(s, microbatches)
                if t > slowest or size > table.room_bytes:
                    break
                rest = best[:, s - 1, g - degree, v]
                if flag == 0 and rest[0] + 2.0 * t - slowest == value:
                    step = (0, v, degree)
                elif flag == 1 and rest[1] + t == value:
                    step = (1, v, degree)
                elif flag == 1 and t == slowest and rest[0] + slowest == value:
                    step = (0, v, degree)
                if step is not None:
                    break
            if step is not None:
                break
        assert step is not None
        found.append(Stage(u, step[1], step[2]))
        flag, u, g = step[0], step[1], g - step[2]
    return tuple(found)
