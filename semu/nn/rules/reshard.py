"""Between modality modules of different parallelism: every rank gets the rows that it works on next.

A tensor is spread over the tp x cp GPUs of a replica's pipeline rank: its sequences over groups of ranks (a module with
smaller groups than the job's), the tokens of a sequence over context ranks, and under sequence parallelism over the
tensor-parallel ranks. All ranks gather all parts, padded to the longest as NCCL's all-gather needs them, and keep the
rows of their place in the next module: Megatron-LM's gather from, and scatter to, the sequence-parallel region, for any
two layouts. Backward is the same the other way round: gradients are spread as their tensors are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from semu.graph.dim import product
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup
from semu.nn.rules.collective import wire_bytes
from semu.nn.trace.tensor import Sequences, Tensor, local_shape


@dataclass(frozen=True)
class TokenLayout:
    """How the tokens of a stream are spread over the GPUs of a replica's pipeline rank.

    Attributes:
        sequences: packing of what one group of ranks has, on one context rank.
        parts: groups x context ranks that share the sequences. shards: parts of the tokens over tensor-parallel ranks.
        group: the ranks that hold different parts; None: every rank holds everything.
    """

    sequences: Sequences
    parts: int
    shards: int
    group: CommGroup | None


@dataclass(frozen=True)
class Resharding:
    """From one layout to another; where both have the same packing, only sequence parallelism begins or ends."""

    source: TokenLayout
    target: TokenLayout


def reshard_tokens(x: Tensor, change: Resharding) -> Tensor:
    """Spread the tokens of ``x`` [tokens, ...] anew: the same rows, laid out as ``change.target``."""
    y = replace(_moved(x, change.source, change.target, "reshard"), requires_grad=x.requires_grad)
    return x.trace.recorded([x], y, lambda grad: [_moved(grad, change.target, change.source, "reshard_bw")])


def _moved(x: Tensor, source: TokenLayout, target: TokenLayout, name: str) -> Tensor:
    trace, whole = x.trace, x
    is_in_place = source.sequences == target.sequences
    if source.group is not None:
        group = source.group
        whole = trace.emit(
            OpKind.ALL_GATHER,
            [x],
            (source.parts * source.sequences.tokens, *x.shape[1:]),
            shards=(1, *x.shards[1:]),
            dtype=x.dtype,
            sequences=x.sequences if is_in_place else None,
            net_bytes=wire_bytes(OpKind.ALL_GATHER, group.num_ranks * x.size_bytes, group, trace.where),
            key=(group.num_ranks, group.num_nodes),
            stream=trace.communication_stream(group),
            role=Role.ACTIVATION if is_in_place else Role.COMMUNICATION,
            name=f"{name}.all_gather",
        )
    shape, shards = (target.sequences.tokens, *x.shape[1:]), (target.shards, *x.shards[1:])
    if is_in_place:
        return trace.view(whole, shape, shards)
    numel = product(local_shape(shape, shards, trace.where))
    return trace.emit(
        OpKind.COPY,
        [whole],
        shape,
        shards=shards,
        dtype=x.dtype,
        sequences=target.sequences,
        mem_bytes=2 * numel * x.dtype.size_bytes,
        key=(numel,),
        name=f"{name}.select",
    )
