"""Puts one fault at a time into semu and asks the default suite whether it notices.

    python -m tests.proof.mutate [--count 400] [--seed 0] [--state FILE] [--workers 2] [--whole] [--lines FOLDER]
                                 [--chosen] [--near 8] [--room 30] [--forked] [AREA | FILE ...]

A fault is drawn from an area (``AREAS``) or a file, the areas in turn, the files of an area by their length. The test
files that share rare words with the fault's line run first, then those of its room, until one fails; with ``--whole``,
what they miss is tried by the whole default suite. With ``--lines`` (``tests/proof/covered.py``) instead: the quickest
tests that execute the line, for ``--near`` seconds, then the nearest files, and those that hold such tests, for
``--room`` seconds of measured time each; a line that no test executes has its nearest files alone. With ``--chosen``
files that have a line in ``tests/proof/chosen.json`` are asked of the tests that it names, in their order; with both,
where no test executes the line. A test that fails counts when it passes without the fault; one that has no end, when
it ends without the fault in a tenth of the time. With ``--forked`` a process that has imported semu forks for every
fault (``tests/proof/forked.py``); only what survives there is asked as without it.
Results are lines of JSON in the state file, with which the same command goes on where it stopped.
Survivors are read in ``tests/proof/survivors.json``: those proved equivalent have a reason there and do not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

from tests.proof.covered import Covered
from tests.proof.forked import Forked
from tests.proof.judges import AREAS, NEAR_S, ROOM_S, ROOT, UNDECIDED, Tree, room_of
from tests.proof.mutants import Mutant, mutants_of

SURVIVORS = Path(__file__).with_name("survivors.json")


@dataclass(frozen=True)
class Result:
    """What came of a fault: caught by tests ``near`` it, in its ``room`` or of the ``whole`` suite, or ``survived``.

    Tests that do not end notice a fault where they end without it in a tenth of the time (``NO_END``); where that takes
    longer, the machine may have other work: ``endless`` is no verdict. ``by``: the test that failed or did not end.
    """

    key: str
    area: str
    path: str
    line: int
    what: str
    outcome: str
    seconds: float
    by: str = ""


def key_of(path: str, source: str, mutant: Mutant) -> str:
    """A name of a fault that stays while its function's line stays as it is."""
    line = source.splitlines()[mutant.line - 1].strip()
    return hashlib.sha256(f"{path}\0{line}\0{mutant.column}\0{mutant.what}".encode()).hexdigest()[:16]


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
    is_forked: bool = False,
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
            trees.put(Tree((folder or Path(temporary)) / f"tree{number}", covered, has_chosen=has_chosen))
        forked = Forked(covered, has_chosen=has_chosen) if is_forked else None
        for judge in (*trees.queue, *filter(None, (forked,))):
            judge.near_s, judge.room_s = near_s, room_s

        def work(task: tuple[str, str, Mutant, str]) -> None:
            area, name, mutant, key = task
            if key in done or time.monotonic() > end:
                return
            begin = time.monotonic()
            outcome, by = "survived", ""
            if forked is not None and forked.can_judge(name):
                outcome, by = forked.outcome(area, name, mutant, False)
            if outcome == "survived":
                tree = trees.get()
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

        if forked is not None:  # forks of a process with threads may wait for ever
            for task in wanted:
                work(task)
        else:
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
    parser.add_argument("--forked", action="store_true", help="first in forks of one process, one after another")
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
        is_forked=arguments.forked,
    )
    equivalent = json.loads(SURVIVORS.read_text())
    outcomes = Counter("equivalent" if one.key in equivalent else one.outcome for one in found)
    real = sum(number for outcome, number in outcomes.items() if outcome not in ("equivalent", UNDECIDED))
    caught = outcomes["near"] + outcomes["room"] + outcomes["whole"]
    for one in found:
        if one.outcome == "survived" and one.key not in equivalent:
            print(f"survived {one.key} {one.path}:{one.line}: {one.what}")
    share = f"{100 * caught / max(real, 1):.0f} %"
    others = f"{outcomes['equivalent']} equivalent, {outcomes[UNDECIDED]} undecided"
    print(f"{real} faults, {caught} caught ({share}); {others}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
