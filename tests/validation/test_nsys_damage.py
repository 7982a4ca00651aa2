"""Damaged reports of Nsight Systems are refused in words, or read as a report that has the same shape."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.validation.traces.gpu_trace import GpuTrace, KernelSum
from semu.validation.traces.nsys import read_nsys
from tests.validation.nsys_reports import Span, write_gpu_trace, write_kernel_sum

SPANS: list[Span] = [
    (name, 1_000_000 + 700 * number, 10 + number)
    for number, name in enumerate(
        ["void gemm<128, 64>(T1, T2)", "[CUDA memcpy Host-to-Device]", 'a "quoted" one', "ncclDevKernel_AllReduce"] * 4
    )
]
WORDS = [
    *(b"nan", b"-1", b"inf", b"1e99", b"1e-99", b"9" * 40, b"1,000", b"1_0", b"a" * 200_000),
    *(b'"', b",", b"\n", b"\n\n", b"\r", b"\x00", b"\xff", b"\xe2\x80\xa8", b"", b"(", b"%"),
    *(b"Name", b"Device", b"Start (ns)", b"Processing ["),
]


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def word(content: bytes, draw: random.Random) -> bytes:
    """A word somewhere, in place of a few bytes."""
    at = draw.randrange(len(content))
    return content[:at] + draw.choice(WORDS) + content[at + draw.randrange(6) :]


def cell(content: bytes, draw: random.Random) -> bytes:
    """A word in place of a cell."""
    lines = content.split(b"\n")
    number = draw.randrange(len(lines))
    cells = lines[number].split(b",")
    cells[draw.randrange(len(cells))] = draw.choice(WORDS)
    lines[number] = b",".join(cells)
    return b"\n".join(lines)


def moved(content: bytes, draw: random.Random) -> bytes:
    """Lines left out, doubled and in another order."""
    lines = content.split(b"\n")
    return b"\n".join(draw.choices(lines, k=draw.randrange(1, 2 * len(lines))))


def noise(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))] + draw.randbytes(draw.randrange(1, 60))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", [cut, word, cell, moved, noise])
@pytest.mark.parametrize("write", [write_gpu_trace, write_kernel_sum])
def test_damage(write: Callable[[Path, list[Span]], Path], damage: Callable, tmp_path: Path) -> None:  # type: ignore[type-arg]
    whole = write(tmp_path / "r.csv", SPANS).read_bytes()
    draw = random.Random(f"{write.__name__} {damage.__name__}")
    refused = 0
    for _ in range(1000):
        content = whole
        for _ in range(draw.randrange(1, 3)):
            content = damage(content, draw) or b" "
        try:
            found = read_nsys(content, "r.csv")
        except ConfigError as error:
            refused += 1
            assert error.expected and error.got is not None and str(error.where).startswith("r.csv"), error
            assert len(str(error)) < 2_000
            continue
        if isinstance(found, GpuTrace):
            assert found.kernels
            for kernel in found.kernels:
                assert kernel.name and 0 <= kernel.start_us <= kernel.end_us < math.inf
        else:
            assert isinstance(found, KernelSum) and found.kernels
            for one in found.kernels:
                assert one.name and one.count >= 1 and 0 <= one.busy_s < math.inf
    assert refused > 250


def test_a_cut_report_never_passes_for_a_whole_one(tmp_path: Path) -> None:
    """At every byte: refused; or its last name is cut; or, of a sum, rows are missing and that is told."""
    whole = write_kernel_sum(tmp_path / "r.csv", SPANS, notes=False).read_bytes().rstrip(b"\n")
    full = read_nsys(whole, "r.csv")
    assert isinstance(full, KernelSum) and full.listed == 1.0
    read = 0
    for length in range(1, len(whole)):
        try:
            found = read_nsys(whole[:length] or b" ", "r.csv")
        except ConfigError:
            continue
        read += 1
        assert isinstance(found, KernelSum)
        rows = len(found.kernels)
        assert [one.busy_s for one in found.kernels] == [one.busy_s for one in full.kernels][:rows]
        assert rows == len(full.kernels) or (found.listed is not None and found.listed < 1)
    assert read > 0
