"""``compose_counts``: how many pipelines of each size; ``distribute``: microbatches to pipelines, by exact min-max.

A pipeline of size n takes fill[n] + m x period[n] seconds for m microbatches (1F1B of equal microbatches, m at least
its stages; below, a bound). The time of an iteration is that of the slowest pipeline. Oobleck minimises the variance of
m x T instead (equation 2.6), whose result may have a slower slowest pipeline; ``distribute_by_variance`` is that.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.records import dataclass
from semu.resilience.templates.kernels import most_work


@dataclass(frozen=True)
class Speed:
    """How fast a template is.

    Attributes:
        nodes: its size. fill_s, period_s: m microbatches take fill_s + m period_s [s].
    """

    nodes: int
    fill_s: float
    period_s: float

    def time_s(self, microbatches: int) -> float:
        """Of so many microbatches [s]."""
        return self.fill_s + microbatches * self.period_s

    def within(self, time_s: float) -> int:
        """Most microbatches that a time is enough for."""
        if time_s < self.time_s(1):
            return 0
        count = int((time_s - self.fill_s) / self.period_s)
        while self.time_s(count + 1) <= time_s:
            count += 1
        while self.time_s(count) > time_s:
            count -= 1
        return count


def compose_counts(speeds: Sequence[Speed], nodes: int, microbatches: int, least: int) -> list[int]:
    """How many pipelines of each size make the shortest iteration.

    The time is found by bisection: a time is enough if the pipelines that take most microbatches in it, a knapsack over
    nodes, take all of them. Where the fastest are more than the microbatches, the knapsack also counts pipelines.

    Args:
        speeds: of the templates. nodes: N', all are used. microbatches: of an iteration, at least one for each
            pipeline. least: f + 1 pipelines, at least.
    Returns:
        Counts, in the order of the templates.
    Raises:
        ConfigError: no such set holds all the nodes; fewer microbatches than pipelines.
    """
    sizes = np.array([one.nodes for one in speeds], dtype=np.int64)
    if (most_work(sizes, np.ones(len(sizes), dtype=np.int64), nodes, least, 0))[-1] < 0:
        raise ConfigError(
            f"no set of at least {least} templates uses {nodes} nodes",
            where="nodes",
            expected=f"sizes {sizes.min()} to {sizes.max()}, at least {least} of them",
            got=nodes,
            nearest=max(nodes, least * int(sizes.min())),
        )

    counts = _fastest(speeds, nodes, microbatches, least, 0)
    if counts is None or sum(counts) > microbatches:
        fewer = _fastest(speeds, nodes, microbatches, least, microbatches) if microbatches >= least else None
        if fewer is None:
            fewest = max(least, -(-nodes // int(sizes.max())))
            raise ConfigError(
                f"{fewest} pipelines or more, {microbatches} microbatches",
                where="training.global_batch",
                expected="a microbatch for each pipeline",
                got=microbatches,
                nearest=fewest,
            )
        return fewer
    return counts


def _fastest(speeds: Sequence[Speed], nodes: int, microbatches: int, least: int, most: int) -> list[int] | None:
    """As ``compose_counts``, of at most ``most`` pipelines (0: of any number); None: there is no such set."""
    sizes = np.array([one.nodes for one in speeds], dtype=np.int64)

    def _best(time_s: float) -> NDArray[np.int64]:
        capacity = np.array([min(one.within(time_s), microbatches) for one in speeds], dtype=np.int64)
        return most_work(sizes, capacity, nodes, least, most)

    high = max(one.time_s(microbatches) for one in speeds)
    low = 0.0
    found = _best(high)
    if found[-1] < microbatches:
        return None
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        tried = _best(middle)
        if tried[-1] >= microbatches:
            high, found = middle, tried
        else:
            low = middle
    return [int(one) for one in found[:-1]]


def distribute(pipelines: Sequence[Speed], microbatches: int) -> list[int]:
    """Microbatches of each pipeline, at least one, so that the slowest is as fast as can be.

    One after another goes to the pipeline that would end it first: times grow with microbatches, so no other
    distribution is faster.

    Raises:
        ConfigError: fewer microbatches than pipelines.
    """
    if microbatches < len(pipelines):
        raise ConfigError(
            f"{microbatches} microbatches for {len(pipelines)} pipelines",
            where="training.global_batch",
            expected="a microbatch for each pipeline",
            got=microbatches,
            nearest=len(pipelines),
        )
    counts = [1] * len(pipelines)
    for k, _ in itertools.islice(_dealt(pipelines), microbatches - len(pipelines)):
        counts[k] += 1
    return counts


def slowest_times(pipelines: Sequence[Speed], most: int) -> list[float]:
    """Time of the slowest pipeline for as many microbatches as there are pipelines, one more, ... ``most`` [s]."""
    first = max(one.time_s(1) for one in pipelines)
    ends = (end for _, end in itertools.islice(_dealt(pipelines), max(0, most - len(pipelines))))
    return list(itertools.accumulate(ends, max, initial=first))


def _dealt(pipelines: Sequence[Speed]) -> Iterator[tuple[int, float]]:
    """Microbatches beyond the first of each pipeline: (the pipeline that ends it first, when [s])."""
    counts = [1] * len(pipelines)
    heap = [(one.time_s(2), k) for k, one in enumerate(pipelines)]
    heapq.heapify(heap)
    while True:
        end, k = heap[0]
        counts[k] += 1
        heapq.heapreplace(heap, (pipelines[k].time_s(counts[k] + 1), k))
        yield k, end


def distribute_by_variance(pipelines: Sequence[Speed], microbatches: int) -> list[int]:
    """Equation 2.6: the least sum of squared deviations of m x T from their mean, T being one microbatch's time.

    Continuous optimum m = B (1/T) / sum(1/T), rounded to the nearest sum; then moves of one microbatch while they help.

    Raises:
        ConfigError: as ``distribute``.
    """
    counts = distribute(pipelines, microbatches)
    times = np.array([one.time_s(1) for one in pipelines])

    def _spread(of: NDArray[np.int64]) -> float:
        work = of * times
        return float(((work - work.mean()) ** 2).sum())

    best = np.array(counts, dtype=np.int64)
    value, is_better = _spread(best), True
    while is_better:
        is_better = False
        for giver in np.flatnonzero(best > 1).tolist():
            for taker in range(len(best)):
                tried = best.copy()
                tried[giver] -= 1
                tried[taker] += 1
                if tried[giver] >= 1 and (found := _spread(tried)) < value * (1.0 - 1e-12):
                    best, value, is_better = tried, found, True
    return [int(one) for one in best]
