"""``own_run_page``: a run beside its log or its trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from semu.present.page import Column, Page
from semu.units import format_time
from semu.validation.logs.log_result import LogComparison
from semu.validation.traces.trace_result import TraceComparison


def own_run_page(result: LogComparison | TraceComparison) -> Page:
    """A run beside its log or its trace: bars, and all quantities as a table."""
    document = result.to_json()
    if isinstance(result, TraceComparison):
        page = Page(f"Validated: {result.title}", [result.subject])
        rows: list[dict[str, Any]] = document["kinds"]  # type: ignore[assignment]
        names = ("measured_s", "measured [s]"), ("simulated_s", "simulated [s]")
        totals: list[dict[str, Any]] = document["totals"]  # type: ignore[assignment]
        ratio = Column("simulated_over_measured", "simulated / measured", 3)
        both = tuple(Column(key, name, 4) for key, name in names)
        counts = Column("measured_count", "measured calls", 0), Column("simulated_count", "simulated calls", 0)
        page.add_bars("Busy time", list(_pairs([(row["kind"], row["measured_s"], row["simulated_s"]) for row in rows])))
        page.add_table("Kinds of work", rows, (Column("kind", "kind"), *both, ratio, *counts))
        page.add_table("Sums", totals, (Column("name", ""), *both, ratio))
    else:
        page = Page(f"Validated: {result.title}", [f"{result.format} log: median of the iterations after the warm-up"])
        rows = document["quantities"]  # type: ignore[assignment]
        times = [(row["name"], row["measured"], row["simulated"]) for row in rows if row["unit"] == "s"]
        page.add_bars("Times", list(_pairs(times)))
        columns = (
            Column("name", "quantity"),
            Column("unit", "unit"),
            Column("n", "iterations", 0),
            Column("measured", "measured"),
            Column("measured_p5", "5th percentile"),
            Column("measured_p95", "95th percentile"),
            Column("simulated", "simulated"),
            Column("simulated_over_measured", "simulated / measured", 3),
        )
        page.add_table("Quantities", rows, columns)
        page.add_facts("What the log says of the run", [(key, f"{value:,}") for key, value in result.settings.items()])
    page.add_list("Notes", result.warnings)
    return page


def _pairs(rows: Sequence[tuple[str, float | None, float | None]]) -> Iterator[tuple[str, float, str]]:
    for name, *values in rows:
        for word, value in zip(("measured", "simulated"), values, strict=True):
            if value is not None:
                yield f"{name}, {word}", value, format_time(value)
