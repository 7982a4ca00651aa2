"""DIP Fig. 12: search time against microbatches, VLM-S and T2V-S: an exact solver, and semu's search.

The solver is OR-Tools' CP-SAT on the whole problem (orders, and a candidate for every stage pair); its time is that to
a proof. DIP has Z3 and Gurobi and gives them three hours; here every instance has ``LIMIT_S``, and after two instances
without a proof the larger ones are not tried. A search has no proof to end with: its time is that to a schedule within
1 % of the best that is known (of a longer search under another seed, of the solver, and of itself).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.paper._jobs import job_of, search_options
from benchmarks.paper._pictures import new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.searcher import SearchProblem
from semu.searcher.exact import ExactResult, solve_exact
from semu.searcher.job_search import job_problem
from semu.searcher.orders.budgeted import SearchResult
from semu.searcher.orders.interleave import evaluate
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.plain_jobs import plain_job

SETUPS = ("vlm-s", "t2v-s")
SIZES = (1, 2, 3, 4, 8, 16, 32)
CANDIDATES = 6
"""Ways to run a stage pair; fewer than the search's own ten, for the solver's sake."""
LIMIT_S, TIMEOUTS = 12.0, 2
WORK, MOST_ROLLOUTS = 2_000_000, 20_000
"""Rollouts of a search times stages of its problem, and rollouts at most; the longer search has twice as many."""
WORKERS = 2
"""Threads of both; DIP: 64."""
NEAR = 0.01
THEIR_SEARCH_S, THEIR_LAST = 10.0, 10
COLORS = {"vlm-s": "#0072B2", "t2v-s": "#D55E00"}


@dataclass(frozen=True)
class Point:
    """A number of microbatches.

    Attributes:
        setup: name. microbatches, stages: sizes. search_s: to within ``NEAR`` of ``best_s`` [s]; None: not reached.
        best_s: the best makespan known [s].
        exact_s: the solver's wall time [s]; None: not tried. is_proven: it ended with a proof.
        exact_best_s: makespan of the solver's schedule [s]; None: it has none.
    """

    setup: str
    microbatches: int
    stages: int
    search_s: float | None
    best_s: float
    exact_s: float | None
    is_proven: bool
    exact_best_s: float | None


def problem_of(setup: str, microbatches: int, choices: Choices) -> SearchProblem:
    """The first so many microbatches of a setup's first batch."""
    job = job_of(setup, choices)
    job = replace(job, training=replace(job.training, global_batch=microbatches))
    return job_problem(plain_job(job)[0], candidates=CANDIDATES, **search_options(job, choices))[1].problem


def measured(setup: str, sizes: Sequence[int], limit_s: float, work: int, choices: Choices) -> Iterator[Point]:
    """All sizes of a setup."""
    missed = 0
    for microbatches in sizes:
        problem = problem_of(setup, microbatches, choices)
        exact = solve_exact(problem, time_s=limit_s, workers=WORKERS) if missed < TIMEOUTS else None
        if exact is not None:
            missed = 0 if exact.is_optimal else missed + 1
        found = makespan_s(problem, exact)
        rollouts = min(work // problem.num_stages, MOST_ROLLOUTS)
        long = _searched(problem, 2 * rollouts, choices.search_seed.value + 1)
        own = _searched(problem, rollouts, choices.search_seed.value)
        best = min(long.solution.makespan_s, own.solution.makespan_s, *([found] if found is not None else []))
        yield Point(
            setup,
            microbatches,
            problem.num_stages,
            reached_s(own, (1 + NEAR) * best),
            best,
            exact.wall_s if exact is not None else None,
            exact is not None and exact.is_optimal,
            found,
        )


def _searched(problem: SearchProblem, rollouts: int, seed: int) -> SearchResult:
    return search_levels(problem, Budget(rollouts=rollouts, workers=WORKERS), seed=seed)


def reached_s(found: SearchResult, makespan_s: float) -> float | None:
    """When a search was first at a makespan or below [s]; None: never."""
    return next((one.time_s for one in found.curve if one.makespan_s <= makespan_s), None)


def makespan_s(problem: SearchProblem, found: ExactResult | None) -> float | None:
    """What the solver's orders and candidates really take [s]; None: it found none."""
    if found is None or not found.orders:
        return None
    return evaluate(problem, np.concatenate(found.orders), found.choice).makespan_s


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See ``_scripts.Script``."""
    sizes, limit_s, work = ((1, 2), 2.0, 2000) if quick else (SIZES, LIMIT_S, WORK)
    _searched(problem_of(SETUPS[0], 2, choices), 2, 0)  # compiles the kernels
    found = [point for setup in SETUPS for point in measured(setup, sizes, limit_s, work, choices)]
    return PaperResult(
        "fig12",
        "search time against microbatches: exact solver and search",
        "DIP Fig. 12",
        tuple(rows_of(found, limit_s)),
        (_draw(found, limit_s, out / "fig12.png"),),
        _text(found, limit_s),
    )


def rows_of(found: Sequence[Point], limit_s: float) -> list[PaperRow]:
    """Theirs beside ours."""
    rows = [
        PaperRow(
            "sizes for which the search takes less than 10 s",
            100.0,
            100 * sum(p.search_s is not None and p.search_s < THEIR_SEARCH_S for p in found) / len(found),
            "%",
            margin=0.0,
            note=f"to within {100 * NEAR:g} % of the best known, on {WORKERS} threads; DIP's 10 s are on 64",
        )
    ]
    for setup in SETUPS:
        own = [point for point in found if point.setup == setup]
        proven = [point.microbatches for point in own if point.is_proven]
        told = ", ".join(str(point.microbatches) for point in own if point.exact_s is not None)
        slowest = max((point.search_s for point in own if point.search_s is not None), default=None)
        rows += [
            PaperRow(
                f"{setup.upper()}: most microbatches that the exact solver finishes",
                float(THEIR_LAST),
                float(max(proven, default=0)),
                "",
                margin=0.2,
                note=f"CP-SAT within {limit_s:g} s on {WORKERS} threads, of the sizes {told}; DIP: Gurobi within 30 "
                "min on 64 threads. At the growth below, 30 min are worth some more microbatches",
            ),
            PaperRow(
                f"{setup.upper()}: longest time of the search up to {own[-1].microbatches} microbatches",
                None,
                slowest,
                "s",
                note="not reproducible to the digit: a wall time",
            ),
        ]
    solved = [point for point in found if point.is_proven and point.exact_best_s is not None]
    if solved:
        worst = max(point.best_s / (point.exact_best_s or point.best_s) for point in solved)
        rows.append(
            PaperRow("best known over the proven optimum, at most", None, worst, "", note=f"{len(solved)} instances")
        )
    growth = exponent([point for point in found if point.is_proven])
    if growth is not None:
        rows.append(
            PaperRow(
                "the solver's time grows with each microbatch by a factor of",
                None,
                growth,
                "",
                note="least squares over the logarithms of proven sizes of both setups: exponential, as DIP says",
            )
        )
    return rows


def exponent(found: Sequence[Point]) -> float | None:
    """Factor by which the solver's time grows with a microbatch; each setup has a line of its own, of one slope.

    None: fewer than two sizes of every setup.
    """
    x, y = [], []
    for setup in SETUPS:
        own = [(p.microbatches, np.log(p.exact_s)) for p in found if p.setup == setup and p.exact_s]
        if len(own) > 1:
            m, t = np.array(own).T
            x += (m - m.mean()).tolist()
            y += (t - t.mean()).tolist()
    return float(np.exp(np.dot(x, y) / np.dot(x, x))) if x else None


def _text(found: Sequence[Point], limit_s: float) -> str:
    lines = [
        f"Instances with {CANDIDATES} candidates for every stage pair. The solver has {limit_s:g} s for each; after "
        f"{TIMEOUTS} without a proof larger ones are not tried.",
        "",
        "| setup | microbatches | stages | search to within 1 % [s] | best known [s] | solver [s] | its schedule [s] |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for p in found:
        search = "not reached" if p.search_s is None else f"{p.search_s:.3f}"
        solver = "-" if p.exact_s is None else f"{p.exact_s:.2f}, " + ("proven" if p.is_proven else "no proof")
        theirs = "-" if p.exact_best_s is None else f"{p.exact_best_s:.4f}"
        lines.append(f"| {p.setup} | {p.microbatches} | {p.stages} | {search} | {p.best_s:.4f} | {solver} | {theirs} |")
    return "\n".join(lines)


def _draw(found: Sequence[Point], limit_s: float, path: Path) -> Path:
    figure, (axes,) = new_figure(7.8, 4.5)
    for setup in SETUPS:
        own = [point for point in found if point.setup == setup]
        color = COLORS[setup]
        searched = [(p.microbatches, max(p.search_s, 1e-4)) for p in own if p.search_s is not None]
        axes.plot(*zip(*searched, strict=True), marker="o", color=color, label=f"semu.search, {setup.upper()}")
        proven = [(p.microbatches, p.exact_s) for p in own if p.is_proven]
        if proven:
            label = f"CP-SAT to a proof, {setup.upper()}"
            axes.plot(*zip(*proven, strict=True), marker="s", linestyle="--", color=color, label=label)
        missed = [(p.microbatches, p.exact_s) for p in own if p.exact_s is not None and not p.is_proven]
        if missed:
            # beside one another, where both setups miss
            shift = 1.04 if setup == SETUPS[0] else 0.96
            x, y = np.array(missed).T
            axes.plot(
                x * shift, y, "x", color=color, markersize=9, markeredgewidth=2.2, label=f"no proof, {setup.upper()}"
            )
    axes.axhline(limit_s, color="#B00020", linewidth=1, linestyle=":")
    place = (found[-1].microbatches, limit_s)
    words, way = f"the solver's limit, {limit_s:g} s", {"ha": "right", "size": 8.5, "color": "#B00020"}
    axes.annotate(words, place, xytext=(0, 4), textcoords="offset points", **way)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(top=25 * limit_s)
    sizes = sorted({point.microbatches for point in found})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("microbatches")
    axes.set_ylabel("search time [s]")
    axes.grid(True, color="#e6e6e6", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8.5, loc="upper center", ncols=2)
    axes.set_title(f"How long a search takes, {WORKERS} threads", fontsize=11)
    return save(figure, path)
