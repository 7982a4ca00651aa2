"""Checks of single values that every batch shares; each raises ConfigError with the place and the nearest value."""

from __future__ import annotations

from semu.errors import ConfigError

LARGEST_COUNT = 2**31 - 1
"""Longest sequence that is accepted [tokens]: its square still fits into 64 bits."""


def check_count(value: object, where: str, *, low: int = 1, high: int = LARGEST_COUNT) -> int:
    """``value`` if it is an integer from low to high (True and False are not).

    Raises:
        ConfigError: otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        is_large = isinstance(value, int) and value > high
        raise ConfigError(
            "not a count",
            where=where,
            expected=f"an integer from {low} to {high}" if is_large else f"an integer >= {low}",
            got=value,
            nearest=high if is_large else low,
        )
    return value


def check_seed(value: object, where: str) -> int:
    """``value`` if it is an integer >= 0, below 2^64.

    Raises:
        ConfigError: otherwise.
    """
    return check_count(value, where, low=0, high=2**64 - 1)


def check_number(value: object, where: str, *, low: float = 0.0, high: float = 1e9, above: bool = False) -> float:
    """``value`` as float if it is a number from low to high (low itself excluded under ``above``).

    Raises:
        ConfigError: otherwise.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not low <= value <= high  # false for NaN
        or (above and value == low)
    ):
        raise ConfigError(
            "not a number in range",
            where=where,
            expected=f"a number {'>' if above else '>='} {low:g}, at most {high:g}",
            got=value,
        )
    return float(value)


def check_flag(value: object, where: str) -> bool:
    """``value`` if it is True or False.

    Raises:
        ConfigError: otherwise.
    """
    if not isinstance(value, bool):
        raise ConfigError("not a switch", where=where, expected="true or false", got=value)
    return value


def check_resolution(value: object, where: str) -> tuple[int, int]:
    """``value`` as (height, width) [px] if it is a pair of integers from 1 to 65536.

    Raises:
        ConfigError: otherwise.
    """
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ConfigError("not a resolution", where=where, expected="[height, width] in pixels", got=value)
    return check_count(value[0], where, high=1 << 16), check_count(value[1], where, high=1 << 16)
