"""Reports of Nsight Systems beside a simulation: against the same kernels as a trace of torch.profiler, and by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from semu.cli import main
from semu.errors import ConfigError
from semu.fitting.kernel_names import FAMILY_OF_KIND, Family
from semu.graph.operator import OpKind
from semu.validation.bar_picture import save_bars
from semu.validation.traces.gpu_trace import GpuTrace, KernelSum, NamedKernels
from semu.validation.traces.sum_comparison import compare_sum
from semu.validation.traces.trace_comparison import compare_trace
from semu.validation.traces.trace_reader import read_gpu_trace
from semu.validation.traces.trace_result import FamilyRow, TraceComparison
from tests.validation.nsys_reports import TRACE_HEADINGS, Span, trace_row, write_gpu_trace, write_kernel_sum
from tests.validation.own_runs import (
    KERNELS,
    OwnRun,
    kernel,
    operators,
    own_runs,
    step,
    text_run,
    vlm_run,
    write_trace,
)

BEGIN = 5_000_000_000
"""When the profile begins [ns]."""


def spans_of(run: OwnRun, rank: int, slower: float, iterations: int = 1) -> list[Span]:
    """What nsys would see of a run that is slower by a factor, iterations one after the other, with a copy in each."""
    length = round(run.report.iteration_time_s * 1e9 * slower)
    found: list[Span] = []
    for number in range(iterations):
        begin = BEGIN + number * length
        found.append(("[CUDA memcpy Host-to-Device]", begin, 1000))
        for kind, start, end in operators(run.report.timeline.ranks[rank]):
            first, last = (round(time * 1e9 * slower) for time in (start, end))
            found.append((KERNELS[kind], begin + first, last - first))
    return found


def kineto_of(path: Path, spans: list[Span]) -> Path:
    """The same as torch.profiler would write it [us]."""
    events = [
        kernel(name.replace("[CUDA memcpy Host-to-Device]", "Memcpy HtoD (Pinned -> Device)"), start / 1e3, time / 1e3)
        for name, start, time in spans
    ]
    return write_trace(path, *events)


def of_trace(path: Path, run: OwnRun, **options: Any) -> TraceComparison:
    trace = read_gpu_trace(path)
    assert isinstance(trace, GpuTrace)
    return compare_trace(trace, run.job, run.report, where=str(path), **options)


def of_sum(path: Path, run: OwnRun, **options: Any) -> TraceComparison:
    kernels = read_gpu_trace(path)
    assert isinstance(kernels, KernelSum)
    return compare_sum(kernels, run.job, run.report, where=str(path), **options)


def check_exposed(one: FamilyRow, other: FamilyRow) -> None:
    times = one.exposed.measured, other.exposed.measured
    if one.family.is_communication:
        assert times[0] == pytest.approx(times[1], rel=1e-6, abs=1e-9)
    else:
        assert times == (None, None)


@pytest.mark.parametrize("number", [0, 1], ids=["text", "vlm"])
def test_both_doors_agree(number: int, tmp_path: Path) -> None:
    run = own_runs(tmp_path)[number]
    rank = run.job.parallel.pp - 1
    spans = spans_of(run, rank, 1.25)
    one = of_trace(kineto_of(tmp_path / "t.json", spans), run, rank=rank)
    other = of_trace(write_gpu_trace(tmp_path / "t.csv", spans), run, rank=rank)
    assert (one.warnings, one.iteration, one.simulated) == (other.warnings, other.iteration, other.simulated)
    assert [row.family for row in one.rows] == [row.family for row in other.rows]
    for ours, theirs in zip(one.rows, other.rows, strict=True):
        assert (ours.measured_count, ours.simulated_count) == (theirs.measured_count, theirs.simulated_count)
        assert ours.busy.measured == pytest.approx(theirs.busy.measured, rel=1e-6)
        check_exposed(ours, theirs)
    for name, pair in one.totals.items():
        assert other.totals[name].measured == pytest.approx(pair.measured, rel=1e-6, abs=1e-9)
    # and what was put in: everything 25 % slower
    assert other.totals["iteration"].ratio == pytest.approx(0.8, rel=0.02)  # from the first kernel to the last
    kinds = [kind for kind, _, _ in operators(run.report.timeline.ranks[rank])]
    merged = {Family.ALL_TO_ALL: Family.P2P}  # NCCL's SendRecv kernel is all that nsys knows
    counts = Counter(merged.get(FAMILY_OF_KIND[kind], FAMILY_OF_KIND[kind]) for kind in kinds)
    assert {row.family: row.measured_count for row in other.rows if row.measured_count} == counts | {Family.MEMCPY: 1}
    for row in other.rows:
        if row.simulated_count == row.measured_count:
            assert row.busy.ratio == pytest.approx(0.8, rel=1e-3)
    assert any("no all-to-all is told" in one for one in other.warnings) == (OpKind.ALL_TO_ALL in kinds)


def test_the_mean_of_iterations_in_a_trace(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    single = of_trace(write_gpu_trace(tmp_path / "1.csv", spans_of(run, 0, 1.0)), run, rank=0, iterations=1)
    assert single.iteration == "the whole trace, one iteration"
    assert single.warnings == ()
    spans = spans_of(run, 0, 1.0, iterations=3)
    for path in (write_gpu_trace(tmp_path / "3.csv", spans), kineto_of(tmp_path / "3.json", spans)):
        three = of_trace(path, run, rank=0, iterations=3)
        assert (three.iteration, three.warnings) == ("mean of 3 iterations, the whole trace", ())
        for a, b in zip(single.rows, three.rows, strict=True):
            assert (a.measured_count, a.simulated_count) == (b.measured_count, b.simulated_count)
            assert b.busy.measured == pytest.approx(a.busy.measured, rel=1e-9)
            check_exposed(a, b)
        last_end = max(start + time for _, start, time in spans)
        assert three.measured.iteration_s == pytest.approx((last_end - BEGIN) / 3e9, rel=1e-9)
    whole = of_trace(tmp_path / "3.csv", run, rank=0)
    assert any("the whole trace is taken for one iteration" in one for one in whole.warnings)
    wrong = of_trace(tmp_path / "3.csv", run, rank=0, iterations=2)
    assert any("of kernels whose number is no multiple of 2 (iterations times GPUs)" in one for one in wrong.warnings)


def test_a_sum_over_iterations_and_gpus(tmp_path: Path) -> None:
    """Two iterations on four GPUs, at a speed each: their mean, added up here from the simulated operators."""
    run = text_run(tmp_path)
    speeds = [1.1, 1.2, 1.3, 1.4]
    spans = [span for slower in speeds for span in spans_of(run, 1, slower, iterations=2)]
    path = write_kernel_sum(tmp_path / "s.csv", spans)
    result = of_sum(path, run, iterations=2, gpus=4, rank=1)
    assert (result.rank, result.iteration) == (1, "mean of 2 iterations on 4 GPUs, a sum of kernels")
    assert result.warnings == (next(one for one in result.warnings if one.startswith("a sum of kernels tells no st")),)
    times: dict[Family, float] = {}
    counts = Counter[Family]()
    for kind, start, end in operators(run.report.timeline.ranks[1]):
        times[FAMILY_OF_KIND[kind]] = times.get(FAMILY_OF_KIND[kind], 0.0) + end - start
        counts[FAMILY_OF_KIND[kind]] += 1
    assert {row.family for row in result.rows} == set(times)
    for row in result.rows:
        assert row.busy.simulated == pytest.approx(times[row.family], rel=1e-9)
        assert row.busy.measured == pytest.approx(1.25 * times[row.family], rel=1e-4)
        assert row.measured_count == row.simulated_count == counts[row.family]
        assert row.exposed.measured is None
    assert {name: pair.measured for name, pair in result.totals.items()} == dict.fromkeys(result.totals)
    assert all(one.endswith("busy time: simulated / measured 0.800") for one in result.beyond(19.0))
    assert result.beyond(19.0) and not result.beyond(21.0)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["totals"][0]["measured_s"] is None
    assert "pipeline rank 1 of 2; mean of 2 iterations on 4 GPUs, a sum of kernels" in repr(result)
    assert result.to_csv().splitlines()[-1].startswith("total: idle,,")
    assert save_bars(result, tmp_path / "s.png").stat().st_size > 10_000


def test_all_gpus_of_a_run_are_compared_with_all_ranks(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    spans = [span for rank in (0, 1) for _ in range(4) for span in spans_of(run, rank, 2.0)]
    result = of_sum(write_kernel_sum(tmp_path / "s.csv", spans), run, iterations=1, gpus=8)
    assert (result.rank, result.num_ranks) == (None, 2)
    assert result.subject == "mean of all 2 pipeline ranks; mean of 1 iteration on 8 GPUs, a sum of kernels"
    assert result.to_json()["pipeline_rank"] is None
    for row in result.rows:
        assert row.busy.ratio == pytest.approx(0.5, rel=1e-3)
        own = [
            end - start
            for rank in (0, 1)
            for kind, start, end in operators(run.report.timeline.ranks[rank])
            if FAMILY_OF_KIND[kind] is row.family
        ]
        assert row.busy.simulated == pytest.approx(sum(own) / 2, rel=1e-9)


def test_sums_by_hand(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    rows = (
        NamedKernels("nvjet_tst_a", 12, 0.06),
        NamedKernels("ampere_bf16_gemm", 6, 0.03),
        NamedKernels("odd_one", 6, 0.012),
        NamedKernels("other", 7, 0.03),
    )
    result = compare_sum(KernelSum(rows, 0.9), run.job, run.report, iterations=3, gpus=2, rank=0)
    measured = result.measured.families
    assert (measured[Family.MATMUL].busy_s, measured[Family.MATMUL].count) == (pytest.approx(0.015), 3)
    assert [(row.name, row.count) for row in result.unmatched] == [("other", 1), ("odd_one", 1)]
    assert [row.busy_s for row in result.unmatched] == pytest.approx([0.005, 0.002])
    assert any(one.startswith("23% of the kernel time is of kernels whose number is no m") for one in result.warnings)
    assert any("7 of other" in one for one in result.warnings)
    assert "the rows make 90.0% of the kernel time: the others are missing" in result.warnings
    without = compare_sum(KernelSum(rows), run.job, run.report, iterations=1, gpus=1)
    assert (without.rank, without.warnings[0][:38]) == (0, "the report does not tell its ranks: pi")


def test_all_to_alls_may_hide_in_send_and_receive(tmp_path: Path) -> None:
    run = vlm_run()
    spans = [("ncclDevKernel_SendRecv(Args)", 0, 1000)]
    result = of_sum(write_kernel_sum(tmp_path / "s.csv", spans), run, iterations=1, gpus=1, rank=0)
    has_all_to_all = Family.ALL_TO_ALL in result.simulated.families
    assert any("no all-to-all is told by name" in one for one in result.warnings) == has_all_to_all


@pytest.mark.parametrize(
    ("options", "where", "nearest"),
    [
        ({"iterations": None, "gpus": 1}, "--iterations, ", 1),
        ({"iterations": 1, "gpus": None}, "--gpus, ", 1),
        ({"iterations": 0, "gpus": 1}, "--iterations", 1),
        ({"iterations": 1, "gpus": -3}, "--gpus", 1),
        ({"iterations": 1, "gpus": 1, "rank": 2}, "--rank", 1),
        ({"iterations": 1, "gpus": 8, "rank": 2}, "--rank", 1),
        ({"iterations": 1, "gpus": 5, "rank": 0}, "--gpus", 4),
        ({"iterations": 1, "gpus": 5}, "--gpus", 4),
        ({"iterations": 1, "gpus": 7}, "--gpus", 8),
        ({"iterations": 1, "gpus": 80}, "--gpus", 8),
    ],
)
def test_what_a_sum_holds_has_to_be_told(options: Any, where: str, nearest: int, tmp_path: Path) -> None:
    run = text_run(tmp_path)
    path = write_kernel_sum(tmp_path / "s.csv", spans_of(run, 0, 1.0, iterations=3))
    with pytest.raises(ConfigError) as error:
        of_sum(path, run, **options)
    assert str(error.value.where).startswith(where)
    assert error.value.nearest == nearest
    assert error.value.expected
    if options["iterations"] is None:
        assert "the number of every kernel is a multiple of 3" in str(error.value.got)


def test_one_gpu_of_several(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    rows = [trace_row(("nvjet", 10 * device, 4), device) for device in (0, 0, 2, 5)]
    path = tmp_path / "t.csv"
    path.write_text(TRACE_HEADINGS + "\n" + "".join(rows))
    for options, where, nearest in (({}, str(path), 0), ({"rank": 0}, str(path), 0), ({"gpu": 4}, "--gpu, ", 5)):
        with pytest.raises(ConfigError) as error:
            of_trace(path, run, **options)
        assert str(error.value.where).startswith(where)
        assert error.value.nearest == nearest
    zero, two = (of_trace(path, run, gpu=gpu, rank=1) for gpu in (0, 2))
    assert [one.measured.families[Family.MATMUL].count for one in (zero, two)] == [2, 1]
    assert "GPU 2 of 0, 2, 5 is compared" in two.warnings
    assert two.rank == 1
    with pytest.raises(ConfigError, match="not a number of iterations"):
        of_trace(path, run, gpu=0, rank=1, iterations=0)


def test_steps_and_iterations_do_not_go_together(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    path = write_trace(tmp_path / "t.json", step(1, 0, 100), kernel("nvjet", 5, 5))
    with pytest.raises(ConfigError, match="the trace marks its iterations") as error:
        of_trace(path, run, rank=0, iterations=2)
    assert str(error.value.where).startswith("--iterations")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = text_run(tmp_path)
    spans = spans_of(run, 1, 1.25)
    sums, trace = write_kernel_sum(tmp_path / "s.csv", spans), write_gpu_trace(tmp_path / "t.csv", spans)

    def said(*words: str, rank: tuple[str, ...] = ("--rank", "1")) -> tuple[int, dict[str, Any]]:
        code = main(("validate", *run.words, *rank, *words, "--json"))
        return code, json.loads(capsys.readouterr().out)

    told = ("--trace", str(sums), "--iterations", "1", "--gpus", "1")
    code, of_sums = said(*told, "--out", str(tmp_path / "out"), "--tolerance", "25")
    assert (code, of_sums["trace"]) == (0, str(sums))
    assert said(*told, "--tolerance", "19")[0] == 7
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".csv", ".html", ".json", ".png"]
    code, of_spans = said("--trace", str(trace), "--iterations", "1", "--gpu", "0")
    assert code == 0
    one, other = ({row["kind"]: row["measured_s"] for row in document["kinds"]} for document in (of_sums, of_spans))
    assert one == pytest.approx({kind: time for kind, time in other.items() if kind != "memcpy, memset"})
    refused: list[tuple[tuple[str, ...], str, object]] = [
        (("--trace", str(sums)), f"--iterations, {sums}", 1),
        (("--trace", str(sums), "--iterations", "2"), f"--gpus, {sums}", 1),
        (("--trace", str(sums), "--step", "2"), f"--step, {sums}", None),
        (("--trace", str(sums), "--gpu", "2"), f"--gpu, {sums}", None),
        (("--trace", str(trace), "--gpus", "2"), f"--gpus, {trace}", None),
        (("--trace", str(trace), "--step", "2"), f"--step, {trace}", None),
        (("--trace", str(trace), "--gpu", "2"), f"--gpu, {trace}", 0),
        (("--log", str(trace), "--iterations", "2"), "--iterations", None),
    ]
    for words, where, nearest in refused:
        code, document = said(*words, rank=() if words[0] == "--log" else ("--rank", "1"))
        assert (code, document["error"]["where"], document["error"]["nearest"]) == (2, where, nearest)
