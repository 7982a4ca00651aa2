"""``run_scripts``: scripts one after the other or side by side, results kept as JSON; ``Store``."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.paper._results import PaperResult
from benchmarks.paper._scripts import find_script
from benchmarks.paper.choices import Choices
from semu.files import write_text


@dataclass(frozen=True)
class Store:
    """Finished results in a folder.

    Attributes:
        folder: it. quick: of small sizes. choices: that they are made with.
    """

    folder: Path
    quick: bool
    choices: Choices

    def key(self, name: str) -> str:
        """What a script's result must have been made with to be taken for one of this run."""
        said = json.dumps({"quick": self.quick, **self.choices.read_by(name)}, sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def read(self, name: str) -> PaperResult | None:
        """A finished result; None: there is none of this kind."""
        try:
            document = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
            result = PaperResult.from_json(document["result"], self.folder)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        is_whole = all(path.is_file() for path in result.pictures)
        return result if document["key"] == self.key(name) and is_whole else None

    def write(self, result: PaperResult) -> None:
        """Keep a result."""
        document = {"key": self.key(result.name), "quick": self.quick, "result": result.to_json()}
        write_text(self.folder / f"{result.name}.json", json.dumps(document, indent=1, allow_nan=False) + "\n")


def run_scripts(
    names: Sequence[str], store: Store, *, resume: bool, jobs: int = 1
) -> tuple[list[PaperResult], dict[str, str], bool]:
    """Run scripts.

    Args:
        names: of ``SCRIPTS``. store: where results are kept. resume: take what is finished there.
        jobs: scripts at a time, each in a process of its own; 1: in this one.
    Returns:
        Results; script -> what went wrong, of those that failed; whether Ctrl-C ended it. In the order of the names.
    """
    began = time.perf_counter()
    made: dict[str, PaperResult | str] = {}
    if resume:
        found = {name: store.read(name) for name in names}
        made = {name: result for name, result in found.items() if result is not None}
    left = [name for name in names if name not in made]
    say(f"{len(left)} to run, {len(made)} finished before")
    is_stopped = False
    try:
        for name, result in _attempts(left, store, jobs):
            made[name] = result
            told = "failed" if isinstance(result, str) else f"{result.wall_s:.0f} s"
            say(f"[{len(made)}/{len(names)}, {time.perf_counter() - began:4.0f} s] {name}: {told}")
    except KeyboardInterrupt:
        say("interrupted")
        is_stopped = True
    ended = [(name, made[name]) for name in names if name in made]
    results = [own for _, own in ended if isinstance(own, PaperResult)]
    failed = {name: own for name, own in ended if isinstance(own, str)}
    return results, failed, is_stopped


def _attempts(names: Sequence[str], store: Store, jobs: int) -> Iterator[tuple[str, PaperResult | str]]:
    """Scripts as they end, each with its result or what went wrong."""
    if jobs == 1 or len(names) < 2:
        for name in names:
            yield name, attempt(name, store)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        running = {pool.submit(attempt, name, store): name for name in names}
        for future in as_completed(running):
            error = future.exception()
            yield running[future], future.result() if error is None else f"{type(error).__name__}: {error}"
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def attempt(name: str, store: Store) -> PaperResult | str:
    """Run one script and keep its result; in words what went wrong, whatever it was, so that the rest goes on."""
    start = time.perf_counter()
    try:
        made = find_script(name).run(store.choices, quick=store.quick, out=store.folder)
        result = replace(made, wall_s=time.perf_counter() - start)
        store.write(result)
    except Exception as error:
        say(f"{name} failed\n{traceback.format_exc()}")
        return f"{type(error).__name__}: {error}"
    return result


def say(message: str) -> None:
    """A line on stderr."""
    print(message, file=sys.stderr, flush=True)
