"""Checks of plan data at the door: whole numbers of a shape and a range. They do not say whether a plan is legal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ScheduleError

MOST_BYTES = 1 << 44
"""Of a message or a stage [bytes]; the sum of half a million of them is still an int64."""


def whole(
    value: object,
    kind: type[np.signedinteger[Any]],
    where: str,
    shape: Sequence[int | None],
    least: int = 0,
    most: int | None = None,
) -> NDArray[Any]:
    """An array of whole numbers >= least.

    Args:
        kind: type of the result. where: of the array, for messages. shape: None: any length. most: None: of the type.
    Raises:
        ScheduleError: numbers that are not whole, another shape, a number out of range: the first is named.
    """
    try:
        found = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise ScheduleError("not a table of numbers", where=where, expected=_said(shape)) from error
    if found.size == 0 and found.dtype.kind == "f" and len(shape) == found.ndim:
        found = found.astype(kind)
    if found.dtype.kind not in "iu":
        raise ScheduleError("not whole numbers", where=where, expected=_said(shape), got=_type_of(found))
    check_shape(found, shape, where)
    check_range(found, where, least, int(np.iinfo(kind).max) if most is None else most)
    return found.astype(kind)


def seconds(value: object, where: str, shape: Sequence[int | None]) -> NDArray[np.float64]:
    """An array of times >= 0 [s].

    Raises:
        ScheduleError: something else.
    """
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise ScheduleError("not a table of numbers", where=where, expected=_said(shape)) from error
    if found.dtype.kind not in "fiu":
        raise ScheduleError("not times", where=where, expected=_said(shape), got=_type_of(found))
    check_shape(found, shape, where)
    times: NDArray[np.float64] = found.astype(np.float64)
    bad = np.argwhere(~np.isfinite(times) | (times < 0))
    if len(bad):
        raise ScheduleError(
            "not a time", where=_at(where, bad[0]), expected="a finite number >= 0", got=times[tuple(bad[0])]
        )
    return times


def check_shape(found: NDArray[Any], shape: Sequence[int | None], where: str) -> None:
    """Refuse an array of another shape."""
    fits = len(shape) == found.ndim and all(
        size is None or size == its for size, its in zip(shape, found.shape, strict=True)
    )
    if not fits:
        raise ScheduleError("an array of another shape", where=where, expected=_said(shape), got=_sizes(found.shape))


def check_range(found: NDArray[Any], where: str, least: int, most: int) -> None:
    """Refuse numbers below ``least`` or above ``most``."""
    if found.size and (found.min() < least or found.max() > most):
        at = np.argwhere((found < least) | (found > most))[0]
        got = int(found[tuple(at)])
        raise ScheduleError(
            "out of range",
            where=_at(where, at),
            expected=f"{least} to {most}" if most >= least else "nothing: there are none",
            got=got,
            nearest=min(max(got, least), most) if most >= least else None,
        )


def count(value: object, where: str, least: int = 0) -> int:
    """One whole number >= least that an int32 holds.

    Raises:
        ScheduleError: something else.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ScheduleError("not a count", where=where, expected=f"an integer >= {least}", got=repr(value))
    check_range(np.array(value), where, least, int(np.iinfo(np.int32).max))
    return int(value)


def word(value: object, where: str) -> str:
    """A text, of characters that a file can hold.

    Raises:
        ScheduleError: something else.
    """
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ScheduleError("not a text", where=where, expected="a text", got=repr(value))
    return value


def _at(where: str, index: NDArray[np.integer]) -> str:
    return where + "".join(f"[{number}]" for number in index.tolist())


def _said(shape: Sequence[int | None]) -> str:
    return "numbers, " + _sizes(["n" if size is None else size for size in shape])


def _sizes(shape: Sequence[object]) -> str:
    return " x ".join(map(str, shape)) or "one"


def _type_of(found: NDArray[Any]) -> str:
    return f"{_sizes(found.shape)} of {found.dtype.name}"
