"""Units: inside semu everything is seconds, bytes and FLOP; people read GiB, ms and TFLOP.

Objects: ``KIB, MIB, GIB``, ``TIME_STEP_S``, ``quantize_time``, ``format_bytes``, ``format_time``, ``format_count``,
``align_columns``, ``fit_columns``, ``terminal_width``.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

TIME_GRID_PER_S = float(1 << 40)
"""Latencies are multiples of 2^-40 s (0.9 ps), so that float64 sums below 2^13 s are exact (DESIGN §3.3)."""
TIME_STEP_S = 1.0 / TIME_GRID_PER_S


def quantize_time(latency_s: float) -> float:
    """Round a latency [s] to the time grid of 2^-40 s, half to even."""
    return round(latency_s * TIME_GRID_PER_S) / TIME_GRID_PER_S


def format_bytes(size_bytes: float) -> str:
    """Bytes for a person, in binary units: ``3.2 GiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def format_time(time_s: float) -> str:
    """Seconds for a person: ``4.07 s``, ``31.2 ms``, ``8.4 us``."""
    if abs(time_s) >= 1:
        return f"{time_s:.3f} s"
    if abs(time_s) >= 1e-3:
        return f"{time_s * 1e3:.2f} ms"
    return f"{time_s * 1e6:.2f} us"


def format_count(count: float) -> str:
    """A large count for a person: ``36.8 B`` (10^9), ``1.2 M``."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= factor:
            return f"{count / factor:.2f} {suffix}"
    return f"{count:.0f}"


def align_columns(rows: Sequence[Sequence[str]], right: Sequence[bool] | None = None) -> list[str]:
    """Rows of cells as lines with two spaces between columns.

    Args:
        rows: equally many cells each, headings first. right: per column, whether it is aligned to the right;
            None: none is.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right or [False] * len(widths), strict=True)
        ).rstrip()
        for row in rows
    ]


LEAST_TEXT = 10
"""Characters of a text column below which it is left out instead of cut."""


def terminal_width() -> int:
    """Columns of the terminal, or COLUMNS; 80 where neither is known."""
    return shutil.get_terminal_size((80, 24)).columns


def fit_columns(rows: Sequence[Sequence[str]], right: Sequence[bool], *, width: int | None = None) -> list[str]:
    """``align_columns`` within the terminal: what lies behind its edge is cut between words, or left out by columns.

    Args:
        rows, right: as there, the most important columns first. width: None: of the terminal.
    Returns:
        The lines; behind a blank one, a last one names columns that are left out.
    """
    most = terminal_width() if width is None else width
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    count, heads = len(widths), rows[0]
    while count > 1 and sum(widths[:count]) + 2 * (count - 1) > most:
        room = most - sum(widths[: count - 1]) - 2 * (count - 1)
        if not right[count - 1] and room >= LEAST_TEXT:
            cut = [textwrap.shorten(row[count - 1], room, placeholder=" ...") for row in rows]
            rows = [(*row[: count - 1], text) for row, text in zip(rows, cut, strict=True)]
            break
        count -= 1
    lines = align_columns([row[:count] for row in rows], right[:count])
    left = [head for head in heads[count:] if head]
    return [*lines, "", f"(a wider terminal shows more: {', '.join(left)})"] if left else lines
