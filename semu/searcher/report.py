"""``SearchReport``: a job's search, beside Megatron-LM's schedule and the heuristic's; text, files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.files import make_folder, write_file
from semu.frames import Tabular, scalars
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.present.report import Report
from semu.records import dataclass
from semu.schedule.schedule import Schedule
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.orders.budgeted import SearchResult
from semu.searcher.orders.loop import Incumbent
from semu.searcher.partitioning import Partition
from semu.searcher.problem.build import JobProblem
from semu.searcher.problem.search_problem import Solution
from semu.units import GIB, fit_columns, fit_lines

if TYPE_CHECKING:
    from semu.present.page import Page
    from semu.searcher.starts import Start


@dataclass(frozen=True, eq=False)
class SearchReport(Tabular):
    """Result of ``semu.search``.

    Attributes:
        job: without its layout and schedule. changes: what that changed, by key of the run file; None: the key goes.
        partition: chunks and sub-microbatches.
        plan: the schedule with all that it is a schedule of; ``semu.simulate(job, plan=...)`` gives ``report``.
        report: full simulation of it. heuristic: the heuristic's schedule, before any search.
        baseline: of Megatron-LM's; None: it cannot run the job.
        limit_bytes: memory of every rank. problem: what was searched, under the limits of the schedule found.
        solution: the schedule as the search sees it, with its lower bound. bound_name: which bound that is.
        result: how the search went. prepare_s: time for Megatron-LM's schedule and the candidates [s].
        ordered: Megatron-LM's cut and order with the memory strategies, of those that the search may use, that fit
            best: what is gained over it is gained by cut and order alone. None: nothing fits, or it cannot run the job.
        is_as_asked: modules have the sub-microbatches and segments that the caller gave, if any; False: Megatron-LM's
            cut, or that of the explored order, which has others, is faster.
        explored: of the fastest explored schedule with whole backwards; None: nobody asked, or none fits.
        assigned: the samples that it is a schedule for; None: the job's own batch.
    """

    job: TrainingJob
    changes: Mapping[str, object]
    partition: Partition
    plan: StagePlan
    report: Report
    heuristic: Start
    baseline: Report | None
    limit_bytes: int
    problem: JobProblem
    solution: Solution
    bound_name: str
    result: SearchResult
    prepare_s: float
    ordered: Start | None = None
    is_as_asked: bool = True
    explored: Report | None = None
    assigned: Assignment | None = None

    @property
    def default(self) -> Report:
        """Full simulation of the heuristic's schedule; made when it is asked for."""
        return self.heuristic.report

    @property
    def alike(self) -> Report | None:
        """The same of ``ordered``."""
        return None if self.ordered is None else self.ordered.report

    @property
    def schedule(self) -> Schedule:
        """Orders of stages."""
        assert self.plan.orders is not None
        return self.plan.orders

    @property
    def curve(self) -> tuple[Incumbent, ...]:
        """Best makespans over time."""
        return self.result.curve

    @property
    def bound(self) -> float:
        """No schedule of these chunks, parts and candidates ends before [s]; one of another cut may."""
        return self.solution.lower_bound_s

    @property
    def gap(self) -> float:
        """Makespan over the lower bound, less one."""
        return self.solution.gap

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each schedule of the table: Megatron-LM's, its order with the best recomputation, the
        heuristic's, and the one found; those that cannot run are left out."""
        return [
            {"schedule": name, **scalars(_figures(report)), "peak_memory_bytes": max(report.peak_memory_bytes)}
            for name, report in self._reports()
            if report is not None
        ]

    @property
    def gain(self) -> float | None:
        """Megatron-LM's time over the schedule's; None: it cannot run the job."""
        return self._speed_over(self.baseline)

    @property
    def gain_alike(self) -> float | None:
        """The same of Megatron-LM's order with the recomputation that fits best; None: none fits."""
        return self._speed_over(None if self.ordered is None else self.ordered.estimate)

    def gain_text(self) -> str:
        """Both in a sentence; empty: Megatron-LM cannot run the job."""
        if self.baseline is None or self.gain is None:
            return ""
        said = "" if self._holds(self.baseline) else " (which does not fit)"
        if self.gain_alike is not None:
            said += f"; {self.gain_alike:.3f} x its speed with the recomputation that fits best"
        return f"{self.gain:.3f} x Megatron-LM's speed{said}"

    def _speed_over(self, other: Report | Estimate | None) -> float | None:
        own = self.report.iteration_time_s
        return None if other is None or not own > 0 else other.iteration_time_s / own

    def _reports(self) -> list[tuple[str, Report | Estimate | None]]:
        """The rows of the table; None: it cannot run."""
        alike = [] if self.ordered is None else [("its order, best recompute", self.ordered.estimate)]
        explored = [] if self.explored is None else [("explored", self.explored)]
        made = ("heuristic", self.heuristic.estimate), ("search", self.report)
        return [("Megatron-LM", self.baseline), *alike, *explored, *made]

    def _holds(self, report: Report | Estimate) -> bool:
        """Whether a schedule keeps the limits of the search."""
        return report.fits and max(report.peak_memory_bytes) <= self.limit_bytes

    def to_json(self) -> dict[str, object]:
        """Everything but timelines; wall times only of a search that a time limited, so that one with the same seed and
        rollouts gives the same bytes again."""
        found = self.result
        timed = not found.is_reproducible
        return {
            "iteration_time_s": self.report.iteration_time_s,
            "makespan_s": self.solution.makespan_s,
            "lower_bound_s": self.bound,
            "bound": self.bound_name,
            "gap": self.gap,
            "baseline": None if self.baseline is None else _figures(self.baseline),
            "baseline_alike": None if self.ordered is None else _figures(self.ordered.estimate),
            **({} if self.explored is None else {"explored": _figures(self.explored)}),
            "heuristic": _figures(self.heuristic.estimate),
            "search": _figures(self.report),
            "limit_bytes": self.limit_bytes,
            "is_as_asked": self.is_as_asked,
            "partition": self.partition.to_json(),
            "changes": dict(self.changes),
            **({} if self.assigned is None else {"assigned": self.assigned.summary()}),
            "strategy": found.strategy,
            "objective": found.objective.value,
            "seed": found.seed,
            "workers": found.workers,
            "rollouts": found.rollouts,
            "moves": found.moves,
            "ended_by": found.ended_by,
            "is_reproducible": found.is_reproducible,
            "prepare_s": self.prepare_s if timed else None,
            "search_s": found.time_s if timed else None,
            "curve": [
                {
                    "time_s": one.time_s if timed else None,
                    "rollouts": one.rollouts,
                    "moves": one.moves,
                    "makespan_s": one.makespan_s,
                }
                for one in found.curve
                if one.makespan_s < float("inf")
            ],
        }

    def __repr__(self) -> str:
        found = self.result
        rows = [("schedule", "iteration", "bubble", "MFU", "peak memory", "on rank")]
        for name, report in self._reports():
            if report is None:
                rows.append((name, "cannot run", "", "", "", ""))
                continue
            peaks = report.peak_memory_bytes
            note = "" if self._holds(report) else " (does not fit)"
            rows.append(
                (
                    name,
                    f"{report.iteration_time_s:.4f} s",
                    f"{100 * report.bubble_ratio:.1f} %",
                    f"{100 * report.mfu:.1f} %",
                    f"{max(peaks) / GIB:.2f} GiB{note}",
                    str(peaks.index(max(peaks))),
                )
            )
        lines = fit_columns(rows, (False, True, True, True, True, True))
        why = "interrupted" if found.ended_by == "interrupt" else "a time limit"
        again = (
            "reproducible with this seed and as many workers" if found.is_reproducible else f"{why}: not reproducible"
        )
        lines += [
            *self.sentences(),
            f"{found.rollouts} rollouts and {found.moves} moves in {found.time_s:.2f} s with {found.workers} "
            f"worker{'s' if found.workers > 1 else ''}, ended by {found.ended_by}; {again}",
            *self.partition.lines(),
        ]
        return fit_lines("\n".join(lines))

    def sentences(self) -> list[str]:
        """What is gained, whether the cut is as asked, the pipeline's time and how far it may be from the best."""
        lines = [] if self.gain is None else [self.gain_text()]
        if self.assigned is not None:
            told = self.assigned.summary()
            lines.append(f"{told['samples']} samples, assigned by {told['method']}; {told['deferred']} are deferred")
        if not self.is_as_asked:
            whose = (
                "Megatron-LM's cut" if self.explored is None else "The cut of Megatron-LM, or of the explored order,"
            )
            lines.append(f"{whose} is faster than the one asked for: sub-microbatches and segments are its own")
        makespan, counted = self.report.timeline.makespan_s, self.solution.makespan_s
        pipeline = f"pipeline {makespan:.4f} s"
        if makespan != counted:  # several replicas, sends that do not overlap, waits for parameters
            pipeline += f"; as the search counts it (sends overlap, stages as on the slowest replica) {counted:.4f} s"
        so_counted = ", so counted" if makespan != counted else ""
        return [
            *lines,
            pipeline,
            f"at most {100 * self.gap:.2f} % above the best order of this cut into stages with these candidates "
            f"(no such order is faster than {self.bound:.4f} s{so_counted}); other cuts are not bounded",
        ]

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write ``schedule.json``, ``result.json``, ``timeline.png`` (before and after), ``memory.png`` (the fullest
        rank before and after), ``curve.png`` and ``report.html``; of assigned samples, their files too.

        Raises:
            ConfigError: the folder cannot be written.
        """
        folder = make_folder(Path(directory))
        return [
            *([] if self.assigned is None else self.assigned.save(folder)),
            *(write_file(folder / name, write) for name, write in self._writers()),
            self.page().save(folder / "report.html"),
        ]

    def page(self) -> Page:
        """The page that ``save`` writes as ``report.html``."""
        from semu.present.page import Page
        from semu.present.page.results import add_breakdown, add_memory

        page = Page(f"{self.job.model.name}: searched schedule", self.sentences())
        self.add_to(page)
        add_breakdown(page, self.report)
        add_memory(page, self.report)
        page.add_list("Notes", [*self.partition.lines(), *self.report.warnings])
        return page

    def add_to(self, page: Page) -> None:
        """Add schedules, their timelines on one axis, and how the search went."""
        from semu.present.page import Column
        from semu.present.page.results import add_timelines
        from semu.searcher.pages import FIGURES, add_curve, yes

        rows = [{**row, "fits": yes(fits=bool(row["fits"]))} for row in self.to_dicts()]
        page.add_table("Schedules", rows, (Column("schedule", "schedule"), *FIGURES))
        name, before = ("Megatron-LM", self.baseline) if self.baseline else ("heuristic", self.default)
        add_timelines(page, [(name, before.timeline), ("search", self.report.timeline)])
        points, end, across = self._spent()
        add_curve(page, [one for one in points if one[1] < float("inf")], end, self.bound, across)

    def _spent(self) -> tuple[list[tuple[float, float]], float, str]:
        """What was spent until each incumbent and its makespan, what was spent in all, and what that is: rollouts and
        moves, or seconds of a search that a time limited."""
        found = self.result
        if found.is_reproducible:
            points = [(float(one.rollouts + one.moves), one.makespan_s) for one in self.curve]
            return points, float(found.rollouts + found.moves), "rollouts and moves"
        return [(one.time_s, one.makespan_s) for one in self.curve], found.time_s, "time [s]"

    def _writers(self) -> list[tuple[str, Callable[[Path], None]]]:
        from semu.present.plots.search import draw_curve, draw_fullest, draw_timelines

        before_name, before = ("Megatron-LM", self.baseline) if self.baseline else ("heuristic", self.default)
        pair = ((before_name, before.timeline), ("search", self.report.timeline))
        peaks = before.peak_memory_bytes, self.report.peak_memory_bytes
        title = f"{self.job.model.name}: {before_name} and searched schedule"
        said = f"{self.job.model.name}: search by {self.result.strategy}, seed {self.result.seed}"
        document = {**self.to_json(), "report": self.report.to_json()}
        points, spent, _ = self._spent()
        ends = (spent, self.solution.makespan_s)
        curve = partial(draw_curve, points=points, end=ends, in_seconds=not self.result.is_reproducible)
        fullest = partial(draw_fullest, timelines=pair)
        return [
            ("schedule.json", lambda path: _write(path, self.plan.to_json())),
            ("result.json", lambda path: _write(path, json.dumps(document, indent=2, allow_nan=False) + "\n")),
            ("timeline.png", partial(draw_timelines, timelines=pair, title=title)),
            ("memory.png", partial(fullest, limit_bytes=self.limit_bytes, peak_bytes=peaks, title=title)),
            ("curve.png", partial(curve, bound_s=self.bound, title=said)),
        ]


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _figures(report: Report | Estimate) -> dict[str, object]:
    return {
        "iteration_time_s": report.iteration_time_s,
        "bubble_ratio": report.bubble_ratio,
        "mfu": report.mfu,
        "peak_memory_bytes": list(report.peak_memory_bytes),
        "fits": report.fits,
    }
