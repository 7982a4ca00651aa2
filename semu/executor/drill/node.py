"""``run_node``: what a node of a drill does: train in the pipelines that the master says, notice failures, go on.

An iteration counts when all ranks have their gradients and have told one another so; then each steps. So where any
node has stepped, all the others have their gradients and step too; where none has, all do the iteration again. The
same holds for copies: a node lets go of what it held when all have told that they have theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch

from semu.errors import ExecutorError
from semu.executor.communicator import Communicator
from semu.executor.demo.run import weights_of_ranks
from semu.executor.drill.orders import Failure, Here, Left, Moment, Ready, Saved, Settings, Stepped, Stop, Train
from semu.executor.drill.state import Clock, NodeState
from semu.executor.model import PipelineModel
from semu.executor.runner import Runner


class Link(Protocol):
    """A node's side of the connection to the master, and what depends on whether nodes are processes or threads."""

    def send(self, message: object) -> None:
        """Tell the master."""

    def receive(self) -> Any:
        """Wait for the master's next word."""

    def connect(self, epoch: int, rank: int, size: int, timeout_s: float) -> Communicator:
        """Meet the other nodes.

        Raises:
            RuntimeError, TimeoutError, ConnectionError: they do not come.
        """

    def die(self, moment: Moment) -> None:
        """Be gone at once, or stop for ever (``HANG``)."""

    def part(self, mine: Communicator) -> None:
        """Leave the others in peace."""

    def cut(self) -> None:
        """Have all that wait for this node fail at once."""

    def building(self) -> AbstractContextManager[Any]:
        """A context in which models are built: threads share torch's random numbers."""


def run_node(link: Link, node: int, settings: Settings) -> None:
    """Serve until the master says stop."""
    state = NodeState(settings.width, settings.learning_rate)
    link.send(Here())
    while True:
        order = link.receive()
        if isinstance(order, Train):
            link.send(_train(link, node, settings, state, order))
        elif isinstance(order, Stop):
            state.catch_up(order.steps)
            if order.save is not None:
                torch.save({"steps": state.steps, "layers": state.units}, order.save)
            link.send(Saved(state.steps, {} if order.save is not None else _detached(state), order.save))
            return


def _detached(state: NodeState) -> dict[Any, list[list[torch.Tensor]]]:
    return {key: [[one.detach().clone() for one in own] for own in unit] for key, unit in state.units.items()}


def _train(link: Link, node: int, settings: Settings, state: NodeState, order: Train) -> Left:
    """Train until the end, a pause or a failure."""
    mine: Communicator | None = None
    reason: str | None = None
    mortal = _Mortal(link, node, settings.failures, order)
    try:
        state.catch_up(order.steps)
        begin = time.monotonic()
        mine = link.connect(order.epoch, order.nodes.index(node), len(order.nodes), settings.timeout_s)
        met = time.monotonic()
        with link.building():
            model = state.build(order.plan, mine.rank)
        built = time.monotonic()
        received = state.take(model, order, mine, settings.timeout_s, moved=mortal.moved)
        mortal.moved()
        mine.gather(node, settings.timeout_s)
        state.install(order.steps)
        link.send(Ready(order.epoch, met - begin, built - met, time.monotonic() - built, received))
        _iterate(link, settings, state, order, model, mine, mortal)
    except (ExecutorError, RuntimeError, OSError) as error:  # torch raises RuntimeError, waits OSError
        reason = str(error)
        if mine is not None:
            mine.abort(reason)
        link.cut()
        state.leave(order.steps)
    else:
        link.part(mine)
    return Left(order.epoch, reason, state.steps, state.has_gradients, frozenset(state.units), time.monotonic())


def _iterate(
    link: Link,
    settings: Settings,
    state: NodeState,
    order: Train,
    model: PipelineModel,
    mine: Communicator,
    mortal: _Mortal,
) -> None:
    """Iterations until all are to leave."""
    state.clock.iteration = state.steps
    mortal.watch(model, state.clock)
    runner = Runner(model, mine, timeout_s=settings.timeout_s)
    program = runner.prepare(order.plan)
    weight = weights_of_ranks(order.plan)[mine.rank]
    while state.steps < order.until:
        state.clock.iteration = state.steps
        for parameter in model.parameters():
            parameter.grad = None
        loss = runner.run(program).loss() * weight
        state.has_gradients = True
        told = mine.gather(loss, settings.timeout_s)
        mortal.committed(state.clock.iteration)
        state.step()
        link.send(Stepped(state.clock.iteration, sum(told), time.monotonic()))


class _Mortal:
    """When this node dies."""

    def __init__(self, link: Link, node: int, failures: Sequence[Failure], order: Train) -> None:
        self._link, self._order = link, order
        self._own = [one for one in failures if one.node == node]
        self._calls = 0

    def moved(self) -> None:
        """Layers have been copied."""
        for one in self._own:
            if one.moment is Moment.COPY and self._order.epoch and self._order.steps >= one.iteration:
                self._link.die(one.moment)

    def committed(self, iteration: int) -> None:
        """All have their gradients."""
        for one in self._own:
            if one.moment is Moment.COMMIT and one.iteration == iteration:
                self._link.die(one.moment)

    def watch(self, model: PipelineModel, clock: Clock) -> None:
        """Die in the middle one of a chunk's forwards."""
        deadly = {one.iteration: one.moment for one in self._own if one.moment in (Moment.STAGE, Moment.HANG)}
        number = min(model.chunks)
        pairs = self._order.plan.pairs
        half = (int(np.count_nonzero(pairs.chunk == number)) + 1) // 2

        def _forward(*_: object) -> None:
            if clock.iteration in deadly:
                self._calls += 1
                if self._calls == half:
                    self._link.die(deadly[clock.iteration])

        if deadly:
            model.chunks[number].register_forward_pre_hook(_forward)
