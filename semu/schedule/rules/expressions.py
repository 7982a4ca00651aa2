"""Numbers of rules: integers, or expressions over p, r, v, m in a small grammar of their own; nothing is evaluated by
Python.

    sum     = product {("+" | "-") product}
    product = factor {("*" | "//" | "%") factor}
    factor  = integer | "p" | "r" | "v" | "m" | "-" factor | "(" sum ")" | ("min" | "max") "(" sum {"," sum} ")"

p: pipeline ranks, r: the rank, v: virtual stages per rank, m: microbatches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from semu import memo
from semu.checks import is_integer
from semu.errors import ConfigError, nearest_name


class Size(NamedTuple):
    """What expressions are over.

    Attributes:
        p: pipeline ranks. r: the rank. v: virtual stages per rank. m: microbatches.
    """

    p: int
    r: int
    v: int
    m: int


Number = int | str | Callable[[int, int, int, int], int]
"""An integer, an expression, or a function of p, r, v, m."""
_Value = Callable[[Size], int]
_TOKEN = re.compile(r"\s*(\d{1,9}|[A-Za-z_]\w*|//|[-+*%(),])")
NAMES = (*Size._fields, "min", "max")


LARGEST = 2**31 - 1
"""Of a rule's numbers: no pipeline has as many units."""


def value_of(number: Number, size: Size, where: str, least: int = 0) -> int:
    """What a number of a rule is on one rank of a pipeline.

    Raises:
        ConfigError: not an expression, a division by zero, less than ``least``, more than ``LARGEST``; ``where`` it
            stands.
    """
    try:
        if isinstance(number, str):
            found = parse_expression(number, where)(size)
        else:
            found = number if is_integer(number) else number(*size)  # type: ignore[operator]
    except ZeroDivisionError:
        raise ConfigError("a division by zero", where=where, expected="a divisor other than 0", got=number) from None
    if not is_integer(found) or found < least:
        at = f" at p = {size.p}, r = {size.r}, v = {size.v}, m = {size.m}"
        shown = f"{found}, from {number}{at}" if isinstance(number, str) else f"{found}{at}"
        raise ConfigError("too small a number", where=where, expected=f">= {least}", got=shown, nearest=least)
    if found > LARGEST:
        raise ConfigError("too large a number", where=where, expected=f"<= {LARGEST}", got=found, nearest=LARGEST)
    return found


def number_text(number: Number, where: str = "rule") -> str:
    """A number as one word.

    Raises:
        ConfigError: a function of Python, which has no text form.
    """
    if callable(number):
        raise ConfigError(
            "a function of Python has no text form", where=where, expected="an expression over p, r, v, m", got=number
        )
    return str(number).replace(" ", "")


@memo.remembered(1024)
def parse_expression(text: str, where: str = "expression") -> _Value:
    """An expression as a function of a ``Size``.

    Raises:
        ConfigError: an unknown name, or no expression; where in the text.
    """
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            _refuse(text, where, f"{text[at:].strip()[0]!r} at character {at + 1}")
        tokens.append(match[1])
        at = match.end()
    reader = _Reader(text, where, [*tokens, ""])
    value = reader.sum()
    if reader.next():
        _refuse(text, where, f"{reader.next()!r} behind its end")
    return value


def _refuse(text: str, where: str, what: str) -> NoReturn:
    nearest = nearest_name(what.split("'")[1], NAMES) if "'" in what else None
    expected = f"integers, {', '.join(NAMES)}, + - * // % and brackets"
    raise ConfigError(f"not an expression: {what}", where=where, expected=expected, got=text, nearest=nearest)


class _Reader:
    """Recursive descent; the tokens end with an empty one."""

    def __init__(self, text: str, where: str, tokens: list[str]) -> None:
        self.text, self.where, self.tokens, self.at = text, where, tokens, 0

    def next(self) -> str:
        """The token to come."""
        return self.tokens[self.at]

    def take(self) -> str:
        """The token to come, passed."""
        self.at += 1
        return self.tokens[self.at - 1]

    def sum(self) -> _Value:
        """Products, added or subtracted."""
        value = self.product()
        while self.next() in ("+", "-") and self.next():
            value = _applied(self.take(), value, self.product())
        return value

    def product(self) -> _Value:
        """Factors, multiplied or divided."""
        value = self.factor()
        while self.next() in ("*", "//", "%") and self.next():
            value = _applied(self.take(), value, self.factor())
        return value

    def factor(self) -> _Value:
        """A number, a name, brackets."""
        token = self.take()
        if token.isdecimal():
            number = int(token)
            return lambda size: number
        if token in Size._fields:
            place = Size._fields.index(token)
            return lambda size: size[place]
        if token == "-":
            factor = self.factor()
            return lambda size: -factor(size)
        if token == "(":
            value = self.sum()
            self._close()
            return value
        if token in ("min", "max") and self.next() == "(":
            self.take()
            values = [self.sum()]
            while self.next() == ",":
                self.take()
                values.append(self.sum())
            self._close()
            choose = min if token == "min" else max
            return lambda size: choose(value(size) for value in values)
        _refuse(self.text, self.where, f"{token!r} where a number should stand" if token else "it ends too early")

    def _close(self) -> None:
        if self.take() != ")":
            _refuse(self.text, self.where, "a bracket is not closed")


def _applied(sign: str, one: _Value, other: _Value) -> _Value:
    if sign == "+":
        return lambda size: one(size) + other(size)
    if sign == "-":
        return lambda size: one(size) - other(size)
    if sign == "*":
        return lambda size: one(size) * other(size)
    if sign == "//":
        return lambda size: one(size) // other(size)
    return lambda size: one(size) % other(size)
