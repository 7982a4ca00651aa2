"""What the master of a drill and its nodes tell one another, and when a node is to die."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import torch

from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

Key = tuple[str, int]
"""Module and layer, as in ``semu.plan.tables.PlanReduction``: -1 is before its layers, their number is behind them."""


class Moment(StrEnum):
    """When a node dies."""

    STAGE = "stage"
    """In the middle of an iteration, in a forward."""
    COMMIT = "commit"
    """When all ranks have their gradients, before it has stepped."""
    COPY = "copy"
    """While it copies layers, in the first reconfiguration at or behind the iteration."""
    HANG = "hang"
    """It does not die but stops for ever, in a forward."""


@dataclass(frozen=True)
class Failure:
    """A node that dies.

    Attributes:
        iteration: in which, from 0 on. node: which. moment: when in it.
    """

    iteration: int
    node: int
    moment: Moment = Moment.STAGE


@dataclass(frozen=True)
class Move:
    """State of layers that one node sends another. ``keys``: which; ``source``, ``target``: nodes."""

    keys: tuple[Key, ...]
    source: int
    target: int


@dataclass(frozen=True)
class Settings:
    """What all nodes know.

    Attributes:
        iterations: to train. width: of the small layers. timeout_s: of every wait for others [s].
        learning_rate: Adam's. failures: who dies when.
    """

    iterations: int
    width: int
    timeout_s: float
    learning_rate: float
    failures: tuple[Failure, ...]


@dataclass(frozen=True)
class Train:
    """Go on with these pipelines.

    Attributes:
        epoch: counts reconfigurations. plan: of all pipelines. nodes: of each rank. moves: in the order in which they
            happen. steps: optimizer steps that the state must have; a node with one less has its gradients.
        until: steps behind which all leave.
    """

    epoch: int
    plan: ExecutionPlan
    nodes: tuple[int, ...]
    moves: tuple[Move, ...]
    steps: int
    until: int


@dataclass(frozen=True)
class Stop:
    """End. ``save``: write the state to this file before; None: send it. ``steps``: as in ``Train``."""

    steps: int
    save: str | None = None


@dataclass(frozen=True)
class Here:
    """A node has begun and waits for orders."""


@dataclass(frozen=True)
class Ready:
    """A node has what it needs.

    Attributes:
        connect_s, build_s, copy_s: to meet the others, to build its chunks, to copy and wait for all others' copies
            [s]. received_bytes: by it.
    """

    epoch: int
    connect_s: float
    build_s: float
    copy_s: float
    received_bytes: int


@dataclass(frozen=True)
class Stepped:
    """An iteration is done. ``loss``: of the whole batch. ``time_s``: when [s of ``time.monotonic``]."""

    iteration: int
    loss: float
    time_s: float


@dataclass(frozen=True)
class Left:
    """A node has left the training and waits.

    Attributes:
        epoch: of the training that it left. reason: what it met; None: it was told to, or has finished.
        steps: optimizer steps done. has_gradients: those of the next one are complete. keys: layers that it holds.
        time_s: when [s of ``time.monotonic``].
    """

    epoch: int
    reason: str | None
    steps: int
    has_gradients: bool
    keys: frozenset[Key]
    time_s: float


@dataclass(frozen=True)
class Saved:
    """A node's state, or where it has written it.

    Attributes:
        steps: of it. tensors: layer -> per parameter itself and the optimizer's state. file: where; None: nowhere.
    """

    steps: int
    tensors: Mapping[Key, list[list[torch.Tensor]]]
    file: str | None
