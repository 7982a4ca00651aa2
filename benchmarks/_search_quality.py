"""Rows of search.py about quality: searched schedules beside CP-SAT's, beside a long search, and beside lower bounds.

Instances are those of ``_search_instances``: batches of VLM-S, T2V-S (PP = 4) and VLM-L (PP = 8), with and without
memory that binds. Searches run on two workers for a wall time; so does CP-SAT, on the same instances in the same run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from _rows import Row
from _search_instances import load

from semu.searcher import SearchProblem
from semu.searcher.bounds import lower_bounds
from semu.searcher.exact import ExactResult, solve_exact
from semu.searcher.orders.budgeted import SearchResult
from semu.searcher.orders.interleave import evaluate
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget

WORKERS = 2
SETUPS = ("vlm-s", "t2v-s")
SMALL, LARGE = (2, 4), (6, 8, 10, 16, 32)
"""Microbatches for which the proven optimum is the goal, and for which CP-SAT's incumbent is."""
SAME = 1e-9
"""Relative difference of two makespans that count as equal: the time grid."""
GROWTH = (4, 8, 16, 32)
QUALITY = 0.01
"""Above the best known makespan: the fixed quality of the growth."""


def searched(problem: SearchProblem, seconds: float, seed: int = 0) -> SearchResult:
    """A search for a wall time."""
    return search_levels(problem, Budget(time_s=seconds, workers=WORKERS), seed=seed)


def exact_makespan(problem: SearchProblem, found: ExactResult) -> float:
    """What the solver's orders and candidates really take [s]: not above its own figure, which is in whole ticks."""
    if not found.orders:
        return math.inf
    return evaluate(problem, np.concatenate(found.orders), found.choice).makespan_s


def measure_against_exact(seeds: Sequence[int], microbatches: Sequence[int], exact_s: float) -> Iterator[Row]:
    """A row per instance: our makespan over CP-SAT's."""
    for name in SETUPS:
        for m in microbatches:
            for is_tight in (False, True):
                for seed in seeds:
                    problem = load(name, seed, m, is_tight=is_tight)
                    seconds = 0.2 if m in SMALL else 1.0
                    own = searched(problem, seconds).solution.makespan_s
                    found = solve_exact(problem, time_s=exact_s, workers=WORKERS)
                    theirs = exact_makespan(problem, found)
                    label = f"{name} seed {seed}, m={m}{', memory binds' if is_tight else ''}"
                    said = f"CP-SAT in {found.wall_s:.0f} s: " + (
                        "nothing" if theirs == math.inf else f"{theirs:.4g} s"
                    )
                    said += ", proven" if found.is_optimal else f", bound {found.bound_s:.4g} s"
                    value = own / theirs if theirs < math.inf else None
                    holds = own <= theirs * (1 + SAME) if found.is_optimal or m not in SMALL else None
                    if m in SMALL and not found.is_optimal:
                        said += " (no proof to compare with)"
                        holds = None if own <= theirs * (1 + SAME) else False
                    yield Row(f"{label}: {seconds:g} s over CP-SAT", value, "ratio", said, "<= 1", holds)


def measure_large(long_s: float) -> Iterator[Row]:
    """VLM-L: one second beside a long search, and beside the tightest bound."""
    for is_tight in (False, True):
        problem = load("vlm-l", 0, is_tight=is_tight)
        label = f"vlm-l, m=32{', memory binds' if is_tight else ''}, {np.count_nonzero(problem.exists)} stages"
        own = searched(problem, 1.0)
        best = min(searched(problem, long_s, seed=1).solution.makespan_s, own.solution.makespan_s)
        ratio = own.solution.makespan_s / best
        yield Row(
            f"{label}: 1 s over {long_s:g} s", ratio, "ratio", "the same search, longer", "<= 1.01", ratio <= 1.01
        )
        yield Row(f"{label}: wall time of the 1 s", own.time_s, "s", "asked for 1 s")
        bound = lower_bounds(problem)
        gap = 100 * (best / bound.value_s - 1)
        yield Row(f"{label}: best over the bound", gap, "%", f"bound {bound.name}", "<= 3", gap <= 3)


@dataclass(frozen=True)
class Growing:
    """Time to a fixed quality against microbatches.

    Attributes:
        name: of the setup. microbatches: sizes. seconds: median over seeds, per size [s].
    """

    name: str
    microbatches: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Slope of log time over log microbatches."""
        return float(np.polyfit(np.log(self.microbatches), np.log(self.seconds), 1)[0])


def measure_growth(quick: bool) -> list[Growing]:
    """How long a search takes to come within ``QUALITY`` of the best that a long one finds (DIP Fig. 12)."""
    found = []
    for name in SETUPS:
        seconds = []
        for m in GROWTH[: 2 if quick else None]:
            times = []
            for seed in range(1 if quick else 3):
                problem = load(name, seed, m)
                best = searched(problem, (1 if quick else 3) * max(1.0, m / 8), seed=9).solution.makespan_s
                run = searched(problem, (1 if quick else 3) * max(1.0, m / 8), seed=seed)
                reached = [one.time_s for one in run.curve if one.makespan_s <= (1 + QUALITY) * best]
                times.append(reached[0] if reached else run.time_s)
            seconds.append(float(np.median(times)))
        found.append(Growing(name, GROWTH[: len(seconds)], tuple(seconds)))
    return found


def measure_quality(quick: bool, growths: list[Growing] | None = None) -> Iterator[Row]:
    """All rows about quality. ``growths``: filled with what the picture shows."""
    searched(load("vlm-s", 0, 2), 0.5)  # compiles the kernels
    searched(load("vlm-s", 0, 2, is_tight=True), 0.5)
    began = time.perf_counter()
    if quick:
        yield from measure_against_exact((0,), (2, 6), 2.0)
    else:
        yield from measure_against_exact(range(2), SMALL, 60.0)
        yield from measure_against_exact((0,), LARGE, 60.0)
    yield from measure_large(5.0 if quick else 60.0)
    own = measure_growth(quick)
    if growths is not None:
        growths += own
    for growth in own:
        sizes = f"m = {growth.microbatches[0]} to {growth.microbatches[-1]}"
        value = growth.exponent
        yield Row(f"{growth.name}: time to within 1 % grows as m^x, x", value, "", sizes, "about 1", value <= 1.3)
    yield Row("quality, all of it", time.perf_counter() - began, "s", "wall time")


def draw(path: str, growths: Sequence[Growing]) -> None:
    """Time to the fixed quality against microbatches, and a line of slope 1.

    Args:
        path: PNG to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for growth, color in zip(growths, ("#1b6ca8", "#c1440e"), strict=False):
        label = f"{growth.name}: grows as m^{growth.exponent:.2f}"
        axes.plot(growth.microbatches, growth.seconds, marker="o", markersize=5, color=color, label=label)
        line = [growth.seconds[-1] * m / growth.microbatches[-1] for m in growth.microbatches]
        axes.plot(growth.microbatches, line, linestyle=":", color=color, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(growths[0].microbatches, [str(m) for m in growths[0].microbatches])
    axes.minorticks_off()
    axes.set_xlabel("microbatches (dotted: proportional)")
    axes.set_ylabel(f"wall time to within {100 * QUALITY:g} % of the best known [s]")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.set_title("How long the search takes, two workers, PP = 4", fontsize=11)
    figure.savefig(path, dpi=120, metadata={"Software": None})
