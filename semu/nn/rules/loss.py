"""Losses: cross entropy (plain or split over the vocabulary) and mean squared error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.rules.collective import communicate
from semu.nn.trace.tensor import Tensor


def cross_entropy(logits: Tensor) -> Tensor:
    """Mean token loss of ``logits`` [tokens, vocab]; a scalar. Four ways, as the trace's options say: ``fused``,
    ``unfused``, ``in_place`` and ``compiled``. The last two:

    The logits are copied to fp32 and the softmax is made in place of the copy, which is what the backward reads; the
    gradient comes back in the logits' type. Where the vocabulary is split, three all-reduces of one fp32 number a
    token exchange the maximum, the target's logit and the sum (1909.08053 §3; Megatron-LM's vocab-parallel loss).
    Compiled, the pieces are functions that change nothing in place (Megatron-LM's ``fused_cross_entropy.py`` under
    torch.compile): the softmax lies beside the fp32 copy, and the gradient at the targets beside the softmax. Its
    continuous integration peaks higher with it by just one fp32 copy.
    """
    trace = logits.trace
    if trace.options.cross_entropy in ("fused", "unfused"):
        return (_fused if trace.options.cross_entropy == "fused" else _unfused)(logits)
    tokens = logits.local_shape[0]
    fp32 = DType.FP32.size_bytes
    with trace.no_grad():
        copied, passes = logits, logits.size_bytes + 3 * fp32 * logits.numel
        if trace.options.cross_entropy == "compiled":
            copied = _kernel(logits, [logits], DType.FP32, logits.size_bytes + fp32 * logits.numel, "float")
            passes = 2 * fp32 * logits.numel
        softmax = _kernel(logits, [copied], DType.FP32, passes, "softmax")
        _exchange(logits, softmax)
        loss = _scalar([softmax], 3 * fp32 * tokens, (tokens, 1), "mean")
    loss = replace(loss, requires_grad=logits.requires_grad)

    def _backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        read = [softmax]
        if trace.options.cross_entropy == "compiled":  # autograd's function holds the softmax until it returns
            read += [_kernel(logits, [softmax], DType.FP32, 2 * fp32 * logits.numel, "index_put")]
        return [_kernel(logits, read, logits.dtype, fp32 * logits.numel + logits.size_bytes, "softmax_bw")]

    trace.record([logits], [loss], _backward)
    return loss


def _kernel(logits: Tensor, inputs: Sequence[Tensor], dtype: DType, mem_bytes: Dim, name: str) -> Tensor:
    """Append a kernel whose result has the shape of ``logits``."""
    return logits.trace.emit(
        OpKind.CROSS_ENTROPY, inputs, like=logits, dtype=dtype, mem_bytes=mem_bytes, key=logits.local_shape, name=name
    )


def _scalar(
    inputs: Sequence[Tensor], mem_bytes: Dim, key: Sequence[Dim], name: str, updates: Sequence[Tensor] = ()
) -> Tensor:
    """Append a kernel whose result is one fp32 number."""
    return inputs[0].trace.emit(
        OpKind.CROSS_ENTROPY, inputs, (), dtype=DType.FP32, mem_bytes=mem_bytes, key=key, name=name, updates=updates
    )


def _exchange(logits: Tensor, softmax: Tensor) -> None:
    """Three all-reduces of one fp32 number a token, where the vocabulary is split."""
    group, size = logits.trace.options.tp_group, DType.FP32.size_bytes * logits.local_shape[0]
    for what in ("maximum", "target", "sum") if logits.shards[-1] > 1 else ():
        communicate(OpKind.ALL_REDUCE, [softmax], size, group, f"all_reduce_{what}", updates=[softmax])


def _unfused(logits: Tensor) -> Tensor:
    """PyTorch's ``F.cross_entropy(logits.float(), labels)``, kernel by kernel.

    The logits' fp32 copy and its log-softmax are two tensors, of which the second is saved; the backward makes the
    gradients of both in fp32 and casts the last one. The logits themselves stay until the loss is known.
    """
    trace, tokens, fp32 = logits.trace, logits.local_shape[0], DType.FP32.size_bytes
    with trace.no_grad():
        copy = _kernel(logits, [logits], DType.FP32, logits.size_bytes + fp32 * logits.numel, "float")
        softmax = _kernel(logits, [copy], DType.FP32, 2 * fp32 * logits.numel, "log_softmax")
        _exchange(logits, softmax)
        loss = _scalar([softmax, logits], 3 * fp32 * tokens, (tokens, 1), "mean")
    loss = replace(loss, requires_grad=logits.requires_grad)

    def _backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        chosen = _kernel(logits, [], DType.FP32, fp32 * logits.numel, "nll_bw")
        inner = _kernel(logits, [softmax, chosen], DType.FP32, 3 * fp32 * logits.numel, "log_softmax_bw")
        return [_kernel(logits, [inner], logits.dtype, fp32 * logits.numel + logits.size_bytes, "float_bw")]

    trace.record([logits], [loss], _backward)
    return loss


def _fused(logits: Tensor) -> Tensor:
    """One kernel that also writes the gradient over the logits, which is what the backward hands on: no fp32 copy.

    It reads the logits twice and writes them once. Where the vocabulary is split, one all-gather of maximum, sum and
    target's logit a token lies between (Transformer Engine's parallel_cross_entropy; Liger, 2410.10989 §3.2).
    """
    trace, group, key = logits.trace, logits.trace.options.tp_group, logits.local_shape
    with trace.no_grad():
        passes = 3
        if logits.shards[-1] > 1:
            trace.emit(OpKind.CROSS_ENTROPY, [logits], mem_bytes=logits.size_bytes, key=key, name="online_softmax")
            buffer = 3 * DType.FP32.size_bytes * key[0] * group.num_ranks
            communicate(OpKind.ALL_GATHER, [logits], buffer, group, "all_gather_statistics")
            passes = 2
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

    def _backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
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

    trace.record(losses, [total], _backward)
    return total


def mean_squared_error(prediction: Tensor) -> Tensor:
    """Mean squared distance of ``prediction`` [tokens, features] to a target of the same shape; a scalar.

    Saves the prediction; the target is part of the batch and not counted.
    """
    trace = prediction.trace
    loss = _scalar([prediction], 2 * prediction.size_bytes, (prediction.numel,), "squared_error")

    def _backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        traffic = 3 * prediction.size_bytes
        return [
            trace.emit(OpKind.CROSS_ENTROPY, [prediction], like=prediction, mem_bytes=traffic, name="squared_error_bw")
        ]

    trace.record([prediction], [loss], _backward)
    return loss
