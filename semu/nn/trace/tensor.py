"""``Tensor``: a symbolic tensor of a traced model, and ``Sequences``: how its tokens are packed.

Shapes are global, as the model's code sees them; ``shards`` says per axis into how many parts tensor parallelism
cuts it, so ``local_shape`` is what one rank holds. There are no values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from semu.errors import GraphError
from semu.graph.dim import Dim, Poly, divide, product
from semu.hardware.kinds import DType
from semu.records import dataclass

if TYPE_CHECKING:
    from semu.nn.trace.tracing import Trace  # circle: a tensor names the trace that made it
    from semu.nn.window import Window


@dataclass(frozen=True)
class Sequences:
    """How a token axis is packed from sequences that do not attend to one another.

    Attributes:
        stream: name of the data stream (``text``, ``vision``, ...).
        tokens: length of the axis, padding included.
        pairs: sum over sequences of length squared.
        count: number of sequences.
        length: common length where all are equal, else None.
        pair_unit: pairs per unit of the symbols of ``pairs``: 1, or more with context parallelism (see ``of_stream``).
        module: the modality module that spreads the sequences over groups of ranks; empty: every rank has them all.

    Under context parallelism ``tokens`` are those of one rank, and ``pairs`` its share: its queries with all keys.
    """

    stream: str
    tokens: Dim
    pairs: Dim
    count: Dim
    length: Dim | None = None
    pair_unit: int = 1
    module: str = ""

    @classmethod
    def of_stream(cls, stream: str, token_divisor: int = 1, cp: int = 1, module: str = "") -> Sequences:
        """Symbolic packing of a data stream: symbols ``stream.shard``, ``stream.pairs``, ``stream.sequences``.

        Args:
            stream: the stream's name.
            token_divisor: the axis is ``token_divisor`` x ``stream.shard`` long, on all context ranks together.
            cp: ranks that share every sequence; with several, each holds two of its 2 cp chunks, ``stream.pairs`` is
                the sum of squared chunk lengths, and a rank has 2 x 2 cp of these pairs.
            module: the modality module that spreads the sequences over groups of ranks; the symbols of one group are
                ``stream.module.shard`` and so on.
        """
        unit = 4 * cp if cp > 1 else 1
        prefix = f"{stream}.{module}" if module else stream
        return cls(
            stream,
            token_divisor // cp * Poly.symbol(f"{prefix}.shard"),
            unit * Poly.symbol(f"{prefix}.pairs"),
            Poly.symbol(f"{prefix}.sequences"),
            pair_unit=unit,
            module=module,
        )

    @classmethod
    def uniform(cls, count: int, length: int, stream: str = "text") -> Sequences:
        """``count`` sequences of ``length`` tokens each."""
        return cls(stream, count * length, count * length * length, count, length)

    def pairs_within(self, window: Window, where: str) -> Dim:
        """Pairs of tokens inside a window, over all sequences.

        Raises:
            GraphError: sequences of unknown lengths.
        """
        if isinstance(self.length, int):
            return self.count * window.pairs(self.length)
        return window.of(self.pairs, where)

    def pairs_with(self, other: Sequences, where: str) -> Dim:
        """Sum over sequences of query length x key length (cross attention).

        Raises:
            GraphError: one packing is concrete and uneven, so that the sum is unknown.
        """
        if self == other:
            return self.pairs
        if self.length is not None and other.length is not None and self.count == other.count:
            return self.count * self.length * other.length
        if isinstance(self.count, Poly) and isinstance(other.count, Poly):
            both = f"{self.stream}*{other.stream}"
            return self.pair_unit * Poly.symbol(f"{both}.{self.module}.pairs" if self.module else f"{both}.pairs")
        raise GraphError(
            "cannot pair these two packings",
            where=where,
            expected=f"as many {other.stream!r} sequences as {self.stream!r} sequences",
            got=f"{other.count} and {self.count}",
        )


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a traced model; made by ``Trace``, never by hand.

    Attributes:
        trace: the trace it belongs to.
        node: its tensor node in the trace's graph.
        shape: global shape.
        shards: per axis, into how many parts it is cut over the tensor-parallel group.
        dtype: element type.
        requires_grad: a trainable parameter lies upstream.
        sequences: packing of axis 0, or None: one sequence.
    """

    trace: Trace
    node: int
    shape: tuple[Dim, ...]
    shards: tuple[int, ...]
    dtype: DType
    requires_grad: bool = False
    sequences: Sequences | None = field(default=None)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @cached_property
    def local_shape(self) -> tuple[Dim, ...]:
        """Shape on one rank."""
        if all(n == 1 for n in self.shards):
            return tuple(self.shape)
        return local_shape(self.shape, self.shards, self.trace.where)

    @cached_property
    def numel(self) -> Dim:
        """Elements on one rank."""
        return product(self.local_shape)

    @property
    def size_bytes(self) -> Dim:
        """Bytes on one rank."""
        return self.numel * self.dtype.size_bytes

    def split(self, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """Views of consecutive parts of the last axis, ``sizes`` global."""
        from semu.nn.functional import split  # circle: a tensor's operators (x + y) are rules, as in PyTorch

        return split(self, sizes)

    def unflatten(self, outer: int, inner: int) -> Tensor:
        """View the last axis as ``outer`` x ``inner``; a shard cuts ``outer``."""
        from semu.nn.functional import unflatten  # circle: a tensor's operators (x + y) are rules, as in PyTorch

        return unflatten(self, outer, inner)

    def flatten(self) -> Tensor:
        """View the last two axes as one."""
        from semu.nn.functional import flatten  # circle: a tensor's operators (x + y) are rules, as in PyTorch

        return flatten(self)

    def __add__(self, other: Tensor) -> Tensor:
        from semu.nn.functional import add  # circle: a tensor's operators (x + y) are rules, as in PyTorch

        return add(self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        from semu.nn.functional import multiply  # circle: a tensor's operators (x + y) are rules, as in PyTorch

        return multiply(self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        from semu.nn.functional import add  # circle: a tensor's operators (x + y) are rules, as in PyTorch

        return add(self, other)

    def detach(self) -> Tensor:
        """The same tensor node, as a new leaf without gradient history."""
        return replace(self, requires_grad=False)


def laid_out_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A side output of a kernel with the global shape, shards and packing of another tensor."""
    return replace(tensor, shape=like.shape, shards=like.shards, sequences=like.sequences)


def local_shape(shape: Sequence[Dim], shards: Sequence[int], where: str) -> tuple[Dim, ...]:
    """Shape on one rank: every axis divided by its shards, exactly."""
    return tuple(
        [dim if n == 1 else divide(dim, n, f"an axis of {dim}", where) for dim, n in zip(shape, shards, strict=True)]
    )
