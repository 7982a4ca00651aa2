"""Sizes that are a share of another size, rounded up: ``rounded``, and their values for many shapes.

A polynomial cannot round, so such a size is a symbol whose name is its formula: ``text.shard~16*5/4~1~1/1`` is
16 x ``text.shard`` x 5/4, rounded up to a multiple of 1, with the share 1/1 on the mean rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from semu.errors import GraphError
from semu.graph.dim import Dim, Poly

_MARK = "~"


def rounded(dim: Dim, share: Fraction, *, mean: Fraction, step: int = 1, where: str) -> Dim:
    """``step x ceil(dim x share / step)``, exactly.

    Args:
        dim: a number, or a multiple of one symbol. share: of it, on the rank that decides times and memory.
        mean: the share on the mean rank, for sums over all ranks. step: what the result is a multiple of.
        where: path, for the error.
    Raises:
        GraphError: a size of several symbols.
    """
    if share == mean == step == 1:
        return dim
    if not isinstance(dim, Poly):
        return _ceil(dim * share, step)
    if len(dim.terms) != 1 or len(next(iter(dim.terms))) != 1:
        raise GraphError("a share of a sum", where=where, expected="tokens of one stream", got=dim)
    ((symbol,), coefficient) = next(iter(dim.terms.items()))
    return Poly.symbol(
        f"{symbol}{_MARK}{coefficient}*{share.numerator}/{share.denominator}{_MARK}{step}"
        f"{_MARK}{mean.numerator}/{mean.denominator}"
    )


def with_rounded(
    columns: Mapping[str, NDArray[np.int64]], symbols: Iterable[str], *, mean: bool = False
) -> dict[str, NDArray[np.int64]]:
    """The columns, and those of the rounded sizes among ``symbols``.

    Args:
        columns: symbol -> int64[num_shapes]. symbols: names that sizes use.
        mean: the values of the mean rank instead of those of the rank that decides.
    """
    result = dict(columns)
    for name in symbols:
        if _MARK not in name:
            continue
        symbol, product, step, share_of_mean = name.split(_MARK)
        coefficient, _, share = product.partition("*")
        chosen = Fraction(share_of_mean if mean else share)
        top, bottom = int(coefficient) * chosen.numerator, chosen.denominator * int(step)
        result[name] = -(-(columns[symbol] * top) // bottom) * int(step)
    return result


def _ceil(value: Fraction | int, step: int) -> int:
    return -int(-value // step) * step
