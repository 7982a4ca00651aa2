"""A real training trace (DeepSeek's on H800, as a table of kernels): families and overlap against the table's own sums.

The table names kernels in short; its columns tell streams, times and, per kernel, how long it ran beside communication.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from semu.fitting.kernel_names import Family
from semu.validation.traces.kineto import read_kineto
from semu.validation.traces.trace_comparison import compare_trace
from tests.validation.own_runs import kernel, text_run, write_trace

COMMUNICATION_STREAM = "27"
ROWS = {
    Family.MATMUL: "gemm",
    Family.ATTENTION_FORWARD: "attn_fwd",
    Family.ATTENTION_BACKWARD: "attn_bwd",
    Family.ALL_TO_ALL: "ep_",
    Family.NORM: "rmsnorm norm_bwd",
    Family.UNMATCHED: "other_small",
}
"""Beginnings of the table's names."""


def test_a_recorded_trace(data_dir: Path, tmp_path: Path) -> None:
    table = data_dir / "microbench" / "h800_train_trace_ops.csv"
    if not table.is_file():
        pytest.skip(f"no {table}")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    events = [
        kernel(row["kernel"], float(row["start_us"]), float(row["dur_us"]), tid=int(row["stream"])) for row in rows
    ]
    run = text_run(tmp_path)
    measured = compare_trace(
        read_kineto(write_trace(tmp_path / "t.json", *events)), run.job, run.report, rank=0
    ).measured
    sums, counts = Counter[str](), Counter[str]()
    for row in rows:
        sums[row["kernel"]] += int(row["dur_us"])
        counts[row["kernel"]] += 1
    for family, beginnings in ROWS.items():
        names = [name for name in sums if name.startswith(tuple(beginnings.split()))]
        assert measured.families[family].count == sum(counts[name] for name in names)
        assert measured.families[family].busy_s == pytest.approx(1e-6 * sum(sums[name] for name in names), rel=1e-9)
    assert sum(one.count for one in measured.families.values()) == len(rows)
    hidden = sum(
        int(row["overlap_compute_us"] or 0)
        for row in rows
        if row["stream"] == COMMUNICATION_STREAM and row["kernel"].startswith("ep_")
    )
    # the table counts every kernel of other streams as computation, copies too, and whole microseconds
    assert measured.overlapped_s == pytest.approx(1e-6 * hidden, rel=0.01)
    # what the data's own description says: EP kernels busy 113.0 ms, of it 108.9 hidden; the pair lasts 129.0 ms
    assert measured.communication_s == pytest.approx(113.0e-3, rel=0.01)
    assert measured.overlapped_s == pytest.approx(108.9e-3, rel=0.01)
    assert measured.compute_s == pytest.approx(124.3e-3, rel=0.01)
    assert measured.iteration_s == pytest.approx(129.0e-3, rel=0.01)
