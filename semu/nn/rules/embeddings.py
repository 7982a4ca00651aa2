"""Token embedding (plain or split over the vocabulary), and merging of neighbouring tokens."""

from __future__ import annotations

from dataclasses import replace

from semu.errors import GraphError
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn.module import Parameter
from semu.nn.rules.attention.context_collective import redistribute_tokens
from semu.nn.rules.collective import all_gather_tokens, all_reduce, reduce_scatter_tokens
from semu.nn.rules.views import copy_like
from semu.nn.rules.weight_gradients import add_to_gradient
from semu.nn.trace.eager import ACCUMULATE
from semu.nn.trace.sharding import ShardingStyle
from semu.nn.trace.tensor import Sequences, Tensor


def embedding(ids: Tensor, table: Parameter) -> Tensor:
    """Rows of ``table`` [vocab, h] for ``ids`` [tokens].

    Under VOCABULARY each rank looks up its part and the parts are summed: a reduce-scatter over tokens with sequence
    parallelism, else an all-reduce (1909.08053 §3, 2205.05198 §4.2). Backward: a scatter-add into the gradient, or,
    where accumulation is not fused, into a table of zeros, which is added. Under autocast the rows are those of the
    fp32 table.
    """
    trace, plan = ids.trace, ids.trace.options.plan
    is_split = plan.tp > 1 and trace.style is ShardingStyle.VOCABULARY
    if ids.ndim != 1:
        raise GraphError("an embedding looks up one id a token", where=trace.where, expected="[tokens]", got=ids.shape)
    use = trace.parameter(table, (plan.tp, 1) if is_split else None)
    width = table.shape[1]
    dtype = trace.options.tensor_dtype if not trace.options.casts_parameters else DType.FP32
    size = dtype.size_bytes
    with trace.no_grad():
        rows = trace.emit(
            OpKind.EMBEDDING,
            [ids, use],
            (*ids.shape, width),
            dtype=dtype,
            sequences=ids.sequences,
            mem_bytes=ids.size_bytes + 2 * ids.numel * width * size,
            key=(ids.numel, width),
            name="lookup",
        )
        if is_split:
            rows = reduce_scatter_tokens(rows) if plan.sequence_parallel else all_reduce(rows)
    y = replace(rows, requires_grad=table.requires_grad)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        if use.gradient is not None:
            whole = all_gather_tokens(grad) if is_split and plan.sequence_parallel else grad
            is_fused, grad_size = trace.options.fused_accumulation, trace.options.grad_dtype.size_bytes
            written = 2 * grad_size * whole.numel if is_fused else size * (use.numel + whole.numel)
            made = trace.emit(
                OpKind.EMBEDDING,
                [whole, ids],
                None if is_fused else (use.numel,),
                gradients=[use] if is_fused else (),
                mem_bytes=whole.size_bytes + written,
                key=(ids.numel, width),
                phase=Phase.WEIGHT_GRADIENT,
                name="weight_bw",
            )
            if not is_fused:
                add_to_gradient(made, [use], use.numel, ACCUMULATE)
        return [None]

    return trace.recorded([ids], y, _backward)


def shard_tokens(x: Tensor) -> Tensor:
    """Keep this rank's shard of the tokens, where activations are sequence-parallel; a view, free.

    Backward gathers the shards of the gradient (Megatron's scatter to the sequence-parallel region).
    """
    trace, plan = x.trace, x.trace.options.plan
    if plan.token_shards == 1 or x.shards[0] > 1:
        return x
    y = trace.view(x, x.shape, (plan.tp, *x.shards[1:]))
    return trace.recorded([x], y, lambda grad: [all_gather_tokens(grad)])


def merge_tokens(x: Tensor, group: int, merged: Sequences) -> Tensor:
    """Concatenate the features of ``group`` neighbouring tokens: [tokens, h] -> [tokens / group, group x h].

    Args:
        x: [tokens, h], one stream. group: tokens per merged token. merged: packing of the result.
    One copy each way (spatial merging of Qwen2-VL, 2409.12191 §2).
    """
    like = replace(x, shape=(merged.tokens, x.shape[-1] * group), sequences=merged)

    def _copy(source: Tensor, like: Tensor, name: str) -> Tensor:
        return copy_like(like, [source], 2 * source.size_bytes, name, source.numel)

    y = _copy(x, like, "merge_tokens")
    return x.trace.recorded([x], y, lambda grad: [_copy(grad, x, "merge_tokens_bw")])


def scatter_tokens(x: Tensor, into: Tensor) -> Tensor:
    """Write the rows of ``x`` [n, h] (image tokens) over rows of ``into`` [tokens, h] (text embeddings).

    Both are split over tokens alike; under context parallelism the rows go, by an all-to-all over that group, to the
    rank that has their place in its chunks. Backward: the gradient of ``into`` with those rows masked, and a gather of
    the rows for ``x``. Under sequence parallelism the rows may live on another rank than their place; that exchange is
    within the tensor-parallel group and small, it is counted as memory traffic only.
    """
    trace = into.trace
    if trace.options.cp_group.num_ranks > 1:
        x = redistribute_tokens(x)
    if x.shape[-1] != into.shape[-1]:
        raise GraphError("widths differ", where=trace.where, expected=str(into.shape[-1]), got=x.shape[-1])
    y = copy_like(into, [into, x], 2 * into.size_bytes + x.size_bytes, "scatter_tokens")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        return [
            copy_like(x, [grad], 2 * x.size_bytes, "gather_tokens") if x.requires_grad else None,
            copy_like(into, [grad], 2 * into.size_bytes, "mask_tokens") if into.requires_grad else None,
        ]

    return trace.recorded([x, into], y, _backward)
