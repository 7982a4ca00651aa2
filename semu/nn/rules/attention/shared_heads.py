"""Fewer key-value heads than tensor-parallel ranks: ranks share them.

Megatron-LM since core 0.15 (``SelfAttention.get_query_key_value_tensors``) splits the columns of the fused projection
as ever, so that no weight is held twice, and a rank then lacks part of its heads. All ranks gather the whole
projection; each takes its query heads and the one key-value head that these read. A framework that holds key-value
weights on several ranks instead would exchange less and hold more.
"""

from __future__ import annotations

from dataclasses import replace

from semu.errors import GraphError
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.nn.rules.collective import communicate
from semu.nn.rules.views import copy_like
from semu.nn.trace.tensor import Tensor


def ranks_share(kv_heads: int, ranks: int) -> bool:
    """Whether each key-value head is read by several whole ranks."""
    return ranks > kv_heads and ranks % kv_heads == 0


def share_heads(x: Tensor, heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, int]:
    """The fused projection of queries, keys and values with a key-value head for every rank.

    Forward, in bytes W of the whole projection and w of what a rank keeps: the gather; a copy, because NCCL lays rank
    behind rank (2 W); the rank's heads, made contiguous for the fused kernel (2 w). Backward: zeros into which the
    gradients are put (W + 2 w), a copy that lays rank behind rank again (2 W), the reduce-scatter, which also sums the
    gradients of shared heads, and the copy of its result (2 W / tp). Copies as in
    ``megatron/core/tensor_parallel/mappings.py`` (``_gather_along_last_dim``, ``_reduce_scatter_along_last_dim``).

    Args:
        x: [tokens, (heads + 2 kv_heads) head_dim], split over the group. heads, kv_heads: of all ranks.
    Raises:
        GraphError: more ranks than key-value heads, and no multiple of them.
    Returns:
        [tokens, (heads + 2 tp) head_dim], split over the group, and its key-value heads, tp; where every rank has heads
        of its own, ``x`` and ``kv_heads``.
    """
    ranks = x.shards[-1]
    if ranks <= kv_heads:
        return x, kv_heads
    if not ranks_share(kv_heads, ranks):
        raise GraphError(
            f"{kv_heads} key-value heads cannot be split over a tensor-parallel group of {ranks}, nor shared by it",
            where=x.trace.where,
            expected=f"a divisor or a multiple of {kv_heads}",
            got=f"tp = {ranks}",
            nearest=max(n for n in range(1, ranks) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)),
        )
    group = x.trace.options.tp_group
    whole = replace(x, shards=(*x.shards[:-1], 1))
    kept = replace(x, shape=(*x.shape[:-1], (heads + 2 * ranks) * head_dim))
    gathered = communicate(
        OpKind.ALL_GATHER, [x], whole.size_bytes, group, "gather_heads", like=whole, role=Role.COMMUNICATION
    )
    gathered = copy_like(whole, [gathered], 2 * whole.size_bytes, "gather_heads.copy")
    y = copy_like(kept, [gathered], 2 * kept.size_bytes, "own_heads")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        padded = copy_like(whole, [grad], whole.size_bytes + 2 * kept.size_bytes, "own_heads.grad")
        moved = copy_like(whole, [padded], 2 * whole.size_bytes, "scatter_heads.copy")
        part = communicate(OpKind.REDUCE_SCATTER, [moved], whole.size_bytes, group, "scatter_heads", like=x)
        return [copy_like(x, [part], 2 * x.size_bytes, "scatter_heads.sorted")]

    return x.trace.recorded([x], y, _backward), ranks
