"""``ReportPlots``: pictures of a report as figures of matplotlib (``report.plot``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semu.present.plots import style
from semu.present.plots.canvas import make_sheet
from semu.present.plots.memory import memory_sheet
from semu.present.plots.timeline import timeline_sheet
from semu.present.summary import seconds_of_parts
from semu.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from semu.present.report_data import ReportData

_ROW_IN = 0.34


class ReportPlots:
    """Figures of a report; a notebook shows them, ``savefig`` writes them.

    Matplotlib is imported when one is made.

    Args:
        report: whose.
    """

    def __init__(self, report: ReportData) -> None:
        self._report = report

    def timeline(self) -> Figure:
        """Stages of every pipeline rank over time [s]."""
        return timeline_sheet(self._report.timeline, self._report.title).figure

    def memory(self) -> Figure:
        """Allocated memory over time [GiB], by role, of at most eight ranks: those with the highest peaks."""
        report = self._report
        return memory_sheet(report.timeline, report.title, report.peak_memory_bytes).figure

    def breakdown(self) -> Figure:
        """Where the time of the mean rank goes, as bars [s]; what takes no time is left out."""
        report, total = self._report, self._report.iteration_time_s or 1.0
        parts = sorted(seconds_of_parts(report.breakdown_s), key=lambda part: part[1])
        sheet = make_sheet(
            max(1.2, _ROW_IN * len(parts)),
            report.title,
            f"where an iteration of {format_time(report.iteration_time_s)} goes, mean over ranks",
            {},
        )
        axes = sheet.axes(left_in=3.2)
        axes.barh([name for name, _ in parts], [time for _, time in parts], color=style.BLUE)
        for row, (_, time) in enumerate(parts):
            axes.text(time, row, f" {format_time(time)}, {100 * time / total:.1f} %", va="center")
        axes.set(xlabel="time [s]", xlim=(0, 1.2 * max((time for _, time in parts), default=1.0)))
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        return sheet.figure
