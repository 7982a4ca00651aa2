"""Slow and obvious versions of the engine's kernels, in plain Python: exact numbers, sorted events, no arrays.

Times are whole numbers of grid steps (2^-40 s), so that nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from math import inf

GRID_STEPS_PER_S = 2**40


def grid_steps(time_s: float) -> int:
    """Grid steps of a time on the grid; fails for one that is not."""
    steps = Fraction(time_s) * GRID_STEPS_PER_S
    assert steps.denominator == 1
    return steps.numerator


def roofline_steps(amounts: Sequence[float], rates: Sequence[float], t0: float, p: float) -> Decimal:
    """``t0 + (sum of (amount / rate)^p)^(1/p)`` in grid steps, to fifty digits, not yet rounded to a whole number."""
    with localcontext(prec=50):
        terms = [Decimal(a) / Decimal(r) for a, r in zip(amounts, rates, strict=True) if a != 0]
        if not terms:
            norm = Decimal(0)
        elif p == inf:
            norm = max(terms)
        else:
            norm = sum((term ** Decimal(p) for term in terms), Decimal(0)) ** (1 / Decimal(p))
        return (Decimal(t0) + norm) * GRID_STEPS_PER_S


def round_half_even(value: Decimal) -> int:
    return int(value.to_integral_value(ROUND_HALF_EVEN))


def fixed_order(
    streams: Sequence[Sequence[int]],
    preds: Sequence[Sequence[int]],
    latency: Sequence[float],
) -> dict[int, tuple[float, float]]:
    """Start and end of every node that can be timed: whatever is ready is timed, until nothing is."""
    before = {node: list(preds[node]) for stream in streams for node in stream}
    for stream in streams:
        for earlier, later in pairwise(stream):
            before[later].append(earlier)
    times: dict[int, tuple[float, float]] = {}
    waiting = list(before)
    while ready := [node for node in waiting if all(other in times for other in before[node])]:
        for node in ready:
            start = max((times[other][1] for other in before[node]), default=0)
            times[node] = start, start + latency[node]
        waiting = [node for node in waiting if node not in times]
    return times


def memory_curve(
    start: Sequence[float],
    end: Sequence[float],
    uses: Sequence[Sequence[int]],
    sizes: Sequence[int],
    kept: Sequence[bool] | None = None,
    initial: int = 0,
    is_there_before: Sequence[bool] | None = None,
) -> list[tuple[float, int, int]]:
    """(time, lowest, highest) live bytes at each time at which something happens, from sorted events.

    ``uses[s]`` are the operators that touch storage ``s``; it lives from the first start to the last end among them.
    Operators must take time: then all frees of a moment come before all of its allocations.
    """
    assert all(a < b for a, b in zip(start, end, strict=True))
    events = []
    for storage, size in enumerate(sizes):
        if is_there_before is None or not is_there_before[storage]:
            events.append((min(start[op] for op in uses[storage]), 1, size))
        if kept is None or not kept[storage]:
            events.append((max(end[op] for op in uses[storage]), 0, -size))
    live = initial
    curve = []
    for moment in sorted({*start, *end}):
        live += sum(size for time, kind, size in events if time == moment and kind == 0)
        lowest = live
        live += sum(size for time, kind, size in events if time == moment and kind == 1)
        curve.append((moment, lowest, live))
    return curve
