"""One row per sequence, whole on every rank: the mean of its tokens, which conditions a whole sample."""

from __future__ import annotations

from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.nn.rules.collective import all_reduce
from semu.nn.rules.views import copy_like
from semu.nn.trace.tensor import Tensor


def mean_rows(x: Tensor, like: Tensor | None = None) -> Tensor:
    """The mean of every sequence's tokens: [tokens, h] -> [sequences, h].

    Where the tokens of a sequence lie on several ranks, each sums what it has and the rows are summed over the group.
    Saves nothing. Backward: each token gets its share.

    Args:
        x: one stream. like: rows of another stream with as many sequences, which then gives their number.
    """
    trace = x.trace
    if x.ndim != 2 or x.shards[-1] != 1:
        raise GraphError("no rows of tokens", where=trace.where, expected="[tokens, h], h whole", got=x.shape)
    count: Dim = x.sequences.count if x.sequences is not None else 1
    if like is not None:
        count = like.shape[0]
    rows = replace(x, shape=(count, x.shape[-1]), shards=(1, 1), sequences=None)
    with trace.no_grad():
        y = copy_like(rows, [x], rows.size_bytes + x.size_bytes, "mean_rows")
        if x.shards[0] > 1:
            all_reduce(y, name="all_reduce_rows")
        if trace.options.cp_group.num_ranks > 1:
            all_reduce(y, trace.options.cp_group, "all_reduce_rows")
    y = replace(y, requires_grad=x.requires_grad and trace.grad_enabled)
    return trace.recorded([x], y, lambda grad: [copy_like(x, [grad], grad.size_bytes + x.size_bytes, "mean_rows_bw")])
