"""The searcher: speed of its kernels against C, plain Python and OR-Tools.

A row with a goal is measured within this run; the fastest of several turns counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from _rows import print_rows
from _search_speed import measure_speed

if __name__ == "__main__":
    print_rows(__doc__, measure_speed)
