"""``Report``: the results of a simulation for people (``repr``), for programs (``to_json``) and on disk (``save``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.checks import check_member
from semu.files import make_folder, write_file
from semu.frames import Tabular, html_table, scalars
from semu.present.report_data import (
    ContentionSummary,
    FittingChange,
    IterationSamples,
    LayerRow,
    RankMemoryRow,
    ReportData,
    TopOperator,
)
from semu.present.report_text import render, render_provenance
from semu.present.summary import facts, summarize
from semu.records import dataclass

if TYPE_CHECKING:
    from semu.present.page import Page
    from semu.present.plots.report_plots import ReportPlots

__all__ = [
    "ContentionSummary",
    "FittingChange",
    "IterationSamples",
    "LayerRow",
    "RankMemoryRow",
    "Report",
    "TopOperator",
    "TraceDetail",
]


class TraceDetail(Enum):
    """What is written of a timeline for Perfetto: nothing, the stages of each rank, or layers and operators too."""

    NONE = "none"
    RANKS = "ranks"
    FULL = "full"
    JSON = "json"

    @property
    def file(self) -> str:
        """The file's name: ``trace.json`` for all of it unpacked."""
        return {"none": "", "json": "trace.json"}.get(self.value, "trace.json.gz")


@dataclass(frozen=True, repr=False)
class Report(ReportData, Tabular):
    """Result of ``semu.simulate``; its attributes are those of ``ReportData``."""

    def __repr__(self) -> str:
        return summarize(self)

    def _repr_html_(self) -> str:
        """For notebooks: the figures as a table."""
        return html_table(("", ""), list(facts(self)), self.title)

    def details(self) -> str:
        """The whole report as text: figures, where the time goes, memory of every rank, what costs most, provenance."""
        return render(self)

    def provenance_text(self) -> str:
        """Where the coefficients come from that most of the time depends on."""
        return render_provenance(self)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The figures as one flat record; what is a list or a table is left out."""
        return [{key: value for key, value in scalars(self.to_json()).items() if value is not None}]

    def save(self, directory: str | os.PathLike[str], *, trace: TraceDetail | str = TraceDetail.FULL) -> list[Path]:
        """Write ``result.json``, ``trace.json.gz``, ``timeline.png``, ``memory.png`` and ``report.html``.

        Args:
            directory: made if it is not there; existing files of these names are replaced, each at once when it is
                complete.
            trace: what of the timeline is written for Perfetto.
        Returns:
            The files written.
        Raises:
            ConfigError: another ``trace``, a directory that cannot be made or written to.
        """
        from semu.present.plots import draw_memory, draw_timeline
        from semu.present.traces import write_trace

        detail = check_member(trace, TraceDetail, "trace", "detail of a trace")
        folder, timeline, title, shown = make_folder(Path(directory)), self.timeline, self.title, self.title
        if self.num_distinct_replicas > 1:
            shown += f", replica {self.slowest_replica} (the slowest of {self.num_distinct_replicas} different ones)"
        writers: dict[str, Callable[[Path], object]] = {
            "result.json": lambda path: path.write_text(json.dumps(self.to_json(), indent=2) + "\n"),
            detail.file: lambda path: write_trace(
                path, timeline, title=title, metadata={"semu": self.job}, is_full=detail is not TraceDetail.RANKS
            ),
            "timeline.png": lambda path: draw_timeline(path, timeline, title=shown),
            "memory.png": lambda path: draw_memory(path, timeline, title=shown, peak_bytes=self.peak_memory_bytes),
        }
        written = [write_file(folder / name, write) for name, write in writers.items() if name]
        return [*written, self.page().save(folder / "report.html")]

    @property
    def plot(self) -> ReportPlots:
        """Figures of matplotlib: ``plot.timeline()``, ``plot.memory()``, ``plot.breakdown()``."""
        from semu.present.plots.report_plots import ReportPlots

        return ReportPlots(self)

    def page(self) -> Page:
        """One HTML file of all this: timeline, memory, tables; ``page().save(path)`` writes it."""
        from semu.present.page.results import report_page

        return report_page(self)

    def to_html(self) -> str:
        """The text of that file."""
        return self.page().to_html()
