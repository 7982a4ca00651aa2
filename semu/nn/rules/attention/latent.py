"""Keys and values of multi-head latent attention: rotation and concatenation in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.operator import OpKind, Phase
from semu.nn.rules.collective import all_gather_tokens, all_reduce, reduce_scatter_tokens
from semu.nn.trace.tensor import Tensor, laid_out_like


def latent_keys(kv: Tensor, positions: Tensor, plain: int, rotated: int) -> tuple[Tensor, Tensor]:
    """Keys and values of all heads (2405.04434 §2.1.3): the rotated part of a key is one for all heads.

    Args:
        kv: [tokens, heads, plain + d_v]. positions: [tokens, rotated], before its rotation.
        plain, rotated: widths of a key's two parts.
    Returns:
        [tokens, heads, plain + rotated] and [tokens, heads, d_v]. Saves nothing; backward is one kernel.
    """
    trace = kv.trace
    tokens, heads, width = kv.shape
    local_tokens, local_heads, _ = kv.local_shape
    size = kv.dtype.size_bytes
    out_bytes = local_tokens * local_heads * (width + rotated) * size
    traffic = kv.size_bytes + positions.size_bytes + out_bytes
    k = trace.emit(
        OpKind.ROPE,
        [kv, positions],
        (tokens, heads, plain + rotated),
        like=kv,
        mem_bytes=traffic,
        name="latent_keys",
        extra_outputs=[((local_tokens, local_heads, width - plain), kv.dtype)],
    )
    v = laid_out_like(trace.side_outputs(1)[0], replace(kv, shape=(tokens, heads, width - plain)))
    v = replace(v, requires_grad=k.requires_grad)

    def _backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        given = [grad for grad in gradients if grad is not None]
        grad_kv = trace.emit(
            OpKind.ROPE,
            given,
            like=kv,
            mem_bytes=traffic,
            name="latent_keys_bw",
            extra_outputs=[(positions.local_shape, positions.dtype)],
        )
        return [grad_kv, laid_out_like(trace.side_outputs(1)[0], positions)]

    trace.record([kv, positions], [k, v], _backward)
    return k, v


def spread_tokens(x: Tensor) -> Tensor:
    """A tensor that every tensor-parallel rank reads whole, and whose gradient is summed over these ranks.

    Args:
        x: [tokens, ...], tokens sharded under sequence parallelism, else replicated.
    Returns:
        All tokens: an all-gather, backward a reduce-scatter; or x, backward an all-reduce.
    """
    trace = x.trace
    if trace.options.plan.tp == 1:
        return x
    is_split = x.shards[0] > 1
    y = all_gather_tokens(x) if is_split else trace.view(x, x.shape, x.shards)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        with trace.at(trace.path, Phase.INPUT_GRADIENT):
            return [reduce_scatter_tokens(grad) if is_split else all_reduce(grad)]

    return trace.recorded([x], y, _backward)
