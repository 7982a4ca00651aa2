"""Reading traces of torch.profiler: which kernels, of which step, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.fitting.kernel_names import Family
from semu.validation.traces.kineto import read_kineto
from tests.validation.own_runs import kernel, launch, step, write_trace

GEMM, COPY = "nvjet_tst_128x256", "Memcpy HtoD (Pageable -> Device)"


def steps_of(path: Path) -> list[int | None]:
    return [one.step for one in read_kineto(path).kernels]


def test_kernels_copies_and_header(tmp_path: Path) -> None:
    events = [
        kernel(GEMM, 10.5, 4.25),
        {**kernel(COPY, 20, 1), "cat": "gpu_memcpy"},
        {**kernel("Memset (Device)", 30, 1), "cat": "gpu_memset"},
        {**kernel("aten::mm", 5, 50), "cat": "cpu_op"},
        {"ph": "i", "cat": "kernel", "name": "an instant", "ts": 1},
        kernel("ncclDevKernel_SendRecv", 40, 2, args={"Collective name": "all_to_allv"}),
    ]
    trace = read_kineto(write_trace(tmp_path / "t.json", *events, distributedInfo={"rank": 5, "world_size": 16}))
    assert [(one.name, one.family, one.start_us, one.end_us) for one in trace.kernels] == [
        (GEMM, Family.MATMUL, 10.5, 14.75),
        (COPY, Family.MEMCPY, 20, 21),
        ("Memset (Device)", Family.MEMCPY, 30, 31),
        ("ncclDevKernel_SendRecv", Family.ALL_TO_ALL, 40, 42),
    ]
    assert (trace.rank, trace.world_size, dict(trace.steps)) == (5, 16, {})


def test_the_launch_decides_the_step(tmp_path: Path) -> None:
    """Kernels run long after their launch: the second one in the third step's time, launched in the first."""
    events = [
        *(step(number, 100.0 * number, 100.0) for number in (1, 2, 3)),
        launch(110, 7),
        launch(150, 8),
        launch(390, 9),
        launch(500, 10),
        kernel(GEMM, 120, 5, correlation=7),
        kernel(GEMM, 320, 5, correlation=8),
        kernel(GEMM, 405, 5, correlation=9),
        kernel(GEMM, 510, 5, correlation=10),
    ]
    path = write_trace(tmp_path / "t.json", *events)
    assert steps_of(path) == [1, 1, 3, None]
    assert dict(read_kineto(path).steps) == {1: (100, 200), 2: (200, 300), 3: (300, 400)}


def test_without_launches_the_gpu_annotation_decides_then_the_time(tmp_path: Path) -> None:
    both = [step(1, 100, 100), step(2, 200, 100)]
    gpu = [step(1, 150, 100, "gpu_user_annotation", 7), step(2, 260, 90, "gpu_user_annotation", 7)]
    kernels = [kernel(GEMM, 240, 5), kernel(GEMM, 255, 5), kernel(GEMM, 340, 5), kernel(GEMM, 240, 5, tid=20)]
    assert steps_of(write_trace(tmp_path / "a.json", *both, *gpu, *kernels)) == [1, None, 2, 2]
    assert steps_of(write_trace(tmp_path / "b.json", *both, *kernels)) == [2, 2, None, 2]
    only_gpu = write_trace(tmp_path / "c.json", *gpu, *kernels[:3])
    assert steps_of(only_gpu) == [1, None, 2]
    assert dict(read_kineto(only_gpu).steps) == {1: (150, 250), 2: (260, 350)}


def test_gzip_and_bare_lists(tmp_path: Path) -> None:
    path = tmp_path / "trace.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps([kernel(GEMM, 1, 2)]).encode()))
    assert [one.family for one in read_kineto(path).kernels] == [Family.MATMUL]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    whole = json.dumps({"traceEvents": [kernel(GEMM, 1, 2)] * 20}, indent=1)
    path = tmp_path / "t.json"
    cases: list[tuple[bytes, str, str]] = [
        (b" \n", "the file is empty", str(path)),
        (gzip.compress(whole.encode())[:-30], "gzip file is truncated", str(path)),
        (whole[: len(whole) // 2].encode(), "not JSON", f"{path}:"),
        (b"iteration 1/ 2 |", "not JSON", f"{path}:1"),
        (b"{}", "not a trace", str(path)),
        (b"3", "not a trace", str(path)),
        (b'{"traceEvents": [1]}', "not a trace", str(path)),
        (b"\xff\xfe\x00\x01\xff", "not a text file", str(path)),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}', "cannot be read", str(path)),
        (json.dumps([kernel(GEMM, 1, -2)]).encode(), "cannot be read", str(path)),
        (json.dumps([kernel(GEMM, 1, float("nan"))]).encode(), "cannot be read", str(path)),
        (json.dumps([{**kernel(GEMM, 1, 2), "ts": 10**400}]).encode(), "cannot be read", str(path)),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "k", "ts": 1}]}', "no GPU kernels", str(path)),
    ]
    for content, message, where in cases:
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as error:
            read_kineto(path)
        assert str(error.value.where).startswith(where)
        assert error.value.expected
    path.unlink()
    with pytest.raises(ConfigError, match="cannot read the file"):
        read_kineto(path)
