"""Published runs against predictions: ``validate``; a user's log or trace against a run: ``compare_log``,
``compare_trace``.

Files:

    row.py          what a published run is
    rows.py         reading and checking a runs file
    published.json  runs that ship with semu
    jobs.py         a row in the words of a run file
    resolve.py      settings that a source does not tell
    evaluate.py     running one row
    memory.py, activations.py   predicted memory, as a row's source counts it
    row_result.py   what became of a row
    scoring.py      errors of groups, and the null model
    result.py       all rows with their scores, as JSON and CSV
    table.py        the same for people
    profiles.py     the same rows under two profiles; site.py   factors of a site on top of a profile
    files.py        writing them

    training_log.py, log_lines.py   what a log says; log_reader.py, megatron_log.py, torchtitan_log.py   reading it
    samples.py      warm-up, median, outliers
    log_comparison.py, log_result.py   a log beside a simulation
    kineto.py       reading a trace of torch.profiler; kernel_names.py   what its kernels are
    gpu_work.py, intervals.py       busy, exposed and overlapped times, of both sides
    trace_comparison.py, trace_result.py   a trace beside a simulation
    source_text.py, bar_picture.py  files of both

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
