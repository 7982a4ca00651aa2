"""One row per sequence, made of its tokens and whole on every rank: what conditions a whole sample."""

from __future__ import annotations

from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim, product
from semu.graph.operator import OpKind
from semu.hardware.network import CommGroup
from semu.nn.rules.collective import wire_bytes
from semu.nn.rules.views import copy_like
from semu.nn.trace.tensor import Tensor


def mean_rows(x: Tensor, like: Tensor | None = None) -> Tensor:
    """The mean of every sequence's tokens: [tokens, h] -> [sequences, h].

    Where the tokens of a sequence lie on several ranks, each sums what it has and the rows are summed over the group.
    Saves nothing. Backward: each token gets its share.

    Args:
        x: one stream. like: rows of another stream with a sequence for each of this one, whose number is then used.
    """
    trace = x.trace
    if x.ndim != 2 or x.shards[-1] != 1:
        raise GraphError("no rows of tokens", where=trace.where, expected="[tokens, h], h whole", got=x.shape)
    count: Dim = x.sequences.count if x.sequences is not None else 1
    if like is not None:
        count = like.shape[0]
    shape = (count, x.shape[-1])
    size = product(shape) * x.dtype.size_bytes
    with trace.no_grad():
        y = trace.emit(
            OpKind.COPY,
            [x],
            shape,
            dtype=x.dtype,
            mem_bytes=size + x.size_bytes,
            key=(product(shape),),
            name="mean_rows",
        )
        if x.shards[0] > 1:
            _sum(y, trace.options.tp_group)
        if trace.options.cp_group.num_ranks > 1:
            _sum(y, trace.options.cp_group)
    y = replace(y, requires_grad=x.requires_grad and trace.grad_enabled)
    return trace.recorded([x], y, lambda grad: [copy_like(x, [grad], grad.size_bytes + x.size_bytes, "mean_rows_bw")])


def _sum(x: Tensor, group: CommGroup) -> None:
    """Sum over the ranks of a group, in place."""
    trace = x.trace
    trace.emit(
        OpKind.ALL_REDUCE,
        [x],
        net_bytes=wire_bytes(OpKind.ALL_REDUCE, x.size_bytes, group, trace.where),
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        name="all_reduce_rows",
        updates=[x],
    )
