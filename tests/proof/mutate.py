"""Puts one fault at a time into semu and asks the default suite whether it notices.

    python -m tests.proof.mutate [--count 400] [--seed 0] [--state FILE] [--workers 2] [--whole] [--lines FOLDER]
                                 [--chosen] [--near 8] [--room 30] [AREA | FILE ...]

A fault is drawn from an area (``AREAS``) or a file, the areas in turn, the files of an area by their length. The test
files that share rare words with the fault's line run first, then those of its room, until one fails; with ``--whole``,
what they miss is tried by the whole default suite. With ``--lines`` (``tests/proof/covered.py``) instead: the quickest
tests that execute the line, for ``--near`` seconds, then the nearest files, and those that hold such tests, for
``--room`` seconds of measured time each; a line that no test executes has its nearest files alone. With ``--chosen``
files that have a line in ``tests/proof/chosen.json`` are asked of the tests that it names, in their order; with both,
where no test executes the line. A test that fails counts when it passes without the fault.
Results are lines of JSON in the state file, with which the same command goes on where it stopped.
Survivors are read in ``tests/proof/survivors.json``: those proved equivalent have a reason there and do not count.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from queue import Queue

from tests.proof.covered import Covered, is_kernel
from tests.proof.mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.json")
CHOSEN = Path(__file__).with_name("chosen.json")
"""Files and folders of semu -> tests that were chosen for them by hand; the longest path that fits counts."""
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "network": (("semu/costs/collectives/**/*.py", "semu/hardware/network/**/*.py"), ("costs", "hardware")),
    "costs": (("semu/costs/**/*.py",), ("costs",)),
    "rules": (("semu/parallel/**/*.py",), ("parallel",)),
    "schedules": (("semu/schedule/**/*.py",), ("schedule",)),
    "job": (("semu/job/**/*.py",), ("job", "simulation")),
    "memory": (("semu/simulation/memory/**/*.py", "semu/simulation/**/memory*.py"), ("simulation", "engine")),
    "engine": (("semu/engine/**/*.py",), ("engine", "simulation")),
    "simulation": (("semu/simulation/**/*.py",), ("simulation",)),
    "searcher": (("semu/searcher/**/*.py",), ("searcher",)),
    "bounds": (("semu/searcher/**/bounds.py", "semu/schedule/bounds.py"), ("searcher", "schedule")),
    "interleave": (("semu/searcher/orders/*.py", "semu/searcher/kernels/interleaving.py"), ("searcher",)),
    "memory choice": (("semu/searcher/memory.py", "semu/searcher/kernels/memory_choice.py"), ("searcher",)),
    "planner": (("semu/searcher/planner/*.py",), ("searcher",)),
    "grid": (("semu/searcher/grid/**/*.py", "semu/grid/**/*.py"), ("searcher",)),
    "assignment": (("semu/searcher/assignment/**/*.py",), ("searcher/assignment",)),
    "plan": (("semu/plan/**/*.py",), ("plan",)),
    "executor": (("semu/executor/**/*.py",), ("executor",)),
    "caches": (
        ("semu/memo.py", "semu/compiled.py", "semu/ahead.py", "semu/checks.py"),
        ("test_memo.py", "test_checks.py", "engine"),
    ),
    "importers": (("semu/imports/**/*.py",), ("imports",)),
    "exports": (("semu/exports/**/*.py",), ("exports",)),
    "calibration": (("semu/fitting/**/*.py", "semu/hardware/**/*.py"), ("fitting", "hardware", "calibration")),
    "contention": (("semu/simulation/effects/con*.py", "semu/simulation/effects/*_units.py"), ("simulation",)),
    "uncertainty": (("semu/simulation/effects/**/*.py", "semu/validation/**/*.py"), ("simulation", "validation")),
    "resilience": (("semu/resilience/**/*.py",), ("resilience",)),
    "runfile": (("semu/runfile/**/*.py",), ("runfile",)),
    "masks": (("semu/masks/**/*.py",), ("masks",)),
    "workload": (("semu/workload/**/*.py",), ("workload",)),
    "models": (("semu/nn/**/*.py", "semu_models/**/*.py", "semu/graph/**/*.py"), ("nn", "semu_models", "graph")),
    "reports": (("semu/present/**/*.py",), ("present",)),
    "pictures": (("semu/present/plots/*.py",), ("present",)),
    "commands": (("semu/cli/**/*.py", "semu/door/**/*.py"), ("cli",)),
}
"""Files of an area, and the folders of tests of its room."""
NEAR_S = 8.0
ROOM_S = 30.0
"""Measured times of tests that execute a fault's line, and of the files that hold them; of a tree, unless said."""
LIMIT_S = 900.0
WHOLE_S = 3600.0
CPU_FACTOR, CPU_S = 8.0, 120.0
"""Processor time of tests whose times are known: so many times as long as they took, and so much besides."""
UNDECIDED = ("too slow", "endless")
NO_TESTS = 5
"""pytest's exit code where none was selected."""


FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
"""Lines of pytest's summary, with the test's name."""
WORD = re.compile(r"[A-Za-z_]\w{3,}")
NEAR = 12
"""Test files that run first, at most."""
NEAREST = 4
"""Of them, those that are asked even where others execute the line: caches hide who would."""
SLOW = ("examples", "proof", "test_ahead.py", "test_packaging.py", "test_readme.py", "test_stored.py")
"""Of tests, what is near everything, and takes long."""


@dataclass(frozen=True)
class Result:
    """What came of a fault: caught by tests ``near`` it, in its ``room`` or of the ``whole`` suite, or ``survived``.

    ``too slow``: tests that did not end are no verdict (a fault may loop for ever, or the machine has other work);
    ``endless``: they took ``CPU_FACTOR`` times the processor time that they take. ``by``: the test that failed, or the
    tests that did not end.
    """

    key: str
    area: str
    path: str
    line: int
    what: str
    outcome: str
    seconds: float
    by: str = ""


class Endless(Exception):
    """Tests took many times the processor time that they take without a fault."""


def key_of(path: str, source: str, mutant: Mutant) -> str:
    """A name of a fault that stays while its function's line stays as it is."""
    line = source.splitlines()[mutant.line - 1].strip()
    return hashlib.sha256(f"{path}\0{line}\0{mutant.column}\0{mutant.what}".encode()).hexdigest()[:16]


def room_of(area: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files of an area or a file, and the folders of its tests: of a file, those of its package."""
    return AREAS.get(area) or ((area,), (area.split("/")[1],))


def drawn(areas: list[str], seed: int) -> list[tuple[str, str, Mutant]]:
    """Faults in the order in which they are tried: the areas in turn, each fault once."""
    order: list[list[tuple[str, str, Mutant]]] = []
    for area in areas:
        found = []
        for pattern in room_of(area)[0]:
            for path in sorted(ROOT.glob(pattern)):
                name = path.relative_to(ROOT).as_posix()
                found += [(area, name, mutant) for mutant in mutants_of(path.read_text())]
        random.Random(f"{seed}:{area}").shuffle(found)
        order.append(found)
    seen: set[tuple[str, int, int, str]] = set()
    result = []
    for number in range(max(map(len, order), default=0)):
        for one in order:
            if number < len(one):
                area, name, mutant = one[number]
                if (mark := (name, mutant.begin, mutant.end, mutant.new)) not in seen:
                    seen.add(mark)
                    result.append((area, name, mutant))
    return result


def around(source: str, line: int) -> set[str]:
    """Names of the functions and classes that a line is in."""
    return {
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    }


def _forget(path: Path) -> None:
    """Remove what Python compiled of a file."""
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


class Tree:
    """A copy of the repository in which faults are put.

    Args:
        folder: of the copy, and of the kernels that are compiled in it; what is there stays. covered: which tests
            execute which lines. has_chosen: tests that were chosen by hand are asked.
    """

    def __init__(self, folder: Path, covered: Covered | None = None, *, has_chosen: bool = False) -> None:
        self.folder, self.covered = folder / "repository", covered
        self.chosen: dict[str, list[str]] = json.loads(CHOSEN.read_text()) if has_chosen else {}
        self.kernels = folder / "kernels"
        self.kernels.mkdir(parents=True, exist_ok=True)
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in names.decode().split("\0"):
            source, target = ROOT / name, self.folder / name
            if name and source.is_file() and (not target.exists() or source.read_bytes() != target.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        self._sound: dict[str, bool] = {}
        self.near_s, self.room_s = NEAR_S, ROOM_S

    def failed(self, tests: list[str], limit_s: float, skipped: list[str], kernels: Path | None = None) -> str | None:
        """The first test that fails, None where all pass; an empty name where pytest says none.

        Args:
            kernels: where compiled kernels are looked for and kept; None: of this tree.

        Raises:
            subprocess.TimeoutExpired: they take too long.
            Endless: they take too much of a processor; only where it is known how long they take.
        """
        data = os.environ.get("SEMU_DATA", str(ROOT.parent / "shared" / "data"))
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "SEMU_DATA": data,
            "CI": "true",
            "NUMBA_CACHE_DIR": str(kernels or self.kernels),
        }
        chosen = [test for test in tests if test not in skipped]
        known = self.covered.seconds if self.covered else {}
        usual_s = sum(known[test] for test in chosen) if all(test in known for test in chosen) else math.inf
        most_s = int(CPU_FACTOR * usual_s + CPU_S) if chosen and usual_s < math.inf else resource.RLIM_INFINITY
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:  # longer than a command may be
            names.write("\n".join(chosen))
            names.flush()
            process = subprocess.Popen(
                [*words, *(f"--deselect={name}" for name in skipped), f"@{names.name}"],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s)),
            )
            try:
                text, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            raise Endless
        if process.returncode in (0, NO_TESTS):
            return None
        found = FAILED.search(text)
        return found.group(1) if found else ""

    def near(self, name: str, source: str, line: int) -> list[str]:
        """Test files that share rare words with a line: its own, those of the functions around it, its module's name.

        A word counts the more the fewer test files have it; a file that imports the module has one word more, and one
        in the folder of the module's tests, or of its name, counts as a rare word each.
        """
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        *folders, stem = module.split(".")[1:]
        wanted = {*WORD.findall(source.splitlines()[line - 1]), *around(source, line), stem, module}
        scores: dict[str, float] = defaultdict(float)
        for word in sorted(wanted):
            having = [test for test, words in self.words.items() if word in words]
            for test in having:
                scores[test] += 1 / len(having)
        for test in self.words:
            path = test.removesuffix(".py").split("/")[1:]
            scores[test] += sum(one == two for one, two in zip(folders, path, strict=False)) / max(len(folders), 1)
            scores[test] += stem in path[-1].removeprefix("test_")
        return [test for test, _ in sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:NEAR]]

    @cached_property
    def words(self) -> dict[str, frozenset[str]]:
        """Words of each test file, and the modules that it imports."""
        found = {}
        for path in sorted((self.folder / "tests").rglob("test_*.py")):
            if path.relative_to(self.folder).parts[1] in SLOW:
                continue
            text = path.read_text()
            words = {*WORD.findall(text), *re.findall(r"^\s*(?:from|import) (semu[\w.]*)", text, re.MULTILINE)}
            found[path.relative_to(self.folder).as_posix()] = frozenset(words)
        return found

    def outcome(self, area: str, name: str, mutant: Mutant, is_whole: bool) -> tuple[str, str]:
        """What the tests say of a fault, and which; the file is as it was afterwards."""
        for outcome, tests, limit_s in self._steps(area, name, mutant, is_whole):
            skipped = [one for one, is_sound in self._sound.items() if not is_sound]
            while tests:
                try:
                    with self.fault(name, mutant) as kernels:
                        failed = self.failed(tests, limit_s, skipped, kernels)
                except subprocess.TimeoutExpired:
                    return "too slow", outcome
                except Endless:
                    return "endless", outcome
                if failed is None:
                    break
                if self._is_sound(failed or tests[0]):
                    return outcome, failed
                skipped.append(failed)
        return "survived", ""

    def _steps(self, area: str, name: str, mutant: Mutant, is_whole: bool) -> Iterator[tuple[str, list[str], float]]:
        """Tests that are asked one after another: the step's name, the tests, and how long they may take."""
        executing = self.covered.tests_of(name, mutant.line) if self.covered else set()
        if not executing and (own := [path for path in self.chosen if name.startswith(path)]):
            tests = self.chosen[max(own, key=len)]
            stem = Path(name).stem
            yield "room", sorted(tests, key=lambda test: stem not in test), LIMIT_S
            if is_whole:
                yield "whole", ["tests"], WHOLE_S
            return
        near = self.near(name, (self.folder / name).read_text(), mutant.line)
        if self.covered is None or not executing:
            yield "near", near if self.covered is None else self._files(near, near), LIMIT_S
        if self.covered is None:
            yield (
                "room",
                [f"tests/{room}" for room in room_of(area)[1] if (self.folder / "tests" / room).exists()],
                LIMIT_S,
            )
        elif executing:
            first = self._within(sorted(executing, key=lambda one: self._place(one, near)), self.near_s)
            yield "near", first, LIMIT_S
            files = self._files([test.split("::")[0] for test in executing], near) if self.room_s else []
            yield "room", list(dict.fromkeys([*(self._files(near[:NEAREST], near) if files else []), *files])), LIMIT_S
        if is_whole:
            yield "whole", ["tests"], WHOLE_S

    def _place(self, test: str, near: list[str]) -> tuple[float, str]:
        """The quickest tests of the nearest files are asked first."""
        assert self.covered is not None
        file = test.split("::")[0]
        rank = near.index(file) if file in near else NEAR
        return (0.05 + self.covered.seconds[test]) * (1 + rank), test

    def _files(self, files: Iterable[str], near: list[str]) -> list[str]:
        """The nearest of some files, as many as take ``room_s`` of measured time, one at least: all their cases, of
        which only the first were measured."""
        assert self.covered is not None
        seconds = Counter[str]()
        for test, took_s in self.covered.seconds.items():
            seconds[test.split("::")[0]] += took_s
        chosen, total = list[str](), 0.0
        for file in sorted(set(files), key=lambda one: (near.index(one) if one in near else NEAR, seconds[one], one)):
            took_s = seconds.get(file, 1.0 + self.room_s / 2)
            if total + took_s <= self.room_s or not chosen:
                chosen.append(file)
                total += took_s
        return chosen

    def _within(self, tests: list[str], seconds: float) -> list[str]:
        """The first tests of a list that take no longer than so many seconds together; one at least."""
        assert self.covered is not None
        total, chosen = 0.0, list[str]()
        for test in tests:
            total += self.covered.seconds[test]
            if chosen and total > seconds:
                break
            chosen.append(test)
        return chosen

    @contextmanager
    def fault(self, name: str, mutant: Mutant) -> Iterator[Path]:
        """The tree with a fault; yields where its compiled kernels are.

        Python and numba take a file that has the time and size of one that they compiled for that one: the time of the
        file comes back with its text, and kernels of a fault are kept apart.
        """
        path = self.folder / name
        source, stat = path.read_text(), path.stat()
        with tempfile.TemporaryDirectory(dir=self.kernels.parent) as temporary:
            kernels = self.kernels
            if is_kernel(name):
                kernels = Path(temporary) / "kernels"
                shutil.copytree(self.kernels, kernels)
            _forget(path)
            path.write_text(mutant.text(source))
            try:
                yield kernels
            finally:
                path.write_text(source)
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                _forget(path)

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes without a fault."""
        if test not in self._sound:
            self._sound[test] = self.failed([test], LIMIT_S, []) is None
            if not self._sound[test] and "::" not in test:
                raise SystemExit(f"{test} fails without a fault")
        return self._sound[test]


def run(
    *,
    count: int,
    seed: int,
    areas: list[str],
    state: Path,
    workers: int,
    is_whole: bool,
    seconds: float,
    folder: Path | None = None,
    lines: Path | None = None,
    has_chosen: bool = False,
    near_s: float = NEAR_S,
    room_s: float = ROOM_S,
) -> list[Result]:
    """Try faults; see the module's text. Returns all results of the state file that belong to them."""
    done = {}
    if state.exists():
        for line in state.read_text().splitlines():
            one = Result(**json.loads(line))
            done[one.key] = one
    wanted = []
    for area, name, mutant in drawn(areas, seed)[:count]:
        wanted.append((area, name, mutant, key_of(name, (ROOT / name).read_text(), mutant)))
    end = time.monotonic() + seconds
    covered = Covered(lines) if lines else None
    with tempfile.TemporaryDirectory() as temporary:
        trees: Queue[Tree] = Queue()
        for number in range(workers):
            tree = Tree((folder or Path(temporary)) / f"tree{number}", covered, has_chosen=has_chosen)
            tree.near_s, tree.room_s = near_s, room_s
            trees.put(tree)

        def work(task: tuple[str, str, Mutant, str]) -> None:
            area, name, mutant, key = task
            if key in done or time.monotonic() > end:
                return
            tree = trees.get()
            begin = time.monotonic()
            try:
                outcome, by = tree.outcome(area, name, mutant, is_whole)
            finally:
                trees.put(tree)
            seconds = round(time.monotonic() - begin, 1)
            one = Result(key, area, name, mutant.line, mutant.what, outcome, seconds, by)
            done[key] = one
            with state.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
            print(f"{outcome:8} {one.seconds:6.1f} s  {name}:{mutant.line}: {mutant.what}  {by}", flush=True)

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, wanted))
    return [done[key] for *_, key in wanted if key in done]


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_text = f"of {', '.join(AREAS)} (default: all), or files of semu"
    parser.add_argument("areas", nargs="*", metavar="AREA", help=help_text)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no more after so long")
    parser.add_argument("--state", type=Path, default=Path(".mutants.jsonl"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep copies of the repository and compiled kernels here")
    parser.add_argument("--lines", type=Path, metavar="FOLDER", help="what tests/proof/covered.py wrote")
    parser.add_argument("--chosen", action="store_true", help="ask tests of tests/proof/chosen.json, where it has them")
    parser.add_argument("--near", type=float, default=NEAR_S, help="seconds of tests that execute a line")
    parser.add_argument("--room", type=float, default=ROOM_S, help="seconds of files that hold such tests; 0: none")
    parser.add_argument("--whole", action="store_true", help="what a room misses is tried by the whole default suite")
    arguments = parser.parse_args()
    for area in arguments.areas:
        if area not in AREAS and not (ROOT / area).is_file():
            parser.error(f"no area and no file {area}; expected one of {', '.join(AREAS)}, or a path as semu/memo.py")
    found = run(
        count=arguments.count,
        seed=arguments.seed,
        areas=arguments.areas or list(AREAS),
        state=arguments.state,
        workers=arguments.workers,
        is_whole=arguments.whole,
        seconds=arguments.seconds,
        folder=arguments.folder,
        lines=arguments.lines,
        has_chosen=arguments.chosen,
        near_s=arguments.near,
        room_s=arguments.room,
    )
    equivalent = json.loads(SURVIVORS.read_text())
    outcomes = Counter("equivalent" if one.key in equivalent else one.outcome for one in found)
    real = sum(number for outcome, number in outcomes.items() if outcome not in ("equivalent", *UNDECIDED))
    caught = outcomes["near"] + outcomes["room"] + outcomes["whole"]
    for one in found:
        if one.outcome == "survived" and one.key not in equivalent:
            print(f"survived {one.key} {one.path}:{one.line}: {one.what}")
    share = f"{100 * caught / max(real, 1):.0f} %"
    others = f"{outcomes['equivalent']} equivalent, {sum(outcomes[one] for one in UNDECIDED)} undecided"
    print(f"{real} faults, {caught} caught ({share}); {others}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
