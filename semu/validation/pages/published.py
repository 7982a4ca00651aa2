"""``validation_page``: published runs, predicted over measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from semu.present.page import Column, Page
from semu.units import GIB
from semu.validation.result import Quantity, ValidationResult
from semu.validation.row_result import RowResult, Status

MOST_ROWS = 3000
DECADES = 10.0
"""Axes are logarithmic where the largest value is more than this over the smallest."""
WORST = 12
"""Rows of which all that is known is told."""
_ERRORS = (
    Column("n", "rows", 0),
    Column("mape", "mean error [%]", 1, is_bar=True),
    Column("median", "median [%]", 1),
    Column("bias", "bias [%]", 1),
    Column("worst", "worst [%]", 1),
    Column("worst_id", "worst row"),
    Column("null_mape", "one MFU: mean [%]", 1),
    Column("inside", "inside interval [%]", 0),
)
_ROWS = (
    Column("id", "row"),
    Column("group", "group"),
    Column("device", "device"),
    Column("precision", "precision"),
    Column("trust", "trust"),
    Column("scored", "scored"),
    Column("status", "status"),
    Column("measured_iteration_time_s", "measured [s]", 4),
    Column("predicted_iteration_time_s", "predicted [s]", 4),
    Column("time_error_percent", "error [%]", 1),
    Column("predicted_interval_low_s", "from [s]", 4),
    Column("predicted_interval_high_s", "to [s]", 4),
    Column("inside_interval", "inside"),
    Column("measured_peak_mem_bytes", "memory measured [GiB]", 2, GIB),
    Column("predicted_peak_mem_bytes", "predicted [GiB]", 2, GIB),
    Column("memory_error_percent", "memory error [%]", 1),
    Column("fits", "fits"),
    Column("why", "reason, notes, what was chosen"),
)
_FURTHEST = tuple(
    column
    for column in _ROWS
    if column.key
    in (
        *("id", "device", "precision", "measured_iteration_time_s", "predicted_iteration_time_s"),
        *("time_error_percent", "predicted_interval_low_s", "predicted_interval_high_s", "inside_interval", "why"),
    )
)


def validation_page(result: ValidationResult, title: str) -> Page:
    """Measured against predicted, errors by group, all rows, and the worst ones with what is known of them."""
    page = Page(title, [", ".join(f"{count} {word}" for word, count in _counts(result).items() if count)])
    _add_dots(page, result, Quantity.TIME, "Iteration time, predicted over measured", 1.0, "s")
    for quantity, name in ((Quantity.TIME, "time"), (Quantity.MEMORY, "memory")):
        groups = [
            {"group": group.name, **vars(group.scores[quantity])}
            for group in (result.overall, *result.groups)
            if quantity in group.scores
        ]
        if groups:
            page.add_table(f"Errors of {name} by group", groups, (Column("group", "group"), *_ERRORS))
    page.add_table("The rows furthest off", _worst(result), _FURTHEST)
    _add_dots(page, result, Quantity.MEMORY, "Memory, predicted over measured", GIB, "GiB")
    page.add_table("Rows", [_row(row) for row in result.rows], _ROWS, MOST_ROWS)
    null = [vars(own) for own in result.null_model]
    columns = Column("device", "device"), Column("precision", "precision"), Column("n", "rows", 0)
    page.add_table(
        "What one MFU per device and precision would be", null, (*columns, Column("mfu", "MFU [%]", 1, 0.01))
    )
    return page


def _counts(result: ValidationResult) -> dict[str, int]:
    return {"rows": len(result.rows), **{status.value: result.count(status) for status in Status}}


def _row(row: RowResult) -> dict[str, Any]:
    """As ``--json`` has it, with words for what is true and one cell of words."""
    own = row.to_json()
    words = {key: None if own[key] is None else "yes" if own[key] else "no" for key in _WORDS}
    return {**own, **words, "why": " ".join(_why(row))}


_WORDS = ("scored", "fits", "inside_interval")


def _why(row: RowResult) -> Iterator[str]:
    if row.reason:
        yield f"{row.reason}."
    for note in row.notes:
        yield note if note.endswith(".") else f"{note}."
    if row.resolved:
        yield "not in the source: " + ", ".join(f"{name} = {value}" for name, value in row.resolved.items()) + "."


def _worst(result: ValidationResult) -> list[dict[str, Any]]:
    """The scored rows with the largest errors of time, and what is known of each."""
    errors = [(row, error) for row in result.rows if row.is_scored and (error := row.error(Quantity.TIME)) is not None]
    rows = []
    for row, _ in sorted(errors, key=lambda pair: -abs(pair[1]))[:WORST]:
        sentences = list(_why(row))
        if row.communication_s is not None:
            share = 100 * row.communication_s / (row.compared[Quantity.TIME].predicted or 1.0)
            sentences.insert(0, f"Communication twice as slow would add {share:.0f} % to the prediction.")
        rows.append({**_row(row), "why": " ".join(sentences)})
    return rows


def _add_dots(page: Page, result: ValidationResult, quantity: Quantity, heading: str, scale: float, unit: str) -> None:
    """A dot per scored row; times with their intervals."""
    rows = [row for row in result.rows if row.is_scored and row.error(quantity) is not None]
    if not rows:
        return
    pairs = [row.compared[quantity] for row in rows]
    values = [value for pair in pairs for value in (pair.predicted, pair.measured) if value]
    arrays = page.arrays

    def _kept(values: Sequence[float | None]) -> dict[str, object]:
        return arrays.add([(value or 0.0) / scale for value in values], "f8")

    axes = []
    for name in ("group", "device", "precision", "trust"):
        own = [str(getattr(row, name)) for row in rows]
        distinct = sorted(set(own))
        if len(distinct) > 1:
            axes.append(
                {"name": name, "values": distinct, "of": arrays.add([distinct.index(one) for one in own], "u2")}
            )
    data: dict[str, Any] = {
        "x": {"name": f"measured [{unit}]", "of": _kept([pair.measured for pair in pairs])},
        "y": {"name": f"predicted [{unit}]", "of": _kept([pair.predicted for pair in pairs])},
        "fits": arrays.add([row.is_inside is not False or quantity is not Quantity.TIME for row in rows], "u1"),
        "axes": axes[::-1],
        "labels": [row.id for row in rows],
        "flags": [" ".join([f"{100 * (row.error(quantity) or 0.0):+.1f} %.", *_why(row)]) for row in rows],
        "what": "rows",
        "hint": "Click a dot for its row.",
        "isLog": max(values, default=1.0) > DECADES * min(values, default=1.0),
        "isEqual": True,
    }
    if quantity is Quantity.TIME:
        data["hollow"] = "measured outside the 90 % interval"
        data["low"] = _kept([row.interval_s[0] if row.interval_s else None for row in rows])
        data["high"] = _kept([row.interval_s[1] if row.interval_s else None for row in rows])
    page.add_chart(heading, "scatter", data, f"{len(rows)} rows; the table below lists them")
