"""Units: inside semu everything is seconds, bytes and FLOP; people read GiB, ms and TFLOP.

Objects: ``KIB, MIB, GIB``, ``TIME_STEP_S``, ``quantize_time``, ``format_bytes``, ``format_time``, ``format_count``,
``align_columns``, ``fit_columns``, ``fit_lines``, ``fit_options``, ``terminal_width``.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

TIME_GRID_PER_S = float(1 << 40)
"""Latencies are multiples of 2^-40 s (0.9 ps), so that float64 sums below 2^13 s are exact (DESIGN §3.3)."""
TIME_STEP_S = 1.0 / TIME_GRID_PER_S


_ROUNDED_UP = 1.0 - 5e-6
"""Of a unit, from which on two decimals of the smaller one would say 1000.00."""


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
    scale, unit = time_unit(time_s)
    return f"{time_s * scale:.{3 if scale == 1 else 2}f} {unit}"


def time_unit(time_s: float) -> tuple[float, str]:
    """The unit in which a person reads a time, and how many of it make a second."""
    return next((found for found in ((1.0, "s"), (1e3, "ms")) if abs(time_s) * found[0] >= 1), (1e6, "us"))


def format_count(count: float) -> str:
    """A large count for a person: ``36.8 B`` (10^9), ``1.2 M``."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= _ROUNDED_UP * factor:
            return f"{count / factor:.2f} {suffix}"
    return f"{count:.0f}"


def format_usd(usd: float) -> str:
    """Money for a person, in the unit that fits: ``12.91 M USD``, ``3.20 K USD``, ``0.35 USD``."""
    return f"{format_count(usd) if abs(usd) >= 1e3 * _ROUNDED_UP else format(usd, '.2f')} USD"


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


LEAST_TEXT, LONGEST_WORD = 10, 30
"""Characters of a text column below which columns are left out instead of wrapping it, or within this, its words."""
LEAST_HANGING = 30
"""Characters that a line has to have left beside what stands in front, for its continuation to begin there too."""


def terminal_width() -> int:
    """Columns of the terminal, or COLUMNS; 80 where neither is known."""
    from shutil import get_terminal_size

    return get_terminal_size((80, 24)).columns


def fit_lines(text: str, *, width: int | None = None) -> str:
    """A text whose lines are no longer than the terminal's: longer ones are wrapped between words.

    Args:
        text: lines; what they continue with is indented as far as their last column, else by two spaces more than the
            line. width: None: of the terminal.
    Returns:
        The text; a word that is longer than a line stays whole, so that it can be pasted.
    """
    most = terminal_width() if width is None else width
    return "\n".join(part for line in text.split("\n") for part in _wrapped(line, most))


def _wrapped(line: str, most: int) -> list[str]:
    if len(line) <= most:
        return [line]
    own = len(line) - len(line.lstrip())
    columns = [match.end() for match in re.finditer(r"(?<=\S)\s{2,}", line) if match.end() <= most - LEAST_HANGING]
    return textwrap.wrap(
        line,
        most,
        subsequent_indent=" " * (columns[-1] if columns else own + 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def fit_options(options: Sequence[str], comment: str = "", *, first: str = "", width: int | None = None) -> list[str]:
    """Options of a command line as lines that a shell takes: a line that goes on ends with a backslash.

    Args:
        options: none is broken, e.g. ``--set parallel.tp=2``. comment: about them, behind ``#``. first: what stands in
            front of the first line, as far as which the others are indented. width: None: of the terminal.
    """
    most = terminal_width() if width is None else width
    lines: list[str] = []
    now = first
    for option in options:
        if now.strip() and now != first and len(now) + len(option) + 3 > most:  # a blank before, " \" after
            lines.append(f"{now} \\")
            now = " " * len(first)
        now += option if now == first or not now.strip() else f" {option}"
    if not comment:
        return [*lines, now]
    noted = f"{now}  # {comment}"
    indent = " " * len(first) + "# "
    if len(noted) <= most:
        return [*lines, noted]
    about = textwrap.wrap(comment, most, initial_indent=indent, subsequent_indent=indent)
    return [*lines, now, *about]


def fit_columns(rows: Sequence[Sequence[str]], right: Sequence[bool], *, width: int | None = None) -> list[str]:
    """``align_columns`` within the terminal: the widest column of text is wrapped, or the last columns are left out.

    Args:
        rows, right: as there, the most important columns first. width: None: of the terminal.
    Returns:
        The lines; behind a blank one, others that name columns that are left out.
    """
    most = terminal_width() if width is None else width
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    count, heads = len(widths), rows[0]
    while count > 1 and (over := sum(widths[:count]) + 2 * (count - 1) - most) > 0:
        texts = [column for column in range(count) if not right[column]]
        widest = max(texts, key=lambda column: widths[column], default=0)
        room = widths[widest] - over
        longest = max(len(word) for row in rows for word in ("", *row[widest].split()))
        if texts and room >= max(LEAST_TEXT, min(longest, LONGEST_WORD)):
            rows = [part for row in rows for part in _broken(row[:count], widest, room)]
            break
        count -= 1
    lines = align_columns([row[:count] for row in rows], right[:count])
    left = [head for head in heads[count:] if head]
    said = fit_lines(f"(a wider terminal shows more: {', '.join(left)})", width=most).split("\n") if left else []
    return [*lines, "", *said] if left else lines


def _broken(row: Sequence[str], column: int, room: int) -> Iterator[tuple[str, ...]]:
    """A row as several, one cell of it wrapped."""
    indent = " " * (len(row[column]) - len(row[column].lstrip()))
    parts = textwrap.wrap(row[column], room, subsequent_indent=indent, break_on_hyphens=False) or [""]
    for number, part in enumerate(parts):
        yield tuple(part if at == column else "" if number else cell for at, cell in enumerate(row))
