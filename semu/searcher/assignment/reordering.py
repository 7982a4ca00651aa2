"""``assigned_iterations``: the samples of a file, iteration after iteration, assigned; on request reordered within
windows of iterations.

Which samples make an iteration is a matter of training, so that a window has to be asked for. Every sample is used
once, at most window - 1 iterations earlier or later than in the file. Each iteration keeps its number of samples. Of a
window's ways to deal its samples (that of the file; sizes alike in all iterations; samples of one size together) the
one whose assignments take the least time in all is used, under fitted costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from semu.checks import check_count
from semu.errors import ConfigError
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.costs import weighted
from semu.searcher.assignment.problem import I64

Window = list[tuple[I64, Assignment]]
"""Per iteration, positions in the file of its samples, and their assignment."""


def assigned_iterations(
    assigner: Assigner, source: SampleSource, window: int = 1, first: int = 0
) -> Iterator[tuple[I64, Assignment]]:
    """Assignments of a file's iterations; the same from whichever iteration they begin.

    Args:
        assigner: of the job; costs that are not fitted yet are fitted on all samples of the file.
        source: of samples. window: iterations among which samples may be exchanged; 1: none. first: iteration.
    Yields:
        Positions in the file of the samples of an iteration, int64[n], and their assignment.
    Raises:
        ConfigError: samples that cannot be assigned; ``window`` < 1.
    """
    check_count(window, "assignment.window")
    assigner.costs(source.samples)
    for begin in range(first - first % window, source.num_iterations, window):
        numbers = range(begin, min(begin + window, source.num_iterations))
        if len(numbers) == 1:
            yield _as_in_file(assigner, source, begin)
            continue
        yield from _reordered(assigner, source, numbers)[max(0, first - begin) :]


def _as_in_file(assigner: Assigner, source: SampleSource, number: int) -> tuple[I64, Assignment]:
    samples, ids, bounds = source.iteration(number)
    positions = source.first_sample(number) + np.arange(len(ids), dtype=np.int64)
    return positions, assigner(samples, ids, bounds=bounds)


def _reordered(assigner: Assigner, source: SampleSource, numbers: range) -> Window:
    """The iterations of a window, dealt so that they take the least time; of equal ways the first."""
    best = [_as_in_file(assigner, source, number) for number in numbers]
    shortest_s = _seconds(best)
    counts = [len(positions) for positions, _ in best]
    for dealt in _ways(assigner, source, np.concatenate([positions for positions, _ in best]), counts):
        try:
            found = [(own, assigner(source.samples.taken(own), [source.ids[n] for n in own])) for own in dealt]
        except ConfigError:  # more tokens than the microbatches of an iteration hold
            continue
        seconds = _seconds(found)
        if seconds < shortest_s:
            best, shortest_s = found, seconds
    return best


def _seconds(window: Window) -> float:
    """Time of the iterations, one after another, under fitted costs [s]."""
    return sum(float(found.fitted_s.max()) for _, found in window)


def _ways(assigner: Assigner, source: SampleSource, positions: I64, counts: Sequence[int]) -> Iterator[list[I64]]:
    """Ways to deal the samples of a window to its iterations: sizes alike in all, then sizes together.

    Args:
        positions: int64[n], in the file. counts: samples of each iteration.
    """
    costs = assigner.costs(source.samples)
    loads = weighted(costs.features(source.samples.taken(positions)), costs.per_rank[1])
    size = (loads / np.maximum(loads.max(axis=0), np.finfo(np.float64).tiny)).max(axis=1)
    by_size = positions[np.argsort(-size, kind="stable")]
    turns = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    whose = np.repeat(np.arange(len(counts)), counts)
    spread = whose[np.argsort(turns, kind="stable")]
    for iteration in (spread, whose):
        yield [np.sort(by_size[iteration == number]) for number in range(len(counts))]
