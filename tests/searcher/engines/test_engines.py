"""Engines: every task once whatever runs it, whatever dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from semu.errors import ConfigError, ExecutorError
from semu.searcher.engines import ENGINES, make_engine
from semu.searcher.engines.cluster import RayEngine
from semu.searcher.engines.engine import ATTEMPTS, SerialEngine
from semu.searcher.engines.local import LocalEngine

SEEN: list[int] = []
"""What this process has been told; a process that is no copy of it knows nothing of it."""


def power(exponent: int, task: int) -> int:
    return int(task**exponent)


def die_once(folder: str, task: int) -> int:
    """The worker that gets task 3 first is killed; later ones find the mark."""
    mark = Path(folder) / "died"
    if task == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def die(task: int) -> int:
    if task == 2:
        os._exit(9)
    time.sleep(0.01)
    return task


def refuse(task: int) -> int:
    if task == 2:
        raise ConfigError("not two", where="task", got=task)
    return task


def blocks_interrupts(_: int) -> bool:
    """Whether Ctrl-C is still blocked, as it was when the worker began."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def seen(_: int) -> list[int]:
    return SEEN


def note(folder: str, task: int) -> int:
    (Path(folder) / str(task)).touch()
    return task


def test_serial_runs_every_task_in_order() -> None:
    assert list(make_engine("serial").run(partial(power, 2), iter(range(5)))) == [(n, n * n) for n in range(5)]
    assert list(SerialEngine().run(partial(power, 2), [])) == []


@pytest.mark.slow
@pytest.mark.multiprocess
def test_processes_give_what_serial_gives() -> None:
    work = partial(power, 3)
    found = list(make_engine("local", workers=2).run(work, range(50)))
    assert sorted(found) == list(SerialEngine().run(work, range(50)))
    assert threading.active_count() == 1  # Python would wake a thread of the pool when it exits


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ctrl_c_does_not_reach_a_worker_that_is_starting() -> None:
    assert list(make_engine("local", workers=1).run(blocks_interrupts, [0])) == [(0, True)]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("is_alone", [True, False])
def test_workers_are_copies_where_no_other_thread_could_hold_a_lock(*, is_alone: bool) -> None:
    SEEN.append(7)
    ended = threading.Event()
    others = [] if is_alone else [threading.Thread(target=ended.wait)]
    for other in others:
        other.start()
    is_copied = sys.platform == "linux" and threading.active_count() == 1
    assert is_alone or not is_copied
    try:
        assert list(LocalEngine(1).run(seen, [0])) == [(0, [7] if is_copied else [])]
    finally:
        ended.set()
        SEEN.clear()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_copy_ends_though_its_parent_handles_the_signal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        results = LocalEngine(2).run(partial(note, str(tmp_path)), iter(range(1000)))
        next(results)
        begin = time.monotonic()
        results.close()  # type: ignore[attr-defined]
        while multiprocessing.active_children():
            assert time.monotonic() - begin < 20
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_tasks_are_read_no_faster_than_they_are_done(tmp_path: Path) -> None:
    read = []

    def stream() -> Iterator[int]:
        for task in range(1000):
            read.append(task)
            yield task

    results = LocalEngine(1).run(partial(note, str(tmp_path)), stream())
    got = [next(results) for _ in range(5)]
    assert len(read) <= 5 + 2 + 1
    results.close()  # type: ignore[attr-defined]
    assert len(got) == 5
    done = len(list(tmp_path.iterdir()))
    time.sleep(0.3)
    assert len(list(tmp_path.iterdir())) <= done + 1


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_killed_process_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    found = list(LocalEngine(2).run(partial(die_once, str(tmp_path)), range(12)))
    assert sorted(found) == [(n, n) for n in range(12)]
    assert (tmp_path / "died").exists()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_task_that_kills_its_worker_ends_the_run_and_what_came_before_stands() -> None:
    got = []
    with pytest.raises(ExecutorError, match=f"died {ATTEMPTS} times"):
        for number, _ in LocalEngine(1).run(die, range(4)):
            got.append(number)
    assert got == sorted(set(got))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_what_a_task_raises_comes_out() -> None:
    with pytest.raises(ConfigError, match="not two"):
        list(LocalEngine(1).run(refuse, range(4)))


@pytest.mark.parametrize(
    ("name", "options", "where"),
    [
        ("dask", {}, "engine"),
        ("local", {"workers": 0}, "workers"),
        ("local", {"workers": True}, "workers"),
        ("local", {"address": "auto"}, "address"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_engine(name, **options)  # type: ignore[arg-type]
    assert caught.value.where == where


def test_ray_that_is_not_there_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="pip install ray"):
        make_engine("ray")
    assert "ray" in ENGINES


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, {"address": "local", "num_cpus": 2}),
        ("auto", {"address": "auto"}),
        ("host:6379", {"address": "host:6379"}),
    ],
)
def test_ray_starts_a_cluster_of_its_own_whatever_runs_on_this_machine(
    address: str | None, expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an address, Ray joins a cluster that runs on this machine, and takes no number of CPUs for it."""
    told: dict[str, object] = {}
    ray = SimpleNamespace(is_initialized=lambda: False, init=told.update)
    monkeypatch.setattr("semu.searcher.engines.cluster._import_ray", lambda: ray)
    RayEngine(address=address, workers=2)
    assert {name: told[name] for name in ("address", "num_cpus") if name in told} == expected
