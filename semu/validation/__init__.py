"""Published runs against predictions: ``validate``; a user's log or trace against a run: ``compare_log``,
``compare_trace``.

    from semu.runfile import make_job
    from semu.validation import read_rows, validate

    result = validate(read_rows("runs.json"), make_job)       # repr(result) is the table
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semu.validation.evaluate import JobMaker, evaluate_row
from semu.validation.result import Comparison, Quantity, RowResult, Status, ValidationResult, score
from semu.validation.row import BadRow, Row
from semu.validation.rows import parse_rows, published_rows, read_rows

__all__ = [
    "BadRow",
    "Comparison",
    "JobMaker",
    "Quantity",
    "Row",
    "RowResult",
    "Status",
    "ValidationResult",
    "evaluate_row",
    "parse_rows",
    "published_rows",
    "read_rows",
    "score",
    "validate",
]


def validate(
    rows: Sequence[Row | BadRow],
    make_job: JobMaker,
    *,
    devices: Callable[[Row], str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    pass_times: bool = False,
) -> ValidationResult:
    """Run every row and score the predictions.

    Args:
        rows: as ``read_rows`` gives them. make_job: makes a job of a run file's tables: ``semu.runfile.make_job``.
        devices: row -> profile name or file; None: the device of the row.
        progress: called after each row with the rows done and all rows.
        pass_times: passes take what rows say, where they do.
    Returns:
        The result. A row that cannot be run is listed with the reason; it never stops the others.
    """
    results = []
    for number, row in enumerate(rows, start=1):
        device = None if devices is None or isinstance(row, BadRow) else devices(row)
        results.append(evaluate_row(row, make_job, device, pass_times=pass_times))
        if progress is not None:
            progress(number, len(rows))
    return score(results)
