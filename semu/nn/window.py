"""``Window``: attention of limited reach, and the number of query-key pairs that it leaves.

Pairs are counted as an area, half by the mask ``i - j <= w`` and half by ``i - j < w``: a causal mask halves them, as
it halves the whole square. They are no polynomial in the length: for each window in use a batch provides a column, the
symbol ``STREAM.pairs@LABEL`` (e.g. ``text.pairs@sliding4096``).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_integer
from semu.errors import ConfigError, GraphError
from semu.graph.dim import Dim, Poly
from semu.records import dataclass

Lengths: TypeAlias = NDArray[np.int64]

MARK = "@"
"""Between ``STREAM.pairs`` and the window's label."""


class WindowKind(Enum):
    """How a window lies on the sequence.

    SLIDING: a token and those less than ``size`` away, in the past where causal (Longformer, 2004.05150 §3.1; Mistral,
    2310.06825 §2). CHUNKED: the sequence is cut into pieces of ``size`` tokens that do not see one another (Llama 4;
    the windows of Qwen2.5-VL's encoder, 2502.13923 §2.1.1, in the order of its tokens).
    """

    SLIDING = "sliding"
    CHUNKED = "chunked"


@dataclass(frozen=True)
class Window:
    """A window over tokens.

    Attributes:
        kind: how it lies. size: reach of a sliding window, length of a chunk [tokens], >= 1.
    Raises:
        ConfigError: a size below 1.
    """

    kind: WindowKind
    size: int

    def __post_init__(self) -> None:
        check_integer(self.size, "window.size", "the size of a window")

    @classmethod
    def sliding(cls, size: int) -> Window:
        """A sliding window. ``size``: [tokens]."""
        return cls(WindowKind.SLIDING, size)

    @classmethod
    def chunked(cls, size: int) -> Window:
        """Pieces of the sequence. ``size``: [tokens]."""
        return cls(WindowKind.CHUNKED, size)

    @property
    def label(self) -> str:
        """``sliding4096``: the window in the names of symbols."""
        return f"{self.kind.value}{self.size}"

    @classmethod
    def from_label(cls, label: str) -> Window:
        """The window of a label."""
        for kind in WindowKind:
            if label.startswith(kind.value) and label[len(kind.value) :].isdecimal():
                return cls(kind, int(label[len(kind.value) :]))
        raise ConfigError("not a window", where="window", expected="e.g. sliding4096 or chunked64", got=label)

    def pairs(self, length: int) -> int:
        """Pairs of one sequence, both directions: sliding 2 L w - w^2 where L > w, chunked w^2 a chunk, else L^2.

        Args:
            length: L [tokens].
        """
        if length <= self.size:
            return length**2
        if self.kind is WindowKind.SLIDING:
            return (2 * length - self.size) * self.size
        return length // self.size * self.size**2 + (length % self.size) ** 2

    def pairs_of(self, lengths: Lengths) -> Lengths:
        """``pairs`` of many sequences: int64[num_sequences]."""
        inside = np.minimum(lengths, self.size)
        if self.kind is WindowKind.SLIDING:
            return (2 * lengths - inside) * inside
        return lengths // self.size * self.size**2 + (lengths % self.size) ** 2

    def of(self, pairs: Dim, where: str) -> Dim:
        """The symbol of the pairs inside the window.

        Args:
            pairs: all pairs of a stream's sequences. where: path, for the error.
        Raises:
            GraphError: ``pairs`` is not the symbol of a stream.
        """
        if isinstance(pairs, Poly) and len(pairs.terms) == 1:
            ((monomial, count),) = pairs.terms.items()
            if count == 1 and len(monomial) == 1 and monomial[0].endswith(".pairs") and "*" not in monomial[0]:
                return Poly.symbol(f"{monomial[0]}{MARK}{self.label}")
        raise GraphError(
            f"the window {self.label} over sequences of unknown lengths",
            where=where,
            expected="sequences of a data stream, or of one length",
            got=pairs,
        )


def windows_in(symbols: Iterable[str]) -> dict[str, tuple[Window, ...]]:
    """The windows that sizes depend on.

    Args:
        symbols: names that sizes use.
    Returns:
        Stream, or ``STREAM.MODULE`` of a module that spreads its sequences -> windows, in order of their labels.
    """
    found: dict[str, list[Window]] = {}
    for name in sorted(symbols):
        prefix, mark, label = name.partition(f".pairs{MARK}")
        if mark:
            found.setdefault(prefix, []).append(Window.from_label(label))
    return {prefix: tuple(windows) for prefix, windows in found.items()}
