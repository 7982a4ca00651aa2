"""``Communicator``: how ranks of a pipeline hand tensors to one another; all that the executor needs of a network.

Two are there: ``TorchCommunicator`` (processes, torch.distributed) and ``FakeCommunicator`` (threads of one process).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from semu.records import dataclass

Tensors = tuple[torch.Tensor, ...]


@dataclass(slots=True)
class Operation:
    """A send or a receive.

    Attributes:
        is_send: else it receives. peer: pipeline rank at the other end, of the same replica.
        tag: unique among the messages of the directed pair of ranks. tensors: what is sent, or buffers that are filled.
    """

    is_send: bool
    peer: int
    tag: int
    tensors: Tensors


class Handle(Protocol):
    """A launched operation."""

    def wait(self, timeout_s: float) -> None:
        """Return when the tensors of the operation may be read (receive) or written to again (send). On a GPU it
        returns at once, and kernels launched later wait.

        Raises:
            TimeoutError: not within the time [s]. ConnectionError: the peer is gone, or another rank has failed.
        """


class Communicator(Protocol):
    """Sends and receives tensors of one rank. World rank = ``rank * num_replicas + replica``, as in
    ``semu.parallel.Mesh``.

    Attributes:
        num_ranks: number of pipeline ranks. num_replicas: number of data-parallel replicas.
        rank, replica: pipeline rank and replica of this process. device: device of the tensors that it sends.
    """

    num_ranks: int
    num_replicas: int
    rank: int
    replica: int
    device: torch.device

    def launch(self, operations: Sequence[Operation]) -> Sequence[Handle]:
        """Start operations as one batch; returns a handle for each.

        Between two ranks, messages in one direction meet in the order in which they were launched, at both ends.

        Raises:
            ConnectionError: the peer is gone, or another rank has failed.
        """

    def sum_over_replicas(self, tensors: Sequence[torch.Tensor], timeout_s: float) -> None:
        """Replace tensors by their sums over all replicas of this pipeline rank.

        Raises:
            TimeoutError, ConnectionError: as ``Handle.wait``.
        """

    def connect(self, groups: Sequence[Sequence[int]]) -> None:
        """Make groups of pipeline ranks that will sum over one another or broadcast; every rank calls it with the same
        list, before any of them meets. Groups that are there stay.

        Raises:
            TimeoutError, ConnectionError: as ``Handle.wait``.
        """

    def sum_over_ranks(self, tensors: Sequence[torch.Tensor], ranks: Sequence[int], timeout_s: float) -> None:
        """Replace tensors by their sums over some pipeline ranks of this replica, this one among them.

        Raises:
            TimeoutError, ConnectionError: as ``Handle.wait``.
        """

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int, ranks: Sequence[int], timeout_s: float) -> None:
        """Fill tensors of some pipeline ranks of this replica with those of rank ``root``, one of them.

        Raises:
            TimeoutError, ConnectionError: as ``Handle.wait``.
        """

    def gather(self, value: object, timeout_s: float) -> list[Any]:
        """What every world rank gave, in order; a barrier besides. ``value``: of plain Python types.

        Raises:
            TimeoutError, ConnectionError: as ``Handle.wait``.
        """

    def abort(self, reason: str) -> None:
        """Say why this rank ends; the waits of other ranks then fail, as soon as the news arrives."""

    def reason(self) -> str | None:
        """The reason of the first ``abort`` on any rank, where the transport carries it."""
