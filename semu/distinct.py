"""``sorted_distinct``: the distinct numbers of an array."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

N = TypeVar("N", bound=np.generic)


def sorted_distinct(numbers: NDArray[N]) -> NDArray[N]:
    """The distinct numbers of an array, ascending: as ``numpy.unique``, which imports ``numpy.ma`` to ask whether any
    is masked; that takes as long as a quarter of importing numpy.

    Args:
        numbers: of any shape; none is nan.
    Returns:
        One axis.
    """
    ordered: NDArray[Any] = np.sort(numbers, axis=None)
    is_new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]
