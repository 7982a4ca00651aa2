"""``report_page``: the page of one simulated iteration; sections that pages of other results have too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from semu.present.page.page import Column, Page
from semu.present.page.timelines import left_out, timeline_data
from semu.present.summary import facts, seconds_of_parts
from semu.units import GIB, format_time

if TYPE_CHECKING:
    from semu.engine.timeline import IterationTimeline
    from semu.present.report_data import ReportData

_MIB = 2.0**20
OPERATORS = (
    Column("path", "operator"),
    Column("phase", "phase"),
    Column("kind", "kind"),
    Column("time_s", "time [s]", 4, is_bar=True),
    Column("share", "share [%]", 1, 0.01),
    Column("calls", "calls", 0),
    Column("bound", "bound by"),
)
_KINDS = ("parameters", "gradients", "optimizer", "activations", "workspace", "communication", "reserve", "other")


def report_page(report: ReportData) -> Page:
    """Figures, timeline, memory, where the time goes, operators, ranks, settings and provenance of a report."""
    page = Page(report.title, report.warnings[:1] if not report.fits else ())
    page.add_facts("At a glance", list(facts(report)))
    add_timelines(page, [(report.title, report.timeline)], _whose(report))
    add_breakdown(page, report)
    add_memory(page, report)
    page.add_table("Operators by time", [dict(vars(row)) for row in report.top_operators], OPERATORS)
    add_settings(page, report)
    page.add_list("Notes", report.warnings)
    return page


def add_timelines(
    page: Page, runs: Sequence[tuple[str, IterationTimeline]], note: str = "", heading: str | None = None
) -> None:
    """Runs on one time axis, with the memory of a rank below.

    Args:
        note: below the heading. heading: None: what is shown.
    """
    said = "; ".join(
        f"{name}: {len(timeline.ranks)} pipeline ranks, iteration {format_time(timeline.iteration_time_s)}, "
        f"bubble {timeline.bubble_ratio:.1%}"
        for name, timeline in runs
    )
    hidden = [words for _, timeline in runs if (words := left_out(timeline))]
    data = timeline_data(runs, page.arrays)
    is_bare = all(rank.is_bare for _, timeline in runs for rank in timeline.ranks)
    shown = "Timeline" if is_bare else "Timeline and memory"
    page.add_chart(heading or shown, "timeline", data, said, "; ".join([note] * bool(note) + hidden))


def _whose(report: ReportData) -> str:
    if report.num_distinct_replicas > 1:
        return f"replica {report.slowest_replica}, the slowest of {report.num_distinct_replicas} different ones"
    return ""


def add_breakdown(page: Page, report: ReportData) -> None:
    """Where the time of the mean rank goes, as bars."""
    total = report.iteration_time_s or 1.0
    bars = sorted(seconds_of_parts(report.breakdown_s), key=lambda one: -one[1])
    page.add_bars(
        "Where the time goes", [(name, time, f"{time:.4g} s, {100 * time / total:.1f} %") for name, time in bars]
    )


def add_memory(page: Page, report: ReportData) -> None:
    """Every rank's memory at its peak by kind, and what is left."""
    rows: list[dict[str, object]] = []
    for rank, (kinds, held) in enumerate(zip(report.memory, report.held_memory_bytes, strict=True)):
        own = {**kinds._asdict(), **vars(report.ranks[rank]), "rank": rank, "held": held}
        rows.append({**own, "left": report.capacity_bytes - held})
    columns = [Column("rank", "rank", 0), Column("chunks", "chunks")]
    columns += [Column(kind, f"{kind} [GiB]", 2, GIB) for kind in _KINDS if any(_size(row, kind) for row in rows)]
    columns += [Column("held", "all [GiB]", 2, GIB, is_bar=True), Column("left", "left [GiB]", 2, GIB)]
    page.add_table("Memory at the peak of every rank", rows, [*columns, Column("peak_stage", "peak in")])


def _size(row: Mapping[str, object], kind: str) -> float:
    value = row.get(kind)
    return value if isinstance(value, int | float) else 0.0


def add_settings(page: Page, report: ReportData) -> None:
    """Settings with where they come from, and the share of time by provenance of coefficients."""
    if report.settings:
        rows = [
            {"key": key, "value": _word(entry.get("value")), "source": entry.get("source")}
            for key, entry in report.settings.items()
        ]
        page.add_table("Settings", rows, (Column("key", "key"), Column("value", "value"), Column("source", "from")))
    shares = sorted(report.provenance.items(), key=lambda item: -item[1])
    page.add_bars(
        "Coefficients by origin", [(name, share, f"{100 * share:.1f} % of the time") for name, share in shares]
    )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
