"""``sum_copies``: gradients of layers that are there more than once: in both directions of a bidirectional pipeline, on
two ranks or on one; in pipelines that share a batch, each cut in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from semu.errors import ExecutorError
from semu.executor.chunk import LayerChunk
from semu.executor.communicator import Communicator, Operation
from semu.executor.model import PipelineModel
from semu.executor.sharded import ShardedCommunicator
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.reductions import shards_of_ranks

_FIRST_TAG = 1 << 24
"""Behind the tags of a plan's messages."""


def sum_copies(plan: ExecutionPlan, model: PipelineModel, communicator: Communicator, timeout_s: float) -> None:
    """Give all copies of every layer the sum of their gradients; nothing to do where the model is there once.

    Of pipelines that share a batch (``ExecutionPlan.weights``) gradients count with their pipeline's weight.

    Args:
        plan: with chunks of several flows. model: the rank's. communicator, timeout_s: to the other ranks.
    Raises:
        ExecutorError: more than two copies without weights; chunks that are not made of layers, shards that do not
            divide. TimeoutError, ConnectionError: as ``Handle.wait``.
    """
    if plan.weights:
        _sum_pipelines(plan, model, communicator, timeout_s)
        return
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


def meeting_ranks(plan: ExecutionPlan) -> list[tuple[int, ...]]:
    """Ranks of each gang of a plan, each group once, in order."""
    groups = [tuple(sorted(plan.chunks[chunk].rank for chunk in gang)) for gang in plan.gangs]
    return list(dict.fromkeys(groups))


def reducing_ranks(plan: ExecutionPlan) -> list[tuple[int, ...]]:
    """Ranks of each reduction of a plan, each group once, in order."""
    groups = [tuple(sorted(plan.chunks[chunk].rank for chunk in one.chunks)) for one in plan.reductions]
    return [ranks for ranks in dict.fromkeys(groups) if len(ranks) > 1]


def _sum_pipelines(plan: ExecutionPlan, model: PipelineModel, communicator: Communicator, timeout_s: float) -> None:
    """The plan's reductions that this rank takes part in, in the plan's order."""
    for one in plan.reductions:
        held = [chunk for chunk in one.chunks if plan.chunks[chunk].rank == communicator.rank]
        if not held:
            continue
        layer = module_of_layer(plan, model, held[0], one.layer)
        own = gradients_of([] if layer is None else layer.parameters())
        for gradient in own:
            gradient *= plan.weights[plan.chunks[held[0]].flow]
        ranks = sorted(plan.chunks[chunk].rank for chunk in one.chunks)
        if layer is None or not own or len(ranks) == 1:
            continue
        if isinstance(communicator, ShardedCommunicator):
            cuts = getattr(layer, "cuts", {})
            named = [cuts.get(name) for name, parameter in layer.named_parameters() if parameter.requires_grad]
            communicator.sum_shards(own, named, ranks, timeout_s)
            continue
        dense = [gradient.contiguous() for gradient in own]
        communicator.sum_over_ranks(dense, ranks, timeout_s)
        for gradient, total in zip(own, dense, strict=True):
            if total is not gradient:
                gradient.copy_(total)


def module_of_layer(plan: ExecutionPlan, model: PipelineModel, chunk: int, layer: int) -> torch.nn.Module | None:
    """A layer of one of the rank's chunks, numbered as ``PlanReduction.layer``; None: the model has no such end.

    Raises:
        ExecutorError: the chunk is not made of layers.
    """
    place, found = plan.chunks[chunk], model.chunks[chunk]
    if not isinstance(found, LayerChunk):
        raise ExecutorError(
            "a chunk that is one module has no layers to sum one by one",
            where=f"chunk {chunk} ({place.module})",
            expected="semu.executor.LayerChunk, as split_model makes it",
            got=type(found).__name__,
        )
    if 0 <= layer - place.first_layer < len(found.layers):
        return found.layers[layer - place.first_layer]
    return found.stem if layer < 0 else found.head


def check_shards(plan: ExecutionPlan, communicator: Communicator) -> None:
    """Refuse a communicator whose ranks are not the plan's stages. Equal shards may be worlds of their own each; plans
    that do not say shards may have any, as many in all stages.

    Raises:
        ExecutorError: other numbers of shards than the plan says, or different ones that it does not say.
    """
    is_sharded = isinstance(communicator, ShardedCommunicator)
    shards = communicator.shards if isinstance(communicator, ShardedCommunicator) else (1,) * communicator.num_ranks
    wanted = shards_of_ranks(plan) if plan.reductions else shards[:1] * len(shards)
    if shards != wanted and (is_sharded or len(set(wanted)) > 1):
        raise ExecutorError(
            "stages cut their layers into other shards",
            where=f"rank {communicator.rank}: plan.reductions, shards",
            expected=f"ShardedCommunicator(communicator, {list(wanted)})",
            got=list(shards),
        )


def gradients_of(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Gradients of the parameters that are trained; zeros where nothing has come."""
    found = []
    for parameter in parameters:
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            found.append(parameter.grad)
    return found
