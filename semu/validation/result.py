"""``ValidationResult``: all rows with their scores, and how they are written; ``score`` makes it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semu.frames import Tabular
from semu.records import dataclass
from semu.validation.memory import GB_READING
from semu.validation.row_result import Comparison, Quantity, RowResult, Status
from semu.validation.scoring import LEAST_ROWS, Scores, fit_null_model, score_group
from semu.validation.table import render

if TYPE_CHECKING:
    from semu.present.page import Page

__all__ = ["Comparison", "Quantity", "RowResult", "Status", "ValidationResult", "score"]

SCHEMA_VERSION = 1
"""Version of ``validation.json``; raised when a key changes its meaning."""


@dataclass(frozen=True, repr=False)
class ValidationResult(Scores, Tabular):
    """All rows of a validation with their scores; its attributes are those of ``Scores``."""

    def __repr__(self) -> str:
        return render(self)

    def beyond(self, tolerance_percent: float) -> list[str]:
        """Groups of at least four rows whose mean error is beyond a tolerance, a sentence each."""
        return [
            f"{group.name}: {quantity.value} MAPE {score.mape:.2f} % of {score.n} rows"
            for group in self.groups
            for quantity, score in group.scores.items()
            if score.n >= LEAST_ROWS and score.mape > tolerance_percent
        ]

    def to_json(self) -> dict[str, object]:
        """The document of ``validate --json`` (DESIGN §6), also written to ``validation.json``; errors in percent."""
        return {
            "schema_version": SCHEMA_VERSION,
            "counts": {status.value: self.count(status) for status in Status},
            "memory_reading": GB_READING,
            "rows": [row.to_json() for row in self.rows],
            "groups": [group.to_json() for group in self.groups],
            "overall": self.overall.to_json(),
            "null_model": [vars(mfu).copy() for mfu in self.null_model],
        }

    def page(self, title: str = "Validation") -> Page:
        """Measured against predicted, errors by group, and every row, as one HTML file."""
        from semu.validation.pages.published import validation_page  # circle: a page is of a whole result

        return validation_page(self, title)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each row, in the order of the file."""
        return [
            {
                **row.to_json(),
                "resolved": " ".join(f"{name}={value}" for name, value in row.resolved.items()),
                "notes": "; ".join(row.notes),
            }
            for row in self.rows
        ]

    def to_csv(self) -> str:
        """A line per row under a heading; what is not there is empty."""
        text = io.StringIO()
        lines = self.to_dicts()
        columns = list(lines[0]) if lines else ["id"]
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()


def score(rows: Sequence[RowResult]) -> ValidationResult:
    """Group rows and summarise their errors.

    Args:
        rows: what became of them, in the order of the file.
    """
    null = fit_null_model(rows)
    members: dict[str, list[RowResult]] = {}
    for row in rows:
        members.setdefault(row.group, []).append(row)
    return ValidationResult(
        rows=tuple(rows),
        groups=tuple(score_group(name, own, null) for name, own in members.items()),
        overall=score_group("all", rows, null),
        null_model=tuple(null.values()),
    )
