"""Routing tokens to experts: scores and top-k, permutation of tokens into rows and back. All memory-bound.

As Megatron-LM's router and token dispatcher with fused permutation: probabilities in fp32 [tokens, experts], a mask of
one byte beside them. A row keeps its probability and its number; the expert's non-linearity multiplies by the
probability (``weighted_activation``), so the sum of a token's rows needs no weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import Dim
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn.rules.pointwise import emit_both_gradients
from semu.nn.trace.tensor import Tensor, laid_out_like

PROBABILITY = DType.FP32
"""Type of router probabilities (Megatron-LM; 2101.03961 §2.4: the router in fp32 is what keeps training stable)."""
_ROW_BYTES = PROBABILITY.size_bytes + DType.INT64.size_bytes


def top_k(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax (or sigmoid) over the experts and the choice of the best ones; then the auxiliary loss, which balances.

    Args:
        logits: [tokens, experts].
    Returns:
        Probabilities [tokens, experts] in fp32, zero where not chosen, and the mask in bytes. Saves both.
    """
    trace, count = logits.trace, logits.numel
    scores_bytes, mask_bytes = count * PROBABILITY.size_bytes, count * DType.UINT8.size_bytes
    probabilities = trace.emit(
        OpKind.TOP_K,
        [logits],
        like=logits,
        dtype=PROBABILITY,
        mem_bytes=logits.size_bytes + scores_bytes + mask_bytes,
        name="top_k",
        extra_outputs=[(logits.local_shape, DType.UINT8)],
    )
    mask = laid_out_like(trace.side_outputs(1)[0], logits)
    traffic = scores_bytes + mask_bytes
    trace.emit(OpKind.TOP_K, [probabilities, mask], mem_bytes=traffic, key=(count,), name="auxiliary_loss")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        traffic = logits.size_bytes + 2 * scores_bytes + mask_bytes
        return [trace.emit(OpKind.TOP_K, [probabilities, mask, grad], like=logits, mem_bytes=traffic, name="top_k_bw")]

    return trace.recorded([logits], probabilities, _backward), mask


def permute(x: Tensor, probabilities: Tensor, mask: Tensor, rows: Dim) -> tuple[Tensor, Tensor, Tensor]:
    """One row for every expert that a token chose, in the order of the experts.

    Args:
        x: [tokens, h]. probabilities, mask: [tokens, experts]. rows: on this rank.
    Returns:
        Rows [rows, h], their probabilities [rows], and the rows' numbers, which the way back reads. Saves the numbers
        and the mask; backward sums the rows of a token.
    """
    trace, shards = x.trace, x.shards[0]
    width = x.shape[-1]
    traffic = x.size_bytes + rows * (width * x.dtype.size_bytes + _ROW_BYTES)
    traffic += mask.size_bytes + probabilities.size_bytes
    y = trace.emit(
        OpKind.PERMUTE,
        [x, probabilities, mask],
        (rows * shards, width),
        shards=(shards, 1),
        dtype=x.dtype,
        mem_bytes=traffic,
        key=(rows, width),
        name="permute",
        extra_outputs=[((rows,), PROBABILITY), ((rows,), DType.INT64)],
    )
    p, order = trace.side_outputs(2)
    p = replace(p, requires_grad=y.requires_grad)

    def _backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        given = [grad for grad in gradients if grad is not None]
        needs = [x.requires_grad, probabilities.requires_grad]
        grad_x = trace.emit(
            OpKind.PERMUTE,
            [*given, order, mask],
            like=x,
            mem_bytes=traffic,
            key=(rows, width),
            name="permute_bw",
            extra_outputs=[(probabilities.local_shape, PROBABILITY)] if needs[1] else [],
        )
        grad_p = laid_out_like(trace.side_outputs(1)[0], probabilities) if needs[1] else None
        return [grad_x if needs[0] else None, grad_p]

    trace.record([x, probabilities], [y, p], _backward)
    return y, p, order


def unpermute(y: Tensor, order: Tensor, like: Tensor) -> Tensor:
    """The sum of every token's rows.

    Args:
        y: [rows, h]. order: the rows' numbers. like: what the tokens looked like.
    Returns:
        [tokens, h]. Saves the numbers; backward copies every gradient to the token's rows.
    """
    trace = y.trace

    def _move(source: Tensor, target: Tensor, name: str, phase: Phase | None = None) -> Tensor:
        return trace.emit(
            OpKind.PERMUTE,
            [source, order],
            like=target,
            mem_bytes=source.size_bytes + target.size_bytes + order.size_bytes,
            key=(y.local_shape[0], y.shape[-1]),
            phase=phase,
            name=name,
        )

    x = _move(y, like, "unpermute")
    return trace.recorded([y], x, lambda grad: [_move(grad, y, "unpermute_bw", Phase.INPUT_GRADIENT)])


def scale_tokens(x: Tensor, gate: Tensor) -> Tensor:
    """``sigmoid(gate) * x`` with one number per token.

    Args:
        x: [tokens, h]. gate: [tokens, 1].
    Saves both; backward gives both gradients in one kernel.
    """
    traffic = 2 * x.size_bytes + gate.size_bytes
    y = x.trace.emit(OpKind.ACTIVATION, [x, gate], like=x, mem_bytes=traffic, name="token_gate")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        traffic = 3 * x.size_bytes + 2 * gate.size_bytes
        return emit_both_gradients(OpKind.ACTIVATION, x, gate, grad, traffic, "token_gate_bw")

    return x.trace.recorded([x, gate], y, _backward)
