"""Names of the sizes that masked kernels depend on: ``text.tiles#multimodal+sliding4096;32;0;all``.

Tiles of a mask are no polynomial of lengths. A trace names what a kernel needs, a batch provides the numbers: for every
context rank, as they hold different tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semu.graph.dim import Dim, Poly
from semu.nn.window import Window

TILE_EDGE = 128
"""Queries and keys of a tile that kernels compute, or skip under a mask."""
FULL = "full"
"""Label of attention without any mask."""
MARK = "#"
GATHERED, WHOLE = "all", "one"
"""Scopes: all keys in order, by the queries of one context rank; all keys by all queries. Another is a ring's step."""
FIELDS = ("pairs", "tiles", "partial", "keys", "parts", "span", "column_span")


@dataclass(frozen=True, order=True)
class MaskedKernel:
    """A kernel over part of a mask.

    Attributes:
        stream: whose sequences. mask: a ``MaskKind``'s word, ``full``, or ``file``. window: label of one; empty: none.
        heads: heads of the kernel. split: parts of a row's keys (``parallel.attention_split``), 0: rows are whole.
        scope: which queries with which keys; a number: those of the rank so many before on the ring.
    """

    stream: str
    mask: str
    window: str
    heads: int
    split: int
    scope: str

    def size(self, field: str) -> Dim:
        """The symbol of one of ``FIELDS``.

        pairs: allowed pairs. tiles: tiles with any. partial: of which some pairs are masked. keys: keys in tiles that
        are read. parts: parts of rows. span, column_span: tiles until the last multiprocessor is done, if rows or
        columns are taken in order; over all heads.
        """
        label = f"{self.mask}+{self.window}" if self.window else self.mask
        return Poly.symbol(f"{self.stream}.{field}{MARK}{label};{self.heads};{self.split};{self.scope}")

    @classmethod
    def of_symbol(cls, name: str) -> MaskedKernel | None:
        """The kernel that a symbol is of; None: it is another symbol."""
        head, mark, rest = name.partition(MARK)
        if not mark:
            return None
        label, heads, split, scope = rest.split(";")
        mask, _, window = label.partition("+")
        return cls(head.partition(".")[0], mask, window, int(heads), int(split), scope)

    @property
    def reach(self) -> Window | None:
        """Its window."""
        return Window.from_label(self.window) if self.window else None


@dataclass(frozen=True)
class Masking:
    """What a trace must know of masks.

    Attributes:
        mask: of causal attention over the stream ``text``: a ``MaskKind``'s word, or ``file``.
        balance: policy that spreads the text over context ranks, see ``semu.parallel.context.Balance``.
        split: parts of a row's keys. by_head: gathered keys and values travel head by head, under the kernels.
        query_heads: they are repeated to all query heads before they travel.
    """

    mask: str = "causal"
    balance: str = "zigzag"
    split: int = 0
    by_head: bool = False
    query_heads: bool = False

    def counts(self, stream: str, *, causal: bool, window: Window | None, ranks: int) -> bool:
        """Whether tiles are counted for an attention, as no formula over lengths says what its ranks do."""
        is_text = stream == "text" and causal
        if is_text and self.mask != "causal":
            return True
        if ranks == 1:
            return is_text and self.split > 0
        moved = self.balance != "zigzag" or self.split > 0 or self.by_head or self.query_heads
        return window is not None or (is_text and moved)

    def label(self, stream: str, *, causal: bool) -> str:
        """The mask of an attention."""
        if not causal:
            return FULL
        return self.mask if stream == "text" else "causal"


def masked_in(symbols: Iterable[str]) -> tuple[MaskedKernel, ...]:
    """The masked kernels that sizes depend on, in order."""
    return tuple(sorted({kernel for name in symbols if (kernel := MaskedKernel.of_symbol(name)) is not None}))
