"""``ScheduleComparison``: a job under many schedules; for people (``repr``), for programs (``to_json``), on disk."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.errors import SemuError
from semu.files import make_folder, write_file, write_text
from semu.frames import Tabular, scalars
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.records import dataclass
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.stage_table import StageTable, table_csv
from semu.simulation.results.assemble import parallel_label
from semu.units import GIB, fit_columns, fit_lines, format_time

if TYPE_CHECKING:
    from semu.present.page import Page

_HEADS = ("schedule", "vpp", "iteration", "vs own", "bubble", "peak GiB", "rank", "fits", "", "placement", "makespan")
_RIGHT = (False, True, True, True, True, True, True, False, False, False, True)


@dataclass(frozen=True, eq=False)
class ComparedSchedule:
    """A job under a schedule.

    Attributes:
        name: of the schedule, or of its file. job: the run, cut for it: ``simulate(job)`` has the whole report.
        estimate: figures. stages: when every stage of the slowest replica runs.
    """

    name: str
    job: TrainingJob
    estimate: Estimate = field(repr=False)
    stages: StageTable = field(repr=False)

    @property
    def vpp(self) -> int:
        """Virtual stages per rank."""
        return self.job.parallel.vpp

    @property
    def placement(self) -> str:
        """Where the groups of layers lie: ``one-to-one``, or as ``parallel.placement``."""
        is_plain = self.vpp == 1 and self.job.parallel.placement == "circular"
        return "one-to-one" if is_plain else self.job.parallel.placement

    @property
    def peak_rank(self) -> int:
        """The pipeline rank that needs most memory."""
        return self.estimate.peak_memory_bytes.index(self.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Most memory of a rank [bytes]."""
        return max(self.estimate.peak_memory_bytes)

    @property
    def settings(self) -> dict[str, object]:
        """Keys of a run file that make this schedule's stage table, as ``training.schedule_file``, the same run."""
        made: dict[str, object] = {
            "training.global_batch": self.job.training.global_batch,
            "parallel.vpp": self.vpp,
            "parallel.placement": self.job.parallel.placement,
            "overlap.pipeline": self.job.overlaps_sends,
        }
        return made

    def is_same(self, job: TrainingJob) -> bool:
        """Whether another job runs the same schedule on the same cut."""
        mine, theirs = self.job, job
        return (
            mine.training.schedule_file is None
            and mine.training.schedule == theirs.training.schedule
            and mine.parallel == theirs.parallel
        )


@dataclass(frozen=True)
class RefusedSchedule:
    """A schedule that cannot run the job.

    Attributes:
        name: of the schedule. error: why: the rule in ``message``, ``expected``, ``got``.
    """

    name: str
    error: SemuError

    @property
    def rule(self) -> str:
        """The rule, what it expects and what came, in a line without the schedule's name."""
        expected = (
            None if self.error.expected is None else textwrap.shorten(self.error.expected, 100, placeholder=" ...")
        )
        details = [f"{word} {part}" for word, part in (("expected", expected), ("got", self.error.got)) if part]
        message = self.error.message.removeprefix(f"the schedule {self.name!r} ").removeprefix(f"{self.name}: ")
        message = message.removeprefix(f"{self.name} ") if message.startswith(f"{self.name} needs") else message
        return message + (f" ({', '.join(details)})" if details else "")


@dataclass(frozen=True, eq=False, repr=False)
class ScheduleComparison(Tabular):
    """A job under many schedules; ``comparison["zb-v"]`` is one of them.

    Attributes:
        rows: the job's own schedule, then the others in the order asked for. refused: those that cannot run it.
        asked: the names asked for; None: no names were given. warnings: choices made for the user, a sentence each.
    """

    rows: tuple[ComparedSchedule, ...]
    refused: tuple[RefusedSchedule, ...]
    asked: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def own(self) -> ComparedSchedule:
        """The job as it is."""
        return self.rows[0]

    @cached_property
    def best(self) -> ComparedSchedule | None:
        """The fastest of those that fit in memory, the first of equals; None: none fits."""
        fitting = [row for row in self.rows if row.estimate.fits]
        return min(fitting, key=lambda row: row.estimate.iteration_time_s, default=None)

    @property
    def chosen(self) -> tuple[ComparedSchedule, ...]:
        """The schedules that were asked for; all, where no names were given."""
        if self.asked is None:
            return self.rows
        others = [row for row in self.rows[1:] if row.name in self.asked]
        is_other = any(row.name == self.own.name for row in others)  # on another cut
        return (*([self.own] if self.own.name in self.asked and not is_other else ()), *others)

    def __getitem__(self, name: str) -> ComparedSchedule:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def label(self, row: ComparedSchedule) -> str:
        """A row's name, with its virtual stages where another row has the same name."""
        names = [other.name for other in self.rows]
        return row.name if names.count(row.name) == 1 else f"{row.name}-vpp{row.vpp}"

    @property
    def title(self) -> str:
        """What is compared."""
        job = self.own.job
        return (
            f"{job.model.name} on {job.cluster.label()}, {parallel_label(job)}, "
            f"{job.num_microbatches} microbatches per replica"
        )

    # -- for people ----------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        own_s = self.own.estimate.iteration_time_s
        lines = fit_columns([_HEADS, *(self._cells(row, own_s) for row in self.rows)], _RIGHT)
        return fit_lines("\n".join([self.title, "", *lines, "", *self._notes()]))

    def _cells(self, row: ComparedSchedule, own_s: float) -> tuple[str, ...]:
        estimate = row.estimate
        return (
            row.name,
            str(row.vpp),
            format_time(estimate.iteration_time_s),
            "" if row is self.own else f"{estimate.iteration_time_s / own_s - 1:+.1%}",
            f"{estimate.bubble_ratio:.1%}",
            f"{row.peak_bytes / GIB:.2f}",
            str(row.peak_rank),
            "yes" if estimate.fits else "no",
            self._marks(row),
            row.placement,
            format_time(estimate.makespan_s),
        )

    def _marks(self, row: ComparedSchedule) -> str:
        return ", ".join(word for word, marked in (("own", self.own), ("best", self.best)) if row is marked)

    def _notes(self) -> Iterator[str]:
        have = f"{self.own.estimate.capacity_bytes / GIB:.2f} GiB"
        if self.best is None:
            yield f"none of them fits in the {have} of a device"
        else:
            gain = self.own.estimate.iteration_time_s / self.best.estimate.iteration_time_s
            against = (
                "the run's own" if self.best is self.own else f"{gain:.2f}x as fast as the run's own {self.own.name}"
            )
            yield f"best: {self.best.name}, the fastest that fits in {have}; {against}"
        yield "rank: the one that needs most memory; vs own: change of the iteration time"
        tried = {*(row.name for row in self.rows), *(other.name for other in self.refused)}
        left = [name for name in ALL_SCHEDULES if name not in tried]
        if left and self.asked is None:
            yield f"not compared: {', '.join(left)} (--compare all)"
        by_rule: dict[str, list[str]] = {}
        for other in self.refused:
            by_rule.setdefault(other.rule, []).append(other.name)
        for rule, names in by_rule.items():
            yield f"not run: {', '.join(names)}: {rule}"

    # -- for programs --------------------------------------------------------------------------------------------
    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each schedule that runs, in order."""
        return [{**scalars(self._row_json(row)), "peak_memory_bytes": row.peak_bytes} for row in self.rows]

    def to_json(self) -> dict[str, object]:
        """The table as JSON; rows in order, the run's own first."""
        return {
            "title": self.title,
            "own": self.label(self.own),
            "best": None if self.best is None else self.label(self.best),
            "capacity_bytes": self.own.estimate.capacity_bytes,
            "schedules": [self._row_json(row) for row in self.rows],
            "refused": [
                {"name": other.name, "rule": other.rule, "error": other.error.to_json()} for other in self.refused
            ],
            "warnings": list(self.warnings),
        }

    def _row_json(self, row: ComparedSchedule) -> dict[str, object]:
        estimate, own_s = row.estimate, self.own.estimate.iteration_time_s
        family = ALL_SCHEDULES.get(row.name)
        return {
            "name": row.name,
            "label": self.label(row),
            "is_own": row is self.own,
            "is_best": row is self.best,
            "vpp": row.vpp,
            "placement": row.placement,
            "splits_backward": row.stages.schedule.splits_backward,
            "source": None if family is None else family.source,
            "iteration_time_s": estimate.iteration_time_s,
            "difference_s": estimate.iteration_time_s - own_s,
            "makespan_s": estimate.makespan_s,
            "bubble_ratio": estimate.bubble_ratio,
            "mfu": estimate.mfu,
            "peak_memory_bytes": list(estimate.peak_memory_bytes),
            "peak_rank": row.peak_rank,
            "fits": estimate.fits,
        }

    # -- on disk -------------------------------------------------------------------------------------------------
    def to_csv(self) -> str:
        """The stage tables of the schedules that were asked for (``semu.schedule.stage_table``); with one of them, the
        file is a ``training.schedule_file`` under that row's ``settings``."""
        return table_csv((self.label(row), row.stages) for row in self.chosen)

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write ``result.json``, ``schedules.png``, ``report.html`` and a stage table per schedule, ``NAME.csv``.

        Args:
            directory: made if it is not there; files of these names are replaced.
        Returns:
            The files written.
        Raises:
            ConfigError: the directory cannot be made or written to.
        """
        folder = make_folder(Path(directory))
        document = json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"
        return [
            write_text(folder / "result.json", document),
            self.draw(folder / "schedules.png"),
            self.page().save(folder / "report.html"),
            *(
                write_text(folder / f"{self._file_name(row)}.csv", table_csv([(self.label(row), row.stages)]))
                for row in self.rows
            ),
        ]

    def page(self) -> Page:
        """The schedules as a table, the run's own and the best on one time axis, as one HTML file."""
        from semu.present.page import Column, Page
        from semu.present.page.results import add_timelines
        from semu.simulation import simulate

        page = Page(f"Pipeline schedules: {self.title}")
        said = [
            {
                **self._row_json(row),
                "peak": max(row.estimate.peak_memory_bytes),
                "fits": "yes" if row.estimate.fits else "no",
            }
            for row in self.rows
        ]
        columns = (
            Column("label", "schedule"),
            Column("iteration_time_s", "iteration [s]", 4, is_bar=True),
            Column("bubble_ratio", "bubble [%]", 1, 0.01),
            Column("mfu", "MFU [%]", 1, 0.01),
            Column("peak", "peak [GiB]", 2, GIB),
            Column("fits", "fits"),
            Column("source", "source"),
        )
        page.add_table("Schedules", said, columns)
        shown = [self.own] if self.best in (None, self.own) else [self.own, self.best]
        add_timelines(page, [(self.label(row), simulate(row.job).timeline) for row in shown if row is not None])
        page.add_list("Cannot run", [f"{one.name}: {one.rule}" for one in self.refused])
        page.add_list("Notes", self.warnings)
        return page

    def _file_name(self, row: ComparedSchedule) -> str:
        """Name of a row's stage table; ``own-NAME`` for a schedule from a file."""
        if row.job.training.schedule_file is not None:
            return f"own-{Path(row.name).stem}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.label(row)).strip("-")[:80]

    def draw(self, path: str | os.PathLike[str]) -> Path:
        """Draw all schedules below one another on one time axis, as a PNG.

        Raises:
            ConfigError: the file cannot be written.
        """
        from semu.present.plots import ScheduleRow, draw_schedules

        rows = []
        for row in self.rows:
            name = row.name + (f" ({marks})" if (marks := self._marks(row)) else "")
            rows.append(ScheduleRow(row.stages.evaluation(name), row.stages.arrays, _note(row)))
        return write_file(
            Path(path),
            lambda file: draw_schedules(
                file,
                rows,
                title=f"Pipeline schedules: {self.title}",
                subtitle="slowest replica; beside each: iteration time, most memory of a rank (> x: a device has x)",
            ),
        )


def _note(row: ComparedSchedule) -> str:
    chunks = f"vpp {row.vpp}, " if row.vpp > 1 else ""
    room = "" if row.estimate.fits else f" > {row.estimate.capacity_bytes / GIB:.1f}"
    return f"{chunks}{format_time(row.estimate.iteration_time_s)}, {row.peak_bytes / GIB:.4g} GiB{room}"
