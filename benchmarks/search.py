"""The searcher: speed of its kernels against C, plain Python and OR-Tools; quality beside CP-SAT and a long search.

A row about speed with a goal is measured within this run; the fastest of several turns counts. All of it takes about an
hour, nearly all of that CP-SAT's; ``--quick`` takes two minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from _rows import Row, print_rows
from _search_quality import Growing, draw, measure_quality
from _search_speed import measure_speed

_GROWTHS: list[Growing] = []


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    yield from measure_speed(quick)
    yield from measure_quality(quick, _GROWTHS)


def picture(path: str, rows: list[Row]) -> None:
    """Time to a fixed quality against microbatches (DIP Fig. 12)."""
    draw(path, _GROWTHS)


if __name__ == "__main__":
    print_rows(__doc__, measure, picture)
