"""Checks of numbers, names and shapes, for every door of semu.

Each check returns the value that it was given, of the type that it says, or raises an error of one form: what was
expected, what came, where, and the nearest legal value. ``where`` is the value's place: a dotted key, a field's path.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, ScheduleError, SemuError, unknown_name

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)

LARGEST_COUNT = 2**31 - 1
"""Largest number of items or tokens that files and batches may name: its square still fits into 64 bits."""
MOST_LAYERS = 1 << 14
"""Layers of a model: each is a module that is made."""


# -- numbers -----------------------------------------------------------------------------------------------------------
def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is an integer or a float, NaN and infinity included; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_integer(
    value: object,
    where: str | None,
    what: str = "a valid number",
    *,
    least: int = 1,
    most: int | None = None,
    error: type[SemuError] = ConfigError,
) -> int:
    """An integer from least to most; most None: without an upper limit.

    Args:
        what: what the message calls the value: "not a valid number". error: class of the error.
    Raises:
        ConfigError, or ``error``: something else; the nearest legal value is the limit that was passed.
    """
    if is_integer(value) and least <= value and (most is None or value <= most):
        return value
    is_above = most is not None and is_integer(value) and value > most
    raise error(
        f"not {what}",
        where=where,
        expected=f"an integer from {least} to {most}" if is_above else f"an integer >= {least}",
        got=value,
        nearest=most if is_above else least,
    )


def check_count(value: object, where: str, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
    """A number of items that a batch may have: an integer from least to most.

    Raises:
        ConfigError: something else.
    """
    return check_integer(value, where, least=least, most=most)


def check_seed(value: object, where: str) -> int:
    """An integer >= 0, below 2^64.

    Raises:
        ConfigError: something else.
    """
    return check_integer(value, where, least=0, most=2**64 - 1)


def check_number(
    value: object,
    where: str | None,
    what: str = "a number in range",
    *,
    least: float = 0.0,
    most: float = math.inf,
    is_above: bool = False,
    is_infinite_ok: bool = False,
    nearest: float | None = None,
) -> float:
    """A finite number from least to most.

    Args:
        what: what the message calls the value. is_above: the value must be greater than ``least``.
        is_infinite_ok: infinity is legal. nearest: what the message suggests for a value that is too small; None:
            ``least``, where it is legal.
    Raises:
        ConfigError: something else, NaN included.
    """
    highest = min(most, math.inf if is_infinite_ok else sys.float_info.max)  # an integer beyond it is no float
    if is_number(value) and least <= value <= highest and not (is_above and value == least):
        return float(value)
    if is_number(value) and value > highest:
        nearest = most if most < math.inf else None
    elif nearest is None and not is_above:
        nearest = least
    bounds = f"{'>' if is_above else '>='} {least:g}" + (f", at most {most:g}" if most < math.inf else "")
    kind = "a number" if most < math.inf or is_infinite_ok else "a finite number"
    raise ConfigError(f"not {what}", where=where, expected=f"{kind} {bounds}", got=value, nearest=nearest)


def check_efficiency(value: object, where: str) -> float:
    """A share of a peak, in (0, 1].

    Raises:
        ConfigError: something else.
    """
    return check_number(value, where, "an efficiency", most=1.0, is_above=True)


def check_probability(value: float, where: str) -> None:
    """A probability below 1, as of dropout.

    Raises:
        ConfigError: something else.
    """
    if not 0 <= value < 1:
        raise ConfigError("not a probability", where=where, expected="0 <= p < 1", got=value, nearest=0)


def check_switch(value: object, where: str) -> bool:
    """True or false.

    Raises:
        ConfigError: something else.
    """
    if not isinstance(value, bool):
        raise ConfigError("not a switch", where=where, expected="true or false", got=value)
    return value


# -- names -------------------------------------------------------------------------------------------------------------
def check_word(value: object, legal: Iterable[str], what: str, where: str | None) -> str:
    """One of the legal words.

    Args:
        what: what the words are, for the message: "unknown schedule 'x'".
    Raises:
        ConfigError: another, with a 'did you mean'.
    """
    words = list(legal)
    if not isinstance(value, str) or value not in words:
        raise unknown_name(what, str(value), words, where=where)
    return value


def check_member(value: object, kind: type[_E], where: str, what: str | None = None) -> _E:
    """A member of an enum, or the value of one; ``what`` as for ``check_word``, None: the last part of ``where``.

    Raises:
        ConfigError: another value, with a 'did you mean'.
    """
    if isinstance(value, kind):
        return value
    words = [str(member.value) for member in kind]
    return kind(check_word(value, words, where.rpartition(".")[2] if what is None else what, where))


def find_named(kind: str, name: str, entries: Mapping[str, _T], *, where: str | None = None) -> _T:
    """The entry of a name, in any spelling; ``kind``: what the entries are, for the message.

    Raises:
        ConfigError: an unknown name, with a 'did you mean'.
    """
    spelt = known_spelling(name, entries)
    if spelt is None:
        raise unknown_name(kind, name, entries, where=where)
    return entries[spelt]


def known_spelling(name: str, entries: Collection[str]) -> str | None:
    """The one of some names that differs from a name only in case, hyphens, underscores, dots and blanks, itself
    first; None: none does."""
    if name in entries:
        return name
    wanted = _letters(name)
    return next((entry for entry in entries if _letters(entry) == wanted), None)


def _letters(name: str) -> str:
    return re.sub(r"[-_. ]", "", name.lower())


def check_text(value: object, where: str) -> str:
    """A text, of characters that a file can hold.

    Raises:
        ScheduleError: something else.
    """
    if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ScheduleError("not a text", where=where, expected="a text", got=repr(value))
    return value


# -- fields of a configuration -----------------------------------------------------------------------------------------
def check_sizes(config: Any, *names: str, zero: Collection[str] = (), where: str = "") -> None:
    """Sizes of a configuration must be integers from 1 to 2^31 - 1 (``layers``: ``MOST_LAYERS``), or None where the
    field's type allows it.

    Args:
        config: a dataclass. names: of its sizes; none: all fields of type ``int`` and ``int | None``.
        zero: fields that may be 0. where: place of the configuration; empty: its class.
    Raises:
        ConfigError: one is not.
    """
    for item in fields(config):
        value = getattr(config, item.name)
        is_size = item.name in names if names else item.type in (int, "int", "int | None")
        if is_size and not (item.type == "int | None" and value is None):
            least = 0 if item.name in zero else 1
            most = MOST_LAYERS if item.name == "layers" else LARGEST_COUNT
            check_integer(value, f"{where or type(config).__name__}.{item.name}", "a size", least=least, most=most)


def nearest_divisor(total: int, near: int) -> int:
    """The divisor of ``total`` next to a number, the smaller of two; 1 where there is none within 10,000."""
    around = (n for away in range(10_000) for n in (near - away, near + away) if 1 <= n <= total)
    return next((n for n in around if total % n == 0), 1)


def check_divides(config: Any, whole: str, parts: str, where: str = "") -> None:
    """Field ``whole`` must be a multiple of field ``parts``; ``where`` as for ``check_sizes``.

    Raises:
        ConfigError: it is not; the nearest legal value is the nearest divisor of ``whole``.
    """
    total, count = getattr(config, whole), getattr(config, parts)
    if total % count:
        raise ConfigError(
            f"{whole} = {total} does not divide into {parts} = {count}",
            where=f"{where or type(config).__name__}.{parts}",
            expected=f"a divisor of {total}",
            got=count,
            nearest=nearest_divisor(total, count),
        )


def check_resolution(value: object, where: str) -> tuple[int, int]:
    """(height, width) [px]: a pair of integers from 1 to 65536.

    Raises:
        ConfigError: something else.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError("not a resolution", where=where, expected="[height, width] in pixels", got=value)
    return check_count(value[0], where, most=1 << 16), check_count(value[1], where, most=1 << 16)


# -- arrays ------------------------------------------------------------------------------------------------------------
def check_integers(
    value: object,
    kind: type[np.signedinteger[Any]],
    where: str,
    shape: Sequence[int | None],
    least: int = 0,
    most: int | None = None,
) -> NDArray[Any]:
    """An array of integers >= least.

    Args:
        kind: type of the result. shape: None: any length. most: None: the largest integer of the type.
    Raises:
        ScheduleError: numbers that are not whole, another shape, a number out of range: the first is named.
    """
    array = _array(value, where, shape)
    if array.size == 0 and array.dtype.kind == "f" and len(shape) == array.ndim:
        array = array.astype(kind)
    if array.dtype.kind not in "iu":
        raise ScheduleError("not whole numbers", where=where, expected=_shape_text(shape), got=_type_text(array))
    check_shape(array, shape, where)
    check_range(array, where, least, int(np.iinfo(kind).max) if most is None else most)
    return array.astype(kind)


def check_int32(value: object, where: str, least: int = 0) -> int:
    """One integer >= least that an int32 holds; one of numpy as well.

    Raises:
        ScheduleError: something else.
    """
    plain = int(value) if isinstance(value, np.integer) else value
    found = check_integer(plain, where, least=least, error=ScheduleError)
    check_range(np.array(found), where, least, int(np.iinfo(np.int32).max))
    return found


def check_times(value: object, where: str, shape: Sequence[int | None]) -> NDArray[np.float64]:
    """An array of times >= 0 [s].

    Raises:
        ScheduleError: something else; the first number that is no time is named.
    """
    array = _array(value, where, shape)
    if array.dtype.kind not in "fiu":
        raise ScheduleError("not times", where=where, expected=_shape_text(shape), got=_type_text(array))
    check_shape(array, shape, where)
    times: NDArray[np.float64] = array.astype(np.float64)
    bad = np.argwhere(~np.isfinite(times) | (times < 0))
    if len(bad):
        got = times[tuple(bad[0])]
        raise ScheduleError("not a time", where=_item(where, bad[0]), expected="a finite number >= 0", got=got)
    return times


def check_shape(array: NDArray[Any], shape: Sequence[int | None], where: str) -> None:
    """An array must have a shape; None: any length.

    Raises:
        ScheduleError: another shape.
    """
    sizes = zip(shape, array.shape, strict=False)
    if len(shape) != array.ndim or any(want is not None and want != size for want, size in sizes):
        raise ScheduleError(
            "an array of another shape", where=where, expected=_shape_text(shape), got=_sizes_text(array.shape)
        )


def check_range(array: NDArray[Any], where: str, least: int, most: int) -> None:
    """All numbers of an array must lie from least to most.

    Raises:
        ScheduleError: some do not; the first is named.
    """
    if array.size and (array.min() < least or array.max() > most):
        at = np.argwhere((array < least) | (array > most))[0]
        got = int(array[tuple(at)])
        raise ScheduleError(
            "out of range",
            where=_item(where, at),
            expected=f"{least} to {most}" if most >= least else "nothing: there are none",
            got=got,
            nearest=min(max(got, least), most) if most >= least else None,
        )


def _array(value: object, where: str, shape: Sequence[int | None]) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise ScheduleError("not a table of numbers", where=where, expected=_shape_text(shape)) from error


def _item(where: str, index: NDArray[np.integer]) -> str:
    return where + "".join(f"[{number}]" for number in index.tolist())


def _shape_text(shape: Sequence[int | None]) -> str:
    return "numbers, " + _sizes_text(["n" if size is None else size for size in shape])


def _sizes_text(shape: Sequence[object]) -> str:
    return " x ".join(map(str, shape)) or "one"


def _type_text(array: NDArray[Any]) -> str:
    return f"{_sizes_text(array.shape)} of {array.dtype.name}"
