"""Contrastive losses over the batches of all data-parallel replicas: gathered features, similarities, two losses.

Every rank compares its own rows with those of all replicas (2103.00020 §2.5: only the similarities that its local batch
needs; open_clip's ``local_loss`` with ``gather_with_grad``). The features are all-gathered inside the forward pass, and
the gradients of what was gathered are reduce-scattered inside the backward pass, over a communicator of their own.
Under sequence parallelism a tensor-parallel rank has its share of the rows. Replicas are taken to have equally many
rows and to reach the collective together.
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
from semu.nn.rules.collective import all_gather_tokens, reduce_scatter_tokens, wire_bytes
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

    def backward(grad: Tensor) -> list[Tensor | None]:
        if is_split:
            grad = reduce_scatter_tokens(grad)
        return [_exchange(OpKind.REDUCE_SCATTER, grad, x.shape[0])]

    return trace.recorded([x], y, backward)


def _exchange(kind: OpKind, x: Tensor, rows: Dim) -> Tensor:
    """An all-gather or reduce-scatter of rows over the replicas; nothing with one replica."""
    trace, group = x.trace, x.trace.options.replica_group
    if group.num_ranks == 1:
        return x
    whole = x.size_bytes * (group.num_ranks if kind is OpKind.ALL_GATHER else 1)
    return trace.emit(
        kind,
        [x],
        (rows, *x.shape[1:]),
        shards=x.shards,
        dtype=x.dtype,
        net_bytes=wire_bytes(kind, whole, group, trace.where),
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        role=Role.COMMUNICATION if kind is OpKind.ALL_GATHER else Role.ACTIVATION,
        name=f"{kind.value}_replicas",
    )


def scale_rows(x: Tensor, factor: Parameter) -> Tensor:
    """All features times one learned number (the inverse temperature). Saves x; backward: one kernel for both."""
    trace = x.trace
    use = trace.parameter(factor)

    def kernel(inputs: Sequence[Tensor], passes: int, name: str, *, is_backward: bool) -> Tensor:
        return trace.emit(
            OpKind.ADD,
            [*inputs, use],
            like=x,
            gradients=[use] if is_backward and use.gradient is not None else [],
            mem_bytes=passes * x.size_bytes,
            key=(x.numel,),
            phase=Phase.INPUT_GRADIENT if is_backward else None,
            name=name,
        )

    y = kernel([x], 2, "scale_rows", is_backward=False)

    def backward(grad: Tensor) -> list[Tensor | None]:
        grad_x = kernel([x, grad], 3, "scale_rows_bw", is_backward=True)
        return [grad_x if x.requires_grad else None]

    return trace.recorded([x], y, backward)


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

    def multiply(inputs: Sequence[Tensor], like: Tensor | None, key: tuple[Dim, ...], name: str) -> Tensor:
        return trace.emit(
            OpKind.MATMUL,
            inputs,
            like.shape if like is not None else (rows.shape[0], m),
            shards=like.shards if like is not None else rows.shards,
            sequences=like.sequences if like is not None else None,
            flop=flop,
            mem_bytes=traffic,
            key=key,
            phase=Phase.INPUT_GRADIENT if like is not None else None,
            name=name,
        )

    logits = multiply([rows, others], None, (n, m, d), "similarities")

    def backward(grad: Tensor) -> list[Tensor | None]:
        return [
            multiply([grad, others], rows, (n, d, m), "rows_bw") if rows.requires_grad else None,
            multiply([grad, rows], others, (m, d, n), "others_bw") if others.requires_grad else None,
        ]

    return trace.recorded([rows, others], logits, backward)


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

    def backward(_: Sequence[Tensor | None]) -> list[Tensor | None]:
        grad = trace.emit(
            OpKind.CROSS_ENTROPY,
            [logits, use],
            logits.shape,
            shards=logits.shards,
            dtype=logits.dtype,
            gradients=[use] if use.gradient is not None else [],
            mem_bytes=2 * logits.size_bytes,
            key=key,
            name="sigmoid_bw",
        )
        return [grad if logits.requires_grad else None]

    trace.record([logits], [loss], backward)
    return loss
