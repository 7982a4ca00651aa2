"""Losses: cross entropy (plain or split over the vocabulary) and mean squared error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.rules.collective import wire_bytes
from semu.nn.tensor import Tensor


def cross_entropy(logits: Tensor) -> Tensor:
    """Mean token loss of ``logits`` [tokens, vocab]; a scalar.

    The logits are copied to fp32 and the softmax is made in place of the copy, which is what the backward reads; the
    gradient comes back in the logits' type. Where the vocabulary is split, three all-reduces of one fp32 number a
    token exchange the maximum, the target's logit and the sum (1909.08053 §3; Megatron-LM's vocab-parallel loss).
    """
    trace = logits.trace
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
        group = trace.options.tp_group
        if logits.shards[-1] > 1:
            for what in ("maximum", "target", "sum"):
                trace.emit(
                    OpKind.ALL_REDUCE,
                    [softmax],
                    net_bytes=wire_bytes(OpKind.ALL_REDUCE, fp32 * tokens, group, trace.where),
                    key=(group.num_ranks, group.num_nodes),
                    stream=trace.communication_stream(group),
                    name=f"all_reduce_{what}",
                    updates=[softmax],
                )
        loss = trace.emit(
            OpKind.CROSS_ENTROPY,
            [softmax],
            (),
            dtype=DType.FP32,
            mem_bytes=3 * fp32 * tokens,
            key=(tokens, 1),
            name="mean",
        )
    loss = replace(loss, requires_grad=logits.requires_grad)

    def backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [
            trace.emit(
                OpKind.CROSS_ENTROPY,
                [softmax],
                logits.shape,
                shards=logits.shards,
                dtype=logits.dtype,
                sequences=logits.sequences,
                mem_bytes=fp32 * logits.numel + logits.size_bytes,
                key=(tokens, logits.local_shape[1]),
                name="softmax_bw",
            )
        ]

    trace.record([logits], [loss], backward)
    return loss


def mean_squared_error(prediction: Tensor) -> Tensor:
    """Mean squared distance of ``prediction`` [tokens, features] to a target of the same shape; a scalar.

    Saves the prediction; the target is part of the batch and not counted.
    """
    trace = prediction.trace
    loss = trace.emit(
        OpKind.CROSS_ENTROPY,
        [prediction],
        (),
        dtype=DType.FP32,
        mem_bytes=2 * prediction.size_bytes,
        key=(prediction.numel,),
        name="squared_error",
    )

    def backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [
            trace.emit(
                OpKind.CROSS_ENTROPY,
                [prediction],
                prediction.shape,
                shards=prediction.shards,
                dtype=prediction.dtype,
                sequences=prediction.sequences,
                mem_bytes=3 * prediction.size_bytes,
                key=(prediction.numel,),
                name="squared_error_bw",
            )
        ]

    trace.record([prediction], [loss], backward)
    return loss
