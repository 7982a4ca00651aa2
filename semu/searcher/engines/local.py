"""``LocalEngine``: tasks in processes of this machine; one that dies is replaced, and its task done again.

Where nothing else runs in this process they are copies of it, which know at once what it has imported, compiled and
traced; elsewhere they begin from nothing, as a lock that another thread holds stays locked in a copy.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import Any

from semu.errors import ExecutorError
from semu.parents import follow_parent
from semu.searcher.engines.engine import ATTEMPTS, IN_FLIGHT, Result, Task

YOUNG = 500_000
"""In a worker: new objects between two runs of the garbage collector. Tasks leave little, but fill caches."""
THREAD_ENDS_S = 5.0
"""How long the thread that hands out tasks may take to see that its processes are gone."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_WORK: list[Callable[[Any], Any]] = []
"""In a worker: the function that it runs."""


class LocalEngine:
    """Processes that live as long as a ``run``.

    Args:
        workers: how many; None: one per core.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers if workers is not None else _cores()

    @property
    def workers(self) -> int:
        """Processes."""
        return self._workers

    def run(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """As ``Engine``. A worker that dies takes all processes with it; tasks that had not ended begin again."""
        stream = enumerate(tasks)
        attempts: dict[int, int] = {}
        left: dict[int, Task] = {}
        while True:
            pool = ProcessPoolExecutor(self._workers, _context(), _begin, (work,))
            running: dict[Future[Result], int] = {}
            try:
                for number in sorted(left):
                    running[_submit(pool, left[number])] = number
                while True:
                    for number, task in islice(stream, max(0, self._workers * IN_FLIGHT - len(running))):
                        left[number] = task
                        running[_submit(pool, task)] = number
                    if not running:
                        return
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in sorted(done, key=running.__getitem__):
                        result = future.result()
                        number = running.pop(future)
                        del left[number]
                        yield number, result
            except BrokenProcessPool as error:
                for number in left:
                    attempts[number] = attempts.get(number, 0) + 1
                    if attempts[number] >= ATTEMPTS:
                        raise ExecutorError(
                            f"a worker died {ATTEMPTS} times while task {number} was under way",
                            where="engine local",
                            expected="processes that live; was the machine out of memory?",
                        ) from error
            finally:
                _end(pool)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context() -> BaseContext:
    """How processes begin: as copies of this one on Linux while it has one thread, else as new ones."""
    is_alone = sys.platform == "linux" and threading.active_count() == 1
    return get_context("fork" if is_alone else "spawn")


def _submit(pool: ProcessPoolExecutor, task: Any) -> Future[Any]:
    """Hand out a task. It may start a process, which has Ctrl-C and SIGTERM blocked from its first instruction on."""
    with _signals_wait(), warnings.catch_warnings():
        # Python 3.12 warns of copies of a process in which a library has threads; those of BLAS expect it
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        return pool.submit(_run, task)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Ctrl-C and SIGTERM come at the end of the block."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(work: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the tasks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a copy of a process that handles it ends none the less
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    follow_parent()
    gc.freeze()  # modules and compiled kernels stay: no search for garbage looks at them again
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    _WORK[:] = [work]


def _run(task: Any) -> Any:
    return _WORK[0](task)


def _end(pool: ProcessPoolExecutor) -> None:
    """End every process whose task is no longer waited for, and the thread that hands out tasks.

    Python wakes that thread when it exits, by a pipe that it would just then be closing.
    """
    processes = list((getattr(pool, "_processes", None) or {}).values())
    thread = getattr(pool, "_executor_manager_thread", None)
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    if thread is not None:
        thread.join(THREAD_ENDS_S)
