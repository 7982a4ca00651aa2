"""``loop_page``: a training loop that was planned iteration by iteration, on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semu.present.page import Column, Page
from semu.present.page.results import add_timelines
from semu.units import GIB

if TYPE_CHECKING:
    from semu.searcher.planner.training_report import TrainingReport

MOST_ROWS = 5000
_COLUMNS = (
    Column("outcome", "plan from"),
    Column("planned_s", "plan [s]", 4, is_bar=True),
    Column("heuristic_s", "heuristic [s]", 4),
    Column("megatron_s", "Megatron-LM [s]", 4),
    Column("alike_s", "its order, best recompute [s]", 4),
    Column("gain", "x Megatron-LM", 3),
    Column("latency_s", "planned in [s]", 3),
    Column("stall_s", "waited [s]", 3),
    Column("rollouts", "rollouts", 0),
    Column("peak_memory_bytes", "peak [GiB]", 2, GIB),
    Column("fits", "fits"),
    Column("error", "error"),
)


def loop_page(report: TrainingReport) -> Page:
    """Times of all iterations under each schedule, what planning took, some iterations stage by stage, and a table."""
    document = report.to_json()
    page = Page(
        f"{report.model}: a training loop, planned iteration by iteration", report.summary() if report.rows else ()
    )
    if len(report.rows) > 1:
        _add_lines(page, report)
    if report.rows:
        outcomes = [(name, float(count), f"{count:,}") for name, count in report.counts.items()]
        page.add_bars("Where plans come from", outcomes)
    for one in report.shown:
        note = f"{one.why}; Megatron-LM's schedule above the plan, on one time axis"
        add_timelines(page, one.runs, note, heading=f"Iteration {one.index}")
    rows = [
        {
            **row,
            **row["items"],
            "fits": None if row["fits"] is None else "yes" if row["fits"] else "no",
        }
        for row in report.to_dicts()
    ]
    names = [name for name in (report.rows[0].items if report.rows else ()) if not name.endswith("_tokens")]
    columns = [Column("index", "iteration", 0), *(Column(name, name.replace("_", " "), 0) for name in names), *_COLUMNS]
    page.add_table("Iterations", rows, columns, MOST_ROWS)
    figures = {key: value for key, value in document.items() if isinstance(value, str | int | float)}
    page.add_facts("In all", [(key.replace("_", " "), _said(value)) for key, value in figures.items()])
    return page


def _said(value: Any) -> str:
    return (
        ("yes" if value else "no")
        if isinstance(value, bool)
        else f"{value:.6g}"
        if isinstance(value, float)
        else str(value)
    )


def _add_lines(page: Page, report: TrainingReport) -> None:
    arrays, rows = page.arrays, report.rows
    across = {"name": "iteration", "of": arrays.add([row.index for row in rows], "f8"), "isWhole": True}
    nothing = float("nan")
    for heading, names in (
        ("Iteration times", {"plan": "planned_s", "heuristic": "heuristic_s", "Megatron-LM": "megatron_s"}),
        ("What planning takes beside training", {"planning": "latency_s", "an iteration trains": "trained_s"}),
    ):
        series = []
        for name, key in names.items():
            values = [getattr(row, key) for row in rows]
            series.append({"name": name, "of": arrays.add([nothing if one is None else one for one in values], "f8")})
        data = {"x": across, "y": {"name": "time [s]"}, "series": series}
        page.add_chart(heading, "lines", data, f"{heading} of {len(rows)} iterations; the table below lists them")
