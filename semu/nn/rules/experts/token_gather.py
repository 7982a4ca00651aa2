"""Moving tokens to experts by gathering all of them: every rank of a group gets all tokens and takes what it needs.

Megatron-LM's ``MoEAllGatherTokenDispatcher``: the mask, the probabilities and the tokens of all ranks that share
experts out or split them (ep x etp) are gathered; a rank copies the columns of its experts and permutes their rows;
the sums of rows, one per gathered token, are reduced and scattered. Bytes do not depend on how many experts a token
uses. Sums travel in the type of the tokens; where Megatron-LM's router works in fp32 (``--moe-router-dtype``) they take
twice the bytes.
"""

from __future__ import annotations

from dataclasses import replace

from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup
from semu.nn.rules.collective import communicate
from semu.nn.trace.tensor import Tensor


def gather_tokens(x: Tensor, group: CommGroup, name: str) -> Tensor:
    """The tokens of all ranks: [tokens, ...] -> [tokens x ranks, ...]; backward reduces and scatters the gradient."""
    whole = _of_all(x, group)
    y = _gather(x, whole, group, name)
    return x.trace.recorded([x], y, lambda grad: [_scatter(grad, x, group, f"{name}_bw")])


def scatter_sums(y: Tensor, like: Tensor, group: CommGroup) -> Tensor:
    """The sum over ranks for a rank's own tokens: [tokens x ranks, h] -> [tokens, h]; backward gathers the gradient."""
    x = _scatter(y, like, group, "combine")
    return y.trace.recorded([y], x, lambda grad: [_gather(grad, y, group, "combine_bw")])


def columns_of_rank(x: Tensor, ep: int) -> Tensor:
    """What concerns the rank's experts: [tokens, experts] -> [tokens, experts / ep], copied; backward fills the other
    columns with zeros."""
    tokens, experts = x.shape
    assert isinstance(experts, int)
    like = replace(x, shape=(tokens, experts // ep))
    y = x.trace.emit(
        OpKind.PERMUTE,
        [x],
        like=like,
        mem_bytes=2 * like.size_bytes,
        key=(like.local_shape[0], experts // ep),
        name="columns",
    )

    def _backward(grad: Tensor) -> list[Tensor | None]:
        traffic, key = x.size_bytes + grad.size_bytes, (like.local_shape[0], experts)
        kind, phase = OpKind.PERMUTE, Phase.INPUT_GRADIENT
        return [x.trace.emit(kind, [grad], like=x, mem_bytes=traffic, key=key, phase=phase, name="columns_bw")]

    return x.trace.recorded([x], y, _backward)


def _of_all(x: Tensor, group: CommGroup) -> Tensor:
    return replace(x, shape=(x.shape[0] * group.num_ranks, *x.shape[1:]), sequences=None)


def _gather(x: Tensor, whole: Tensor, group: CommGroup, name: str) -> Tensor:
    kind, size = OpKind.ALL_GATHER, whole.size_bytes
    return communicate(kind, [x], size, group, f"{name}.all_gather", like=whole, role=Role.COMMUNICATION)


def _scatter(y: Tensor, like: Tensor, group: CommGroup, name: str) -> Tensor:
    return communicate(OpKind.REDUCE_SCATTER, [y], y.size_bytes, group, f"{name}.reduce_scatter", like=like)
