"""How a training option is declared: one field of a part of ``Training``, with all that semu must know of it.

    jitter: float = option(0.0, number(), "relative standard deviation of ...", influence=Influence.STEP)

is the whole of a new option but the physics that it changes. From that line are made the keyword of ``Training``, the
key of ``[training]`` with its type, ``--set``, ``--dump-config``, the check at the door, the entry of ``result.json``,
the cache keys, and the list of options in the documentation of ``Training``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, dataclass_transform

from semu import memo
from semu.checks import check_integer, check_member, check_number, check_switch, is_integer, is_number
from semu.errors import ConfigError
from semu.records import dataclass

_T = TypeVar("_T")
_V = TypeVar("_V")
_E = TypeVar("_E", bound=Enum)


@dataclass_transform()
def part(kind: type[_T]) -> type[_T]:
    """Decorator of a part of the options: a frozen dataclass.

    Type checkers take the dataclass for one that is not frozen: only there is a field of type ``Converted`` a
    descriptor.
    """
    return dataclass(frozen=True)(kind)


class Converted(Generic[_T, _V]):
    """Type of a field that is kept as one type and given as another: ``Converted[Precision, Precision | str]``."""

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: type) -> _T: ...

        def __set__(self, instance: object, value: _V) -> None: ...


Word: TypeAlias = Converted[_E, _E | str]
"""Type of a field that is a member of an enum; its value is accepted as well."""
OptionalWord: TypeAlias = Converted[_E | None, _E | str | None]


class ValueKind(Enum):
    """Type of a TOML value; the enum's value is what a message calls it."""

    INTEGER = "an integer"
    NUMBER = "a number"
    STRING = "a string"
    SWITCH = "true or false"
    STRINGS = "a list of strings"
    INTEGERS = "a list of integers"
    WORDS = "a string or a list of strings"
    AUTO_SWITCH = 'true, false or "auto"'
    LOADS = "a number or a list of numbers"
    PATTERN = "an integer or a list of integers"
    DURATION = "a number or a string"
    TABLE = "a table"

    def accepts(self, value: object) -> bool:
        """Whether a TOML value is of this type (true and false are no integers)."""
        if self in _SINGLE:
            return _SINGLE[self](value)
        item, is_list_only = _LISTS[self]
        if not isinstance(value, list):
            return not is_list_only and item.accepts(value)
        return all(item.accepts(one) for one in value)


_SINGLE: Mapping[ValueKind, Callable[[object], bool]] = {
    ValueKind.INTEGER: is_integer,
    ValueKind.NUMBER: is_number,
    ValueKind.STRING: lambda value: isinstance(value, str),
    ValueKind.SWITCH: lambda value: isinstance(value, bool),
    ValueKind.AUTO_SWITCH: lambda value: isinstance(value, bool) or value == "auto",
    ValueKind.TABLE: lambda value: isinstance(value, Mapping),
    ValueKind.DURATION: lambda value: is_number(value) or isinstance(value, str),
}
_LISTS: Mapping[ValueKind, tuple[ValueKind, bool]] = {
    ValueKind.STRINGS: (ValueKind.STRING, True),
    ValueKind.INTEGERS: (ValueKind.INTEGER, True),
    ValueKind.WORDS: (ValueKind.STRING, False),
    ValueKind.LOADS: (ValueKind.NUMBER, False),
    ValueKind.PATTERN: (ValueKind.INTEGER, False),
}
"""Type of a list's items, and whether one item without a list is refused."""


class Influence(Enum):
    """What a change of an option can change at most; results that lie outside are reused between jobs.

    STAGES: what blocks and stages compute, and everything made of them.
    STEP: nothing inside a stage; what happens around stages: reductions, the step, memory, random draws.
    MICROBATCHES: how many microbatches there are, what is in them, and their order; nothing inside a stage, and nothing
    about where parameters lie.
    """

    STAGES = "stages"
    STEP = "step"
    MICROBATCHES = "microbatches"


class Shown(Enum):
    """When ``result.json`` lists an option: always, where it is not the default, or never by itself (another entry of
    the report says it)."""

    ALWAYS = "always"
    CHANGED = "changed"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Value:
    """What an option may be.

    Attributes:
        kind: type of its value in a run file; None: it is no key of ``[training]``.
        read: (value, place) -> the value as ``Training`` keeps it; raises ConfigError. By default the value itself,
            which the part checks.
        words: the legal words; empty: any.
    """

    kind: ValueKind | None
    read: Callable[[Any, str], object] = lambda value, _: value
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """A row of the table of training options.

    Attributes:
        name: keyword of ``Training`` and key of ``[training]``. default: as ``Training`` keeps it.
        value: what it may be. doc: what it means. unit: of a number; empty: none.
        influence: what it can change. shown: when a result lists it.
    """

    name: str
    default: object
    value: Value
    doc: str
    unit: str
    influence: Influence
    shown: Shown

    def read(self, value: object) -> object:
        """The value as ``Training`` keeps it.

        Raises:
            ConfigError: not a legal value.
        """
        if value is None and self.default is None:
            return None
        return self.value.read(value, f"training.{self.name}")

    def describe(self) -> str:
        """``name: what it means [unit]; its words; its default``."""
        unit = f" [{self.unit}]" if self.unit else ""
        words = f"; one of {', '.join(self.value.words)}" if self.value.words else ""
        default = self.default.value if isinstance(self.default, Enum) else self.default
        return f"{self.name}: {self.doc}{unit}{words}; default: {default}"


def option(
    default: object,
    value: Value,
    doc: str,
    *,
    unit: str = "",
    influence: Influence = Influence.STAGES,
    shown: Shown = Shown.CHANGED,
) -> Any:
    """A field that is an option; arguments as the attributes of ``Option``."""
    row = partial(Option, default=default, value=value, doc=doc, unit=unit, influence=influence, shown=shown)
    return field(default=default, metadata={"option": row})


@memo.remembered(16)
def options_of(kind: type[Any]) -> tuple[Option, ...]:
    """The options of a class made of parts, in order."""
    return tuple(item.metadata["option"](item.name) for item in fields(kind))


@part
class AbstractOptions:
    """Base of the parts: reads every value at the door, then checks values against one another."""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for row in options_of(kind):
            value = getattr(self, row.name)
            if value is not row.default:  # which is kept as it is, and most are
                self._set(row.name, row.read(value))
        self._check()

    def _check(self) -> None:
        """Check, or complete, values that depend on one another; a part calls its super's."""

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


# -- what a value may be -----------------------------------------------------------------------------------------------
COUNT = Value(ValueKind.INTEGER, check_integer)
SWITCH = Value(ValueKind.SWITCH, check_switch)
AUTO_SWITCH = Value(
    ValueKind.AUTO_SWITCH, lambda value, where: None if value in (None, "auto") else check_switch(value, where)
)
"""None: what follows from other options."""


def number(least: float = 0.0, most: float = math.inf, **options: Any) -> Value:
    """A finite number; arguments as ``semu.checks.check_number``."""
    return Value(ValueKind.NUMBER, partial(check_number, least=least, most=most, **options))


def word(kind: type[_E], legal: tuple[_E, ...] = (), what: str = "") -> Value:
    """A member of an enum, or the value of one; ``legal``: the members that are legal, as ``what``; empty: all."""
    words = tuple(str(member.value) for member in legal or kind)

    def _read(value: object, where: str) -> _E:
        member = check_member(value, kind, where)
        if legal and member not in legal:
            raise ConfigError(
                f"not {what}", where=where, expected=" or ".join(words), got=member.value, nearest=words[0]
            )
        return member

    return Value(ValueKind.STRING, _read, words)
