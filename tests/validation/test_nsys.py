"""Reading reports of Nsight Systems: rows, units, other lines around them, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.fitting.kernel_names import Family
from semu.validation.traces.gpu_trace import GpuTrace, KernelSum
from semu.validation.traces.trace_reader import read_gpu_trace
from tests.validation.nsys_reports import NOTES, SUM_HEADINGS, TRACE_HEADINGS, trace_row
from tests.validation.own_runs import kernel, write_trace

SUM = f"""{NOTES.format("cuda_gpu_kern_sum")}{SUM_HEADINGS}
60.0,6000000,3,2000000.0,2000000.0,1000000,3000000,1000000.0,"void cutlass::Kernel2<128, 64, gemm>(T1::Params)"
30.0,"3,000,000",2,1500000.0,1500000.0,1500000,1500000,0.0,"ncclDevKernel_AllReduce_Sum_f32_RING_LL(int, long)"
10.0,1000000,1,1000000.0,1000000.0,1000000,1000000,0.0,say_""hello""
"""
LARGE = 1_700_000_000_123_456_789
"""A start on the clock of the day [ns], which is no float64."""


def trace_of(path: Path, text: str) -> GpuTrace:
    path.write_text(text)
    trace = read_gpu_trace(path)
    assert isinstance(trace, GpuTrace)
    return trace


def sum_of(path: Path, text: str) -> KernelSum:
    path.write_text(text)
    kernels = read_gpu_trace(path)
    assert isinstance(kernels, KernelSum)
    return kernels


def error_of(path: Path, content: str | bytes) -> ConfigError:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as error:
        read_gpu_trace(path)
    assert error.value.expected
    assert str(error.value.where).startswith(str(path))
    return error.value


def test_kernels_copies_and_devices(tmp_path: Path) -> None:
    rows = [
        trace_row(("nvjet_tst<1, 2>", LARGE, 4250)),
        trace_row(("[CUDA memcpy Host-to-Device]", LARGE - 1000, 500)),
        trace_row(("[CUDA memcpy DtoD]", LARGE, 1), device=3, stream=9),
        trace_row(("[CUDA memset]", LARGE + 1, 1)),
        trace_row(("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", LARGE, 7)),
    ]
    trace = trace_of(tmp_path / "t.csv", NOTES + TRACE_HEADINGS + "\n" + "\n".join(rows))
    found = [(one.name, one.family, one.start_us, one.end_us, one.pid, one.step) for one in trace.kernels]
    assert found == [
        ("nvjet_tst<1, 2>", Family.MATMUL, 1.0, 5.25, 0, None),
        ("[CUDA memcpy Host-to-Device]", Family.MEMCPY, 0.0, 0.5, 0, None),
        ("[CUDA memcpy DtoD]", Family.ELEMENTWISE, 1.0, 1.001, 3, None),
        ("[CUDA memset]", Family.MEMCPY, 1.001, 1.002, 0, None),
        (trace.kernels[4].name, Family.ALL_GATHER, 1.0, 1.007, 0, None),
    ]
    assert (dict(trace.steps), trace.rank) == ({}, None)


@pytest.mark.parametrize(
    ("start", "duration", "cells"),
    [
        ("Start (ns)", "Duration (ns)", "3000000,2000"),
        ("Start(nsec)", "Duration (us)", "3000000,2.0"),
        ("Start (us)", "Duration(ms)", '"3,000",0.002'),
        ("Start (ms)", "Duration (µs)", "3.0,2"),
        ("Start (sec)", "Duration (s)", "3e-3,2E-06"),
    ],
)
def test_units_are_of_the_headings(start: str, duration: str, cells: str, tmp_path: Path) -> None:
    text = f"{start},{duration},Strm,Device,Name\n{cells},7,A40 (1),a_kernel\n"
    more = text + "0,0,7,A40 (1),first\n"
    kernels = trace_of(tmp_path / "t.csv", more.replace("\n", "\r\n")).kernels
    assert (kernels[0].start_us, kernels[0].end_us) == (3000.0, 3002.0)
    assert kernels[0].pid == 1


def test_a_sum_of_kernels(tmp_path: Path) -> None:
    for text in (SUM, "\ufeff" + SUM, SUM.replace("\n", "\r\n"), SUM[SUM.index("Time") :]):
        kernels = sum_of(tmp_path / "s.csv", text)
        assert [(one.count, one.busy_s) for one in kernels.kernels] == [(3, 6e-3), (2, 3e-3), (1, 1e-3)]
        assert kernels.kernels[0].name == "void cutlass::Kernel2<128, 64, gemm>(T1::Params)"
        assert kernels.listed == 1.0
    path = tmp_path / "s.csv.gz"
    path.write_bytes(gzip.compress(SUM.encode()))
    assert read_gpu_trace(path) == kernels
    first = SUM[: SUM.index("30.0,")]
    assert sum_of(tmp_path / "s.csv", first).listed == pytest.approx(0.6)
    old = "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n100.0,5,1,5.0,5,5,k\n"
    assert [one.busy_s for one in sum_of(tmp_path / "s.csv", old).kernels] == [5e-9]
    microseconds = SUM.replace("Total Time (ns)", "Total Time (us)")
    assert [one.busy_s for one in sum_of(tmp_path / "s.csv", microseconds).kernels] == [6.0, 3.0, 1.0]


OTHERS = """Processing [run.sqlite] with [reports/{0}.py]...

{1}

"""
API = "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,5,1,5.0,cudaLaunchKernel"
SIZES = 'Total (MB),Count,Avg (MB),Operation\n"1,000.5",5,1.0,[CUDA memset]'
RANGES = 'Time (%),Total Time (ns),Instances,Avg (ns),Style,Range\n100.0,5,1,5.0,PushPop,":step 1'
MPI = "Time (%),Total Time (ns),Instances,Avg (ns),Source,Name\n100.0,5,1,5.0,P2P,MPI_Send"


def test_other_reports_of_the_same_output_are_passed_over(tmp_path: Path) -> None:
    """``nsys stats --format csv`` without --report writes all of its default reports, one after the other."""
    before, after = OTHERS.format("nvtx_sum", RANGES), OTHERS.format("size_sum", SIZES) + OTHERS.format("api_sum", API)
    alone = sum_of(tmp_path / "s.csv", SUM)
    assert sum_of(tmp_path / "s.csv", before + SUM + "\n" + after) == alone
    quiet = "\n".join(line for line in (before + SUM + "\n" + after).split("\n") if not line.startswith("Proc"))
    assert sum_of(tmp_path / "s.csv", quiet) == alone
    gap = SUM.replace("30.0,", "\nWARNING: a message\n\n30.0,")
    assert sum_of(tmp_path / "s.csv", gap) == alone


def test_what_is_no_report_of_kernels_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    trace_text = f"{TRACE_HEADINGS}\n{trace_row(('k', 5, 5))}"
    cases: list[tuple[str | bytes, str, str]] = [
        (RANGES, "a report of NVTX ranges", "Style, Range"),
        ("NVTX Range,Style,Kern Inst,Total Time (ns),Kernel Name\na,b,1,5,k", "a report of NVTX ranges", "NVTX Range"),
        ("Start (ns),End (ns),Duration (ns),Name,Lvl,RangeId,RangeStack\n", "a report of NVTX ranges", "RangeId"),
        (API, "no report of kernels", "columns Time (%), Total Time (ns), Num Calls"),
        (MPI, "no report of kernels", "Source"),
        ("Start (ns),Duration (ns),Name,Result,CorrID\n1,2,k,0,1", "no report of kernels", "Result"),
        (TRACE_HEADINGS.replace("Device", "D"), "no report of kernels", "Start (ns)"),
        ("SKIPPED: run.sqlite does not contain CUDA kernel data.\n\n", "no report of kernels", "does not contain CUDA"),
        (" iteration 1/ 10 | lm loss: 1, 2, 3 |", "neither a trace nor a report", "1 lines, the first is"),
        (SUM + "\n" + SUM, "two reports of kernels in one file", "cuda_gpu_kern_sum and, from this line on"),
        (SUM + "\n" + trace_text, "two reports of kernels in one file", "cuda_gpu_trace"),
        (SUM_HEADINGS + "\n", "no GPU kernels in the report", "no rows"),
        (SUM_HEADINGS.replace("StdDev (ns)", "Name") + "\n", "a column twice", "two"),
        (b"\x00\xff\xfe\x01", "not a text file", "byte 1"),
        (SUM.encode("utf-16"), "not a text file", "byte 0"),
    ]
    for content, message, got in cases:
        error = error_of(path, content)
        assert message in error.message
        assert got in str(error.got)
    assert error_of(path, b"").message == "the file is empty"
    assert "(JSON), or a report of Nsight Systems" in str(error_of(path, "nothing, of, it").expected)


@pytest.mark.parametrize(
    ("old", "new", "message", "line", "got"),
    [
        ("6000000,3", "-6000000,3", "not a number", "5 Total Time (ns)", "-6000000"),
        ("6000000,3", "nan,3", "not a number", "5 Total Time (ns)", "nan"),
        ("6000000,3", "inf,3", "not a number", "5 Total Time (ns)", "inf"),
        ("6000000,3", ",3", "not a number", "5 Total Time (ns)", "an empty cell"),
        ("6000000,3", '"6,00",3', "not a number", "5 Total Time (ns)", "6,00"),
        ("6000000,3", "9223372036854775808,3", "a time out of range", "5 Total Time (ns)", "9.22337e+18 ns"),
        ("6000000,3", "6000000,0", "not a count", "5 Instances", "0"),
        ("6000000,3", "6000000,2.5", "not a count", "5 Instances", "2.5"),
        ("6000000,3", "6000000,3,4", "a row that cannot be read", "5", "10 columns"),
        ('say_""hello""', "", "no text", "7 Name", "an empty cell"),
        ('say_""hello""', '"say', "a row that cannot be read: is the file truncated?", "7", "unexpected end"),
        ("1000000.0,1000000,1000000,0.0,say", "1000", "a row that cannot be read: is the file tr", "7", "5 columns"),
        ("60.0,", "80.0,", "shares of more than the whole time", "4 Time (%)", "120.0%"),
        ("60.0,", "x,", "not a number", "5 Time (%)", "x"),
        ("Total Time (ns)", "Total Time", "times without a unit", "4 Total Time", "Total Time"),
        ("Total Time (ns)", "Total Time (MB)", "no unit of time", "4 Total Time (MB)", "Total Time (MB)"),
    ],
)
def test_damaged_rows_are_named(old: str, new: str, message: str, line: str, got: str, tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    assert SUM.count(old) >= 1
    text = SUM.replace(old, new, 1) if not old.startswith("1000000") else SUM[: SUM.rindex(old)] + new
    error = error_of(path, text)
    assert error.message.startswith(message)
    assert error.where == f"{path}:{line}"
    assert got in str(error.got)


def test_json_is_read_as_before(tmp_path: Path) -> None:
    trace = read_gpu_trace(write_trace(tmp_path / "t.json", kernel("nvjet", 10, 5)))
    assert isinstance(trace, GpuTrace)
    assert [(one.start_us, one.end_us) for one in trace.kernels] == [(10, 15)]
    assert error_of(tmp_path / "d.json", b'{"traceEvents": [').message.startswith("not JSON")
