"""Low-rank adapters beside a linear layer: ``y + (x A^T) B^T`` (LoRA, 2106.09685 §4.1), whole or split over a group.

Beside a column-split weight A is whole and B split by its rows; beside a row-split weight A is split by its columns and
B whole. Either way the group exchanges tensors as narrow as the rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.nn.module import Parameter
from semu.nn.rules.matrix_products import linear
from semu.nn.trace.sharding import ShardingStyle
from semu.nn.trace.tensor import Tensor


def low_rank(x: Tensor, a: Parameter, b: Parameter) -> Tensor:
    """``(x A^T) B^T`` under the current module's sharding style; never in fp8.

    Args:
        x: [..., in], as the linear layer beside it gets it. a: [rank, in]. b: [out, rank].
    Returns:
        [..., out], laid out as what the linear layer returns. Saves x and ``x A^T``.
    """
    style = x.trace.style
    if style in (ShardingStyle.COLUMN, ShardingStyle.VOCABULARY):
        narrow = linear(x, a, style=ShardingStyle.REPLICATED, may_be_fp8=False)
        return linear(narrow, b, style=ShardingStyle.COLUMN, may_be_fp8=False)
    narrow = linear(x, a, style=style, may_be_fp8=False)
    return linear(narrow, b, style=ShardingStyle.REPLICATED, may_be_fp8=False)


def add_parts(y: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Scale and add to some parts of the last axis of ``y``: one kernel, which moves these parts only.

    Args:
        y: [..., n]. parts: [..., n_i], split alike, sum of n_i at most n.
    Returns:
        [..., n]. Saves nothing; every part's gradient is a view of what arrives.
    """
    if any(part.shape[:-1] != y.shape[:-1] or part.shards != y.shards for part in parts):
        raise GraphError(
            "an adapter needs the layout of the layer beside it",
            where=y.trace.where,
            expected=f"{y.shape} split {y.shards}",
            got=[(part.shape, part.shards) for part in parts],
        )
    numel: Dim = sum((part.numel for part in parts[1:]), parts[0].numel)
    traffic = 3 * numel * y.dtype.size_bytes
    out = y.trace.emit(OpKind.ADD, [y, *parts], like=y, mem_bytes=traffic, key=(numel,), name="add_adapters")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        views = [y.trace.view(grad, part.shape, part.shards) for part in parts]
        return [grad if y.requires_grad else None, *views]

    return y.trace.recorded([y, *parts], out, _backward)
