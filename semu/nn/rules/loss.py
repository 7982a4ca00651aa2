"""Losses: cross entropy (plain or split over the vocabulary) and mean squared error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.rules.collective import wire_bytes
from semu.nn.trace.tensor import Tensor


def cross_entropy(logits: Tensor) -> Tensor:
    """Mean token loss of ``logits`` [tokens, vocab]; a scalar. Three ways, as the trace's options say: ``fused``,
    ``unfused``, and ``in_place``:

    The logits are copied to fp32 and the softmax is made in place of the copy, which is what the backward reads; the
    gradient comes back in the logits' type. Where the vocabulary is split, three all-reduces of one fp32 number a
    token exchange the maximum, the target's logit and the sum (1909.08053 §3; Megatron-LM's vocab-parallel loss).
    """
    trace = logits.trace
    if trace.options.cross_entropy != "in_place":
        return (_fused if trace.options.cross_entropy == "fused" else _unfused)(logits)
    tokens = logits.local_shape[0]
    fp32 = DType.FP32.size_bytes
    with trace.no_grad():
        softmax = trace.emit(
            OpKind.CROSS_ENTROPY,
            [logits],
            logits.shape,
            shards=logits.shards,
            dtype=DType.FP32,
            mem_bytes=logits.size_bytes + 3 * fp32 * logits.numel,
            key=(tokens, logits.local_shape[1]),
            name="softmax",
        )
        _exchange(logits, softmax)
        loss = _scalar([softmax], 3 * fp32 * tokens, (tokens, 1), "mean")
    loss = replace(loss, requires_grad=logits.requires_grad)

    def backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [
            trace.emit(
                OpKind.CROSS_ENTROPY,
                [softmax],
                like=logits,
                mem_bytes=fp32 * logits.numel + logits.size_bytes,
                key=(tokens, logits.local_shape[1]),
                name="softmax_bw",
            )
        ]

    trace.record([logits], [loss], backward)
    return loss


def _scalar(
    inputs: Sequence[Tensor], mem_bytes: Dim, key: Sequence[Dim], name: str, updates: Sequence[Tensor] = ()
) -> Tensor:
    """Append a kernel whose result is one fp32 number."""
    return inputs[0].trace.emit(
        OpKind.CROSS_ENTROPY,
        inputs,
        (),
        dtype=DType.FP32,
        mem_bytes=mem_bytes,
        key=key,
        name=name,
        updates=updates,
    )


def _exchange(logits: Tensor, softmax: Tensor) -> None:
    """Three all-reduces of one fp32 number a token, where the vocabulary is split."""
    trace, group, tokens = logits.trace, logits.trace.options.tp_group, logits.local_shape[0]
    for what in ("maximum", "target", "sum") if logits.shards[-1] > 1 else ():
        trace.emit(
            OpKind.ALL_REDUCE,
            [softmax],
            net_bytes=wire_bytes(OpKind.ALL_REDUCE, DType.FP32.size_bytes * tokens, group, trace.where),
            key=(group.num_ranks, group.num_nodes),
            stream=trace.communication_stream(group),
            name=f"all_reduce_{what}",
            updates=[softmax],
        )


def _unfused(logits: Tensor) -> Tensor:
    """PyTorch's ``F.cross_entropy(logits.float(), labels)``, kernel by kernel.

    The logits' fp32 copy and its log-softmax are two tensors, of which the second is saved; the backward makes the
    gradients of both in fp32 and casts the last one. The logits themselves stay until the loss is known.
    """
    trace, tokens, fp32 = logits.trace, logits.local_shape[0], DType.FP32.size_bytes
    key = (tokens, logits.local_shape[1])

    def kernel(inputs: Sequence[Tensor], dtype: DType, mem_bytes: Dim, name: str) -> Tensor:
        return trace.emit(
            OpKind.CROSS_ENTROPY,
            inputs,
            logits.shape,
            shards=logits.shards,
            dtype=dtype,
            sequences=logits.sequences,
            mem_bytes=mem_bytes,
            key=key,
            name=name,
        )

    with trace.no_grad():
        copy = kernel([logits], DType.FP32, logits.size_bytes + fp32 * logits.numel, "float")
        softmax = kernel([copy], DType.FP32, 2 * fp32 * logits.numel, "log_softmax")
        _exchange(logits, softmax)
        loss = _scalar([softmax, logits], 3 * fp32 * tokens, (tokens, 1), "mean")
    loss = replace(loss, requires_grad=logits.requires_grad)

    def backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        chosen = kernel([], DType.FP32, fp32 * logits.numel, "nll_bw")
        inner = kernel([softmax, chosen], DType.FP32, 3 * fp32 * logits.numel, "log_softmax_bw")
        return [kernel([inner], logits.dtype, fp32 * logits.numel + logits.size_bytes, "float_bw")]

    trace.record([logits], [loss], backward)
    return loss


def _fused(logits: Tensor) -> Tensor:
    """One kernel that also writes the gradient over the logits, which is what the backward hands on: no fp32 copy.

    It reads the logits twice and writes them once. Where the vocabulary is split, one all-gather of maximum, sum and
    target's logit a token lies between (Transformer Engine's parallel_cross_entropy; Liger, 2410.10989 §3.2).
    """
    trace, group, tokens = logits.trace, logits.trace.options.tp_group, logits.local_shape[0]
    with trace.no_grad():
        if logits.shards[-1] > 1:
            trace.emit(
                OpKind.CROSS_ENTROPY,
                [logits],
                mem_bytes=logits.size_bytes,
                key=(tokens, logits.local_shape[1]),
                name="online_softmax",
            )
            buffer = 3 * DType.FP32.size_bytes * tokens * group.num_ranks
            trace.emit(
                OpKind.ALL_GATHER,
                [logits],
                net_bytes=wire_bytes(OpKind.ALL_GATHER, buffer, group, trace.where),
                key=(group.num_ranks, group.num_nodes),
                stream=trace.communication_stream(group),
                name="all_gather_statistics",
            )
        passes = 2 if logits.shards[-1] > 1 else 3
        key = (tokens, logits.local_shape[1])
        loss = _scalar([logits], passes * logits.size_bytes, key, "loss_and_gradient", updates=[logits])
    loss = replace(loss, requires_grad=logits.requires_grad)
    trace.record([logits], [loss], lambda _: [logits])
    return loss


def add_losses(losses: Sequence[Tensor]) -> Tensor:
    """The sum of several scalar losses, weighted or not: a kernel each way over a few numbers."""
    trace, size = losses[0].trace, DType.FP32.size_bytes
    count = len(losses)
    total = trace.emit(
        OpKind.ADD, losses, (), dtype=DType.FP32, mem_bytes=size * (count + 1), key=(count,), name="add_losses"
    )

    def backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        first = trace.emit(
            OpKind.ADD,
            [],
            (),
            dtype=DType.FP32,
            mem_bytes=size * count,
            key=(count,),
            name="add_losses_bw",
            extra_outputs=[((), DType.FP32)] * (count - 1),
        )
        return [first, *(trace.side_outputs(count - 1) if count > 1 else [])]

    trace.record(losses, [total], backward)
    return total


def mean_squared_error(prediction: Tensor) -> Tensor:
    """Mean squared distance of ``prediction`` [tokens, features] to a target of the same shape; a scalar.

    Saves the prediction; the target is part of the batch and not counted.
    """
    trace = prediction.trace
    loss = _scalar([prediction], 2 * prediction.size_bytes, (prediction.numel,), "squared_error")

    def backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [
            trace.emit(
                OpKind.CROSS_ENTROPY,
                [prediction],
                like=prediction,
                mem_bytes=3 * prediction.size_bytes,
                key=(prediction.numel,),
                name="squared_error_bw",
            )
        ]

    trace.record([prediction], [loss], backward)
    return loss
