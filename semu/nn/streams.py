"""Streams made of others token by token: one token more in every sequence, every second token, one for all.

A class token, a strided convolution or a pooling head change the length of every sequence. Sums of new lengths, of
their squares and of products with others are in general no polynomials of the old sums (each is rounded by itself, and
padded to the ranks that share it). So a *derived stream* has symbols of its own; its name says how its lengths are
made, and the batch provides its columns when a model uses them:

    vision+1    every sequence with one token more (a class token); ``-1`` takes it away again
    audio/2     ceil(length / 2): a convolution of stride 2
    vision=1    one token for every sequence that has any
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from semu.errors import ConfigError, GraphError
from semu.graph.dim import Dim, Poly, divide
from semu.nn.trace.tensor import Sequences, Tensor
from semu.nn.window import Lengths
from semu.records import dataclass


class ChangeKind(Enum):
    """How a length changes; the value is its mark in a stream's name."""

    LONGER = "+"
    SHORTER = "/"
    SET = "="


@dataclass(frozen=True)
class Change:
    """A change of every sequence's length.

    Attributes:
        kind: LONGER by ``number`` tokens (fewer where negative); SHORTER: divided by it, rounded up; SET to it.
        number: not 0; >= 1 but for LONGER.
    Raises:
        ConfigError: a number of 0, or below 1 where it is not LONGER.
    """

    kind: ChangeKind
    number: int

    def __post_init__(self) -> None:
        if self.number == 0 or (self.number < 1 and self.kind is not ChangeKind.LONGER):
            raise ConfigError("not a change of a length", where="change.number", expected="an integer >= 1", got=self)

    @classmethod
    def longer(cls, tokens: int) -> Change:
        """``tokens`` more; fewer where negative."""
        return cls(ChangeKind.LONGER, tokens)

    @classmethod
    def shorter(cls, factor: int) -> Change:
        """One token for every ``factor``, the last ones together."""
        return cls(ChangeKind.SHORTER, factor)

    @classmethod
    def to(cls, tokens: int) -> Change:
        """``tokens`` for every sequence."""
        return cls(ChangeKind.SET, tokens)

    @property
    def label(self) -> str:
        """``+1``: the change in a stream's name."""
        return f"-{-self.number}" if self.number < 0 else f"{self.kind.value}{self.number}"

    def stream(self, name: str) -> str:
        """Name of the changed stream; a change that this one undoes or overrides is not part of it."""
        if self.kind is ChangeKind.SET:
            return f"{changes_of(name)[0]}{self.label}"
        undone = f"+{-self.number}"
        return name.removesuffix(undone) if self.number < 0 and name.endswith(undone) else f"{name}{self.label}"

    def length(self, length: int) -> int:
        """New length of a sequence [tokens]; an empty one stays empty."""
        if length == 0:
            return 0
        if self.kind is ChangeKind.LONGER:
            return max(length + self.number, 0)
        return -(-length // self.number) if self.kind is ChangeKind.SHORTER else self.number

    def lengths(self, lengths: Lengths) -> Lengths:
        """``length`` of many: int64[num_sequences]."""
        if self.kind is ChangeKind.LONGER:
            return (lengths + self.number).clip(min=0) * (lengths > 0)
        if self.kind is ChangeKind.SHORTER:
            return -(-lengths // self.number)
        return self.number * (lengths > 0).astype(lengths.dtype)


_STEP = re.compile(r"[+\-/=]\d+")


def changes_of(stream: str) -> tuple[str, tuple[Change, ...]]:
    """The stream that a derived stream is made of, and the changes in order; a plain stream has none.

    Args:
        stream: a name without symbols' endings, e.g. ``audio/2``.
    """
    base = re.split(r"[+\-/=]", stream, maxsplit=1)[0]
    steps = []
    for label in _STEP.findall(stream[len(base) :]):
        sign, number = label[0], int(label[1:])
        steps.append(Change.longer(-number) if sign == "-" else Change(ChangeKind(sign), number))
    return base, tuple(steps)


def derived_in(symbols: Iterable[str]) -> tuple[str, ...]:
    """The derived streams that sizes depend on, in order of their names.

    Args:
        symbols: names that sizes use, e.g. ``vision+1.shard``, ``vision=1*vision.llm.pairs``.
    """
    named = {stream for symbol in symbols for stream in symbol.split("~")[0].split(".")[0].split("*")}
    return tuple(sorted(stream for stream in named if changes_of(stream)[1]))


def changed(x: Tensor, change: Change) -> Sequences:
    """Packing of the tokens of ``x`` [tokens, ...] after a change.

    Raises:
        GraphError: concrete sequences of unknown lengths, whose new lengths are unknown too.
    """
    where, packing = x.trace.path, x.sequences
    if packing is None:
        tokens = x.shape[0]
        if not isinstance(tokens, int):
            if change.kind is not ChangeKind.SHORTER:
                raise GraphError("tokens without a packing", where=where, expected="a data stream", got=tokens)
            tokens = divide(tokens, change.number, "a sequence", where)
        else:
            tokens = change.length(tokens)
        return Sequences(change.stream("tokens"), tokens, tokens * tokens, 1, tokens)
    stream = change.stream(packing.stream)
    if isinstance(packing.tokens, Poly):
        return renamed(packing, stream)
    if packing.length is not None:
        length = change.length(packing.length) if isinstance(packing.length, int) else packing.length
        count = packing.count
        return replace(packing, stream=stream, tokens=count * length, pairs=count * length * length, length=length)
    if change.kind is ChangeKind.LONGER:
        more, count = change.number, packing.count
        pairs = packing.pairs + 2 * more * packing.tokens + more * more * count
        return replace(packing, stream=stream, tokens=packing.tokens + more * count, pairs=pairs)
    raise GraphError("sequences of unknown lengths", where=where, expected="a data stream", got=packing.stream)


def renamed(packing: Sequences, stream: str) -> Sequences:
    """A symbolic packing in another stream's symbols, sequence by sequence."""
    old, new = f"{packing.stream}.", f"{stream}."

    def _other(dim: Dim) -> Dim:
        if not isinstance(dim, Poly):
            return dim
        return Poly(
            {
                tuple(sorted(new + name.removeprefix(old) if name.startswith(old) else name for name in term)): count
                for term, count in dim.terms.items()
            }
        )

    length = _other(packing.length) if packing.length is not None else None
    tokens, pairs, count = _other(packing.tokens), _other(packing.pairs), _other(packing.count)
    return replace(packing, stream=stream, tokens=tokens, pairs=pairs, count=count, length=length)
