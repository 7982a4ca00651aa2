"""Published runs against predictions: ``validate``; a user's log or trace against a run: ``compare_log``,
``compare_trace``.

    from semu.runfile import make_job
    from semu.validation import read_rows, validate

    result = validate(read_rows("runs.json"), make_job)       # repr(result) is the table
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from semu.searcher.engines import make_engine
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
    workers: int = 1,
) -> ValidationResult:
    """Run every row and score the predictions.

    Args:
        rows: as ``read_rows`` gives them. make_job: makes a job of a run file's tables: ``semu.runfile.make_job``.
        devices: row -> profile name or file; None: the device of the row.
        progress: called with the rows done and all rows, after each row or, with several workers, after some.
        pass_times: passes take what rows say, where they do.
        workers: processes. With more than one, ``make_job`` has to be a function that can be pickled.
    Returns:
        The result, the same with any number of workers. A row that cannot be run is listed with the reason; it never
        stops the others.
    Raises:
        ConfigError: no number of workers.
    """
    given = [(row, None if devices is None or isinstance(row, BadRow) else devices(row)) for row in rows]
    engine = make_engine("serial" if workers == 1 else "local", workers=workers)
    size = 1 if workers == 1 else _TASK
    tasks = (given[first : first + size] for first in range(0, len(given), size))
    results: dict[int, list[RowResult]] = {}
    done = 0
    for number, found in engine.run(partial(_evaluated, make_job=make_job, pass_times=pass_times), tasks):
        results[number] = found
        done += len(found)
        if progress is not None:
            progress(done, len(rows))
    return score([result for number in sorted(results) for result in results[number]])


_TASK = 8
"""Rows of a task: neighbours are often of one model, which is traced once per process."""


def _evaluated(
    rows: Sequence[tuple[Row | BadRow, str | None]], *, make_job: JobMaker, pass_times: bool
) -> list[RowResult]:
    """Results of rows, each with its device."""
    return [evaluate_row(row, make_job, device, pass_times=pass_times) for row, device in rows]
