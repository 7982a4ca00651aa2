"""Names of the sizes that masked kernels depend on: ``text.tiles#multimodal+sliding4096;32;0;all``.

Tiles of a mask are no polynomial of lengths. A trace names what a kernel needs, a batch provides the numbers: for every
context rank, as they hold different tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from semu.graph.dim import Dim, Poly
from semu.nn.window import Window
from semu.records import dataclass

TILE_EDGE = 128
"""Queries and keys of a tile that kernels compute, or skip under a mask."""
FULL = "full"
"""Label of attention without any mask."""
MARK = "#"
GATHERED, WHOLE, OWN, OTHERS = "all", "one", "own", "others"
"""Scopes: all keys in order, by the queries of one context rank; all keys by all queries; a rank's queries with its own
keys, and with those of all other ranks. Another is a ring's step, or step/size of a ring between groups of ranks.
Behind it may stand ``:4``: only of stretches of text that lie on groups of four ranks, in which keys travel."""
WIDTH = ":"
"""Before the ranks of a group, in scopes and gates."""
FIELDS = ("pairs", "tiles", "partial", "keys", "parts", "span", "column_span")
TRAFFIC = ("near", "far", "near_in", "far_in", "near_out", "far_out", "merged")
"""Further sizes of the scope ``others``."""
GATE = "@"
"""``text.shard@ring``: tokens of a rank where the exchange is a ring, else 0 (``ContextKind.AUTO``);
``text.shard@ring:4``: only those in stretches of text that lie on groups of four ranks."""


@dataclass(frozen=True, order=True)
class MaskedKernel:
    """A kernel over part of a mask.

    Attributes:
        stream: whose sequences. mask: a ``MaskKind``'s word, ``full``, or ``file``. window: label of one; empty: none.
        heads: heads of the kernel. split: parts of a row's keys (``parallel.attention_split``), 0: rows are whole.
        scope: which queries with which keys; a number: those of the rank so many before on the ring; ``1/2``: those of
            the group of two ranks one before; ``1:4``: on the ring of a group of four, of what lies on such groups.
    """

    stream: str
    mask: str
    window: str
    heads: int
    split: int
    scope: str

    def size(self, field: str) -> Dim:
        """The symbol of one of ``FIELDS`` or ``TRAFFIC``.

        pairs: allowed pairs. tiles: tiles with any. partial: of which some pairs are masked. keys: keys in tiles that
        are read. parts: parts of rows. span, column_span: tiles until the last multiprocessor is done, if rows or
        columns are taken in order; over all heads. near, far: tokens whose keys cross a rank's ports to ranks of its
        node and of others, the larger of in and out; near_in and so on: each. merged: queries that read keys of other
        ranks.
        """
        return Poly.symbol(self.symbol(field))

    def symbol(self, field: str) -> str:
        """The name of ``size``."""
        label = f"{self.mask}+{self.window}" if self.window else self.mask
        return f"{self.stream}.{field}{MARK}{label};{self.heads};{self.split};{self.scope}"

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
    def step(self) -> tuple[int, int]:
        """Of a ring: how many groups before the keys come from, and ranks of a group."""
        step, _, size = self._keys.partition("/")
        return int(step), int(size or 1)

    @property
    def is_gathered(self) -> bool:
        """Whether all keys, or all of a group of ranks, are there in order."""
        return self._keys == GATHERED

    @property
    def width(self) -> int:
        """Ranks of the groups whose stretches of text it works on; 0: it works on all."""
        return int(self.scope.partition(WIDTH)[2] or 0)

    @property
    def _keys(self) -> str:
        """The scope without the width."""
        return self.scope.partition(WIDTH)[0]

    @property
    def exchange(self) -> str:
        """The ``ContextKind`` under which it runs; empty: any that gives a rank all tokens."""
        return {GATHERED: "all_gather", WHOLE: "", OWN: "needed", OTHERS: "needed"}.get(self._keys, "ring")

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
        query_heads: they are repeated to all query heads before they travel. sends_tiles: see ``ContextKind``.
    """

    mask: str = "causal"
    balance: str = "zigzag"
    split: int = 0
    by_head: bool = False
    query_heads: bool = False
    sends_tiles: bool = False

    def counts(self, stream: str, *, causal: bool, window: Window | None, ranks: int) -> bool:
        """Whether tiles are counted for an attention, as no formula over lengths says what its ranks do."""
        is_text = stream == "text" and causal
        if is_text and self.mask != "causal":
            return True
        if ranks == 1:
            return is_text and self.split > 0
        moved = self.balance != "zigzag" or self.split > 0 or self.by_head or self.query_heads or self.sends_tiles
        return window is not None or (is_text and moved)

    def label(self, stream: str, *, causal: bool) -> str:
        """The mask of an attention."""
        if not causal:
            return FULL
        return self.mask if stream == "text" else "causal"


def gated(dim: Dim, stream: str, exchange: str) -> Dim:
    """A size of a rank's tokens that is 0 where another exchange is chosen."""
    name = f"{stream}.shard"
    if not isinstance(dim, Poly):
        return dim
    terms = {
        tuple(sorted(f"{part}{GATE}{exchange}" if part == name else part for part in monomial)): factor
        for monomial, factor in dim.terms.items()
    }
    return Poly(terms)


def is_held(symbol: str) -> bool:
    """Whether a size counts tokens that a rank stores: those that it holds or receives."""
    head = symbol.partition(GATE)[0].partition(MARK)[0]
    return head.endswith((".shard", "_in", "_out"))


def masked_in(symbols: Iterable[str]) -> tuple[MaskedKernel, ...]:
    """The masked kernels that sizes depend on, in order."""
    return tuple(sorted({kernel for name in symbols if (kernel := MaskedKernel.of_symbol(name)) is not None}))
