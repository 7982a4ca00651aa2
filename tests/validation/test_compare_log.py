"""A log beside a simulation, on a text model and a VLM: medians and ratios computed apart."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest

import semu
import semu_models
from semu.validation.logs.log_comparison import compare_log
from semu.validation.logs.log_reader import read_log
from semu.validation.logs.log_result import LogComparison
from tests.validation.own_runs import OwnRun, megatron_line, memory_line, own_runs, text_run, titan_line

RUNS = pytest.mark.parametrize("number", [0, 1], ids=["text", "vlm"])
MIB, GIB = 2.0**20, 2.0**30


def compare(path: Path, run: OwnRun, *lines: str, warm_up: int | None = None) -> LogComparison:
    path.write_text("\n".join(lines) + "\n")
    return compare_log(read_log(path), run.job, run.report, warm_up=warm_up, where="log")


@RUNS
def test_megatron(number: int, tmp_path: Path) -> None:
    run = own_runs(tmp_path)[number]
    batch, gpus, pp = run.job.training.global_batch, run.job.cluster.num_gpus, run.job.parallel.pp
    times = [5000.0, 2100.0, 2000.5, 1990.0, 2010.0, 9000.0, 2005.0, 1995.0, 2001.0, 2002.0, 2003.0]
    lines = [megatron_line(n, time, batch=batch) for n, time in enumerate(times, start=1)]
    memory = [memory_line(0, 100, 2000, 3000), memory_line(gpus - 1, 110, 2500, 3500), memory_line(1, 90, 2100, 2900)]
    result = compare(tmp_path / "log", run, *lines, *memory)
    time, *sizes = result.quantities
    kept = [t / 1e3 for t in times[2:]]  # a fifth of 11 iterations are 2
    assert time.samples is not None
    assert (time.samples.dropped, len(time.samples.values)) == (2, 9)
    assert time.value == pytest.approx(statistics.median(kept), rel=1e-15)
    assert (time.samples.p5, time.samples.p95) == (1.99, 9.0)
    assert time.samples.outliers == ((6, 9.0),)
    assert time.ratio == run.report.iteration_time_s / time.value
    report = run.report
    expected = [
        ("allocated (rank 0, highest of 2 of pipeline rank 0)", 100, report.static_memory_bytes[0]),
        ("max allocated (rank 1, highest of 2 of pipeline rank 0)", 2100, report.peak_memory_bytes[0]),
        (f"allocated (rank {gpus - 1}, pipeline rank {pp - 1})", 110, report.static_memory_bytes[-1]),
        (f"max allocated (rank {gpus - 1}, pipeline rank {pp - 1})", 2500, report.peak_memory_bytes[-1]),
    ]
    found = [(one.name, one.value, one.simulated) for one in sizes if "reserved" not in one.name]
    assert sorted(found) == sorted((name, size * MIB, ours) for name, size, ours in expected)
    assert [one.value for one in sizes if "reserved" in one.name] == [3000 * MIB, 3500 * MIB]
    assert result.warnings == ()
    assert result.beyond(1e9) == []
    assert len(result.beyond(0.0)) == 3 + 2 * (report.reserved_memory_bytes is not None)


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp"])
def test_memory_goes_to_the_pipeline_rank_of_the_order(order: str, tmp_path: Path) -> None:
    """Two replicas of two pipeline ranks on four GPUs: rank 1 is the other replica, or the other pipeline rank."""
    sizes = {"micro_batch": 1, "global_batch": 4, "seq_len": 256}
    job = semu.TrainingJob(
        semu_models.build("gpt2"),
        semu.Cluster("h100", nodes=1, gpus_per_node=4),
        semu.Parallel(dp=2, pp=2, rank_order=order),
        semu.Training(**sizes),
    )
    report = semu.simulate(job)
    lines = [megatron_line(n, 1000.0, batch=4) for n in range(1, 6)]
    lines += [memory_line(gpu, 10, 100 + gpu, 1000) for gpu in range(4)]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    result = compare_log(read_log(tmp_path / "log"), job, report)
    pipeline_first = order == "tp-cp-pp-dp"
    highest = {0: 2, 1: 3} if pipeline_first else {0: 1, 1: 3}
    found = {one.name: one.simulated for one in result.quantities if one.name.startswith("max allocated")}
    assert found == {
        f"max allocated (rank {gpu}, highest of 2 of pipeline rank {stage})": report.peak_memory_bytes[stage]
        for stage, gpu in highest.items()
    }


@RUNS
def test_torchtitan_rates_become_times(number: int, tmp_path: Path) -> None:
    run = own_runs(tmp_path)[number]
    rate = round(run.report.tokens_per_s_per_gpu)
    result = compare(tmp_path / "log", run, titan_line(1, rate // 4), titan_line(10, rate))
    time = result.quantities[0]
    assert time.value == pytest.approx(run.report.tokens / (rate * run.job.cluster.num_gpus), rel=1e-12)
    assert time.ratio == pytest.approx(1, abs=1.0 / rate)
    assert result.warnings[0].startswith("the log has tokens per second and GPU, no times: iteration time = the run's ")
    (memory,) = result.quantities[1:]
    assert (memory.name, memory.value) == ("max reserved (rank 0, pipeline rank 0)", 12.5 * GIB)


def test_contradictions_are_named(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    result = compare(
        tmp_path / "log",
        run,
        "using world size: 16, data-parallel size: 4, tensor-model-parallel size: 2, pipeline-model-parallel size: 2",
        "  seq_length ...................................... 4096",
        "  micro_batch_size ................................ 1",
        "  global_batch_size ............................... 8",
        megatron_line(1, 100.0, batch=32),
        memory_line(12, 1, 2, 3),
    )
    assert set(result.warnings) == {
        "number of GPUs: the log has 16, the run 8",
        "global batch size: the log has 32, the run 8",
        "sequence length: the log has 4096, the run 2048",
        "dp: the log has 4, the run 2",
        "number of GPUs: the log has memory of rank 12, the run 8 GPUs",
    }
    assert [one.name for one in result.quantities] == ["iteration time"]


def test_iterations_with_the_batch_of_the_run_count(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    lines = [megatron_line(n, 100.0 * n, batch=4 if n < 4 else 8, samples=0) for n in range(1, 8)]
    result = compare(tmp_path / "log", run, *lines, warm_up=1)
    time = result.quantities[0]
    assert time.samples is not None
    assert time.samples.numbers == (5, 6, 7)
    assert time.value == 0.6
    assert result.warnings == (
        "the global batch size changes in the log (4, 8): the 4 of 7 iterations with the run's 8 are compared",
    )


@pytest.mark.parametrize(("factor", "is_doubted"), [(1.0, False), (0.8, True), (2.0, True)])
def test_flop_of_another_model_are_named(factor: float, is_doubted: bool, tmp_path: Path) -> None:
    run = text_run(tmp_path)
    rate = factor * run.report.model_flop / 0.1 / run.job.cluster.num_gpus / 1e12
    words = f"throughput per GPU (TFLOP/s/GPU): {rate:.4f} | learning"
    result = compare(tmp_path / "log", run, megatron_line(1, 100.0).replace("learning", words))
    assert [one.endswith("another model, batch or number of GPUs?") for one in result.warnings] == [True] * is_doubted


def test_table_json_and_csv_say_the_same(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    lines = [megatron_line(n, 100.0 + n) for n in range(1, 4)]
    result = compare(tmp_path / "log", run, *lines, memory_line(0, 1, 2048, 3))
    document = result.to_json()
    rows = document["quantities"]
    assert isinstance(rows, list)
    assert rows[0]["name"] == "iteration time"
    assert (rows[0]["n"], rows[0]["measured"], rows[0]["warm_up"]) == (2, pytest.approx(0.1025), 1)
    assert rows[0]["simulated_over_measured"] == run.report.iteration_time_s / rows[0]["measured"]
    table = list(csv.DictReader(result.to_csv().splitlines()))
    for line, row in zip(table, rows, strict=True):
        assert float(line["measured"]) == row["measured"]
        assert line["simulated"] == ("" if row["simulated"] is None else str(row["simulated"]))
    text = repr(result)
    assert "102.50 ms" in text
    assert "2.00 GiB" in text
    assert "1 of 3 iterations left out as warm-up" in text
    assert max(len(line) for line in text.split("\n")) <= 110
