"""First minutes: what new users type, how much of it is refused, how long it takes, how much it prints.

``instances/first_minutes/commands.txt`` holds the commands of seven kinds of user, written down before they were tried.
Each runs as a process of its own, in order, in a copy of that folder with 80 columns; first all of them with an empty
kernel cache each role (cold), then again (warm). A command is refused where its exit code is not one that its line
allows; where what it asks for does not fit in memory, and stderr tells a line that does, it is counted apart.
``--quick`` runs the first useful answer of every role, warm only; ``--role`` runs one role.

    python benchmarks/first_minutes.py [--quick] [--role NAME] [--table] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from _rows import Row

FILES = Path(__file__).resolve().parent / "instances" / "first_minutes"
COLUMNS = 80
SCREEN = 24
COLD_GOAL_S, WARM_GOAL_S, COMMAND_GOAL_S = 60.0, 3.0, 10.0


@dataclass(frozen=True)
class Line:
    """A line of ``commands.txt``.

    Attributes:
        role: who types it. command: what. answers: exit codes that are an answer. is_first: the role's first useful
            answer.
    """

    role: str
    command: str
    answers: tuple[int, ...]
    is_first: bool


@dataclass(frozen=True)
class Run:
    """A command that ran.

    Attributes:
        line: the command. exit_code: how it ended. seconds: how long it took. lines, width: of its output.
        said: the last line on stderr. way_out: the line that is told to one who runs out of memory; empty: none.
    """

    line: Line
    exit_code: int
    seconds: float
    lines: int
    width: int
    said: str
    way_out: str

    @property
    def is_refused(self) -> bool:
        """Whether the user got no answer; that a run does not fit, and what does, is one."""
        return self.exit_code not in self.line.answers and not self.has_way_out

    @property
    def has_way_out(self) -> bool:
        """Whether what was asked for does not fit in memory, which is reported, with a line that does."""
        return self.exit_code == 3 and self.lines > 0 and self.way_out != ""


def read_lines(path: Path) -> list[Line]:
    """The commands of a file."""
    role, lines = "", []
    for text in path.read_text().splitlines():
        if match := re.match(r"\[([a-z]+)\] ", text):
            role = match[1]
        elif text.strip() and not text.startswith("#"):
            star, codes, command = re.fullmatch(r"(\* )?(?:\[([\d, ]+)\] )?(.+)", text).groups()  # type: ignore[union-attr]
            answers = tuple(int(code) for code in (codes or "0").split(","))
            lines.append(Line(role, command, answers, star is not None))
    return lines


def run_line(line: Line, folder: Path, kernels: Path | None) -> Run:
    """Type one command; ``kernels``: folder of compiled kernels, None: as usual."""
    search = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    settings = {"COLUMNS": str(COLUMNS), "PYTHONPATH": search}
    settings |= {"NUMBA_CACHE_DIR": str(kernels)} if kernels is not None else {}
    program, *words = shlex.split(line.command)
    typed = [sys.executable, *(["-m", "semu"] if program == "semu" else []), *words]
    start = time.perf_counter()
    done = subprocess.run(
        typed, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=600
    )
    seconds = time.perf_counter() - start
    printed = done.stdout.splitlines()
    said = [text for text in done.stderr.splitlines() if text.strip()]
    width = max((len(text) for text in printed), default=0)
    way_out = done.stderr.partition("it fits with: ")[2].strip()
    return Run(line, done.returncode, seconds, len(printed), width, said[-1] if said else "", way_out)


def run_lines(lines: Sequence[Line], *, is_cold: bool) -> Iterator[Run]:
    """Type commands in turn; cold: with an empty kernel cache for every role."""
    with tempfile.TemporaryDirectory() as name:
        for role in dict.fromkeys(line.role for line in lines):
            folder, kernels = Path(name, role), Path(name, f"{role}-kernels")
            shutil.copytree(FILES, folder)
            for line in lines:
                if line.role == role:
                    yield run_line(line, folder, kernels if is_cold else None)


def summarize(runs: Sequence[Run], temper: str, goal_s: float) -> Iterator[Row]:
    """Rows of all commands, cold or warm."""
    refused = [run for run in runs if run.is_refused]
    plain = [run for run in runs if "--help" not in run.line.command and "--json" not in run.line.command]
    count = f"{len(runs)} commands"
    yield Row(f"refused, {temper}", len(refused), "commands", count, "0", not refused)
    unasked = [run for run in runs if run.has_way_out and run.exit_code not in run.line.answers]
    yield Row(f"does not fit, told what does, {temper}", len(unasked), "commands", count)
    first = [run for run in runs if run.line.is_first]
    slowest = max(first, key=lambda run: run.seconds)
    reference = f"slowest of {len(first)} roles: {slowest.line.role}"
    yield Row(
        f"first useful answer, {temper}", slowest.seconds, "s", reference, f"<= {goal_s:g}", slowest.seconds <= goal_s
    )
    slow = max(runs, key=lambda run: run.seconds)
    is_fast = slow.seconds <= COMMAND_GOAL_S
    yield Row(f"slowest command, {temper}", slow.seconds, "s", slow.line.command, f"<= {COMMAND_GOAL_S:g}", is_fast)
    yield Row(f"median command, {temper}", median(run.seconds for run in runs), "s", count)
    wide = max(plain, key=lambda run: run.width)
    yield Row(
        f"widest output, {temper}", wide.width, "columns", wide.line.command, f"<= {COLUMNS}", wide.width <= COLUMNS
    )


def table(runs: Sequence[tuple[Run | None, Run]]) -> str:
    """What happened to each command: cold and warm seconds, lines, columns, and why it was refused."""
    rows = [f"{'':2}{'cold s':>7}{'warm s':>7}{'lines':>6}{'cols':>5}  command"]
    role = ""
    for cold, warm in runs:
        if warm.line.role != role:
            role = warm.line.role
            rows.append(f"[{role}]")
        seconds = f"{cold.seconds:7.1f}" if cold is not None else f"{'-':>7}"
        mark = "X " if warm.is_refused else "* " if warm.line.is_first else "  "
        rows.append(f"{mark}{seconds}{warm.seconds:7.1f}{warm.lines:6}{warm.width:5}  {warm.line.command}")
        if warm.is_refused:
            rows.append(f"{'':29}exit {warm.exit_code}: {warm.said[:160]}")
    return "\n".join(rows)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON list of rows; progress on stderr")
    parser.add_argument("--quick", action="store_true", help="first useful answers only, warm only")
    parser.add_argument("--warm", action="store_true", help="all commands, warm only")
    parser.add_argument("--role", help="the commands of one role")
    parser.add_argument("--table", action="store_true", help="print what happened to each command")
    options = parser.parse_args()
    lines = [line for line in read_lines(FILES / "commands.txt") if options.role in (None, line.role)]
    if not lines:
        parser.error(f"no role {options.role}")
    if options.quick:
        lines = [line for line in lines if line.is_first]
    rows: list[Row] = []
    cold: list[Run] = []
    if not (options.quick or options.warm):
        for run in run_lines(lines, is_cold=True):
            print(f"cold {run.seconds:6.1f} s  {run.line.command}", file=sys.stderr, flush=True)
            cold.append(run)
        rows += summarize(cold, "cold", COLD_GOAL_S)
    warm = []
    for run in run_lines(lines, is_cold=False):
        print(f"warm {run.seconds:6.1f} s  {run.line.command}", file=sys.stderr, flush=True)
        warm.append(run)
    rows += summarize(warm, "warm", WARM_GOAL_S)
    if options.table:
        print(table(list(zip(cold or [None] * len(warm), warm, strict=True))))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    for row in rows:
        holds = "" if row.holds is None else "yes" if row.holds else "NO"
        print(f"{row.name:32} {row.value:10.4g} {row.unit:10} {row.goal or '':8} {holds:4} {row.reference}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
