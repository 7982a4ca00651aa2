"""Nodes of a drill as processes over gloo, or as threads: ``ProcessCrew``, ``ThreadCrew``."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist

from semu.errors import ConfigError, ExecutorError
from semu.executor.communicator import Communicator
from semu.executor.drill.node import run_node
from semu.executor.drill.orders import Moment, Settings
from semu.executor.fake_communicator import FakeWorld
from semu.executor.processes import HOST, end_processes, rank_context
from semu.executor.torch_communicator import TorchCommunicator
from semu.parents import follow_parent
from semu.records import dataclass


class Crew(Protocol):
    """The master's side."""

    def start(self, node: int, settings: Settings) -> None:
        """Let a node be there."""

    def send(self, node: int, message: object) -> None:
        """Tell a node; nothing happens where it is gone."""

    def wait(self, timeout_s: float | None) -> list[tuple[int, Any]]:
        """What nodes say, in no order between nodes; None: the node is gone. Empty: nothing within the time [s]."""

    def kill(self, node: int) -> None:
        """End a node that does not answer."""

    def close(self) -> None:
        """Leave nobody behind."""


class ProcessCrew:
    """A process for each node; its death is seen as the end of its connection."""

    def __init__(self, timeout_s: float) -> None:
        limit = timedelta(seconds=timeout_s)
        self._store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=limit)
        self._context = rank_context()
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Connection] = {}
        self._ended: list[Any] = []

    def start(self, node: int, settings: Settings) -> None:
        """Spawn it."""
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=_run, args=(theirs, self._store.port, node, settings), daemon=True)
        process.start()
        theirs.close()
        if node in self._processes:
            self._ended.append(self._processes[node])
        self._processes[node], self._pipes[node] = process, mine

    def send(self, node: int, message: object) -> None:
        """By value."""
        with suppress(OSError):
            self._pipes[node].send_bytes(pickle.dumps(message))

    def wait(self, timeout_s: float | None) -> list[tuple[int, Any]]:
        """Of all nodes that have something to say one message each."""
        found: list[tuple[int, Any]] = []
        for ready in wait(list(self._pipes.values()), timeout=timeout_s):
            node = next(node for node, pipe in self._pipes.items() if pipe is ready)
            try:
                found.append((node, pickle.loads(self._pipes[node].recv_bytes())))
            except (EOFError, OSError):
                self._pipes.pop(node).close()
                found.append((node, None))
        return found

    def kill(self, node: int) -> None:
        """SIGKILL."""
        self._processes[node].kill()
        self._processes[node].join(5.0)
        if node in self._pipes:
            self._pipes.pop(node).close()

    def close(self) -> None:
        """End all processes that are left."""
        end_processes([*self._processes.values(), *self._ended])
        for pipe in self._pipes.values():
            pipe.close()


def _run(pipe: Connection, port: int, node: int, settings: Settings) -> NoReturn:
    """A node's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it tells it
    follow_parent()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    code = 0
    try:
        run_node(_ProcessLink(pipe, port), node, settings)
    except (EOFError, OSError):  # nobody waits for it any more
        code = ExecutorError.exit_code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass
class _ProcessLink:
    pipe: Connection
    port: int

    def send(self, message: object) -> None:
        """Through the pipe."""
        self.pipe.send_bytes(pickle.dumps(message))

    def receive(self) -> Any:
        """From it."""
        return pickle.loads(self.pipe.recv_bytes())

    def connect(self, epoch: int, rank: int, size: int, timeout_s: float) -> Communicator:
        """A new process group."""
        limit = timedelta(seconds=timeout_s)
        store = dist.TCPStore(HOST, self.port, is_master=False, timeout=limit)
        group = dist.PrefixStore(f"epoch {epoch}", store)
        try:
            dist.init_process_group("gloo", store=group, rank=rank, world_size=size, timeout=limit)
            return TorchCommunicator(timeout_s=timeout_s)
        except RuntimeError:
            with suppress(Exception):  # there may be none yet
                dist.destroy_process_group()
            raise

    def part(self, mine: Communicator) -> None:
        """All have stepped: nobody waits for this one."""
        dist.destroy_process_group()

    def cut(self) -> None:
        """End all connections over the network: gloo keeps them while any operation is pending, and others wait."""
        for name in os.listdir("/dev/fd"):
            with suppress(OSError, ValueError), socket.socket(fileno=os.dup(int(name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    found.getpeername()  # one that listens has none, and its thread is not to fail
                    found.shutdown(socket.SHUT_RDWR)

    def die(self, moment: Moment) -> None:
        """SIGKILL, or SIGSTOP."""
        os.kill(os.getpid(), signal.SIGSTOP if moment is Moment.HANG else signal.SIGKILL)

    def building(self) -> AbstractContextManager[Any]:
        """Processes build alone."""
        return nullcontext()


class _Killed(BaseException):
    """A thread that dies."""


class ThreadCrew:
    """A thread for each node."""

    def __init__(self, timeout_s: float) -> None:
        self._worlds: dict[int, FakeWorld] = {}
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._said: queue.Queue[tuple[int, Any]] = queue.Queue()
        self._told: dict[int, queue.Queue[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._timeout_s = timeout_s

    def world(self, epoch: int, size: int) -> FakeWorld:
        """That of an epoch, for all its threads."""
        with self._lock:
            return self._worlds.setdefault(epoch, FakeWorld(size))

    def start(self, node: int, settings: Settings) -> None:
        """A thread."""
        told: queue.Queue[Any] = queue.Queue()
        self._told[node] = told
        link = _ThreadLink(self, told, self._said, node, self._building)

        def _work() -> None:
            """It is gone at its end, whatever that is."""
            try:
                run_node(link, node, settings)
            except _Killed:
                if link.world is not None:  # else it had met nobody yet
                    link.world.fail(f"node {node} is gone")
            finally:
                self._said.put((node, None))

        thread = threading.Thread(target=_work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def send(self, node: int, message: object) -> None:
        """Through its queue."""
        self._told[node].put(message)

    def wait(self, timeout_s: float | None) -> list[tuple[int, Any]]:
        """The next word of any node."""
        try:
            return [self._said.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def kill(self, node: int) -> None:
        """Threads end by themselves."""

    def close(self) -> None:
        """Let all that waits fail, and wait for it."""
        for world in list(self._worlds.values()):
            world.fail("the drill is over")
        for told in self._told.values():
            told.put(_OVER)
        end = time.monotonic() + self._timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


_OVER = object()


@dataclass
class _ThreadLink:
    crew: ThreadCrew
    told: queue.Queue[Any]
    said: queue.Queue[tuple[int, Any]]
    node: int
    lock: threading.Lock
    world: FakeWorld | None = None

    def send(self, message: object) -> None:
        """Into the master's queue."""
        self.said.put((self.node, message))

    def receive(self) -> Any:
        """From this node's queue."""
        found = self.told.get()
        if found is _OVER:
            raise _Killed
        return found

    def connect(self, epoch: int, rank: int, size: int, timeout_s: float) -> Communicator:
        """Of the epoch's world."""
        self.world = self.crew.world(epoch, size)
        return self.world.communicator(rank)

    def part(self, mine: Communicator) -> None:
        """Nothing is left open."""

    def cut(self) -> None:
        """The world has failed for all."""

    def die(self, moment: Moment) -> None:
        """End the thread.

        Raises:
            ConfigError: it should stop for ever, and could not be ended then.
        """
        if moment is Moment.HANG:
            raise ConfigError("a thread that hangs cannot be ended", where="failures", expected="processes")
        raise _Killed

    def building(self) -> AbstractContextManager[Any]:
        """One after another."""
        return self.lock
