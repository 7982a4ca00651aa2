"""``AssignmentStudy``: methods of assignment on the same samples of one job, each simulated."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.errors import ConfigError
from semu.records import dataclass
from semu.searcher.assignment.assigner import Assigner, SampleSource, find_method
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.costs import SampleCosts
from semu.searcher.assignment.exact import ExactAssignment
from semu.searcher.assignment.export import figures
from semu.searcher.assignment.methods.table import METHODS
from semu.searcher.assignment.reordering import assigned_iterations
from semu.units import GIB, fit_columns

if TYPE_CHECKING:
    from semu.present.page import Page


@dataclass(frozen=True)
class MethodRow:
    """One method.

    Attributes:
        name: of it. found: its assignment; None: it cannot assign these, for the reason in ``refused``.
        seconds: that it took [s], costs fitted before.
    """

    name: str
    found: Assignment | None
    refused: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class AssignmentStudy:
    """Methods on the samples of an iteration.

    Attributes:
        source: of the samples. iteration: which one. rows: per method. costs: of samples.
        exact: what the exact solver says; None: it was not asked.
    """

    source: SampleSource
    iteration: int
    rows: tuple[MethodRow, ...]
    costs: SampleCosts
    exact: ExactAssignment | None = None

    @property
    def able(self) -> list[tuple[MethodRow, Assignment]]:
        """Methods that can assign these samples, fastest first."""
        rows = [(row, row.found) for row in self.rows if row.found is not None]
        return sorted(rows, key=lambda pair: pair[1].iteration_s)

    @property
    def best(self) -> Assignment:
        """The assignment with the shortest iteration."""
        return self.able[0][1]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        words = self.costs.provenance_of_rows
        return {
            "samples": self.source.path,
            "iteration": self.iteration,
            "iterations_in_the_file": self.source.num_iterations,
            "best": self.best.method,
            "methods": [{**figures(found), "seconds": row.seconds} for row, found in self.able],
            "refused": {row.name: row.refused for row in self.rows if row.found is None},
            "loads_s": self.best.loads_s,
            "exact": None
            if self.exact is None
            else {
                "fitted_pipeline_s": self.exact.time_s,
                "bound_s": self.exact.bound_s,
                "is_optimal": self.exact.is_optimal,
            },
            "costs": {
                "source": self.costs.source,
                "provenance": {word: words.count(word) for word in sorted({*words})} if len({*words}) > 1 else words[0],
                "residuals": [vars(own) for own in self.costs.residuals],
            },
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the files of the best assignment, and ``report.html``; the files.

        Raises:
            ConfigError: a folder or a file that cannot be written.
        """
        return [*self.best.save(folder), self.page().save(Path(folder) / "report.html")]

    def page(self) -> Page:
        """Methods, loads of the microbatches under each, and the best on a time axis, as one HTML file."""
        from semu.searcher.assignment.page import assignment_page  # circle: a page is of a whole study

        return assignment_page(self)

    def __repr__(self) -> str:
        return _text(self)


def study_methods(
    assigner: Assigner,
    source: SampleSource,
    methods: Sequence[str] | None = None,
    iteration: int = 0,
    progress: Callable[[str], None] | None = None,
    *,
    window: int = 1,
    exact_s: float | None = None,
) -> AssignmentStudy:
    """Assign the samples of an iteration by every method, and simulate each.

    Args:
        assigner: whose job and costs. source: of samples. methods: words of ``METHODS``; None: all that the model can
            use. iteration: which one of the source. progress: called with what is done.
        window: iterations among which samples may change places, as ``assigned_iterations``.
        exact_s: time for the exact solver, on its own deterministic clock [s]; None: it is not asked.
    Raises:
        ConfigError: a method that is asked for by name and cannot be used; too many samples for the exact solver; a
            window beside it, or beside several methods.
    """
    if window != 1 and exact_s is not None:
        raise ConfigError(
            "the exact solver assigns the samples of one iteration as the file has them",
            where="assignment.window",
            expected="1 beside --exact",
            got=window,
            nearest=1,
        )
    if window != 1 and (methods is None or len(methods) > 1):
        raise ConfigError(
            "methods side by side in an iteration to which each deals other samples of a window",
            where="assignment.window",
            expected="1 beside several methods, or one method",
            got=window,
            nearest=1,
        )
    say = progress if progress is not None else lambda _: None
    own, ids, bounds = source.iteration(iteration)
    say("fitting costs of samples")
    costs = assigner.costs(source.samples)
    rows = []
    for name in METHODS if methods is None else methods:
        try:
            find_method(assigner.job, name)
        except ConfigError as error:
            if methods is not None:
                raise
            rows.append(MethodRow(name, None, error.message))
            continue
        say(f"assigning by {name}")
        began = time.perf_counter()
        if window == 1:
            found = assigner(own, ids, bounds=bounds, method=name)
        else:
            dealing = Assigner(assigner.job, name, costs=costs, seed=assigner.seed)
            _, found = next(assigned_iterations(dealing, source, window, iteration))
        seconds = time.perf_counter() - began
        say(f"simulating {name}")
        found.estimate  # noqa: B018  # once, here, where progress is said
        rows.append(MethodRow(name, found, "", seconds))
    exact = None
    if exact_s is not None:
        say("solving exactly")
        began = time.perf_counter()
        best, exact = assigner.exact(own, ids, bounds=bounds, seconds=exact_s)
        rows.append(MethodRow(best.method, best, "", time.perf_counter() - began))
    return AssignmentStudy(source, iteration, tuple(rows), costs, exact)


def _text(study: AssignmentStudy) -> str:
    """The study for a terminal."""
    best = study.best
    modules = study.costs.modules
    head = (
        f"{len(best.ids):,} samples of {study.source.path} ({int(best.samples.lengths.sum()):,} tokens) to {best.dp} "
        f"replicas x {best.job.num_microbatches} microbatches, iteration {study.iteration} of "
        f"{study.source.num_iterations}"
    )
    if (slowdown := best.problem.slowdown).size and (slowdown != 1.0).any():
        head += "; speeds of replicas " + ", ".join(f"{1 / value:.3g}" for value in slowdown.ravel().tolist())
    heads = (
        "method",
        "iteration s",
        *(f"{name} max/mean" for name in modules),
        "replicas",
        "K",
        "deferred",
        "peak GiB",
    )
    cells = [heads]
    for _, found in study.able:
        cells.append(
            (
                found.method,
                f"{found.iteration_s:.4f}",
                *(f"{found.balance[name]:.3f}" for name in modules),
                f"{found.replica_balance:.3f}",
                str(found.num_microbatches),
                str(int(found.dealt.is_deferred.sum())),
                f"{max(found.estimate.peak_memory_bytes) / GIB:.2f}" + ("" if found.estimate.fits else " (too much)"),
            )
        )
    lines = [head, "", *fit_columns(cells, [number > 0 for number in range(len(heads))]), ""]
    lines += [f"{row.name}: {row.refused}" for row in study.rows if row.found is None]
    by_name = {found.method: found for _, found in study.able}
    if "order" in by_name and best.method != "order":
        gain = 100 * (1 - best.iteration_s / by_name["order"].iteration_s)
        lines.append(f"{best.method} takes {gain:.1f} % less time than the order of the file")
    bounds = ", ".join(f"{name} {value:.3f}" for name, value in best.balance_bound.items())
    lines.append(f"no assignment of these samples is below max/mean of {bounds} (the largest sample)")
    lines.append(f"nor, by fitted costs, below {best.bound_s:.4f} s for the pipeline (mean work of the busiest rank)")
    if study.exact is not None:
        exact, count = study.exact, best.job.num_microbatches
        proven = "which is optimal" if exact.is_optimal else "not proven optimal; --exact takes more seconds"
        lines.append(
            f"exact: {exact.time_s:.4f} s under fitted costs, {proven}; no assignment to {count} microbatches is "
            f"below {exact.bound_s:.4f} s"
        )
        above = ", ".join(
            f"{found.method} {100 * (found.fitted_s.max() / exact.time_s - 1):.1f} %"
            for _, found in study.able
            if found.method != "exact"
        )
        lines.append(f"above it: {above}")
    worst = max(study.costs.residuals, key=lambda own: own.rms)
    lines.append(
        f"costs of samples {study.costs.source}: at most {100 * worst.rms:.1f} % rms off on packs held out "
        f"({worst.module} {worst.phase})"
    )
    return "\n".join(lines)
