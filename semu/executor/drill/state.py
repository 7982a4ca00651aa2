"""``NodeState``: layers that a node trains, with their optimizer state, taken into new pipelines layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from semu.errors import ExecutorError
from semu.executor.chunk import as_tuple
from semu.executor.communicator import Communicator, Operation
from semu.executor.copies import module_of_layer
from semu.executor.demo.model import DemoModel, microbatches_by_flow, named_parameters, pattern_loss
from semu.executor.drill.orders import Key, Train
from semu.executor.model import ModuleStages, PipelineModel, split_model
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

FIRST_TAG = 1 << 25
"""Behind the tags of messages and of copies."""


@dataclass
class Clock:
    """Which iteration runs: with it a microbatch says which samples it has, whatever pipeline runs it."""

    iteration: int = 0


def drill_modules(plan: ExecutionPlan, width: int, clock: Clock) -> dict[str, ModuleStages]:
    """The small modules of a plan, fed with the samples of the clock's iteration.

    Every pipeline's loss is the mean over its own microbatches.
    """
    scale = {number: 1.0 / len(own) for own in microbatches_by_flow(plan) for number in own}

    def _sample(microbatch: int) -> int:
        return clock.iteration * plan.num_microbatches + microbatch

    def _fed(module: ModuleStages) -> ModuleStages:
        load = module.load

        def _load(microbatch: int, first: int, last: int) -> Any:
            assert load is not None
            return load(_sample(microbatch), first, last)

        def _loss(output: Any, microbatch: int, first: int, last: int) -> torch.Tensor:
            return pattern_loss(output, _sample(microbatch), first, last) * scale[microbatch]

        return replace(module, load=_load, loss=None if module.loss is None else _loss)

    return {name: _fed(module) for name, module in DemoModel(plan, width).modules(0).items()}


def adam(parameters: Sequence[torch.nn.Parameter], learning_rate: float) -> torch.optim.Adam:
    """Adam with its state made, so that state can be received into it."""
    found = torch.optim.Adam(parameters, lr=learning_rate)
    for parameter in parameters:
        found.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return found


class NodeState:
    """What a node holds.

    Args:
        width: of the layers. learning_rate: of Adam.
    """

    def __init__(self, width: int, learning_rate: float) -> None:
        self.width, self.learning_rate = width, learning_rate
        self.steps = 0
        self.has_gradients = False
        """Of the next step, complete on this node."""
        self.clock = Clock()
        self.units: dict[Key, list[list[torch.Tensor]]] = {}
        """Layer -> per parameter itself and, where it is trained, what the optimizer keeps of it."""
        self._optimizer: torch.optim.Adam | None = None
        self._next: tuple[dict[Key, list[list[torch.Tensor]]], torch.optim.Adam] | None = None
        """What ``take`` has received in full."""

    def step(self) -> None:
        """Apply the gradients."""
        assert self._optimizer is not None
        self._optimizer.step()
        self.steps += 1
        self.has_gradients = False

    def catch_up(self, steps: int) -> None:
        """Step where others have.

        Raises:
            ExecutorError: more than one step behind, or without gradients.
        """
        if self.steps == steps - 1 and self.has_gradients:
            self.step()
        if self.units and self.steps != steps:
            raise ExecutorError("state of another step", expected=f"{steps} steps", got=self.steps)
        self.has_gradients = False

    def build(self, plan: ExecutionPlan, rank: int) -> PipelineModel:
        """The rank's chunks of a plan, as they are before any step."""
        return split_model(plan, drill_modules(plan, self.width, self.clock), rank)

    def take(
        self, model: PipelineModel, order: Train, mine: Communicator, timeout_s: float, *, moved: Callable[[], None]
    ) -> int:
        """Give a rank's chunks the state that the node holds and that others send; bytes that were received.

        What the node held stays until ``install``.

        Args:
            model: of ``build``. order: whose moves. mine, timeout_s: to the others. moved: called behind each move.
        Raises:
            ExecutorError: layers that nobody sends. TimeoutError, ConnectionError: others are gone.
        """
        optimizer = adam([one for one in model.parameters() if one.requires_grad], self.learning_rate)
        nodes, moves = order.nodes, order.moves
        units, me, received = units_of(order.plan, model, optimizer), nodes[mine.rank], 0
        wanted = set(units) if self.units or moves else set()  # at the beginning all have the same layers
        for key in wanted & self.units.keys():
            for tensors, own in zip(units[key], self.units[key], strict=True):
                for tensor, value in zip(tensors, own, strict=True):
                    tensor.copy_(value)
        wanted -= self.units.keys()
        for number, move in enumerate(moves):
            if me not in (move.source, move.target):
                continue
            is_send = me == move.source
            held = self.units if is_send else units
            flat = tuple(tensor.detach() for key in move.keys for own in held[key] for tensor in own)
            peer = nodes.index(move.target if is_send else move.source)
            (handle,) = mine.launch([Operation(is_send, peer, FIRST_TAG + number, flat)])
            handle.wait(timeout_s)
            if not is_send:
                wanted -= set(move.keys)
                received += sum(tensor.numel() * tensor.element_size() for tensor in flat)
            moved()
        if wanted:
            raise ExecutorError("layers that nobody sends", expected="a holder", got=sorted(wanted))
        self._next = units, optimizer
        return received

    def install(self, steps: int) -> None:
        """Hold what ``take`` has built and nothing else: all nodes have what they need."""
        assert self._next is not None
        self.units, self._optimizer = self._next
        self.steps, self._next = steps, None

    def leave(self, steps: int) -> None:
        """What was received in full is held beside what was held before: others may still need that. ``steps``: of
        what was received."""
        if self._next is not None:
            self.units, self._optimizer = {**self.units, **self._next[0]}, self._next[1]
            self.steps, self._next = steps, None


def units_of(
    plan: ExecutionPlan, model: PipelineModel, optimizer: torch.optim.Adam
) -> dict[Key, list[list[torch.Tensor]]]:
    """The live tensors of a rank's layers."""
    found: dict[Key, list[list[torch.Tensor]]] = {}
    for number in model.chunks:
        place = plan.chunks[number]
        for layer in range(-1, place.first_layer + place.num_layers + 1):
            module = module_of_layer(plan, model, number, layer)
            parameters = [] if module is None else list(module.parameters())
            is_own = place.first_layer <= layer < place.first_layer + place.num_layers or _is_end(plan, number, layer)
            if parameters and is_own:
                found[place.module, layer] = [
                    [parameter.data, *optimizer.state.get(parameter, {}).values()] for parameter in parameters
                ]
    return found


def _is_end(plan: ExecutionPlan, number: int, layer: int) -> bool:
    """Whether a number below or beyond a chunk's layers is what runs before or behind all of its module's."""
    place = plan.chunks[number]
    count = sum(one.num_layers for one in plan.chunks if one.module == place.module and one.flow == place.flow)
    return layer in (-1, count)


@dataclass(frozen=True)
class Uninterrupted:
    """A run of the model in one piece. ``losses``: of every iteration; ``units``: layers at its end, as of a node."""

    losses: tuple[float, ...]
    units: Mapping[Key, list[list[torch.Tensor]]]


def run_uninterrupted(plan: ExecutionPlan, width: int, learning_rate: float, iterations: int) -> Uninterrupted:
    """Train the model in one piece in this process on the same samples: the mean loss of every batch, Adam.

    Args:
        plan: of any pipelines of the model. width: of the layers. learning_rate: of Adam. iterations: how many.
    """
    model = DemoModel(plan, width)
    modules = model.modules(0)
    named = named_parameters(modules)
    optimizer = adam([one for one in named.values() if one.requires_grad], learning_rate)
    losses = []
    for iteration in range(iterations):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for microbatch in range(plan.num_microbatches):
            sample = iteration * plan.num_microbatches + microbatch
            made: dict[str, Any] = {}
            for name, module in modules.items():
                assert module.load is not None and module.stem is not None and module.head is not None
                count = model.counts[name][0][microbatch]
                x = module.stem(*as_tuple(module.load(sample, 0, count)), *(made[one] for one in module.sources))
                for layer in module.layers:
                    x = layer(x)
                made[name] = module.head(x)
                if module.loss is not None:
                    total = total + pattern_loss(made[name], sample, 0, count) / plan.num_microbatches
        total.backward()
        optimizer.step()
        losses.append(float(total.detach()))
    units: dict[Key, list[list[torch.Tensor]]] = {}
    for name, parameter in named.items():
        module_name, place, _ = name.split(".", 2)
        layer = {"stem": -1, "head": len(modules[module_name].layers)}.get(place)
        key = module_name, int(place) if layer is None else layer
        units.setdefault(key, []).append([parameter.data, *optimizer.state.get(parameter, {}).values()])
    return Uninterrupted(tuple(losses), units)
