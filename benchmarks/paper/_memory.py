"""Memory of a rank while its pipeline is in steady state, and how much it fluctuates there (DIP Fig. 10)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.timeline import RankTimeline
from semu.graph.operator import Phase


@dataclass(frozen=True, eq=False)
class Steps:
    """A step function of time.

    Attributes:
        times_s: float64[n], non-decreasing. values: float64[n]; value i holds from times_s[i] to times_s[i + 1], the
            last one for ever.
    """

    times_s: NDArray[np.float64]
    values: NDArray[np.float64]

    def within(self, start_s: float, end_s: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Values between two moments, and how long each holds [s]."""
        edges = np.clip(np.append(self.times_s, np.inf), start_s, end_s)
        held = np.diff(edges)
        return self.values[held > 0], held[held > 0]


def curve_of(rank: RankTimeline) -> Steps:
    """Allocated bytes of a rank."""
    return Steps(rank.memory.times_s, rank.memory.total.astype(np.float64))


def steady_window(rank: RankTimeline) -> tuple[float, float]:
    """From the start of a rank's first backward stage to the end of its last forward stage [s]: between them it works
    on both, as 1F1B does between warm-up and cool-down."""
    backward = [stage.start_s for stage in rank.stages if stage.phase is not Phase.FORWARD]
    forward = [stage.end_s for stage in rank.stages if stage.phase is Phase.FORWARD]
    start, end = min(backward), max(forward)
    if end <= start:  # all forwards come before the first backward
        return 0.0, max(stage.end_s for stage in rank.stages)
    return start, end


def fluctuation(curve: Steps, start_s: float, end_s: float) -> float:
    """Standard deviation over time of a curve between two moments, in its unit.

    DIP prints "memory fluctuations" without a definition; this is the one used here, everywhere.
    """
    values, held = curve.within(start_s, end_s)
    if not held.size:
        return 0.0
    mean = np.average(values, weights=held)
    return float(np.sqrt(np.average((values - mean) ** 2, weights=held)))


def swing(curve: Steps, start_s: float, end_s: float) -> float:
    """Highest less lowest value between two moments: another reading of fluctuation, beside the first."""
    values, _ = curve.within(start_s, end_s)
    return float(values.max() - values.min()) if values.size else 0.0


def thinned(curve: Steps, end_s: float, columns: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a picture of so many columns shows: the highest value within each, so that no peak is lost.

    Returns:
        float64[columns] times [s], float64[columns] values.
    """
    edges = np.linspace(0.0, end_s, columns + 1)
    highest = np.empty(columns)
    for column, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
        first = max(int(np.searchsorted(curve.times_s, start, side="right")) - 1, 0)
        last = int(np.searchsorted(curve.times_s, end, side="left"))
        highest[column] = curve.values[first : max(last, first + 1)].max()
    return edges[:-1], highest
