"""``Subgraph``: a named, nestable, replicable group of consecutive operators (DESIGN §2, PipeWeaver §4.2)."""

from __future__ import annotations

from enum import Enum

from semu.graph.level import Level
from semu.records import dataclass

__all__ = ["Level", "Replication", "Subgraph"]


class Replication(Enum):
    """Where the replicas of a subgraph are.

    PEERS run side by side on separate GPUs: tensor-parallel peers, equal data-parallel replicas. CHAIN runs one after
    another on the same streams, each copy fed by the one before: identical layers.
    """

    PEERS = "peers"
    CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A named group of consecutive operators.

    Attributes:
        index: position among the graph's subgraphs, in order of opening.
        name: last part of the path.
        path: dotted path from the root.
        parent: index of the enclosing subgraph, or None at the top.
        first, last: its operators are ``first <= index < last``; ``last`` is None while it is open.
        level: how large a piece of an iteration it is; None: it only groups. A STAGE is atomic (DESIGN §3.8).
        replicas: how many equal copies it stands for. replication: where they are.
        key: the caller's name for its structure, "" for none; equal structures need none.
        mirrors: index of an earlier CHAIN whose copies this one reads in reverse order (a backward), or None.
        feeds: (input tensor, output tensor): in a further copy of a CHAIN, the output of the copy before is the input.
        first_tensor, last_tensor: tensors made inside.
    """

    index: int
    name: str
    path: str
    parent: int | None
    first: int
    last: int | None
    level: Level | None = None
    replicas: int = 1
    replication: Replication = Replication.PEERS
    key: str = ""
    mirrors: int | None = None
    feeds: tuple[tuple[int, int], ...] = ()
    first_tensor: int = 0
    last_tensor: int | None = None

    @property
    def is_chain(self) -> bool:
        """Several copies one after another."""
        return self.replicas > 1 and self.replication is Replication.CHAIN

    @property
    def has_peers(self) -> bool:
        """Several copies side by side."""
        return self.replicas > 1 and self.replication is Replication.PEERS

    def holds(self, operator: int) -> bool:
        """True when the operator's index lies in this subgraph."""
        return self.first <= operator and (self.last is None or operator < self.last)

    def made(self, tensor: int) -> bool:
        """True when the tensor was made in this subgraph."""
        return self.first_tensor <= tensor and (self.last_tensor is None or tensor < self.last_tensor)
