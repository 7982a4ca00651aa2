"""Two token streams as one: sequence i of the first followed by sequence i of the second, for joint attention.

In-context conditioning (MM-DiT, 2403.03206 §4) attends over text and image tokens together: a sequence of a + b tokens
has (a + b)^2 = a^2 + 2 a b + b^2 pairs, and a batch counts all three terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.nn.rules.views import copy_both, copy_like
from semu.nn.trace.tensor import Sequences, Tensor
from semu.records import dataclass


@dataclass(frozen=True)
class JointSequences(Sequences):
    """A packing whose sequences are those of ``parts``, one behind the other."""

    parts: tuple[Sequences, ...] = ()

    @classmethod
    def of(cls, first: Sequences, second: Sequences, where: str) -> JointSequences:
        """Sequence i of the first followed by sequence i of the second.

        Raises:
            GraphError: packings that have no pairs of sequences.
        """
        both = first.pairs_with(second, where)
        length = None if first.length is None or second.length is None else first.length + second.length
        return cls(
            f"{first.stream}+{second.stream}",
            first.tokens + second.tokens,
            first.pairs + 2 * both + second.pairs,
            first.count,
            length,
            first.pair_unit,
            first.module,
            (first, second),
        )


def concatenate_tokens(a: Tensor, b: Tensor) -> Tensor:
    """[tokens a, ...] and [tokens b, ...] -> [tokens a + tokens b, ...]: one copy; backward: a copy for each part.

    Args:
        a, b: alike but for their tokens, one sequence of one for each of the other.
    Raises:
        GraphError: tensors that differ otherwise, or no packing.
    """
    trace = a.trace
    if a.shape[1:] != b.shape[1:] or a.shards != b.shards or a.sequences is None or b.sequences is None:
        raise GraphError(
            "two streams become one only where they are alike",
            where=trace.where,
            expected=f"{a.shape[1:]} split {a.shards}, packed",
            got=f"{b.shape[1:]} split {b.shards}",
        )
    joint = JointSequences.of(a.sequences, b.sequences, trace.where)
    return _parted(a, b, copy_both(a, b, (a.shape[0] + b.shape[0], *a.shape[1:]), "concatenate_tokens", joint))


def _parted(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Record that the gradient of ``y``, a copy of both, goes to each of them as a copy."""

    def _backward(grad: Tensor) -> list[Tensor | None]:
        return [
            copy_like(part, [grad], 2 * part.size_bytes, "split_grad") if part.requires_grad else None
            for part in (a, b)
        ]

    return a.trace.recorded([a, b], y, _backward)


def split_tokens(x: Tensor) -> tuple[Tensor, ...]:
    """Copies of the streams that a joint tensor consists of. They have to be copied: the joint tensor holds sequence
    after sequence, so that no stream is one contiguous piece. Backward: the gradients of all streams are copied into
    one tensor, with zeros for a stream without gradient.

    Raises:
        GraphError: a tensor of one stream.
    """
    trace, joint = x.trace, x.sequences
    if not isinstance(joint, JointSequences):
        raise GraphError("nothing to split", where=trace.where, expected="tokens of two streams", got=x.shape)
    parts = []
    for part in joint.parts:
        like = replace(x, shape=(part.tokens, *x.shape[1:]), sequences=part)
        parts.append(copy_like(like, [x], 2 * like.size_bytes, "split_tokens"))

    def _backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        arrived = [gradient for gradient in gradients if gradient is not None]
        read: Dim = sum((gradient.size_bytes for gradient in arrived[1:]), arrived[0].size_bytes)
        return [copy_like(x, arrived, read + x.size_bytes, "concatenate_grad")]

    trace.record([x], parts, _backward)
    return tuple(parts)


def concatenate_features(a: Tensor, b: Tensor) -> Tensor:
    """[tokens, p] and [tokens, q] -> [tokens, p + q], split over features as both are: one copy; backward: copies."""
    trace = a.trace
    if a.shape[:-1] != b.shape[:-1] or a.shards != b.shards:
        raise GraphError(
            "features of different tokens", where=trace.where, expected=f"{a.shape[:-1]}, {a.shards}", got=b.shape
        )
    return _parted(a, b, copy_both(a, b, (*a.shape[:-1], a.shape[-1] + b.shape[-1]), "concatenate_features"))
