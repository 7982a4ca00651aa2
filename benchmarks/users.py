"""What users wait for, whole: processes, from their start to their end, in seconds of a processor.

Each row is a process of its own with kernels compiled before, the fastest of several turns; goals are of an idle
machine. ``import numpy`` is measured in the same turns: it says how fast the machine is just now.

    python benchmarks/users.py [--quick] [--json]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from _rows import Row, print_rows
from _timing import run_process

SIMULATED = "import semu; from semu.runfile import load_run; semu.simulate(load_run('lm-7b'))"


@dataclass(frozen=True)
class Measured:
    """A process that users start.

    Attributes:
        name: of the row. words: after ``python``. goal_s: on an idle machine [s]; None: a reference.
    """

    name: str
    words: tuple[str, ...]
    goal_s: float | None = None


def command(*words: str) -> tuple[str, ...]:
    """A command of semu."""
    return ("-m", "semu", *words)


def processes(folder: str) -> list[Measured]:
    """What is measured; the first one is the machine's own speed."""
    return [
        Measured("import numpy", ("-c", "import numpy")),
        Measured("import semu, simulate lm-7b", ("-c", SIMULATED), 0.35),
        Measured("semu simulate lm-7b", command("simulate", "lm-7b")),
        Measured("semu simulate vlm-m", command("simulate", "vlm-m"), 0.5),
        Measured("semu simulate vlm-xl-16k", command("simulate", "vlm-xl-16k"), 0.6),
        Measured("semu simulate vlm-l", command("simulate", "vlm-l")),
        Measured("semu simulate vlm-l --out", command("simulate", "vlm-l", "--out", folder)),
    ]


def busy_s(words: Sequence[str]) -> float:
    """Seconds of a processor, user and system, of a Python process."""
    search = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": search}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users keep compiled modules
    with subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=_ROOT
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def measure_processes(quick: bool) -> Iterator[Row]:
    """A row for each process, with what ``import numpy`` takes in the same turns."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = processes(folder)
        chosen = [*chosen[:2], chosen[3]] if quick else chosen
        for each in chosen:
            busy_s(each.words)  # compiles and stores what is not yet
        fastest_s = {each.name: float("inf") for each in chosen}
        for _ in range(2 if quick else 5):
            for each in chosen:
                fastest_s[each.name] = min(fastest_s[each.name], busy_s(each.words))
    numpy_s = fastest_s["import numpy"]
    reference = f"import numpy takes {numpy_s:.3f} s"
    for each in chosen:
        took_s = fastest_s[each.name]
        goal = None if each.goal_s is None else f"<= {each.goal_s:g}"
        yield Row(each.name, took_s, "s", reference, goal, None if each.goal_s is None else took_s <= each.goal_s)
    simulated = fastest_s["import semu, simulate lm-7b"] / numpy_s
    yield Row("import semu, simulate lm-7b", simulated, "x the time", "import numpy")
    if "semu simulate vlm-l --out" in fastest_s:
        beyond_s = fastest_s["semu simulate vlm-l --out"] - fastest_s["semu simulate vlm-l"]
        yield Row("trace and pictures of vlm-l", beyond_s, "s", "beyond the simulation", "<= 0.3", beyond_s <= 0.3)


BATCHES = """
import dataclasses
import semu
from semu.runfile import load_run
job = load_run("vlm-s")
for seed in range({count}):
    semu.evaluate(dataclasses.replace(job, batch=semu.workload.vlm_batch(seed=seed)))
result = {count}
"""


def measure_memory(quick: bool) -> Iterator[Row]:
    """Resident memory of a process that evaluates one batch after another."""
    count = 200 if quick else 10_000
    peak_mb = run_process(BATCHES.format(count=count)).peak_bytes / 1e6
    name = f"memory of {count:,} evaluations of vlm-s, each of another batch"
    yield Row(name, peak_mb, "MB", "the whole process, at its highest", "<= 300", peak_mb <= 300)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    yield from measure_processes(quick)
    yield from measure_memory(quick)


if __name__ == "__main__":
    print_rows(__doc__, measure)
