"""Long use of one process: what it answers, and what it keeps.

    python -m tests.proof.soak [evaluate] [planner] [threads] [--count N] [--seconds S] [--seed S]

``evaluate``: random jobs of all kinds one after another (100,000). A second process answers all of them in the opposite
order, and some of them before all others, each in a process that has only imported semu; every answer must be equal to
the last character. ``planner``: iterations with lengths that drift (10,000), each planned while the one before trains.
``threads``: eight searches at once, equal to each alone. What must hold besides: memory does not grow once all kinds
have been seen, a plan that is not the searched one says so, and refusals are the same every time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import semu
from semu.errors import SemuError
from semu.searcher.planner.planned_iteration import Outcome
from semu.searcher.planner.planner import Planner
from semu.workload import ListedBatch, Microbatch, listed_batch
from tests.proof.test_pairwise import MODELS, OTHERS, axes

ROOT = Path(__file__).resolve().parents[2]
GROWTH_BYTES = 300 << 20
"""Memory that a process may gain behind the first third of a soak."""
SAMPLED = 10
"""One in so many jobs is evaluated in a process of its own, too."""
FIRST_SHARE = 0.4
"""Of the seconds of ``evaluate``: until the second process begins."""
MEASURED = 50
"""Measurements of memory in a soak."""
SETUPS = ("lm-7b", "vlm-s", "t2v-s")


@dataclass
class Soaked:
    """What came of it. Attributes: counts: of answers, by kind. faults: what did not hold. memory: (number, bytes)."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory: list[tuple[int, int]] = field(default_factory=list)
    seconds: float = 0.0

    def measure(self, number: int) -> None:
        """Note how much memory the process has."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append((number, pages * os.sysconf("SC_PAGE_SIZE")))

    def growth_bytes(self) -> int:
        """Memory at the end, less that behind the first third; the highest of three measurements each."""
        sizes = [size for _, size in self.memory]
        third = len(sizes) // 3
        return max(sizes[-3:]) - max(sizes[third : third + 3])

    def judge(self) -> Soaked:
        """Count growth among the faults."""
        if len(self.memory) > 9 and self.growth_bytes() > GROWTH_BYTES:
            self.faults.append(f"memory grew by {self.growth_bytes() >> 20} MiB")
        return self


# -- evaluate ------------------------------------------------------------------------------------------------------
def outcome(seed: int, number: int, folder: Path) -> str:
    """What ``semu.evaluate`` says of a random job, or why it is refused; the same in every process."""
    draw = random.Random(f"{seed}:{number}")
    name = draw.choice([*MODELS, *SETUPS])
    text, more = MODELS.get(name, (None, ()))
    path = text or name
    if path not in (name, *MODELS):
        path = str(folder / f"{name}.toml")
        Path(path).write_text(text)
    keys = [key for key in axes() if key not in OTHERS]
    chosen = {key: draw.choice(axes()[key]) for key in draw.sample(keys, draw.randint(0, 4))}
    layout = draw.choice(axes()["parallel.layout"])
    settings = [f"{key}={value}" for key, value in chosen.items() if value and key != "parallel.layout"]
    if name in SETUPS:
        layout, settings = None, [*settings, f"training.global_batch={draw.choice((8, 16, 32))}"]
    try:
        job = semu.load_run(path, [*more, *settings, f"batch.seed={draw.randrange(3)}"], parallel=layout)
        found = semu.evaluate(job)
    except SemuError as error:
        return f"{error.kind}: {error}".replace(str(folder), "")
    if not (math.isfinite(found.iteration_time_s) and found.iteration_time_s > 0):
        return f"fault: {found.iteration_time_s} s"
    return repr(found)


def forked(work: Callable[[], str]) -> str:
    """What ``work`` answers in a copy of this process, which ends with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException), os.fdopen(writer, "w") as file:
            os.close(reader)
            file.write(work())
            code = 0
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    status = os.waitpid(child, 0)[1]
    return said if status == 0 else f"fault: a process of its own ended with {status}"


def answer_again(seed: int, count: int, sampled: int) -> None:
    """Print a job's number, whether it is alone in its process, and its answer, a line each: first those that are
    alone, while this process has only imported semu; then all, from the last to the first."""
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(0, count, sampled):
            said = forked(partial(outcome, seed, number, Path(temporary)))
            print(json.dumps((number, True, said)), flush=True)
        for number in reversed(range(count)):
            print(json.dumps((number, False, outcome(seed, number, Path(temporary)))), flush=True)


def soak_evaluate(count: int, seed: int, *, seconds: float = math.inf, sampled: int = SAMPLED) -> Soaked:
    """Evaluate jobs in this process, and all of them in another; as many as have time in ``FIRST_SHARE`` of the
    seconds, and then as many in the other as have time."""
    done, begin = Soaked(), time.monotonic()
    answers: list[str] = []  # of a hundred bytes to a thousand each
    every_s = seconds * FIRST_SHARE / MEASURED if math.isfinite(seconds) else 0.0
    due = begin
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(count):
            now = time.monotonic()
            if now - begin > FIRST_SHARE * seconds:
                break
            if now >= due if every_s else number % max(1, count // MEASURED) == 0:
                done.measure(number)
                due = now + every_s
            said = outcome(seed, number, Path(temporary))
            done.counts[said.split(":")[0].split("(")[0]] += 1
            if said.startswith("fault"):
                done.faults.append(f"job {number}: {said}")
            answers.append(said)
    words = [sys.executable, "-m", "tests.proof.soak", "--again", str(len(answers)), str(sampled), "--seed", str(seed)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdout is not None
        for line in other.stdout:
            number, is_alone, said = json.loads(line)
            done.counts["equal alone" if is_alone else "equal in the opposite order"] += said == answers[number]
            if said != answers[number]:
                where = "alone" if is_alone else "in the opposite order"
                done.faults.append(f"job {number}: {answers[number][:200]} here, {said[:200]} {where}")
            if time.monotonic() - begin > seconds:
                other.kill()
                break
        else:
            if other.wait() != 0:
                done.faults.append(f"the other process ended with {other.returncode}")
    done.seconds = time.monotonic() - begin
    return done.judge()


# -- the planner ---------------------------------------------------------------------------------------------------
def drifting(count: int, seed: int) -> Iterator[ListedBatch]:
    """Batches of images and text whose lengths and numbers drift up and down, by a third over a hundred iterations."""
    draw = random.Random(seed)
    for number in range(count):
        scale = 1.0 + 0.5 * math.sin(number / 50) + draw.random() * 0.2
        items = []
        for _ in range(4):
            images = draw.randint(0, int(6 * scale) + 1)
            text = [int(64 * images * scale) + draw.randint(16, int(400 * scale)) for _ in range(2)]
            streams = {"text": text, "vision": [1024] * images, "vision_tokens": [64] * images}
            items.append(Microbatch(streams, samples=2))
        yield listed_batch(items, f"iteration {number}")


def soak_planner(count: int, seed: int, *, seconds: float = math.inf) -> Soaked:
    """Plan iteration after iteration of a model of few layers, with a search that is short: what may grow or be late
    is around it. The trainer asks for every fourth plan before it can be there, and waits for the others."""
    done, begin = Soaked(), time.monotonic()
    run = str(ROOT / "tests" / "cli" / "small-vlm.toml")
    job = semu.load_run(run, ["training.global_batch=4"], cluster="h100:1x4", parallel="dp1-tp1-pp4")
    previous: float | None = None
    with Planner(job, drifting(count, seed), rollouts=8, candidates=1, workers=1, seed=seed) as planner:
        for number in range(count):
            if time.monotonic() - begin > seconds:
                break
            step = planner.take(None if number % 4 else 0.0)
            if step is None:
                done.faults.append(f"the stream ended at {number} of {count}")
                break
            done.counts[step.outcome.value] += 1
            is_whole = step.outcome is Outcome.PLANNED
            is_late = number % 4 != 0 and not is_whole  # which was waited for
            if step.index != number or (is_whole and not step.ended_by) or step.error is not None or is_late:
                done.faults.append(f"iteration {number}: {step}")
            if number % max(1, count // 20) == 0:
                simulated_s = semu.simulate(step.job, plan=step.plan).iteration_time_s
                if simulated_s <= 0 or simulated_s == previous:
                    done.faults.append(f"iteration {number}: {simulated_s} s, as before")
                previous = simulated_s
            if number % max(1, count // MEASURED) == 0:
                done.measure(number)
    done.seconds = time.monotonic() - begin
    return done.judge()


# -- threads -------------------------------------------------------------------------------------------------------
def soak_threads(count: int, seed: int, *, seconds: float = math.inf) -> Soaked:
    """``count`` searches, eight at a time, each as it is alone; all of them, whatever time they take."""
    done, begin = Soaked(), time.monotonic()

    def _search(number: int) -> Any:
        run, layout = (("lm-7b", "dp1-tp1-pp4"), ("vlm-s", "dp1-tp1-pp4"))[number % 2]
        settings = ["training.global_batch=4", f"batch.seed={number}"]
        job = semu.load_run(run, settings if run != "lm-7b" else settings[:1], cluster="h100:1x4", parallel=layout)
        return semu.search(job, rollouts=30, workers=1, seed=seed + number).to_json()

    alone = [_search(number) for number in range(count)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(_search, range(count)))
    for number, (one, other) in enumerate(zip(alone, together, strict=True)):
        if one != other:
            keys = [key for key in one if one[key] != other.get(key)]
            done.faults.append(f"search {number}: {keys} differ among threads")
    done.counts["searches"] = count
    done.seconds = time.monotonic() - begin
    return done


SOAKS: Mapping[str, tuple[Callable[..., Soaked], int]] = {
    "evaluate": (soak_evaluate, 100_000),
    "planner": (soak_planner, 10_000),
    "threads": (soak_threads, 64),
}


def main() -> int:
    """Run; returns the exit code: 1 where anything did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("soaks", nargs="*", choices=[*SOAKS, []], help="some of them (default: all)")
    parser.add_argument("--count", type=int, help="jobs, iterations or searches (default 100,000, 10,000 and 64)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default 1)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of evaluate, of planner: end after so long")
    parser.add_argument("--again", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.again is not None:
        answer_again(arguments.seed, *arguments.again)
        return 0
    wrong = 0
    for name in arguments.soaks or SOAKS:
        soak, count = SOAKS[name]
        done = soak(arguments.count or count, arguments.seed, seconds=arguments.seconds)
        wrong += len(done.faults)
        said = ", ".join(f"{key} {number:,}" for key, number in done.counts.most_common())
        print(f"{name}: {said}; {done.seconds:.0f} s", flush=True)
        if len(done.memory) > 9:
            sizes = [size >> 20 for _, size in done.memory]
            print(f"  memory {sizes[0]} MiB at first, {sizes[len(sizes) // 3]} behind a third, {sizes[-1]} at the end")
        for fault in done.faults[:10]:
            print(f"  {fault}", flush=True)
    print(f"{wrong} times something did not hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
