"""``FakeWorld``: ranks as threads of one process, for tests, benchmarks and several ranks' stages on one GPU.

A message is copied by whichever end comes second. Under *rendezvous* (the default, what large messages of NCCL and MPI
do) a send ends when its receive has been launched; an *eager* send copies at once and ends.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from semu.errors import ConfigError
from semu.executor.communicator import Operation


class FakeWorld:
    """What the threads share.

    Args:
        num_ranks, num_replicas: pipeline ranks, data-parallel replicas.
        is_eager: sends do not wait for their receives. device: of every rank.
    Raises:
        ConfigError: no ranks.
    """

    def __init__(
        self, num_ranks: int, num_replicas: int = 1, *, is_eager: bool = False, device: torch.device | str = "cpu"
    ) -> None:
        if num_ranks < 1 or num_replicas < 1:
            raise ConfigError("no ranks", where="FakeWorld", expected="at least 1", got=(num_ranks, num_replicas))
        self.num_ranks, self.num_replicas = num_ranks, num_replicas
        self.is_eager = is_eager
        self.device = torch.device(device)
        self.failure: str | None = None
        self.lock = threading.Lock()
        self.waiting: defaultdict[tuple[int, int, int], tuple[deque[_End], deque[_End]]]
        self.waiting = defaultdict(lambda: (deque(), deque()))
        self._rounds: dict[tuple[object, ...], _Round] = {}

    def communicator(self, rank: int, replica: int = 0) -> FakeCommunicator:
        """That of one rank."""
        return FakeCommunicator(self, rank, replica)

    def fail(self, reason: str) -> None:
        """Let everything that waits, now or later, fail."""
        with self.lock:
            if self.failure is None:
                self.failure = reason
            ends = [end for pair in self.waiting.values() for side in pair for end in side if not end.is_done]
            self.waiting.clear()
            rounds = list(self._rounds.values())
        for end in ends:
            end.ready.release()
        for meeting in rounds:
            meeting.done.set()

    def meet(self, key: tuple[object, ...], size: int, place: int, value: object, timeout_s: float) -> list[Any]:
        """Values of ``size`` participants, in order of ``place``; each of them must call with the same key."""
        with self.lock:
            if self.failure is not None:
                raise ConnectionError(self.failure)
            meeting = self._rounds.setdefault(key, _Round())
            meeting.values[place] = value
            if len(meeting.values) == size:
                del self._rounds[key]
                meeting.done.set()
        if not meeting.done.wait(timeout_s):
            raise TimeoutError(f"{len(meeting.values)} of {size} ranks came within {timeout_s:g} s")
        if len(meeting.values) < size:
            raise ConnectionError(self.failure or "another rank has failed")
        return [meeting.values[place] for place in sorted(meeting.values)]


class _Round:
    """Ranks that meet once."""

    def __init__(self) -> None:
        self.values: dict[int, object] = {}
        self.done = threading.Event()


class _End:
    """One end of a message.

    Attributes:
        ready: a lock that is held until the message has arrived. event: CUDA event behind which tensors may be used.
    """

    __slots__ = ("event", "is_done", "operation", "ready", "world")

    def __init__(self, world: FakeWorld, operation: Operation) -> None:
        self.world = world
        self.operation: Operation | None = operation
        self.ready = threading.Lock()
        self.ready.acquire()
        self.is_done = False
        self.event: Any = None

    def wait(self, timeout_s: float) -> None:
        """Until it has arrived."""
        if not self.is_done:
            if not self.ready.acquire(timeout=timeout_s):
                raise TimeoutError(f"nothing came within {timeout_s:g} s")
            if not self.is_done:
                raise ConnectionError(self.world.failure or "another rank has failed")
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


class FakeCommunicator:
    """One rank of a ``FakeWorld``, for one thread."""

    def __init__(self, world: FakeWorld, rank: int, replica: int) -> None:
        self.world = world
        self.num_ranks, self.num_replicas = world.num_ranks, world.num_replicas
        self.rank, self.replica = rank, replica
        self.device = world.device
        self._is_cuda = world.device.type == "cuda"
        self._round = 0
        self._gang_rounds: Counter[tuple[int, ...]] = Counter()

    def launch(self, operations: Sequence[Operation]) -> list[_End]:
        """Start operations."""
        world, found = self.world, []
        for operation in operations:
            end = _End(world, operation)
            found.append(end)
            if operation.is_send:
                key, mine = (self.replica, self.rank, operation.peer), 0
                if world.is_eager:
                    operation.tensors = tuple(tensor.clone() for tensor in operation.tensors)
                    end.is_done = True
            else:
                key, mine = (self.replica, operation.peer, self.rank), 1
            if self._is_cuda:
                end.event = torch.cuda.current_stream().record_event()
            with world.lock:
                if world.failure is not None:
                    raise ConnectionError(world.failure)
                sides = world.waiting[key]
                other = sides[1 - mine].popleft() if sides[1 - mine] else None
                if other is None:
                    sides[mine].append(end)
            if other is not None:
                self._hand_over(*((end, other) if mine == 0 else (other, end)))
        return found

    def _hand_over(self, sent: _End, received: _End) -> None:
        """Copy a message; both ends are there."""
        reason = _misfit(sent.operation, received.operation)
        if reason is not None:
            self.world.fail(reason)
            sent.ready.release()
            received.ready.release()
            raise ConnectionError(reason)
        event = self._copy(sent, received)
        # before the other thread goes on: what was sent lives no longer than its own rank says
        sent.operation = received.operation = None
        for end in (sent, received):
            end.event = event
            end.is_done = True
            end.ready.release()

    def _copy(self, sent: _End, received: _End) -> Any:
        """Returns the event behind which it is done; None on a CPU."""
        assert sent.operation is not None and received.operation is not None
        given, taken = sent.operation.tensors, received.operation.tensors
        if not self._is_cuda:
            for target, source in zip(taken, given, strict=True):
                target.copy_(source)
            return None
        stream = torch.cuda.current_stream()
        stream.wait_event(sent.event)  # behind whatever either end has still to do with its tensors
        stream.wait_event(received.event)
        for target, source in zip(taken, given, strict=True):
            target.copy_(source)
            target.record_stream(stream)
            source.record_stream(stream)
        return stream.record_event()

    def sum_over_replicas(self, tensors: Sequence[torch.Tensor], timeout_s: float) -> None:
        """Sum in order of the replicas, so that all have the same bits."""
        if self.num_replicas == 1:
            return
        self._synchronize()
        own = [tensor.detach().clone() for tensor in tensors]
        self._synchronize()
        self._round += 1
        every = self.world.meet(("sum", self.rank, self._round), self.num_replicas, self.replica, own, timeout_s)
        for number, parts in enumerate(zip(*every, strict=True)):
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
            tensors[number].copy_(total)
        self._synchronize()

    def connect(self, groups: Sequence[Sequence[int]]) -> None:
        """Threads meet without it."""

    def sum_over_ranks(self, tensors: Sequence[torch.Tensor], ranks: Sequence[int], timeout_s: float) -> None:
        """Sum in order of the ranks, so that all have the same bits."""
        for number, parts in enumerate(zip(*self._met(tensors, ranks, timeout_s), strict=True)):
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
            tensors[number].copy_(total)
        self._synchronize()

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int, ranks: Sequence[int], timeout_s: float) -> None:
        """Copies of what the root gave."""
        given = self._met(tensors, ranks, timeout_s)[sorted(ranks).index(root)]
        if self.rank != root:
            for tensor, source in zip(tensors, given, strict=True):
                tensor.copy_(source)
        self._synchronize()

    def _met(self, tensors: Sequence[torch.Tensor], ranks: Sequence[int], timeout_s: float) -> list[Any]:
        """Copies of all members' tensors, in order of the ranks."""
        self._synchronize()
        own = [tensor.detach().clone() for tensor in tensors]
        self._synchronize()
        members = tuple(ranks)
        self._gang_rounds[members] += 1
        key = ("gang", self.replica, members, self._gang_rounds[members])
        return self.world.meet(key, len(members), self.rank, own, timeout_s)

    def gather(self, value: object, timeout_s: float) -> list[Any]:
        """Values of all threads."""
        self._round += 1
        place = self.rank * self.num_replicas + self.replica
        size = self.num_ranks * self.num_replicas
        return self.world.meet(("gather", self._round), size, place, value, timeout_s)

    def _synchronize(self) -> None:
        if self._is_cuda:
            torch.cuda.current_stream().synchronize()

    def abort(self, reason: str) -> None:
        """Let all other threads fail where they wait."""
        self.world.fail(reason)

    def reason(self) -> str | None:
        """Why the first rank failed."""
        return self.world.failure


def _misfit(given: Operation | None, taken: Operation | None) -> str | None:
    """Why what is sent is not what is received."""
    assert given is not None and taken is not None
    if given.tag != taken.tag:
        return f"message {given.tag} was sent where message {taken.tag} is received"
    sent, received = ([(tuple(one.shape), one.dtype) for one in end.tensors] for end in (given, taken))
    return None if sent == received else f"message {given.tag} was sent as {sent} and is received as {received}"


def run_threads(world: FakeWorld, work: Callable[[FakeCommunicator], Any]) -> list[Any]:
    """Run every rank of a world in a thread.

    Args:
        world: its ranks. work: what a rank does with its communicator.
    Returns:
        What each rank returned, by world rank.
    Raises:
        BaseException: of the rank that failed first.
    """
    size = world.num_ranks * world.num_replicas
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(place: int) -> None:
        """One rank."""
        rank, replica = divmod(place, world.num_replicas)
        try:
            results[place] = work(world.communicator(rank, replica))
        except BaseException as error:
            errors.append(error)
            world.fail(str(error))

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(size)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C, of which threads hear nothing
        world.fail("interrupted")
        raise
    if errors:
        raise next((error for error in errors if str(error) == world.failure), errors[0])
    return results
