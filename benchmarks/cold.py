"""First use: seconds of each command with an empty kernel cache, and right after.

Every command runs as a process of its own with a cache of its own, twice. ``--quick``: one command.

    python benchmarks/cold.py [--quick] [--json]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from _rows import Row, print_rows

GOAL_S = 10.0
FILES = Path(__file__).resolve().parent / "instances" / "first_minutes"
COMMANDS = (
    ("simulate", "lm-7b"),
    ("simulate", "vlm-s"),
    ("grid", "lm-7b"),
    ("search", "vlm-s"),
    ("what-if", "vlm-s"),
    ("schedules", "lm-7b"),
    ("plan", "vlm-s", "-o", "{folder}/plan.json"),
    ("calibrate", str(FILES / "gemm.csv"), "--device", "h100", "-o", "{folder}/mine.toml"),
    ("validate",),
)


def run_once(words: tuple[str, ...], folder: str) -> float:
    """Seconds of a command whose compiled kernels are in a folder."""
    search = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    typed = [sys.executable, "-m", "semu", *(word.format(folder=folder) for word in words)]
    settings = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": search}
    begin = time.perf_counter()
    subprocess.run(typed, env=settings, capture_output=True, check=True, cwd=_ROOT)
    return time.perf_counter() - begin


def measure(is_quick: bool) -> Iterator[Row]:
    """Two rows for each command."""
    cores = f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    for words in COMMANDS[:1] if is_quick else COMMANDS:
        name = " ".join(word for word in words if "/" not in word)
        with tempfile.TemporaryDirectory() as folder:
            cold_s, warm_s = (run_once(words, folder) for _ in range(2))
        yield Row(f"{name}, cold", cold_s, "s", cores, f"<= {GOAL_S:g}", cold_s <= GOAL_S)
        yield Row(f"{name}, warm", warm_s, "s", cores)


if __name__ == "__main__":
    print_rows(__doc__, measure)
