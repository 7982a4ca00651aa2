"""``Number``: a value with its provenance, and the worst of some provenances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from semu.checks import check_number
from semu.errors import ConfigError
from semu.hardware.kinds import Provenance
from semu.records import dataclass


@contextmanager
def located(where: str, separator: str = ".") -> Iterator[None]:
    """Put ``where`` and a separator in front of the place that a ConfigError raised inside names."""
    try:
        yield
    except ConfigError as error:
        error.where = where if error.where is None else f"{where}{separator}{error.where}"
        raise


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
