"""``ShapeFactors``: what operators' shapes add to their FLOP and bytes, for many shapes at once.

The formulas are those of ``semu.hardware.shape_terms``; this file finds the operators that they concern, reads their
shape keys and multiplies. Where no coefficient asks for it, nothing is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.graph.dim import DimTable
from semu.graph.operator import Operator
from semu.hardware.efficiency import Efficiency
from semu.hardware.kinds import OpKind
from semu.hardware.shape_terms import (
    attention_factor,
    cache_factor,
    has_fused_softmax,
    masked_factor,
    row_bytes_factor,
    tiled_flop,
)

ATTENTION_KEY = ("tokens", "key_tokens", "pairs", "heads", "kv_heads", "d", "d_v", "share")
"""Meaning of an attention operator's shape key; share is 2 where causal halves the pairs, else 1."""
MASKED_KEY = (*ATTENTION_KEY, "tiles", "partial", "span")
"""Meaning of the shape key of a kernel under a mask whose tiles are counted; pairs are those of its tiles."""
PRODUCT_KEY = ("m", "n", "k")
"""Meaning of a product's shape key."""
GROUPED_KEY = ("m", "n", "k", "split_m", "split_k")
"""Meaning of a grouped product's shape key: equal groups that split m or k."""
SCORES_KEY = ("tokens", "key_tokens", "pairs", "heads", "width", "is_scores")
"""Meaning of the shape key of a product over sequences and heads: its result is the scores [l, l'] of a sequence and
head, summed over ``width``, or [l, width], summed over the l' scores of a row."""
SOFTMAX_KEY = ("pairs", "tokens", "separate", "fused")
"""Meaning of the shape key of a softmax over rows of pairs / tokens scores: bytes of a score if separate, if fused."""
ROW_KEY = ("rows", "width")
"""Meaning of a row-wise operator's shape key."""

_ATTENTION = (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)
_PRODUCTS = (OpKind.MATMUL, OpKind.GROUPED_MATMUL)
_ROW_WISE = (OpKind.NORM, OpKind.SOFTMAX, OpKind.CROSS_ENTROPY)

Values = NDArray[np.float64]
_Formula = Callable[[Values, Mapping[str, Values]], Values]
"""Key [key_width, n, num_shapes] and coefficients [n, 1] by name -> factor [n, num_shapes]."""
SHAPE_COEFFICIENTS = (
    "s0_tokens",
    "tiles_at_once",
    "tile_k0",
    "tile_rest",
    "tile_128",
    "row0",
    "cached",
    "cache_bytes",
    "partial_tile",
)
"""Coefficients of ``Efficiency`` that the factors depend on."""


def used_positions(operator: Operator, efficiency: Efficiency) -> tuple[int, ...]:
    """Positions in an operator's shape key that its latency depends on, beyond its FLOP and bytes."""
    kind, width = operator.kind, len(operator.key)
    has_tail = efficiency.tiles_at_once > 0 and efficiency.tile_rest > 0
    if kind in _ATTENTION and width == len(MASKED_KEY):
        return (3, 8, 9, 10)
    if kind in _ATTENTION and width == len(ATTENTION_KEY) and (efficiency.s0_tokens or has_tail):
        return (0, 2, 3, 7)
    if kind in _PRODUCTS and efficiency.tiles_at_once:
        return tuple(range(width)) if width in (len(PRODUCT_KEY), len(GROUPED_KEY), len(SCORES_KEY)) else ()
    if kind is OpKind.SOFTMAX and width == len(SOFTMAX_KEY):
        return tuple(range(width))
    if kind in _ROW_WISE and width == len(ROW_KEY) and efficiency.row0:
        return (1,)
    return ()


class ShapeFactors:
    """Factors on FLOP and bytes of a library's operators.

    Args:
        operators: of the library. efficiencies: coefficients of each; None for communication.
    """

    def __init__(self, operators: Sequence[Operator], efficiencies: Sequence[Efficiency | None]) -> None:
        self._groups: list[_Group] = []
        in_cache = [
            (row, item.cache_bytes, item.cached)
            for row, (operator, item) in enumerate(zip(operators, efficiencies, strict=True))
            if item is not None and operator.kind in _ROW_WISE and item.cached > 1.0 and item.cache_bytes > 0
        ]
        self._in_cache = np.array([row for row, _, _ in in_cache], dtype=np.int64)
        self._cache = np.array([numbers for _, *numbers in in_cache], dtype=np.float64).reshape(-1, 2)
        rows: dict[tuple[_Formula, tuple[int, ...]], list[int]] = {}
        for row, (operator, efficiency) in enumerate(zip(operators, efficiencies, strict=True)):
            positions = () if efficiency is None else used_positions(operator, efficiency)
            if positions:
                rows.setdefault((_formula_of(operator), positions), []).append(row)
        for (formula, positions), chosen in rows.items():
            known = [efficiency for row in chosen if (efficiency := efficiencies[row]) is not None]
            self._groups.append(_Group(formula, positions, chosen, operators, known))

    def apply(
        self, flop: Values, mem_bytes: Values, symbols: Mapping[str, NDArray[np.int64]], wanted: NDArray[np.integer]
    ) -> tuple[Values, Values]:
        """FLOP and bytes with the factors in them; the arguments are left as they are.

        Args:
            flop, mem_bytes: float64[num_wanted, num_shapes]. symbols: values of every symbol.
            wanted: int[num_wanted], rows of the library, ascending.
        """
        if len(self._in_cache):
            _, place, number = np.intersect1d(wanted, self._in_cache, assume_unique=True, return_indices=True)
            size, rate = self._cache[number].T[:, :, None]
            mem_bytes = mem_bytes.copy()
            mem_bytes[place] *= cache_factor(mem_bytes[place], cache_bytes=size, cached=rate)
        for group in self._groups:
            _, place, number = np.intersect1d(wanted, group.rows, assume_unique=True, return_indices=True)
            if not len(place):
                continue
            factor = group.factor(number, symbols)
            if group.formula in (_row_factor, _softmax_factor):
                mem_bytes = mem_bytes.copy()
                mem_bytes[place] *= factor
            else:
                flop = flop.copy()
                flop[place] *= factor
        return flop, mem_bytes


class _Group:
    """Operators under one formula whose keys have one meaning."""

    def __init__(
        self,
        formula: _Formula,
        positions: tuple[int, ...],
        rows: Sequence[int],
        operators: Sequence[Operator],
        efficiencies: Sequence[Efficiency],
    ) -> None:
        self.formula = formula
        self.rows = np.array(rows)
        self._tables = [DimTable.build([operators[row].key[position] for row in rows]) for position in positions]
        self._numbers = {
            name: np.array([getattr(item, name) for item in efficiencies], dtype=np.float64)
            for name in SHAPE_COEFFICIENTS
        }

    def factor(self, number: NDArray[np.integer], symbols: Mapping[str, NDArray[np.int64]]) -> Values:
        """Factor of some of the group's operators: float64[n, num_shapes]."""
        num_shapes = len(next(iter(symbols.values()))) if symbols else 1
        key = np.empty((len(self._tables), len(number), num_shapes))
        for position, table in enumerate(self._tables):
            key[position] = table.select(number).evaluate(symbols)
        return self.formula(key, {name: values[number, None] for name, values in self._numbers.items()})


def _attention_factor(key: Values, numbers: Mapping[str, Values]) -> Values:
    tokens, pairs, heads, share = key
    factor: Values = attention_factor(
        np.maximum(tokens, 1.0),
        np.maximum(pairs, 1.0),
        heads,
        share,
        s0=numbers["s0_tokens"],
        tiles_at_once=numbers["tiles_at_once"],
        rest=numbers["tile_rest"],
    )
    return factor


def _masked_factor(key: Values, numbers: Mapping[str, Values]) -> Values:
    heads, tiles, partial, span = key
    factor: Values = masked_factor(
        np.maximum(tiles, 1.0),
        partial,
        np.maximum(span, 1.0),
        heads,
        tiles_at_once=numbers["tiles_at_once"],
        partial_tile=numbers["partial_tile"],
    )
    return factor


def _product_factor(key: Values, numbers: Mapping[str, Values], *, is_split: bool = True) -> Values:
    """``is_split``: m and k of grouped products are those of all groups together."""
    m, n, k = np.maximum(key[:3], 1.0)
    groups: Values | float = 1.0
    if len(key) == len(GROUPED_KEY):
        groups = key[3] * key[4]
        m, k = (m / key[3], k / key[4]) if is_split else (m, k)
    costs: Values = tiled_flop(
        m,
        n,
        k,
        tiles_at_once=numbers["tiles_at_once"],
        k0=numbers["tile_k0"],
        rest=numbers["tile_rest"],
        tile_128=numbers["tile_128"],
        groups=groups,
    )
    factor: Values = costs / (2.0 * groups * m * n * k)
    return factor


def _scores_factor(key: Values, numbers: Mapping[str, Values]) -> Values:
    tokens, others, pairs, heads = np.maximum(key[:4], 1.0)
    rows, scores, width = pairs / others, pairs / tokens, np.maximum(key[4], 1.0)
    is_scores, groups = key[5] > 0, heads * tokens * others / pairs
    sizes = (rows, np.where(is_scores, scores, width), np.where(is_scores, width, scores))
    return _product_factor(np.stack((*sizes, groups, np.ones_like(groups))), numbers, is_split=False)


def _softmax_factor(key: Values, numbers: Mapping[str, Values]) -> Values:
    pairs, tokens, separate, fused = key
    length = np.maximum(pairs, 1.0) / np.maximum(tokens, 1.0)
    kernels = np.where(has_fused_softmax(length), 1.0, separate / fused)
    factor: Values = kernels * row_bytes_factor(length, numbers["row0"])
    return factor


def _row_factor(key: Values, numbers: Mapping[str, Values]) -> Values:
    factor: Values = row_bytes_factor(np.maximum(key[0], 1.0), numbers["row0"])
    return factor


def _formula_of(operator: Operator) -> _Formula:
    """The formula of a kind, or of the meaning of its key."""
    by_width = {
        (OpKind.MATMUL, len(SCORES_KEY)): _scores_factor,
        (OpKind.SOFTMAX, len(SOFTMAX_KEY)): _softmax_factor,
        **{(kind, len(MASKED_KEY)): _masked_factor for kind in _ATTENTION},
    }
    return by_width.get((operator.kind, len(operator.key)), _FORMULAS[operator.kind])


_FORMULAS: Mapping[OpKind, _Formula] = {
    **dict.fromkeys(_ATTENTION, _attention_factor),
    **dict.fromkeys(_PRODUCTS, _product_factor),
    **dict.fromkeys(_ROW_WISE, _row_factor),
}
