"""Speed beside another checkout, in one run: the benchmarks of both trees in turns, a process each.

    python tests/frozen/speed.py BASE_DIR                    # evaluate, grid, reuse and search, --quick, three turns
    python tests/frozen/speed.py BASE_DIR --only evaluate --turns 5

Printed per row: the best value of both trees (of several turns the fastest counts, as in the benchmarks), how much
slower this tree is, and the spread: how far the values of one tree lie apart, the larger of both. A row is marked where
this tree is more than 5 % slower, and slower by more than the spread too. Only times and rates are judged; rows that
are ratios of two things of one tree are printed where they differ. A benchmark that crashes in a tree is told with the
last line of its message, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ("evaluate", "grid", "reuse", "search")
TOLERANCE = 0.05
_TIMES = ("s", "ms", "us", "ns", "x the time")
"""Units of rows in which less is better; a rate ends in ``/s``. Other rows compare two things of one tree."""


@dataclass
class Series:
    """The values of one row in both trees.

    Attributes:
        unit: of the values. values: of the base and of this tree, a turn each.
    """

    unit: str
    values: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.unit in _TIMES

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")

    def best(self) -> tuple[float, float]:
        """Of the base and of this tree."""
        pick = min if self.is_time else max
        return pick(self.values[0]), pick(self.values[1])

    def slower(self) -> float:
        """How much slower this tree is, less than 0: faster; nan: neither."""
        base, mine = self.best()
        if not (self.is_time or self.is_rate) or base <= 0 or mine <= 0:
            return math.nan
        return (mine / base if self.is_time else base / mine) - 1

    def spread(self) -> float:
        """How far the values of one tree lie apart, relative to the smallest, the larger of both."""
        return max((max(own) / min(own) - 1 if min(own) > 0 else 0.0) for own in self.values)


def run_benchmark(tree: Path, name: str) -> tuple[dict[str, tuple[float, str]], str]:
    """Rows of a benchmark of a tree: name -> value and unit, and why there are none."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, str(tree / "benchmarks" / f"{name}.py"), "--quick", "--json"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        return {}, f"exit code {done.returncode}: {said[-1]}"
    rows = json.loads(done.stdout[done.stdout.index("[") :])
    known = [row for row in rows if row["value"] is not None]
    return {f"{row['name']} [{row['unit']}]": (float(row["value"]), row["unit"]) for row in known}, ""


def measure(trees: Sequence[Path], name: str, turns: int) -> tuple[dict[str, Series], list[str]]:
    """A benchmark in both trees in turns, and what went wrong."""
    found: dict[str, Series] = {}
    failures: list[str] = []
    for turn in range(turns):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for which in order:
            rows, why = run_benchmark(trees[which], name)
            if why:
                return {}, [f"{name} FAILED in {trees[which]}: {why}"]
            for row, (value, unit) in rows.items():
                found.setdefault(row, Series(unit)).values[which].append(value)
    for row in [row for row, series in found.items() if not all(series.values)]:
        where = "this tree" if found[row].values[1] else "the base"
        failures.append(f"{name}: {row} is only in {where}")
        del found[row]
    return found, failures


def main() -> int:
    """The command line; 1 where a row is slower beyond tolerance and spread, 2 where a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, metavar="BASE_DIR", help="the other checkout")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of each tree and benchmark (default 3)")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, help="this benchmark; may be repeated")
    options = parser.parse_args()
    if not (options.base / "benchmarks").is_dir():
        parser.error(f"no benchmarks in {options.base}")
    trees = [options.base.resolve(), ROOT]
    slow, failures = 0, list[str]()
    print(f"{'row':76} {'base':>11} {'this tree':>11} {'slower by':>10} {'spread':>9}")
    for name in options.only or BENCHMARKS:
        found, wrong = measure(trees, name, options.turns)
        failures += wrong
        for row, series in found.items():
            (base, mine), slower, spread = series.best(), series.slower(), series.spread()
            is_slow = slower > TOLERANCE and slower > spread
            slow += is_slow
            if math.isnan(slower) and base == mine:
                continue
            told = "" if math.isnan(slower) else f"{100 * slower:+.1f} %"
            mark = "SLOWER" if is_slow else ""
            values = f"{base:11.4g} {mine:11.4g}"
            print(f"{name + ': ' + row:76} {values} {told:>10} {100 * spread:7.1f} % {mark}".rstrip(), flush=True)
        for line in wrong:
            print(line, flush=True)
    print(f"{slow} rows slower by more than {100 * TOLERANCE:.0f} % and the spread, {len(failures)} failures")
    return 1 if slow else 2 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
