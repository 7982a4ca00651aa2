"""``grid_page``, and what pages of a search and of a what-if have beside: ``FIGURES``, ``add_curve``, ``yes``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from semu.present.page import Column, Page
from semu.present.page.results import add_breakdown, add_memory, add_settings, add_timelines
from semu.searcher.grid.space import Axis
from semu.units import GIB

if TYPE_CHECKING:
    from semu.present.report_data import ReportData
    from semu.searcher.grid.rows import GridRows, Row

_TIME = Column("iteration_time_s", "iteration [s]", 4, is_bar=True)
FIGURES = (
    _TIME,
    Column("mfu", "MFU [%]", 1, 0.01),
    Column("bubble_ratio", "bubble [%]", 1, 0.01),
    Column("peak_memory_bytes", "peak [GiB]", 2, GIB),
    Column("fits", "fits"),
)
"""Columns that the tables of all these share."""
_SIZES = ("dp", "tp", "pp", "cp", "ep", "vpp")


def add_curve(page: Page, points: Sequence[tuple[float, float]], end: float, bound_s: float, across: str) -> None:
    """How a search went: its best over time or work, beside the bound; nothing where it began with its best.

    Args:
        points: what was spent, best pipeline until then [s]. end: what was spent in all. across: what that is.
    """
    if len(points) < 2:
        return
    arrays, best = page.arrays, [time for _, time in points]
    series: list[dict[str, Any]] = [
        {"name": "best pipeline", "of": arrays.add([*best, best[-1]], "f8"), "isStep": True},
        {"name": "lower bound", "of": arrays.add([bound_s] * (len(best) + 1), "f8"), "isLimit": True},
    ]
    xs = arrays.add([*(spent for spent, _ in points), end], "f8")
    data = {"x": {"name": across, "of": xs}, "y": {"name": "pipeline [s]"}, "series": series}
    page.add_chart(
        "How the search went", "lines", data, f"from {best[0]:.4f} to {best[-1]:.4f} s; bound {bound_s:.4f} s"
    )


def grid_page(found: GridRows, sentences: Sequence[str], report: Callable[[], ReportData]) -> Page:
    """Configurations as dots with their flags, as a table, and the best in full.

    Args:
        sentences: below the headline. report: simulates the best.
    """
    job = found.job
    page = Page(f"Grid: {job.model.name} on {job.cluster.label()}", [line.strip() for line in sentences])
    if found.rows:
        _add_dots(page, found)
    rows = [
        {**row.to_dict(), "left": row.headroom_bytes, "flags": _flags(found, row), "fits": yes(fits=row.fits)}
        for row in found.rows
    ]
    axes = [Column(axis.value, axis.value.replace("_", " ")) for axis in found.varied]
    columns = [*axes, *FIGURES, Column("left", "left [GiB]", 2, GIB), Column("tokens_per_s_per_gpu", "tok/s/GPU", 0)]
    if any(row.usd_per_million_tokens is not None for row in found.rows):
        columns.append(Column("usd_per_million_tokens", "USD/Mtoken", 3))
    page.add_table("Configurations", rows, columns)
    if found.rows:
        best = report()
        add_timelines(page, [("best", best.timeline)])
        add_breakdown(page, best)
        add_memory(page, best)
        add_settings(page, best)
    return page


def _add_dots(page: Page, found: GridRows) -> None:
    rows, arrays = found.rows, page.arrays
    axes = []
    for axis in found.varied:
        own = [getattr(row.point, axis) for row in rows]
        distinct = sorted(set(own), key=lambda value: (isinstance(value, str), value))
        if len(distinct) > 1:
            numbers = arrays.add([distinct.index(value) for value in own], "u2")
            axes.append({"name": axis.value, "values": [str(value) for value in distinct], "of": numbers})
    held = [(found.capacity_bytes - row.headroom_bytes) / GIB for row in rows]
    data = {
        "x": {"name": "iteration [s]", "of": arrays.add([row.figures.iteration_time_s for row in rows], "f8")},
        "y": {"name": "memory of the fullest rank [GiB]", "of": arrays.add(held, "f4")},
        "fits": arrays.add([row.fits for row in rows], "u1"),
        "limit": found.capacity_bytes / GIB,
        "what": "configurations",
        "hint": "Click a dot for its flags.",
        "hollow": "does not fit",
        "axes": axes,
        "labels": [row.point.label(found.varied) for row in rows],
        "flags": [_flags(found, row) for row in rows],
    }
    page.add_chart("Time and memory", "scatter", data, f"{len(rows)} configurations; the table below lists them")


def _flags(found: GridRows, row: Row) -> str:
    """Options with which ``semu simulate`` runs a configuration."""
    point = row.point
    sizes = "-".join(f"{name}{size}" for name in _SIZES if (size := getattr(point, name)) > 1 or name == "dp")
    words = ["--parallel", sizes, "--set", f"training.global_batch={found.job.training.global_batch}"]
    for axis in Axis:
        if axis.value not in _SIZES and (axis in found.varied or axis in (Axis.MICRO_BATCH, Axis.RECOMPUTE)):
            table = "training" if axis in (Axis.MICRO_BATCH, Axis.RECOMPUTE, Axis.SCHEDULE) else "parallel"
            words += ["--set", shlex.quote(f"{table}.{axis.value}={getattr(point, axis)}")]
    return " ".join(words)


def yes(*, fits: bool) -> str:
    """Whether something fits, as tables have it."""
    return "yes" if fits else "no"
