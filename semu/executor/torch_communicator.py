"""``TorchCommunicator``: ranks as processes over torch.distributed, NCCL on GPUs and gloo on CPUs.

Messages of gloo are told apart by their tags. NCCL has none: it matches sends and receives of a communicator in order,
and runs them on one stream, so that every directed pair of ranks gets a communicator of its own. It connects a
communicator at its first message, where both ends must meet; so one is sent at once, in one order on all ranks, lest a
receive that a plan launches early blocks its rank before the rank has sent what the other end waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import permutations
from typing import Any

import torch
import torch.distributed as dist

from semu.errors import ExecutorError
from semu.executor.communicator import Operation

_REASON = "semu/reason"


class TorchCommunicator:
    """One rank of an initialized process group.

    Args:
        num_replicas: data-parallel replicas; the world is ``num_replicas`` times the pipeline ranks.
        device: where tensors live; None: the CPU for gloo, the current GPU else.
        timeout_s: of the groups; with NCCL their watchdog ends a process after it.
        is_batched: match messages by order, as NCCL must; None: for NCCL only.
        pairs: (from, to) of pipeline ranks between which messages go, for those matched by order; None: all. Each takes
            a communicator, with NCCL some MB of GPU memory at both ends.
        waits_on_host: with NCCL, wait for messages on the processor and not on the stream: slow, but a wait that ends
            in vain names its action.
    Raises:
        ExecutorError: torch.distributed is not initialized, or the world is no multiple of the replicas.
    """

    def __init__(
        self,
        num_replicas: int = 1,
        *,
        device: torch.device | str | None = None,
        timeout_s: float = 300.0,
        is_batched: bool | None = None,
        pairs: Iterable[tuple[int, int]] | None = None,
        waits_on_host: bool = False,
    ) -> None:
        if not dist.is_initialized():
            raise ExecutorError(
                "no process group", where="TorchCommunicator", expected="a call of torch.distributed.init_process_group"
            )
        world = dist.get_world_size()
        if num_replicas < 1 or world % num_replicas:
            raise ExecutorError(
                "the replicas do not divide the world",
                where="TorchCommunicator",
                expected=f"a divisor of {world} processes",
                got=num_replicas,
            )
        self.num_replicas, self.num_ranks = num_replicas, world // num_replicas
        self.rank, self.replica = divmod(dist.get_rank(), num_replicas)
        is_nccl = self._is_nccl = dist.get_backend() == "nccl"
        self._has_limit = waits_on_host or not is_nccl
        self._is_batched = is_nccl if is_batched is None else is_batched
        if device is None:
            device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")
        self.device = torch.device(device)
        limit = timedelta(seconds=timeout_s)
        self._replicas: Any = None
        if num_replicas > 1:  # every rank makes all groups and keeps the one that it is in
            members = [[self._world(rank, r) for r in range(num_replicas)] for rank in range(self.num_ranks)]
            self._replicas = [dist.new_group(group, timeout=limit) for group in members][self.rank]
        self._gangs: dict[tuple[int, ...], Any] = {}
        self._limit = limit
        self._pairs: dict[tuple[int, int], Any] = {}
        if self._is_batched:
            self._connect(list(permutations(range(self.num_ranks), 2)) if pairs is None else sorted(set(pairs)), limit)

    def _connect(self, pairs: Sequence[tuple[int, int]], limit: timedelta) -> None:
        """A communicator for every pair, and its first message, on all ranks in the same order."""
        for replica in range(self.num_replicas):
            for a, b in pairs:
                ends = self._world(a, replica), self._world(b, replica)
                self._pairs[ends] = dist.new_group(list(ends), timeout=limit)
        for a, b in pairs:
            if self.rank in (a, b):
                first = torch.zeros(1, device=self.device)
                (handle,) = self.launch([Operation(self.rank == a, b if self.rank == a else a, 0, (first,))])
                handle.wait(limit.total_seconds())

    def _world(self, rank: int, replica: int) -> int:
        return rank * self.num_replicas + replica

    def launch(self, operations: Sequence[Operation]) -> list[Any]:
        """Start operations: alone, or as ``batch_isend_irecv``."""
        try:
            if not self._is_batched:
                return [_Works(self._start(operation), self._has_limit) for operation in operations]
            return self._launch_batch(operations)
        except RuntimeError as error:
            raise _lost(error) from error

    def _start(self, operation: Operation) -> list[Any]:
        """Start one operation of gloo, tensor after tensor under one tag, which keeps their order."""
        peer = self._world(operation.peer, self.replica)
        start = dist.isend if operation.is_send else dist.irecv
        return [start(tensor, peer, tag=operation.tag) for tensor in operation.tensors]

    def _launch_batch(self, operations: Sequence[Operation]) -> list[Any]:
        """Start operations of NCCL, those of one directed pair of ranks as one batch."""
        found: list[_Works] = [_Works([], self._has_limit) for _ in operations]
        mine = self._world(self.rank, self.replica)
        by_pair: dict[tuple[int, int], list[int]] = {}
        for number, operation in enumerate(operations):
            peer = self._world(operation.peer, self.replica)
            by_pair.setdefault((mine, peer) if operation.is_send else (peer, mine), []).append(number)
        for pair, numbers in by_pair.items():
            group = self._pairs.get(pair)
            if group is None:
                raise ExecutorError(
                    "a message between ranks that are not connected",
                    where="TorchCommunicator(pairs=...)",
                    expected="all pairs of ranks between which the plan's messages go",
                    got=f"from rank {pair[0] // self.num_replicas} to rank {pair[1] // self.num_replicas}",
                )
            batch = []
            for number in numbers:
                operation = operations[number]
                peer = pair[1] if operation.is_send else pair[0]
                call = dist.isend if operation.is_send else dist.irecv
                batch += [dist.P2POp(call, tensor, peer, group) for tensor in operation.tensors]
            works = dist.batch_isend_irecv(batch) if batch else []
            for number in numbers:
                found[number].works = works
        return found

    def sum_over_replicas(self, tensors: Sequence[torch.Tensor], timeout_s: float) -> None:
        """All-reduce, tensor after tensor."""
        if self._replicas is None:
            return
        try:
            dense = [tensor.contiguous() for tensor in tensors]
            works = [dist.all_reduce(tensor, group=self._replicas, async_op=True) for tensor in dense]
        except RuntimeError as error:
            raise _lost(error) from error
        _Works(works, self._has_limit).wait(timeout_s)
        for tensor, total in zip(tensors, dense, strict=True):
            if total is not tensor:
                tensor.copy_(total)

    def connect(self, groups: Sequence[Sequence[int]]) -> None:
        """Groups of torch.distributed, each made by all processes: made by its members alone, a group is named by how
        many groups each of them is in, which differs where groups overlap."""
        try:
            for members in (tuple(sorted(group)) for group in groups):
                made = [
                    dist.new_group([self._world(rank, replica) for rank in members], timeout=self._limit)
                    for replica in range(self.num_replicas)
                    if members not in self._gangs
                ]
                if made:
                    self._gangs[members] = made[self.replica]
        except RuntimeError as error:
            raise _lost(error) from error

    def sum_over_ranks(self, tensors: Sequence[torch.Tensor], ranks: Sequence[int], timeout_s: float) -> None:
        """All-reduce, tensor after tensor."""
        try:
            group = self._gang(ranks)
            works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        except RuntimeError as error:
            raise _lost(error) from error
        _Works(works, self._has_limit).wait(timeout_s)

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int, ranks: Sequence[int], timeout_s: float) -> None:
        """Tensor after tensor."""
        source = self._world(root, self.replica)
        try:
            group = self._gang(ranks)
            works = [dist.broadcast(tensor, source, group=group, async_op=True) for tensor in tensors]
        except RuntimeError as error:
            raise _lost(error) from error
        _Works(works, self._has_limit).wait(timeout_s)

    def _gang(self, ranks: Sequence[int]) -> Any:
        """The group of some pipeline ranks of this replica."""
        members = tuple(sorted(ranks))
        if members not in self._gangs:
            raise ExecutorError(
                "ranks that are not connected as a group",
                where="TorchCommunicator.connect",
                expected="a call with the same groups on every rank; Runner.prepare does it for the ranks of a plan",
                got=list(members),
            )
        return self._gangs[members]

    def gather(self, value: object, timeout_s: float) -> list[Any]:
        """Through the group's own collective on objects."""
        found: list[Any] = [None] * dist.get_world_size()
        try:
            dist.all_gather_object(found, value)
        except RuntimeError as error:
            raise _lost(error) from error
        return found

    def abort(self, reason: str) -> None:
        """Tell the store why, and close this process's connections, which the other ranks notice."""
        with suppress(Exception):
            store = _store()
            if not store.check([_REASON]):
                store.set(_REASON, reason)
        with suppress(Exception):
            if self._is_nccl:  # which would wait for the others
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()

    def reason(self) -> str | None:
        """Why the first rank failed, while the store lives."""
        with suppress(Exception):
            store = _store()
            if store.check([_REASON]):
                return bytes(store.get(_REASON)).decode()
        return None


class _Works:
    """Works of one operation. ``has_limit``: wait on the processor; works of NCCL do so when they are given a limit."""

    __slots__ = ("has_limit", "works")

    def __init__(self, works: list[Any], has_limit: bool) -> None:
        self.works, self.has_limit = works, has_limit

    def wait(self, timeout_s: float) -> None:
        """Until all are done."""
        limit = timedelta(seconds=timeout_s)
        try:
            for work in self.works:
                work.wait(limit) if self.has_limit else work.wait()
        except RuntimeError as error:
            raise _lost(error) from error


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _lost(error: RuntimeError) -> TimeoutError | ConnectionError:
    """What torch.distributed raised, as what it means."""
    text = " ".join(str(error).split())
    kind = TimeoutError if "timed out" in text.lower() or "timeout" in text.lower() else ConnectionError
    return kind(text)
