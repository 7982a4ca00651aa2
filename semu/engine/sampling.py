"""Choosing a few points of a long step function so that nothing a person looks for is lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct


def sample_step_function(times: NDArray[np.float64], values: NDArray[np.int64], num_buckets: int) -> NDArray[np.int64]:
    """Positions of the points worth keeping: per time bucket the highest, the lowest and the last.

    The highest keeps every peak, the last keeps the value that is held until the next bucket. A function with at most
    ``3 * num_buckets`` points is kept whole.

    Args:
        times: float64[n], non-decreasing; value i holds from times[i] to times[i + 1].
        values: int64[n].
        num_buckets: equal parts of the time span, >= 1.
    Returns:
        int64[k], increasing positions, k <= 3 * num_buckets + 1; the first of equal extremes is taken.
    """
    num_points = len(times)
    if num_points <= 3 * num_buckets:
        return np.arange(num_points)
    span = times[-1] - times[0]
    scale = num_buckets / span if span > 0 else 0.0
    bucket = np.minimum(((times - times[0]) * scale).astype(np.int64), num_buckets - 1)
    first = np.flatnonzero(np.diff(bucket, prepend=-1))
    sizes = np.diff(first, append=num_points)
    kept = [np.array([0]), first + sizes - 1]
    for extreme in (np.maximum, np.minimum):
        hits = np.flatnonzero(values == np.repeat(extreme.reduceat(values, first), sizes))
        kept.append(hits[np.diff(bucket[hits], prepend=-1) > 0])
    return sorted_distinct(np.concatenate(kept))


def pool_step_function(
    times: NDArray[np.float64], values: NDArray[np.int64], edges: NDArray[np.float64]
) -> NDArray[np.int64]:
    """For each bucket between two edges, the position of the highest value that is held anywhere in it.

    Drawn as constant over its bucket, the result shows a peak of any shortness at full height.

    Args:
        times: float64[n], non-decreasing, times[0] <= edges[0]; value i holds from times[i] to times[i + 1].
        values: int64[n].
        edges: float64[num_buckets + 1], increasing; a bucket contains its left edge.
    Returns:
        int64[num_buckets], the first of equal values.
    """
    first = np.minimum(np.searchsorted(times, edges[:-1], "left"), np.searchsorted(times, edges[:-1], "right") - 1)
    first = np.maximum(first, 0)
    after = np.maximum(np.searchsorted(times, edges[1:], "left"), first + 1)
    spans = zip(first.tolist(), after.tolist(), strict=True)
    return np.array([start + int(values[start:stop].argmax()) for start, stop in spans], dtype=np.int64)
