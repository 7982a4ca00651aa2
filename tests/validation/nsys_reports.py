"""Ways to write what ``nsys stats --format csv`` would."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

TRACE_HEADINGS = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name"
)
SUM_HEADINGS = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
NOTES = """Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [/opt/nsight-systems/reports/{}.py]... 

"""  # noqa: W291
Span = tuple[str, int, int]
"""Name, start, duration [ns]."""


def _line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def trace_row(span: Span, device: int = 0, stream: int = 7) -> str:
    name, start, duration = span
    sizes: list[object] = ["", "", "", "", "", "", "", "", "", "0.524", "12.5", "Pinned", "Device"]
    if not name.startswith("["):
        sizes = [128, 1, 1, 256, 1, 1, 64, "0.000", "0.033", "", "", "", ""]
    return _line([start, duration, 911, *sizes, f"NVIDIA H100 80GB HBM3 ({device})", 1, stream, name])


def write_gpu_trace(path: Path, spans: Sequence[Span], device: int = 0, notes: bool = True) -> Path:
    head = NOTES.format("cuda_gpu_trace") * notes + TRACE_HEADINGS + "\n"
    path.write_text(head + "".join(trace_row(span, device) for span in spans) + "\n" * notes)
    return path


def write_kernel_sum(path: Path, spans: Sequence[Span], notes: bool = True) -> Path:
    """Copies are left out, as nsys does."""
    times: dict[str, list[int]] = {}
    for name, _, duration in spans:
        if not name.startswith("["):
            times.setdefault(name, []).append(duration)
    everything = sum(map(sum, times.values()))
    lines = [
        _line(
            [
                f"{100 * sum(own) / everything:.1f}",
                sum(own),
                len(own),
                *(f"{value:.1f}" for value in (sum(own) / len(own), sorted(own)[len(own) // 2])),
                *(min(own), max(own), "1.5", name),
            ]
        )
        for name, own in sorted(times.items(), key=lambda item: -sum(item[1]))
    ]
    path.write_text(NOTES.format("cuda_gpu_kern_sum") * notes + SUM_HEADINGS + "\n" + "".join(lines) + "\n" * notes)
    return path
