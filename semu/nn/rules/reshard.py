"""Between modality modules of different parallelism: every rank gets the rows that it computes in the next module.

A tensor is spread over the tp x cp GPUs of a replica's pipeline rank: its sequences over groups of ranks (a module with
smaller groups than the job's), the tokens of a sequence over context ranks, and under sequence parallelism over the
tensor-parallel ranks. All ranks gather all parts, padded to the longest as NCCL's all-gather needs, and keep the rows
that the next module needs on them: Megatron-LM's gather from, and scatter to, the sequence-parallel region, for any two
layouts. Backward: source and target change places; gradients are spread as their tensors are.

A module on GPUs of its own sends its parts to the next module's GPUs (``semu.compile.module_sharding.landing``), which
gather them there, and keep what they need.
"""

from __future__ import annotations

from dataclasses import replace

from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup
from semu.nn.rules.collective import communicate
from semu.nn.rules.views import copy_like
from semu.nn.trace.tensor import Sequences, Tensor
from semu.records import dataclass


@dataclass(frozen=True)
class TokenLayout:
    """How the tokens of a stream are spread over the GPUs of a replica's pipeline rank.

    Attributes:
        sequences: packing of one group of ranks, on one context rank.
        parts: groups x context ranks that share the sequences. shards: parts of the tokens over tensor-parallel ranks.
        group: the ranks that hold different parts; None: every rank holds everything.
        held: parts that a rank has, one behind the other, of a module on more GPUs.
    """

    sequences: Sequences
    parts: int
    shards: int
    group: CommGroup | None
    held: int = 1

    @property
    def tokens(self) -> Dim:
        """Tokens of the parts that a rank has."""
        return self.held * self.sequences.tokens


@dataclass(frozen=True)
class Resharding:
    """From one layout to another; with equal packings, only sequence parallelism begins or ends."""

    source: TokenLayout
    target: TokenLayout


def reshard_tokens(x: Tensor, change: Resharding) -> Tensor:
    """Spread the tokens of ``x`` [tokens, ...] anew: the same rows, laid out as ``change.target``."""
    y = replace(_moved(x, change.source, change.target, "reshard"), requires_grad=x.requires_grad)
    back = change.target, change.source, "reshard_bw"
    return x.trace.recorded([x], y, lambda grad: [_moved(grad, *back, is_leaving=True)])


def _moved(x: Tensor, source: TokenLayout, target: TokenLayout, name: str, *, is_leaving: bool = False) -> Tensor:
    """``is_leaving``: another stage takes the result, whose storage must be no larger: a slice is copied, as
    Megatron-LM's scatter to the sequence-parallel region does (``.contiguous()``)."""
    whole, is_in_place = x, source.sequences == target.sequences
    if source.group is not None:
        group = source.group
        gathered = replace(
            x,
            shape=(source.parts * source.sequences.tokens, *x.shape[1:]),
            shards=(1, *x.shards[1:]),
            sequences=x.sequences if is_in_place else None,
        )
        role = Role.ACTIVATION if is_in_place else Role.COMMUNICATION
        buffer = group.num_ranks * x.size_bytes
        whole = communicate(OpKind.ALL_GATHER, [x], buffer, group, f"{name}.all_gather", like=gathered, role=role)
    shape, shards = (target.tokens, *x.shape[1:]), (target.shards, *x.shards[1:])
    like = replace(x, shape=shape, shards=shards, sequences=target.sequences)
    if is_in_place and (source.group is not None or not is_leaving or source.shards == target.shards):
        return x.trace.view(whole, shape, shards)
    return copy_like(like, [whole], 2 * like.size_bytes, f"{name}.select")
