"""Values of a graph's symbols, checked at the door."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.graph.dim import symbols_of
from semu.graph.graph import Graph

LARGEST = 1 << 40
"""No size is larger: products of a few such sizes stay below 2^63 only for far smaller ones, but a trillion tokens is
a slip of the pen."""


def check_sizes(name: str, values: object) -> NDArray[np.int64]:
    """Values of one symbol: int64[num_shapes].

    Raises:
        ConfigError: not integers >= 0 in one row.
    """
    try:
        column = np.asarray(values)
    except ValueError:
        column = np.array("")
    if (
        column.ndim != 1
        or not np.issubdtype(column.dtype, np.integer)
        or (column < 0).any()
        or (column > LARGEST).any()
    ):
        raise ConfigError(
            f"not values of the symbol {name}",
            where=f"shapes[{name!r}]",
            expected=f"integers from 0 to {LARGEST}, in one row",
            got=repr(values),
        )
    return column.astype(np.int64)


def check_symbols(graph: Graph, given: Collection[str]) -> None:
    """Every symbol of the graph must have a value.

    Raises:
        ConfigError: one has none.
    """
    used: set[str] = set()
    for storage in graph.storages:
        used |= symbols_of(storage.size_bytes)
    for operator in graph.operators:
        for dim in (operator.flop, operator.mem_bytes, operator.net_bytes, *operator.key):
            used |= symbols_of(dim)
    missing = sorted(used - set(given))
    if missing:
        raise ConfigError(
            f"no value for the symbol {missing[0]}",
            where="shapes",
            expected=", ".join(sorted(used)),
            got=", ".join(sorted(given)) or "none",
        )
