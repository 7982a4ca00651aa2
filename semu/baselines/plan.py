"""``plan_stages``: one static cut and recomputation choice per chunk whose slowest stage is fastest, within memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.baselines.costs_of_layers import LayerCosts
from semu.records import dataclass


@dataclass(frozen=True)
class StaticPlan:
    """nnScaler's plan: layers of every pipeline stage, and which chunks are recomputed.

    Attributes:
        bounds: of the stages among all layers, one more than stages.
        recomputed: per stage, the modality modules whose layers it recomputes.
        slowest_s: forward plus backward of the slowest stage [s].
        need_bytes: per stage, the memory that was counted [bytes].
    """

    bounds: tuple[int, ...]
    recomputed: tuple[frozenset[int], ...]
    slowest_s: float
    need_bytes: tuple[float, ...]


class Refuted(NamedTuple):
    """A stage that did not fit as simulated: its pipeline rank, its layers first <= i < last, and the modality modules
    whose layers it recomputed."""

    rank: int
    first: int
    last: int
    recomputed: frozenset[int]


def plan_stages(
    costs: LayerCosts,
    in_flight: Sequence[int],
    limit_bytes: Sequence[float],
    refuted: Sequence[Refuted] = (),
) -> StaticPlan | None:
    """The best static plan, exactly: no other cut and choice has a faster slowest stage; of those as fast, the one of
    least work, then the one whose first stages are shortest.

    A stage holds the state of its layers, what as many microbatches in a row as are in flight leave (those that leave
    most), and while a recomputed layer runs backward what that layer leaves.

    Args:
        costs: of the layers. in_flight: microbatches that every stage holds at most.
        limit_bytes: memory of every stage [bytes].
        refuted: no stage holds these layers, or these and others, with as little recomputation.
    Returns:
        The plan; None: there is none within the limits.
    """
    tables = [
        _stage_tables(costs, *stage, [one for one in refuted if one.rank == rank])
        for rank, stage in enumerate(zip(in_flight, limit_bytes, strict=True))
    ]
    cost = np.stack([table.latency_s for table in tables])
    slowest = _least(cost, np.maximum)[0][-1]
    if not np.isfinite(slowest):
        return None
    ends = _least(np.where(cost <= slowest, cost, np.inf), np.add)[1]
    bounds = [costs.num_layers]
    for begin in reversed(ends):
        bounds.append(int(begin[bounds[-1]]))
    bounds.reverse()
    stages = list(zip(tables, itertools.pairwise(bounds), strict=True))
    recomputed = tuple(table.choices[int(table.choice[first, last])] for table, (first, last) in stages)
    need = tuple(float(table.need_bytes[first, last]) for table, (first, last) in stages)
    return StaticPlan(tuple(bounds), recomputed, float(slowest), need)


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


@dataclass(frozen=True)
class _Tables:
    """A stage of any layers first <= i < last at [first, last], under its best choice that fits.

    Attributes:
        latency_s, need_bytes: float64[n + 1, n + 1], infinite where nothing fits. choices: sets of recomputed modules.
        choice: int64[n + 1, n + 1], which of them.
    """

    latency_s: NDArray[np.float64]
    need_bytes: NDArray[np.float64]
    choices: list[frozenset[int]]
    choice: NDArray[np.int64]


def _stage_tables(costs: LayerCosts, in_flight: int, limit_bytes: float, refuted: Sequence[Refuted]) -> _Tables:
    n = costs.num_layers
    modules = range(costs.num_modules)
    choices = [frozenset(again) for size in range(len(modules) + 1) for again in itertools.combinations(modules, size)]
    best, least = np.full((2, n + 1, n + 1), np.inf)
    choice = np.zeros((n + 1, n + 1), dtype=np.int64)
    state = _spans(costs.state_bytes)
    held = _in_flight(costs, in_flight)
    largest = costs.held_bytes[0].max(axis=(1, 2), initial=0.0)
    for number, again in enumerate(choices):
        is_again = np.isin(costs.module, list(again))
        seconds = _spans(np.where(is_again, costs.latency_s[1], costs.latency_s[0]))
        need = state + _largest(np.where(is_again, largest, 0.0))
        need += np.max([_spans(own) for own in np.where(is_again, held[1], held[0])], axis=0)
        is_there = np.ones((n + 1, n + 1), dtype=np.bool_)
        for module in again:
            is_there &= _spans((costs.module == module).astype(np.float64)) > 0
        for one in refuted:
            if again <= one.recomputed:
                is_there[: one.first + 1, one.last :] = False
        better = (need <= limit_bytes) & is_there & (seconds < best)
        best[better], least[better], choice[better] = seconds[better], need[better], number
    return _Tables(best, least, choices, choice)


WINDOWS = 32
"""Of each module, so many of the rows of microbatches in flight that leave most are looked at."""


def _in_flight(costs: LayerCosts, count: int) -> NDArray[np.float64]:
    """What so many microbatches in a row leave in every layer, for those rows that leave most in some module:
    float64[2, num_rows, n] [bytes]."""
    total = np.cumsum(np.pad(costs.held_bytes, ((0, 0), (0, 0), (0, 0), (1, 0))), axis=-1)
    count = min(count, total.shape[-1] - 1)
    rows = (total[..., count:] - total[..., : total.shape[-1] - count]).reshape(2, costs.num_layers, -1)
    chosen: set[int] = set()
    for module in range(costs.num_modules):
        weight = rows[0, costs.module == module].sum(axis=0)
        chosen.update(np.argsort(-weight, kind="stable")[:WINDOWS].tolist())
    return rows[:, :, sorted(chosen)].transpose(0, 2, 1)


def _spans(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of all values first <= i < last at [first, last], infinite where there are none."""
    total = np.concatenate(([0.0], np.cumsum(values)))
    legal = np.arange(len(total)) > np.arange(len(total))[:, None]
    return np.where(legal, total - total[:, None], np.inf)


def _largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest of the values first <= i < last, none below 0, at [first, last]; 0 where there are none."""
    n = len(values)
    result = np.zeros((n + 1, n + 1))
    result[:-1, 1:] = np.maximum.accumulate(np.triu(np.broadcast_to(values, (n, n))), axis=1)
    return result
