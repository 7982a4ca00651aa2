"""Faults that machines and people make while commands run, and what must hold then.

    python -m tests.proof.faults [--seconds 600] [--seed S] [--state FILE] [--list] [NAME ...]

Each fault runs in processes of its own, at a moment that the seed draws. What must hold: an exit code that is
documented, one message and no traceback, every file of ``--out`` absent or whole, the same command again gives what an
undisturbed one gives, and no process is left behind. A name takes all faults that begin with it; all are tried in
turn, with new moments each time, until the seconds are over. ``--state`` keeps what held, a line each, and leaves it
out when it is called again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tests.proof.shop import (
    Done,
    NotHere,
    Shop,
    different,
    disk,
    emptied,
    halves,
    make_read_only,
    moment,
    wait_for,
)

COMMANDS: Mapping[str, str] = {
    "simulate": "simulate run.toml --out OUT",
    "grid": "grid run.toml --exhaustive --workers 2 --fix tp=1 --results OUT/grid.sqlite --out OUT",
    "search": "search run.toml --rollouts 40 --workers 1 --out OUT",
    "plan": "plan run.toml --iterations 6 --rollouts 5 --workers 1 --resume --out OUT",
    "validate": "validate --runs rows.json --workers 2 --out OUT",
    "goodput": "goodput run.toml --mtbf 2h --days 1 --seeds 2 --out OUT",
    "templates": "templates nodes.toml --nodes 3 --out OUT",
    "what-if": "what-if run.toml --out OUT",
    "run": "run plan.json --demo --iterations 3 --timeout 20 --out OUT",
    "drill": "drill nodes.toml --iterations 3 --timeout 20 --out OUT",
}
"""Commands that write, with their files in the shop."""
WITH_TORCH = ("run", "drill")
CODES = (0, 130)
JUMPS = """\
import random, time
_true, _draw = time.time, random.Random(int("SEED"))
time.time = lambda: _true() + _draw.uniform(-3e6, 3e6)
"""
"""As ``sitecustomize``: a clock that somebody sets again and again, weeks to and fro."""


class Bench:
    """A shop with the results of commands that nothing disturbed."""

    def __init__(self, folder: Path) -> None:
        self.shop = Shop(folder)
        self.times: dict[str, float] = {}
        self.outputs: dict[str, str] = {}
        if find_spec("torch") is not None:
            done = self.shop.run(["plan", self.shop.at("small.toml"), "-o", self.shop.at("plan.json"), "--quiet"])
            if done.code != 0:
                raise RuntimeError(done.err)

    def words(self, name: str, out: Path) -> list[str]:
        """Of a command."""
        if name in WITH_TORCH and find_spec("torch") is None:
            raise NotHere("torch is not installed")
        files = ("run.toml", "nodes.toml", "plan.json", "rows.json")
        swapped = [self.shop.at(word) if word in files else word for word in COMMANDS[name].split()]
        return [word.replace("OUT", str(out)) for word in swapped]

    def true(self, name: str) -> Path:
        """Files of an undisturbed run, which is made when it is first asked for; it compiles kernels, too."""
        out = self.shop.folder / f"true-{name}"
        if name not in self.times:
            out.mkdir()
            self.check(name, self.shop.run(self.words(name, emptied(out))), 0)
            begin = time.monotonic()
            done = self.shop.run(self.words(name, emptied(out)))
            self.times[name] = time.monotonic() - begin
            self.check(name, done, 0)
            self.outputs[name] = done.out
        return out

    def check(self, name: str, done: Done, *codes: int) -> None:
        """An undisturbed run that fails is no fault's doing."""
        if fault := done.fault(*codes):
            raise RuntimeError(f"{name}, undisturbed: {fault}")

    def again(self, name: str, out: Path) -> str:
        """What is wrong when the command runs once more into the same folder."""
        done = self.shop.run(self.words(name, out))
        return done.fault(0) or different(self.true(name), out) or self.shop.left()


# -- signals -------------------------------------------------------------------------------------------------------
def signalled(name: str, number: signal.Signals, bench: Bench, draw: random.Random) -> str:
    """A command gets a signal at a random moment, and is run again."""
    bench.true(name)
    out = bench.shop.new()
    started = bench.shop.start(bench.words(name, out))
    if started.has_begun():
        time.sleep(moment(draw, bench.times[name]))
        started.process.send_signal(number)
    done = started.end(120)
    codes = (*CODES, 6) if name in WITH_TORCH else CODES  # ranks may hear of it first
    return done.fault(*codes) or bench.shop.left() or halves(out) or bench.again(name, out)


def killed(name: str, bench: Bench, draw: random.Random) -> str:
    """SIGKILL of the command itself: what is left behind is whole, and nobody works on."""
    bench.true(name)
    out = bench.shop.new()
    started = bench.shop.start(bench.words(name, out))
    if started.has_begun():
        time.sleep(moment(draw, bench.times[name]))
        started.process.kill()
    started.end()
    fault = bench.shop.left()
    for path in list(out.rglob(".*")):  # nobody could take it away
        path.unlink()
    return fault or halves(out) or bench.again(name, out)


def worker_lost(name: str, number: signal.Signals, bench: Bench, draw: random.Random) -> str:
    """SIGKILL of a worker, as a machine that is out of memory sends it: its tasks are done again."""
    true = bench.true(name)
    out = bench.shop.new()
    started = bench.shop.start(bench.words(name, out))
    if wait_for(lambda: bench.shop.children(started.process.pid), started.process):
        time.sleep(moment(draw, 0.3))
        for worker in bench.shop.children(started.process.pid)[:1]:
            os.kill(worker, number)
    done = started.end()
    return done.fault(0) or bench.shop.left() or halves(out) or different(true, out)


def rank_lost(name: str, number: signal.Signals, bench: Bench, draw: random.Random) -> str:
    """A rank is killed, or stands still: the command ends, says so, and takes all others with it."""
    bench.true(name)
    out = bench.shop.new()
    words = [word if word != "20" else "6" for word in bench.words(name, out)]
    started = bench.shop.start(words)
    ranks: list[int] = []

    def _is_there() -> bool:
        ranks[:] = bench.shop.ranks(started.process.pid)
        return len(ranks) == 3

    if wait_for(_is_there, started.process):
        time.sleep(moment(draw, bench.times[name]))
        for rank in [draw.choice(ranks)]:
            if started.process.poll() is None and rank in bench.shop.mine():
                os.kill(rank, number)
    done = started.end(120)
    codes = (0, 6)  # drill goes on without the node
    return done.fault(*codes) or bench.shop.left() or halves(out) or bench.again(name, out)


def rank_paused(name: str, seconds: float, bench: Bench, draw: random.Random) -> str:
    """A rank stands still for a while, and goes on: slower than all others, and nothing else."""
    true = bench.true(name)
    out = bench.shop.new()
    started = bench.shop.start(bench.words(name, out))
    if wait_for(lambda: len(bench.shop.ranks(started.process.pid)) == 3, started.process):
        time.sleep(moment(draw, bench.times[name]))
        for rank in bench.shop.ranks(started.process.pid)[:1]:
            os.kill(rank, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(rank, signal.SIGCONT)
    return started.end().fault(0) or bench.shop.left() or halves(out) or different(true, out)


# -- disks and files -----------------------------------------------------------------------------------------------
def disk_full(name: str, bench: Bench, draw: random.Random) -> str:
    """A disk that takes some files and not others."""
    bench.true(name)
    out = bench.shop.new()
    with disk(out, size=4096 * draw.randint(1, 60)):
        done = bench.shop.run(bench.words(name, out))
        fault = done.fault(0, 2) or halves(out) or bench.shop.left()
        if not fault and done.code == 2 and not any(word in done.err for word in ("No space left", "full")):
            fault = f"no word of the full disk: {done.err.strip()[-300:]}"
    return fault


def file_limit(name: str, bench: Bench, draw: random.Random) -> str:
    """Files that may not be larger than so much (ulimit -f), what is printed among them: as a full disk."""
    bench.true(name)
    out = bench.shop.new()
    done = bench.shop.run(bench.words(name, out), largest_bytes=draw.choice((1000, 5000, 30_000, 60_000)))
    return done.fault(0, 2) or halves(out) or bench.shop.left()


def read_only(name: str, bench: Bench, draw: random.Random) -> str:
    """A disk that nothing may be written to."""
    bench.true(name)
    out = bench.shop.new()
    with disk(out):
        make_read_only(out)
        done = bench.shop.run(bench.words(name, out))
    fault = done.fault(2) or bench.shop.left()
    if not fault and not any(word in done.err for word in ("Read-only", "readonly")):
        fault = f"no word of the disk: {done.err.strip()[-300:]}"
    return fault


def clock_moved(name: str, bench: Bench, draw: random.Random) -> str:
    """The time of day jumps by weeks: nothing that counts looks at it."""
    true = bench.true(name)
    out = bench.shop.new()
    site = bench.shop.new()
    (site / "sitecustomize.py").write_text(JUMPS.replace("SEED", str(draw.randrange(10**6))))
    done = bench.shop.run(bench.words(name, out), path=str(site))
    return done.fault(0) or halves(out) or different(true, out) or bench.shop.left()


def plan_swapped(bench: Bench, draw: random.Random) -> str:
    """The plan's file is replaced or cut while ranks run it: the plan that was read is the one that runs."""
    true = bench.true("run")
    out, plan = bench.shop.new(), bench.shop.new() / "plan.json"
    text = Path(bench.shop.at("plan.json")).read_text()
    plan.write_text(text)
    words = [str(plan) if word == bench.shop.at("plan.json") else word for word in bench.words("run", out)]
    started = bench.shop.start(words)
    if wait_for(lambda: bench.shop.ranks(started.process.pid), started.process):
        plan.write_text(draw.choice(("", "{}", text[: len(text) // 2])))
    return started.end().fault(0) or different(true, out) or bench.shop.left()


# -- what commands keep --------------------------------------------------------------------------------------------
def _stored(bench: Bench) -> Path:
    """A folder with the results of a whole grid, to be damaged."""
    out = bench.shop.new()
    kept = bench.true("grid") / "grid.sqlite"
    (out / "grid.sqlite").write_bytes(kept.read_bytes())
    return out


def results_cut(bench: Bench, draw: random.Random) -> str:
    """A results file of which a part is missing: refused by name, or as good as new."""
    out = _stored(bench)
    file = out / "grid.sqlite"
    data = file.read_bytes()
    file.write_bytes(data[: draw.randrange(len(data))] + draw.choice((b"", b"\0" * 8192)))
    done = bench.shop.run(bench.words("grid", out))
    fault = done.fault(0, 2) or halves(out) or bench.shop.left()
    if not fault and done.code == 2:
        return "" if "grid.sqlite" in done.err else f"the file is not named: {done.err.strip()[-300:]}"
    return fault or different(bench.true("grid"), out)


def results_locked(seconds: float, bench: Bench, draw: random.Random) -> str:
    """Another process writes to the results file for a while, or for ever."""
    out = _stored(bench)
    (out / "grid.sqlite").unlink()
    file = sqlite3.connect(out / "grid.sqlite", isolation_level=None)
    file.execute("BEGIN EXCLUSIVE")
    started = bench.shop.start(bench.words("grid", out))
    started.has_begun()
    is_forever = math.isinf(seconds)
    if not is_forever:
        time.sleep(seconds)
        file.close()
    done = started.end()
    file.close()
    if is_forever:
        fault = done.fault(2)
        return fault or ("" if "locked" in done.err else f"no word of the lock: {done.err.strip()[-300:]}")
    return done.fault(0) or halves(out) or different(bench.true("grid"), out)


def two_writers(name: str, bench: Bench, draw: random.Random) -> str:
    """The same command twice at once into the same folder."""
    true = bench.true(name)
    out = bench.shop.new()
    both = []
    for _ in range(2):
        both.append(bench.shop.start(bench.words(name, out)))
        time.sleep(moment(draw, 1.0))
    faults = [started.end().fault(0) for started in both]
    return max(faults) or halves(out) or different(true, out) or bench.shop.left()


def _with_cache(bench: Bench, cache: Path) -> Done:
    return bench.shop.run(["simulate", bench.shop.at("run.toml"), "--json", "--cache", str(cache)])


def cache_damaged(how: str, bench: Bench, draw: random.Random) -> str:
    """A cache of results (``--cache``) is cut, locked or on a full disk: said, and the answer stays."""
    folder = bench.shop.new()
    first = _with_cache(bench, folder / "cache.sqlite")
    data = (folder / "cache.sqlite").read_bytes()
    held: sqlite3.Connection | None = None
    if how == "cut":
        data = data[: draw.randrange(len(data))] + draw.choice((b"", b"\0" * 4096, os.urandom(512)))
        (folder / "cache.sqlite").write_bytes(data)
        done = _with_cache(bench, folder / "cache.sqlite")
    elif how == "locked":
        held = sqlite3.connect(folder / "cache.sqlite", isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
        done = _with_cache(bench, folder / "cache.sqlite")
        held.close()
    else:
        with disk(folder / "disk", size=4096 * draw.randint(1, 8)):
            done = _with_cache(bench, folder / "disk" / "cache.sqlite")
    fault = done.fault(0) or bench.shop.left()
    return fault or ("" if done.out == first.out else "another answer")


def state_cut(bench: Bench, draw: random.Random) -> str:
    """The state of a planning loop is cut: ``--resume`` refuses it by name, or goes on as if nothing had been."""
    true, out = bench.true("plan"), bench.shop.new()
    data = (true / "state.json").read_bytes()
    (out / "state.json").write_bytes(data[: draw.randrange(len(data))])
    done = bench.shop.run(bench.words("plan", out))
    return done.fault(2) or ("" if "state.json" in done.err else "the file is not named")


def kernels_on_a_full_disk(bench: Bench, draw: random.Random) -> str:
    """Compiled kernels cannot be kept: said, and the answer stays. Takes minutes: everything is compiled."""
    words = ["simulate", bench.shop.at("run.toml"), "--json"]
    first = bench.shop.run(words)
    with disk(bench.shop.new(), size=4096 * draw.randint(4, 100)) as folder:
        done = bench.shop.run(words, NUMBA_CACHE_DIR=str(folder))
    said = "" if "kernels are compiled anew" in done.err else f"nothing was said: {done.err[-300:]}"
    return done.fault(0) or said or ("" if done.out == first.out else "another answer")


@dataclass(frozen=True)
class Fault:
    """What can go wrong. Attributes: make: returns what did not hold, "" if all did. is_long: more than half a minute
    on a quiet machine."""

    make: Callable[[Bench, random.Random], str]
    is_long: bool = False


def faults() -> dict[str, Fault]:
    """All faults by name."""
    found: dict[str, Fault] = {}
    for name in COMMANDS:
        found[f"ctrl-c-{name}"] = Fault(partial(signalled, name, signal.SIGINT))
        found[f"sigterm-{name}"] = Fault(partial(signalled, name, signal.SIGTERM))
        found[f"sigkill-{name}"] = Fault(partial(killed, name))
        found[f"disk-full-{name}"] = Fault(partial(disk_full, name))
        found[f"file-limit-{name}"] = Fault(partial(file_limit, name))
        found[f"read-only-{name}"] = Fault(partial(read_only, name))
        found[f"clock-{name}"] = Fault(partial(clock_moved, name))
    for name in ("grid", "validate"):
        found[f"worker-killed-{name}"] = Fault(partial(worker_lost, name, signal.SIGKILL))
    for name in WITH_TORCH:
        found[f"rank-killed-{name}"] = Fault(partial(rank_lost, name, signal.SIGKILL))
        found[f"rank-stopped-{name}"] = Fault(partial(rank_lost, name, signal.SIGSTOP))
        found[f"rank-paused-{name}"] = Fault(partial(rank_paused, name, 10.0))
    found["plan-swapped"] = Fault(plan_swapped)
    found["results-cut"] = Fault(results_cut)
    found["results-locked"] = Fault(partial(results_locked, 3.0))
    found["results-locked-for-ever"] = Fault(partial(results_locked, math.inf), is_long=True)
    for name in ("grid", "simulate", "plan"):
        found[f"two-writers-{name}"] = Fault(partial(two_writers, name))
    for how in ("cut", "locked", "disk-full"):
        found[f"cache-{how}"] = Fault(partial(cache_damaged, how))
    found["state-cut"] = Fault(state_cut)
    found["kernels-disk-full"] = Fault(kernels_on_a_full_disk, is_long=True)
    return found


def tried(name: str, bench: Bench, seed: int, number: int) -> str:
    """What did not hold when a fault was made; processes that stay are part of it."""
    return faults()[name].make(bench, random.Random(f"{seed}:{name}:{number}"))


def held_before(state: Path | None) -> set[tuple[str, int, int]]:
    """Faults that a file of progress says held: (name, seed, number)."""
    if state is None or not state.exists():
        return set()
    lines = [json.loads(line) for line in state.read_text().splitlines()]
    return {(line["name"], line["seed"], line["number"]) for line in lines}


def main() -> int:
    """Run; returns the exit code: 1 where anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of names (default: all)")
    parser.add_argument("--seconds", type=float, help="try all again and again for so long (default: each once)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (default 1)")
    parser.add_argument("--state", type=Path, help="file of what held before, which is not made again")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    names = [name for name in faults() if not arguments.names or name.startswith(tuple(arguments.names))]
    if arguments.list:
        print("\n".join(names))
        return 0
    begin, count, wrong, absent = time.monotonic(), 0, 0, set[str]()
    kept = held_before(arguments.state)
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary))
        for number in range(1_000_000 if arguments.seconds else 1):
            for name in names:
                if arguments.seconds and time.monotonic() - begin > arguments.seconds:
                    break
                if (name, arguments.seed, number) in kept:
                    continue
                at = time.monotonic()
                try:
                    fault = tried(name, bench, arguments.seed, number)
                except NotHere as reason:
                    if name not in absent:
                        print(f"{name:28} left out: {reason}", flush=True)
                    absent.add(name)
                    continue
                count += 1
                wrong += bool(fault)
                if arguments.state is not None and not fault:
                    with arguments.state.open("a") as file:
                        file.write(json.dumps({"name": name, "seed": arguments.seed, "number": number}) + "\n")
                print(f"{name:28} {number:3} {time.monotonic() - at:5.1f} s  {fault or 'holds'}", flush=True)
            else:
                continue
            break
    print(f"{count:,} faults made, {wrong} times something did not hold, {len(absent)} left out")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
