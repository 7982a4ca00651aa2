"""Under which software a file was measured, and when, where the file or its neighbour says so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

RECORD = "machine.json"
"""What ``calibration/measure.py`` writes beside its tables."""
_LONGEST = 200
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NCCL = re.compile(r"#\s*(nccl-tests version [^\n]*)")
_TRACE = (
    ("cuda_runtime_version", "CUDA runtime"),
    ("cuda_driver_version", "CUDA driver"),
    ("nccl_version", "NCCL"),
)
_TRACE_HEAD, _TRACE_TAIL = 20_000, 5_000


def folder_software(table: Path) -> str | None:
    """What ``machine.json`` beside a table of the measuring suite says; None: it is not there, or is not one.

    Args:
        table: the table's file.
    """
    try:
        record = json.loads((table.parent / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(record, Mapping):
        return None
    names = (("torch", "torch"), ("cuda", "CUDA"), ("cudnn", "cuDNN"), ("nccl", "NCCL"), ("driver", "driver"))
    words = [f"{title} {record[key]}" for key, title in names if isinstance(record.get(key), str | int)]
    runs = record.get("runs")
    dates = [str(run.get("date")) for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []
    days = sorted(day[0] for day in map(_DATE.match, dates) if day is not None)
    if days:
        words.append(days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")
    return _short(words)


def nccl_software(text: str) -> str | None:
    """The versions that nccl-tests print since 2.17, or write in JSON; None: not said."""
    found = _NCCL.search(text[:20_000])
    if found is not None:
        return _short([found[1].strip()])
    if not text.lstrip().startswith("{"):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    version = document.get("nccl_version")
    return _short([f"NCCL {version}"]) if isinstance(version, str | int) else None


def trace_software(content: bytes) -> str | None:
    """The versions in the head or at the end of a trace of torch.profiler; None: not said."""
    text = (content[:_TRACE_HEAD] + b"\n" + content[-_TRACE_TAIL:]).decode("utf-8", errors="replace")
    words = []
    for key, title in _TRACE:
        found = re.search(rf'"{key}":\s*"?([\w.]+)', text)
        if found is not None:
            words.append(f"{title} {found[1]}")
    return _short(words)


def _short(words: list[str]) -> str | None:
    text = " ".join(", ".join(words).split())
    return text[:_LONGEST] or None
