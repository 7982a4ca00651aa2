"""Speed of this tree beside another commit: the quick forms of the benchmarks of both in turns, in one session.

    make bench-compare REF=main~10
    python benchmarks/_compare.py REF [--only evaluate] [--turns 3] [--record]

The other commit is checked out beside this tree for the time. Printed per row: both values, how much slower this tree
is, and the spread of the turns; ``SLOWER`` stands where it is slower by more than 5 % and by more than the spread.
``--record`` adds the ratios to ``history.json``: times of this tree over those of the other commit, which say the same
on a slow and on a fast machine, with both commits and the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from tests.frozen.speed import TOLERANCE, Series, measure

HISTORY = Path(__file__).resolve().parent / "history.json"
BENCHMARKS = ("users", "evaluate", "grid", "reuse", "search", "engine")


@contextmanager
def checked_out(ref: str) -> Iterator[Path]:
    """A folder with another commit in it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "base"
        git("worktree", "add", "--detach", str(place), ref)
        try:
            yield place
        finally:
            git("worktree", "remove", "--force", str(place))


def git(*words: str) -> str:
    """What git says in this tree."""
    return subprocess.run(["git", *words], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> dict[str, Any]:
    """What the ratios were measured on."""
    found = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        found["processor"] = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {**found, "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}


def judged(name: str, row: str, series: Series) -> tuple[str, bool]:
    """A line about one row, and whether this tree is slower."""
    (base, mine), slower, spread = series.best(), series.slower(), series.spread()
    is_slow = slower > TOLERANCE and slower > spread and len(series.values[0]) > 1  # one turn has no spread
    told = f"{base:11.4g} {mine:11.4g} {100 * slower:+9.1f} % {100 * spread:8.1f} %"
    return f"{name + ': ' + row:100} {told} {'SLOWER' if is_slow else ''}".rstrip(), is_slow


def record(path: Path, ref: str, ratios: dict[str, float]) -> None:
    """Add an entry to a history."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    commits = {"commit": git("rev-parse", "--short=10", "HEAD"), "base": git("rev-parse", "--short=10", ref)}
    ratios = {name: float(f"{ratio:.3g}") for name, ratio in sorted(ratios.items())}
    entries.append(
        {**commits, "date": git("show", "-s", "--format=%cs", "HEAD"), "machine": machine(), "ratios": ratios}
    )
    path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def main(words: list[str] | None = None) -> int:
    """The command line; 1 where a row is slower beyond tolerance and spread, 2 where nothing could be compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ref", help="the other commit, branch or tag")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of each commit and benchmark (default 3)")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="this benchmark; may be repeated")
    parser.add_argument("--record", action="store_true", help="add the ratios to history.json")
    options = parser.parse_args(words)
    ratios: dict[str, float] = {}
    slow, notes = list[str](), list[str]()
    print(f"{'row':100} {'base':>11} {'this tree':>11} {'slower by':>11} {'spread':>10}")
    with checked_out(options.ref) as base:
        for name in options.only or BENCHMARKS:
            script = base / "benchmarks" / f"{name}.py"
            if not script.exists():
                notes.append(f"{name}: not in {options.ref}, so this tree's measures both")
                shutil.copy(_ROOT / "benchmarks" / script.name, script)
            found, wrong = measure([base, _ROOT], name, options.turns)
            notes += wrong
            for row, series in found.items():
                if math.isnan(slower := series.slower()):
                    continue
                line, is_slow = judged(name, row, series)
                print(line, flush=True)
                ratios[f"{name}: {row}"] = 1 + slower
                slow += [f"{name}: {row}"] if is_slow else []
    print(*notes, sep="\n")
    print(f"{len(slow)} of {len(ratios)} rows slower by more than {100 * TOLERANCE:.0f} % and the spread")
    if options.record and ratios:
        record(HISTORY, options.ref, ratios)
    return 1 if slow else 0 if ratios else 2


if __name__ == "__main__":
    raise SystemExit(main())
