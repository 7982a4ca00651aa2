"""``Number``: a value with its provenance, and the checks that every number of a profile passes at the door."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from semu.errors import ConfigError
from semu.hardware.kinds import Provenance


@contextmanager
def located(where: str, separator: str = ".") -> Iterator[None]:
    """Put ``where`` and a separator in front of the place that a ConfigError raised inside names."""
    try:
        yield
    except ConfigError as error:
        error.where = where if error.where is None else f"{where}{separator}{error.where}"
        raise


def check_number(value: object, where: str, *, minimum: float = 0.0, is_infinite_ok: bool = False) -> float:
    """A finite float >= ``minimum``, or a ConfigError that names ``where``.

    Args:
        value: what came, from a file or a caller; bool is refused.
        where: place of the number.
        minimum: smallest legal value.
        is_infinite_ok: accept +infinity.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError("not a number", where=where, expected="a number", got=repr(value))
    number = float(value)
    is_finite = math.isfinite(number) or (is_infinite_ok and number == math.inf)
    if not is_finite:
        raise ConfigError("not a finite number", where=where, expected="a finite number", got=number)
    if number < minimum:
        raise ConfigError(
            "number too small", where=where, expected=f"a number >= {minimum:g}", got=number, nearest=minimum
        )
    return number


def check_positive(value: object, where: str) -> float:
    """A finite float > 0, or a ConfigError that names ``where``."""
    number = check_number(value, where)
    if number == 0.0:
        raise ConfigError("must be greater than zero", where=where, expected="a number > 0", got=number)
    return number


def check_efficiency(value: object, where: str) -> float:
    """A float in (0, 1], or a ConfigError that names ``where``."""
    number = check_positive(value, where)
    if number > 1.0:
        raise ConfigError(
            "efficiency above the peak", where=where, expected="a number in (0, 1]", got=number, nearest=1.0
        )
    return number


def p_norm(a: Any, b: Any, p: float) -> Any:
    """(a^p + b^p)^(1/p), the soft maximum of two times: their sum at p = 1, the longer one at p = infinity.

    Args:
        a, b: >= 0, numbers or arrays that broadcast. p: >= 1.
    """
    longer, shorter = np.maximum(a, b), np.minimum(a, b)
    if np.isinf(p):
        return longer
    return longer * (1.0 + (shorter / (longer + (longer == 0.0))) ** p) ** (1.0 / p)


def worst_provenance(*provenances: Provenance) -> Provenance:
    """The least trustworthy of some provenances (``Provenance`` lists them best first)."""
    order = list(Provenance)
    return max(provenances, key=order.index)


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a profile.

    Attributes:
        value: in SI units (the key's name says which), finite and >= 0; infinity only for a p-norm.
        provenance: how trustworthy.
        source: from where, in words; not empty.
        relative_error: mean absolute relative error of what it was fitted on, None where nothing was compared.
    Raises:
        ConfigError: negative or NaN value or error, empty source.
    """

    value: float
    provenance: Provenance
    source: str
    relative_error: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_number(self.value, "value", is_infinite_ok=True))
        if not self.source:
            raise ConfigError("a number without a source", where="source", expected="words", got="''")
        if self.relative_error is not None:
            object.__setattr__(self, "relative_error", check_number(self.relative_error, "relative_error"))
