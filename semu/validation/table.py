"""``render``: a validation as the tables that people read; errors are predicted / measured - 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from semu.present.uncertainty import LEVEL
from semu.units import fit_columns, fit_lines
from semu.validation.memory import GB_READING
from semu.validation.row_result import Quantity, RowResult, Status
from semu.validation.scoring import Errors, GroupScore, Scores

_TITLES = {
    Quantity.TIME: "iteration time",
    Quantity.MEMORY: "peak memory",
    Quantity.ACTIVATION: "activation bytes of closed forms",
    Quantity.STATIC: "static bytes of closed forms",
}
_LONGEST_GROUP = 32


def render(result: Scores) -> str:
    """The text behind ``repr(result)``, without a newline at its end."""
    sections = [list(_counts(result)), *(list(_errors(result, quantity)) for quantity in Quantity)]
    sections += [_null(result), list(_reasons(result)), list(_notes(result))]
    return fit_lines("\n".join(line for section in sections if section for line in (*section, ""))[:-1])


def _counts(result: Scores) -> Iterator[str]:
    counts = ", ".join(f"{result.count(status)} {status.value}" for status in Status)
    yield f"{len(result.rows)} rows: {counts}"
    heads = ("group", "rows", *(status.value for status in Status))
    rows = [(_name(group), *map(str, (group.rows, *(group.counts[s] for s in Status)))) for group in result.groups]
    yield from fit_columns([heads, *rows], (False, True, True, True, True))


def _errors(result: Scores, quantity: Quantity) -> Iterator[str]:
    groups = [group for group in result.groups if quantity in group.scores]
    if not groups:
        return
    has_null = quantity is Quantity.TIME
    note = f"; {GB_READING}" if quantity is Quantity.MEMORY else ""
    yield f"{_TITLES[quantity]}, error in %{note}"
    heads = (
        "group",
        "n",
        "MAPE",
        "median",
        "bias",
        "worst",
        *(("null MAPE", f"in {LEVEL:.0%}") if has_null else ()),
        "worst row",
    )
    shown = [*groups, result.overall] if len(groups) > 1 else groups
    rows = [_cells(group, group.scores[quantity], has_null=has_null) for group in shown]
    yield from fit_columns([heads, *rows], (False, *[True] * (len(heads) - 2), False))


def _cells(group: GroupScore, errors: Errors, *, has_null: bool) -> tuple[str, ...]:
    values = (errors.null_mape, errors.inside)
    null = tuple("" if value is None else f"{value:.2f}" for value in values) if has_null else ()
    signed = (f"{value:+.2f}" for value in (errors.bias, errors.worst))
    sizes = (f"{value:.2f}" for value in (errors.mape, errors.median))
    return (_name(group), str(errors.n), *sizes, *signed, *null, errors.worst_id)


def _null(result: Scores) -> list[str]:
    parts = [f"{mfu.device} {mfu.precision} {mfu.mfu:.1%} (n = {mfu.n})" for mfu in result.null_model]
    return ["null model, one MFU per device and precision: " + ", ".join(parts)] if parts else []


def _reasons(result: Scores) -> Iterator[str]:
    """Why rows did not run, with how many rows each reason stopped; every error names its row."""
    refused = Counter(row.reason or "" for row in result.rows if row.status is Status.REFUSED)
    if refused:
        yield "refused"
        for reason, count in sorted(refused.items(), key=lambda item: (-item[1], item[0])):
            yield f"{count:>4}  {reason}"
    errors = [row for row in result.rows if row.status is Status.ERROR]
    if errors:
        yield "errors"
        for row in errors:
            yield f"  {row.id}: {row.reason}"


def _notes(result: Scores) -> Iterator[str]:
    noted: dict[tuple[str, ...], list[RowResult]] = {}
    for row in result.rows:
        if row.notes:
            noted.setdefault(row.notes, []).append(row)
    if noted:
        yield "notes"
        for notes, rows in noted.items():
            yield f"  {_names(rows)}: {'; '.join(notes)}"


def _names(rows: Sequence[RowResult]) -> str:
    """One row by its name, several as how many of which group."""
    if len(rows) == 1:
        return rows[0].id
    counts = Counter(row.group for row in rows)
    return ", ".join(f"{count} of {group}" for group, count in counts.items())


def _name(group: GroupScore) -> str:
    return cut(group.name or "-", _LONGEST_GROUP)


def cut(text: str, width: int) -> str:
    """At most ``width`` characters, the end left out."""
    return text if len(text) <= width else text[: width - 3] + "..."
