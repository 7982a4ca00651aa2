"""Checks that configurations and lists share; each raises ConfigError with the place and the nearest value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from semu.errors import ConfigError, unknown_name

_T = TypeVar("_T")


def find_named(kind: str, name: str, entries: Mapping[str, _T], *, where: str | None = None) -> _T:
    """The entry of a name.

    Args:
        kind: what the entries are, for the error. name: one of ``entries``. where: place of the name, for the error.
    Raises:
        ConfigError: an unknown name, with a 'did you mean'.
    """
    if name not in entries:
        raise unknown_name(kind, name, entries, where=where)
    return entries[name]


def check_sizes(config: Any, zero: Collection[str] = ()) -> None:
    """Every size of a configuration must be an integer >= 1, or None where that is legal.

    Args:
        config: a dataclass; fields of other types than ``int`` and ``int | None`` are no sizes.
        zero: fields that may be 0.
    Raises:
        ConfigError: one is not.
    """
    for item in fields(config):
        value = getattr(config, item.name)
        if item.type not in (int, "int", "int | None") or (item.type == "int | None" and value is None):
            continue
        least = 0 if item.name in zero else 1
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                "not a size",
                where=f"{type(config).__name__}.{item.name}",
                expected=f"an integer >= {least}",
                got=value,
                nearest=least,
            )


def nearest_divisor(total: int, near: int) -> int:
    """The divisor of ``total`` next to a number, the smaller of two; 1 where there is none within 10,000."""
    around = (n for away in range(10_000) for n in (near - away, near + away) if 1 <= n <= total)
    return next((n for n in around if total % n == 0), 1)


def check_divides(config: Any, whole: str, parts: str) -> None:
    """Field ``whole`` must be a multiple of field ``parts``.

    Raises:
        ConfigError: it is not; the nearest legal value is the nearest divisor of ``whole``.
    """
    total, count = getattr(config, whole), getattr(config, parts)
    if total % count:
        raise ConfigError(
            f"{whole} = {total} does not divide into {parts} = {count}",
            where=f"{type(config).__name__}.{parts}",
            expected=f"a divisor of {total}",
            got=count,
            nearest=nearest_divisor(total, count),
        )


def check_fields(config: Any, *names: str) -> None:
    """Some fields of a configuration must be integers >= 1.

    Args:
        config: a dataclass. names: of the fields.
    Raises:
        ConfigError: one is not.
    """
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(
                "not a size", where=f"{type(config).__name__}.{name}", expected="an integer >= 1", got=value, nearest=1
            )
