"""Contrastive losses over the batches of all data-parallel replicas: gathered features, similarities, two losses.

Every rank compares its rows with those of all replicas (2103.00020 §2.5: only the similarities that its local batch
needs; open_clip's ``local_loss`` with ``gather_with_grad``). The forward pass all-gathers the features, the backward
pass reduce-scatters the gradients of the gathered features, over a separate communicator. Under sequence parallelism a
tensor-parallel rank has its share of the rows. Replicas are assumed to have equally many rows and to reach the
collective together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim, product
from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.nn.module import Parameter
from semu.nn.rules.collective import all_gather_tokens, communicate, reduce_scatter_tokens
from semu.nn.rules.norms import norm
from semu.nn.trace.tensor import Tensor


def normalise_rows(x: Tensor) -> Tensor:
    """Rows of length one; saves x and a number per row."""
    return norm(x, None, None, num_statistics=1, name="l2_norm")


def gather_rows(x: Tensor) -> Tensor:
    """Rows of all replicas, and of all tensor-parallel ranks that have different ones: [n, d] -> [replicas x n, d].

    Backward: the gradients' sum over the ranks, of which each keeps its rows.

    Raises:
        GraphError: rows of a group of context-parallel ranks, or of a module that spreads its items over groups.
    """
    trace = x.trace
    if trace.options.cp_group.num_ranks > 1 or (x.sequences is not None and x.sequences.module):
        raise GraphError(
            "a contrastive loss over rows that several ranks of a replica share is not modelled by this version",
            where=trace.where,
            expected="cp = 1 and no parallel.modules of fewer ranks",
            got=f"cp = {trace.options.cp_group.num_ranks}",
            nearest="cp = 1",
        )
    is_split = x.shards[0] > 1
    with trace.no_grad():
        everything = _exchange(OpKind.ALL_GATHER, x, trace.options.replica_group.num_ranks * x.shape[0])
        if is_split:
            everything = all_gather_tokens(everything)
    y = replace(everything, requires_grad=x.requires_grad)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        if is_split:
            grad = reduce_scatter_tokens(grad)
        return [_exchange(OpKind.REDUCE_SCATTER, grad, x.shape[0])]

    return trace.recorded([x], y, _backward)


def _exchange(kind: OpKind, x: Tensor, rows: Dim) -> Tensor:
    """An all-gather or reduce-scatter of rows over the replicas; nothing with one replica."""
    group = x.trace.options.replica_group
    if group.num_ranks == 1:
        return x
    is_gather = kind is OpKind.ALL_GATHER
    whole = x.size_bytes * (group.num_ranks if is_gather else 1)
    like = replace(x, shape=(rows, *x.shape[1:]), sequences=None)
    role = Role.COMMUNICATION if is_gather else Role.ACTIVATION
    return communicate(kind, [x], whole, group, f"{kind.value}_replicas", like=like, role=role)


def scale_rows(x: Tensor, factor: Parameter) -> Tensor:
    """All features times one learned number (the inverse temperature). Saves x; backward: one kernel for both."""
    trace = x.trace
    use = trace.parameter(factor)

    y = trace.emit(OpKind.ADD, [x, use], like=x, mem_bytes=2 * x.size_bytes, name="scale_rows")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        grad_x = trace.emit(
            OpKind.ADD,
            [x, grad, use],
            like=x,
            gradients=[use] if use.gradient is not None else [],
            mem_bytes=3 * x.size_bytes,
            phase=Phase.INPUT_GRADIENT,
            name="scale_rows_bw",
        )
        return [grad_x if x.requires_grad else None]

    return trace.recorded([x], y, _backward)


def similarities(rows: Tensor, others: Tensor) -> Tensor:
    """``rows others^T``: [n, d] and [m, d] -> [n, m], the rows split or not, the others whole.

    FLOP: 2 n m d, and as much for either gradient. Saves both.
    """
    trace = rows.trace
    if rows.shape[-1] != others.shape[-1] or others.shards != (1, 1):
        raise GraphError(
            "features that cannot be compared",
            where=trace.where,
            expected=f"[rows, {rows.shape[-1]}], whole",
            got=others.shape,
        )
    n, d = rows.local_shape
    m = others.shape[0]
    size = trace.options.tensor_dtype.size_bytes
    flop, traffic = 2 * product((n, m, d)), size * (n * d + m * d + n * m)

    def _multiply(inputs: Sequence[Tensor], like: Tensor, key: tuple[Dim, ...], name: str) -> Tensor:
        return trace.emit(OpKind.MATMUL, inputs, like=like, flop=flop, mem_bytes=traffic, key=key, name=name)

    result = replace(rows, shape=(rows.shape[0], m), dtype=trace.options.tensor_dtype, sequences=None)
    logits = _multiply([rows, others], result, (n, m, d), "similarities")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        return [
            _multiply([grad, others], rows, (n, d, m), "rows_bw") if rows.requires_grad else None,
            _multiply([grad, rows], others, (m, d, n), "others_bw") if others.requires_grad else None,
        ]

    return trace.recorded([rows, others], logits, _backward)


def pairwise_sigmoid(logits: Tensor, bias: Parameter) -> Tensor:
    """Sum of ``-log sigmoid(z (logits + bias))``, z = 1 on the diagonal, else -1 (SigLIP, 2303.15343 eq. 1); a scalar.

    One kernel each way; saves the logits.
    """
    trace = logits.trace
    use = trace.parameter(bias)
    key = (logits.local_shape[0], logits.shape[1])
    loss = trace.emit(
        OpKind.CROSS_ENTROPY, [logits, use], (), dtype=DType.FP32, mem_bytes=logits.size_bytes, key=key, name="sigmoid"
    )

    def _backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        grad = trace.emit(
            OpKind.CROSS_ENTROPY,
            [logits, use],
            like=logits,
            gradients=[use] if use.gradient is not None else [],
            mem_bytes=2 * logits.size_bytes,
            key=key,
            name="sigmoid_bw",
        )
        return [grad if logits.requires_grad else None]

    trace.record([logits], [loss], _backward)
    return loss
