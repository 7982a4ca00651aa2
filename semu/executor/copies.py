"""``sum_copies``: gradients of layers that bidirectional pipelines hold twice, on two ranks or on one."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from semu.errors import ExecutorError
from semu.executor.communicator import Communicator, Operation
from semu.executor.model import PipelineModel
from semu.plan.plan import ExecutionPlan

_FIRST_TAG = 1 << 24
"""Behind the tags of a plan's messages."""


def sum_copies(plan: ExecutionPlan, model: PipelineModel, communicator: Communicator, timeout_s: float) -> None:
    """Give both copies of every chunk the sum of their gradients; nothing to do where the model is there once.

    Args:
        plan: with chunks of two flows. model: the rank's. communicator, timeout_s: to the other ranks.
    Raises:
        ExecutorError: more than two copies. TimeoutError, ConnectionError: as ``Handle.wait``.
    """
    flows = sorted({chunk.flow for chunk in plan.chunks})
    if len(flows) == 1:
        return
    if len(flows) > 2:
        raise ExecutorError("too many copies of the model", where="plan.chunks", expected="two at most", got=len(flows))
    first, second = ([n for n, chunk in enumerate(plan.chunks) if chunk.flow == flow] for flow in flows)
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        ranks = (plan.chunks[a].rank, plan.chunks[b].rank)
        if communicator.rank not in ranks:
            continue
        if ranks[0] == ranks[1]:
            for mine, other in zip(*(gradients_of(model.chunks[chunk].parameters()) for chunk in (a, b)), strict=True):
                mine += other
                other.copy_(mine)
            continue
        chunk, peer = (a, ranks[1]) if communicator.rank == ranks[0] else (b, ranks[0])
        own = gradients_of(model.chunks[chunk].parameters())
        if not own:
            continue
        dense = torch.contiguous_format
        other_own = tuple(torch.empty_like(gradient, memory_format=dense) for gradient in own)
        sent = tuple(gradient.clone(memory_format=dense) for gradient in own)
        tag = _FIRST_TAG + number
        operations = [Operation(True, peer, tag, sent), Operation(False, peer, tag, other_own)]
        for handle in communicator.launch(operations):
            handle.wait(timeout_s)
        for mine, other in zip(own, other_own, strict=True):
            mine += other


def gradients_of(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Gradients of the parameters that are trained; zeros where nothing has come."""
    found = []
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found.append(parameter.grad)
    return found
