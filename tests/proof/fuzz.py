"""Damages real files and hands them to the commands that read them.

    python -m tests.proof.fuzz [--count 10000] [--seed S] [--seconds 120] [--state DIR] [DOOR ...]

What must hold for every input: an exit code that DESIGN §6 knows (never 1 or 70), no traceback, an answer within ten
seconds, and no answer with a number that is none (NaN, infinite) or a negative time or number of bytes. What fails is
kept in the state's folder; ``--state`` goes on where it stopped. Inputs are the same for the same seed, door and
number; doors share the time as their ``share`` says, so that quick ones try more of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.proof.damage import damaged
from tests.proof.doors import Door, doors

LONGEST_S = 10.0
PATIENCE = 12.0
"""Times ``LONGEST_S`` until a process is given up: other work on the machine is not the input's fault."""
BATCH_S = 1.0
"""Of a batch of inputs; the last of them is finished."""
LARGEST_BYTES = 12 * 2**30
CODES = (0, 2, 3, 4, 5, 6, 7)
SIGNED = ("difference", "error", "bias", "change", "gain", "slack", "saved", "left", "margin", "shift", "over", "delta")
"""Words of quantities that may be below zero."""


@dataclass(frozen=True)
class Verdict:
    """What came of an input. Attributes: code: of the exit. fault: what is wrong, or "". seconds: of the processor."""

    code: int
    fault: str
    seconds: float


def faults_of(value: Any, path: str = "") -> list[str]:
    """Numbers of an answer that cannot be: not finite, or a time or size below zero."""
    if isinstance(value, dict):
        return [fault for key, one in value.items() for fault in faults_of(one, f"{path}.{key}")]
    if isinstance(value, list):
        return [fault for i, one in enumerate(value) for fault in faults_of(one, f"{path}[{i}]")]
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path} is {value}"]
    name = path.rsplit(".", 1)[-1].split("[")[0]
    is_size = name.endswith(("_s", "_bytes", "_flop")) and not any(word in path for word in SIGNED)
    return [f"{path} is {value}"] if is_size and isinstance(value, int | float) and value < 0 else []


def tried(door: Door, path: Path) -> Verdict:
    """Run a door's command on a file, in this process."""
    from semu.cli import main

    out, err = io.StringIO(), io.StringIO()
    words = [word.replace("{}", str(path)) for word in door.words]
    begin = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--quiet"])
    except BaseException as error:
        return Verdict(1, f"{type(error).__name__} left main: {error}", time.process_time() - begin)
    seconds = time.process_time() - begin
    fault = ""
    if code not in CODES:
        fault = f"exit code {code}: {err.getvalue().strip()[:300]}"
    elif "Traceback" in err.getvalue():
        fault = "a traceback"
    elif seconds > LONGEST_S:
        fault = f"{seconds:.1f} s"
    elif "--json" in words:
        try:
            wrong = faults_of(json.loads(out.getvalue()))
        except ValueError as error:
            wrong = [f"no JSON: {error}"]
        fault = "; ".join(wrong[:3]) if code == 0 or (wrong and wrong[0].startswith("no JSON")) else ""
    elif code == 0 and not out.getvalue():
        fault = "an empty answer"
    return Verdict(code, fault, seconds)


def input_of(door: Door, seed: int, number: int) -> bytes:
    """Input ``number`` of a door: one of its files, damaged."""
    draw = random.Random(f"{seed}:{door.name}:{number}")
    return damaged(draw, draw.choice(door.seeds), door.seeds)


def ready() -> None:
    """Do once in this process what a command does each time and no file changes: the parser of the command line, and
    which kernels are compiled."""
    from semu import ahead
    from semu.cli.options import every

    every.build_parser = cache(every.build_parser)
    ahead.missing_kernels = lambda command: []


@dataclass
class Batch:
    """Inputs of a door, one after another. Attributes: number: of inputs. codes: how many ended so. faults: (number,
    fault). slowest_s: of a processor."""

    number: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    faults: list[tuple[int, str]] = field(default_factory=list)
    slowest_s: float = 0.0

    def add(self, number: int, verdict: Verdict) -> None:
        """One more input."""
        self.number += 1
        self.codes[verdict.code] += 1
        self.slowest_s = max(self.slowest_s, verdict.seconds)
        if verdict.fault:
            self.faults.append((number, verdict.fault))


def _child(pipe: Connection, at: Any, folder: str, seed: int, names: list[str]) -> None:
    """Try batches of inputs as they are asked for, until the pipe ends; first a real file of each door, to compile
    kernels. ``at`` holds the number of the input under way."""
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST_BYTES, LARGEST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ready()
    every = doors(Path(folder) / "real")
    mine = Path(tempfile.mkdtemp(dir=folder))
    os.chdir(mine)
    for name in names:
        path = mine / f"real{every[name].suffix}"
        path.write_bytes(every[name].seeds[0])
        tried(every[name], path)
    with contextlib.suppress(EOFError):
        pipe.send(None)
        while True:
            name, number, count = pipe.recv()
            door, batch, begin = every[name], Batch(), time.monotonic()
            path = mine / f"input{door.suffix}"
            while batch.number < count and time.monotonic() - begin < BATCH_S:
                at.value = number + batch.number
                path.write_bytes(input_of(door, seed, at.value))
                batch.add(at.value, tried(door, path))
            pipe.send(batch)


class Workplace:
    """A process that tries inputs, and another where the first is lost."""

    def __init__(self, folder: Path, seed: int, names: list[str]) -> None:
        self.folder = folder
        self.seed = seed
        self.names = names
        self.process: Any = None

    def start(self) -> None:
        """Start a process and wait until it is ready."""
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.at = context.Value("q", 0, lock=False)
        words = (other, self.at, str(self.folder), self.seed, self.names)
        self.process = context.Process(target=_child, args=words, daemon=True)
        self.process.start()
        other.close()
        self.pipe.recv()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None

    def _has_answered(self) -> bool:
        """Wait for a batch, as long as its inputs end."""
        at, since = -1, time.monotonic()
        while not self.pipe.poll(1.0):
            if self.at.value != at:
                at, since = self.at.value, time.monotonic()
            if time.monotonic() - since > PATIENCE * LONGEST_S:
                return False
        return True

    def run(self, name: str, number: int, count: int) -> Batch:
        """Try inputs of a door, ``count`` at most and as many as have time; a process that hangs or dies is replaced,
        and those of its batch before the last are not counted."""
        if self.process is None:
            self.start()
        self.at.value = number
        self.pipe.send((name, number, count))
        verdict = Verdict(1, f"no answer in {PATIENCE * LONGEST_S:.0f} s", PATIENCE * LONGEST_S)
        if self._has_answered():
            try:
                found: Batch = self.pipe.recv()
                return found
            except EOFError:
                self.process.join()
                verdict = Verdict(1, f"the process died with {self.process.exitcode}", 0.0)
        self.stop()
        lost = Batch()
        lost.add(self.at.value, verdict)
        lost.number += self.at.value - number
        return lost


@dataclass
class Outcome:
    """What was tried. Attributes: codes: exit codes by door. faults: (door, number, fault). seconds: by door."""

    codes: dict[str, Counter[int]]
    faults: list[tuple[str, int, str]]
    slowest_s: float = 0.0
    seconds: Counter[str] = field(default_factory=Counter)

    def count(self) -> int:
        """Inputs that were tried."""
        return sum(map(sum, (codes.values() for codes in self.codes.values())))


def fuzz(
    *, seed: int, count: int, seconds: float, state: Path, names: list[str] | None = None, is_loud: bool = True
) -> Outcome:
    """Try inputs of all doors, next of the one that has had the least time.

    Args:
        seed: of the inputs. count: inputs of a door at most. seconds: end after so long; the input under way is
            finished. state: folder of progress and of what failed. names: doors; None: all.
    """
    state.mkdir(parents=True, exist_ok=True)
    progress_path = state / f"progress-{seed}.json"
    progress: dict[str, int] = json.loads(progress_path.read_text()) if progress_path.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        every = doors(folder / "real")
        chosen = [every[name] for name in names or every]
        place = Workplace(folder, seed, [door.name for door in chosen])
        outcome = Outcome({door.name: Counter() for door in chosen}, [])
        try:
            place.start()
            begin = said = time.monotonic()
            while left := [door for door in chosen if progress.get(door.name, 0) < count]:
                door = min(left, key=lambda one: outcome.seconds[one.name] / one.share)
                number = progress.get(door.name, 0)
                at = time.monotonic()
                batch = place.run(door.name, number, count - number)
                now = time.monotonic()
                outcome.seconds[door.name] += now - at
                outcome.codes[door.name] += batch.codes
                outcome.slowest_s = max(outcome.slowest_s, batch.slowest_s)
                progress[door.name] = number + batch.number
                for one, fault in batch.faults:
                    outcome.faults.append((door.name, one, fault))
                    (state / f"{door.name}-{seed}-{one}{door.suffix}").write_bytes(input_of(door, seed, one))
                    if is_loud:
                        print(f"{door.name} {one}: {fault}", flush=True)
                if now > said + 30:
                    said = now
                    progress_path.write_text(json.dumps(progress))
                    if is_loud:
                        said_text = f"{outcome.count():,} inputs, {len(outcome.faults)} faults, {now - begin:.0f} s"
                        print(said_text, file=sys.stderr, flush=True)
                if now - begin > seconds:
                    return outcome
        finally:
            place.stop()
            progress_path.write_text(json.dumps(progress))
    return outcome


def main() -> int:
    """Run; returns the exit code: 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("doors", nargs="*", help="doors to try (default: all)")
    parser.add_argument("--count", type=int, default=1000, help="inputs of each door (default 1000)")
    parser.add_argument("--seed", type=int, help="of the inputs (default: drawn, and printed)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long")
    parser.add_argument("--state", type=Path, default=Path(".fuzz"), help="folder of progress and findings")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    outcome = fuzz(
        seed=seed,
        count=arguments.count,
        seconds=arguments.seconds,
        state=arguments.state,
        names=arguments.doors or None,
    )
    for name, codes in outcome.codes.items():
        print(f"{name:28} " + ", ".join(f"exit {code}: {number:,}" for code, number in sorted(codes.items())))
    total, seconds = outcome.count(), sum(outcome.seconds.values())
    print(f"{total / max(seconds, 1e-9):.1f} inputs a second")
    print(f"{total:,} inputs, {len(outcome.faults)} faults, slowest {outcome.slowest_s:.1f} s of a processor")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
