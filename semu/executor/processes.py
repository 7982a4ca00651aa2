"""``launch``: local processes, one per world rank, that end together: with all results, or with the first error.

No process is left behind: a rank that fails ends its process, which the others notice; what has not ended within the
timeout is ended; and ranks end when the process that started them does.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from semu.errors import ExecutorError, SemuError
from semu.parents import follow_parent
from semu.records import dataclass

HOST = "127.0.0.1"
GRACE_S = 5.0
"""Beyond the timeout, for processes to end."""
_NO_END = "the rank did not end"
_FOLLOWS = ("no answer from another rank", _NO_END, "the ranks do not meet", "another rank has failed")
"""Messages of ranks that end because another one did, or may have; the last ones tell least."""


@dataclass(frozen=True)
class Place:
    """One process.

    Attributes:
        world_rank, world_size: which of how many. host, port: of the store. backend: of torch.distributed.
        timeout_s: for other ranks [s].
    """

    world_rank: int
    world_size: int
    host: str
    port: int
    backend: str
    timeout_s: float

    def connect(self) -> Any:
        """A new connection to the store."""
        limit = timedelta(seconds=self.timeout_s)
        return dist.TCPStore(self.host, self.port, is_master=False, timeout=limit)


class RankFailure(ExecutorError):
    """Ranks have failed; it tells of the one that did not just follow another.

    Attributes:
        errors: world rank -> its error. exit_codes: world rank -> of its process; None: it had not ended by itself.
    """

    def __init__(self, errors: Mapping[int, ExecutorError], exit_codes: Mapping[int, int | None]) -> None:
        _, first = min(errors.items(), key=lambda item: (_distance(item[1]), item[0]))
        super().__init__(
            first.message, where=first.where, expected=first.expected, got=first.got, nearest=first.nearest
        )
        self.errors, self.exit_codes = dict(errors), dict(exit_codes)

    @property
    def kind(self) -> str:
        """As any error of the executor."""
        return ExecutorError.__name__


def _distance(error: ExecutorError) -> int:
    """0: of a rank that failed by itself."""
    return next((at for at, words in enumerate(_FOLLOWS, 1) if error.message.startswith(words)), 0)


def rank_context() -> Any:
    """How ranks begin: as copies of a server that has imported torch, which takes each of them seconds, and has neither
    threads nor a GPU in use; as new processes where there is no such server (Windows)."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch.distributed", "torch._dynamo", "semu.executor.demo", "semu.executor.drill"]
    )  # torch would import the second by itself, in every rank, when something is trained
    return context


def launch(
    work: Callable[..., Any],
    world_size: int,
    arguments: Sequence[object] = (),
    *,
    backend: str = "gloo",
    timeout_s: float = 60.0,
    serve: Callable[[Any], object] | None = None,
) -> list[Any]:
    """Run a function in processes that share a process group of torch.distributed.

    Args:
        work: a function of a module, called with the ``Place`` and ``arguments``. world_size: processes.
        arguments: what pickle takes. backend: ``gloo`` or ``nccl``. timeout_s: for other ranks [s].
        serve: called in a thread here with a connection to the store, e.g. a planner; its errors are its own to tell.
    Returns:
        What the processes returned, by world rank.
    Raises:
        RankFailure: the error of the rank that failed first, as far as clocks agree, and those of the others.
    """
    limit = timedelta(seconds=timeout_s)
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=limit)
    place = Place(0, world_size, HOST, store.port, backend, timeout_s)
    context = rank_context()
    processes, pipes = [], []
    server: threading.Thread | None = None
    try:
        for number in range(world_size):
            mine, theirs = context.Pipe(duplex=False)
            target = (work, replace(place, world_rank=number), tuple(arguments), theirs)
            process = context.Process(target=_run, args=target, daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(mine)
        if serve is not None:
            server = threading.Thread(target=_serve, args=(serve, place), daemon=True)
            server.start()
        return _collect(processes, pipes, timeout_s)
    finally:
        end_processes(processes)
        for pipe in pipes:
            pipe.close()
        del store  # what still waits for it hears that it is gone
        if server is not None:
            server.join(GRACE_S)  # an interpreter that ends while torch waits in a thread is aborted


def _serve(serve: Callable[[Any], object], place: Place) -> None:
    with suppress(Exception):  # the ranks have been told, or are gone
        serve(place.connect())


def _collect(processes: list[Any], pipes: list[Connection], timeout_s: float) -> list[Any]:
    """Results of all, or the first error."""
    results: dict[int, Any] = {}
    errors: dict[int, ExecutorError] = {}
    open_pipes = dict(enumerate(pipes))
    deadline: float | None = None
    while open_pipes:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            expected = "an end with the others"
            for number in open_pipes.keys() - errors.keys():
                errors[number] = ExecutorError(_NO_END, where=_name(number), expected=expected)
            break
        for ready in wait(list(open_pipes.values()), timeout=left):
            number = next(key for key, pipe in open_pipes.items() if pipe is ready)
            pipe = open_pipes.pop(number)
            try:
                is_result, value = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                processes[number].join(GRACE_S)
                is_result, value = False, _died(number, processes[number].exitcode)
            if is_result:
                results[number] = value
            else:
                errors[number] = value
                deadline = deadline or time.monotonic() + timeout_s + GRACE_S
    if errors:
        for number in errors:
            processes[number].join(GRACE_S)
        raise RankFailure(errors, {number: process.exitcode for number, process in enumerate(processes)})
    return [results[number] for number in range(len(processes))]


def _died(number: int, code: int | None) -> ExecutorError:
    """A process that ended without a word."""
    how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
    return ExecutorError("the rank's process has died", where=_name(number), got=how)


def _name(number: int) -> str:
    return f"world rank {number}"


def end_processes(processes: list[Any]) -> None:
    """End what still runs."""
    for stop in ("terminate", "kill"):
        for process in processes:
            if process.is_alive():
                process.join(0.5) if stop == "terminate" else None
                if process.is_alive():
                    getattr(process, stop)()
        for process in processes:
            process.join(2.0)


def _run(work: Callable[..., Any], place: Place, arguments: tuple[object, ...], pipe: Connection) -> NoReturn:
    """A rank's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it tells it
    follow_parent()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    code = 0
    try:
        limit = timedelta(seconds=place.timeout_s)
        with _together(place, "the ranks do not meet"):
            if place.backend == "nccl":
                torch.cuda.set_device(place.world_rank % max(torch.cuda.device_count(), 1))
            group = dist.PrefixStore("group", place.connect())
            dist.init_process_group(
                place.backend, store=group, rank=place.world_rank, world_size=place.world_size, timeout=limit
            )
        result = work(place, *arguments)
        with _together(place, "another rank has failed"):
            dist.barrier()  # nobody leaves while another one may still read from it
        _send(pipe, True, result)
    except Exception as error:
        code = ExecutorError.exit_code
        _send(pipe, False, _as_executor_error(error, place))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # closes all connections; no thread is waited for


@contextmanager
def _together(place: Place, message: str) -> Iterator[None]:
    """What torch.distributed raises where all ranks take part, as an error that does not look like this rank's own."""
    try:
        yield
    except RuntimeError as error:
        raise ExecutorError(message, where=_name(place.world_rank), got=" ".join(str(error).split())) from error


def _send(pipe: Connection, is_result: bool, value: object) -> None:
    """By value: torch's own way over pipes shares memory with a process that is about to end."""
    pipe.send_bytes(pickle.dumps((is_result, value)))


def _as_executor_error(error: Exception, place: Place) -> ExecutorError:
    if isinstance(error, ExecutorError):
        return ExecutorError.of(error, got=_text(error.got), nearest=_text(error.nearest))
    name = _name(place.world_rank)
    if isinstance(error, SemuError):
        return ExecutorError(str(error), where=name)
    return ExecutorError(f"{type(error).__name__}: {error}", where=name)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
