"""``plan_stages``: one static cut and recomputation choice per chunk whose slowest stage is fastest, within memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.baselines.layer_costs import LayerCosts


@dataclass(frozen=True)
class StagePlan:
    """Layers of every pipeline stage, and which chunks are recomputed.

    Attributes:
        bounds: of the stages among all layers, one more than stages.
        recomputed: per stage, the modality modules whose layers it recomputes.
        slowest_s: forward plus backward of the slowest stage [s].
    """

    bounds: tuple[int, ...]
    recomputed: tuple[frozenset[int], ...]
    slowest_s: float


def plan_stages(costs: LayerCosts, in_flight: Sequence[int], limit_bytes: Sequence[float]) -> StagePlan | None:
    """The best static plan, exactly: no other cut and choice has a faster slowest stage; of those as fast, the one of
    least work, then the one whose first stages are shortest.

    A stage holds the state of its layers, what its microbatches in flight leave, and while a recomputed layer runs
    backward what that layer leaves.

    Args:
        costs: of the layers. in_flight: microbatches that every stage holds at most.
        limit_bytes: memory of every stage [bytes].
    Returns:
        The plan; None: there is none within the limits.
    """
    cost = np.stack([_stage_costs(costs, *stage)[0] for stage in zip(in_flight, limit_bytes, strict=True)])
    slowest = _least(cost, np.maximum)[0][-1]
    if not np.isfinite(slowest):
        return None
    ends = _least(np.where(cost <= slowest, cost, np.inf), np.add)[1]
    bounds = [costs.num_layers]
    for begin in reversed(ends):
        bounds.append(int(begin[bounds[-1]]))
    bounds.reverse()
    recomputed = [
        _stage_costs(costs, *stage)[1][first][last]
        for stage, (first, last) in zip(
            zip(in_flight, limit_bytes, strict=True), itertools.pairwise(bounds), strict=True
        )
    ]
    return StagePlan(tuple(bounds), tuple(recomputed), float(slowest))


def _least(cost: NDArray[np.float64], join: np.ufunc) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """Least joined cost of all stages up to every layer, and per stage where it begins if it ends there.

    Args:
        cost: float64[num_stages, n + 1, n + 1], of a stage of the layers first <= i < last. join: sum or maximum.
    """
    reached = np.full(cost.shape[1], np.inf)
    reached[0] = 0.0
    begins = []
    for own in cost:
        joined = join(reached[:, None], own)
        begins.append(joined.argmin(axis=0))
        reached = joined.min(axis=0)
    return reached, begins


def _stage_costs(
    costs: LayerCosts, in_flight: int, limit_bytes: float
) -> tuple[NDArray[np.float64], list[list[frozenset[int]]]]:
    """Latency of a stage of any layers under its best choice that fits (infinite: none does), and the choice."""
    n = costs.num_layers
    modules = range(costs.num_modules)
    inside = np.array([costs.module == module for module in modules])
    best = np.full((n + 1, n + 1), np.inf)
    choice = [[frozenset[int]()] * (n + 1) for _ in range(n + 1)]
    state = _spans(costs.state_bytes)
    for size in range(len(modules) + 1):
        for again in itertools.combinations(modules, size):
            is_again = np.isin(costs.module, again)
            seconds = _spans(np.where(is_again, costs.latency_s[1], costs.latency_s[0]))
            held = _spans(np.where(is_again, costs.held_bytes[1], costs.held_bytes[0]))
            working = _largest(np.where(is_again, costs.held_bytes[0], 0.0))
            absent = np.zeros((n + 1, n + 1), dtype=np.bool_)
            for module in again:
                absent |= _spans(inside[module].astype(np.float64)) <= 0
            fits = state + in_flight * held + working <= limit_bytes
            better = fits & ~absent & (seconds < best)
            for first, last in np.argwhere(better).tolist():
                choice[first][last] = frozenset(again)
            best[better] = seconds[better]
    return best, choice


def _spans(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of all values first <= i < last at [first, last], infinite where there are none."""
    total = np.concatenate(([0.0], np.cumsum(values)))
    legal = np.arange(len(total)) > np.arange(len(total))[:, None]
    return np.where(legal, total - total[:, None], np.inf)


def _largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest of the values first <= i < last at [first, last], 0 where there are none."""
    n = len(values)
    result = np.zeros((n + 1, n + 1))
    for first in range(n):
        result[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return result
