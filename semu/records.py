"""``dataclass``: the standard library's, whose functions are written when they are first needed.

The standard one writes up to six functions of every class as text and compiles them, which took more than half of
importing semu. Here fields and their checks are the standard library's; comparing, hashing, showing and refusing
changes are functions over the fields, and ``__init__`` is compiled with the first instance. What a class does is the
same, and type checkers see the standard one. ``InitVar`` is not known; classes with an order are made by the standard
library.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """As ``dataclasses.dataclass``."""
        return (lambda found: _made(found, **options)) if cls is None else _made(cls, **options)


def _made(
    cls: type[Any],
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    order: bool = False,
    slots: bool = False,
    **options: bool,
) -> type[Any]:
    if order:
        return dataclasses.dataclass(
            cls, init=init, repr=repr, eq=eq, frozen=frozen, order=order, slots=slots, **options
        )
    inherits = any(dataclasses.is_dataclass(base) for base in cls.__bases__)  # it must be frozen as they are
    is_plain = frozen and not inherits and not slots
    if is_plain and ("__setattr__" in vars(cls) or "__delattr__" in vars(cls)):
        raise TypeError(f"{cls.__name__} is frozen and has its own __setattr__ or __delattr__")
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__
    made: Any = dataclasses.dataclass(
        cls, init=False, repr=False, eq=False, frozen=frozen and not is_plain, slots=slots, **options
    )
    parts, own = dataclasses.fields(made), vars(made)
    parameters = made.__dataclass_params__
    parameters.init, parameters.repr, parameters.eq, parameters.frozen = init, repr, eq, frozen
    if init and "__init__" not in own:
        made.__init__ = _Init(made, parts, frozen, slots)
    if repr and "__repr__" not in own:
        made.__repr__ = _shows([part.name for part in parts if part.repr])
    if eq:
        values = _values([part.name for part in parts if part.compare])
        is_compared = "__eq__" in own
        if not is_compared:
            made.__eq__ = _compares(values)
        if own.get("__hash__") is None and (is_compared or "__hash__" not in own):
            made.__hash__ = _hashes(values) if frozen else None
    if is_plain:
        made.__setattr__, made.__delattr__ = _refusals(made, frozenset(part.name for part in parts))
    return made  # type: ignore[no-any-return]


class _Init:
    """``__init__`` of a class, which takes its own place when somebody looks at it."""

    def __init__(self, cls: type[Any], parts: tuple[Field[Any], ...], frozen: bool, slots: bool) -> None:
        self._class, self._parts, self._frozen, self._slots = cls, parts, frozen, slots

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Callable[..., None]:
        made = _written_init(self._class, self._parts, self._frozen, self._slots)
        self._class.__init__ = made
        return made if instance is None else made.__get__(instance)


def _written_init(cls: type[Any], parts: tuple[Field[Any], ...], frozen: bool, slots: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_MADE": _MADE}
    ordered, by_name, values = list[str](), list[str](), list[tuple[str, str]]()
    for part in parts:
        name, default, value = part.name, f"_of_{part.name}", part.name
        is_made = part.default_factory is not MISSING
        known[default] = part.default_factory if is_made else part.default
        if part.init:
            has_default = is_made or part.default is not MISSING
            word = f"{name}={'_MADE' if is_made else default}" if has_default else name
            (by_name if part.kw_only else ordered).append(word)
            if is_made:
                value = f"{default}() if {name} is _MADE else {name}"
        elif is_made:
            value = f"{default}()"
        elif slots and part.default is not MISSING:
            value = default
        else:
            continue
        values.append((name, value))
    if not frozen:
        body = [f"self.{name} = {value}" for name, value in values]
    elif slots or not cls.__dictoffset__:
        body = [f"_set(self, {name!r}, {value})" for name, value in values]
    else:  # all at once: half of the time of one by one
        body = [f"_set(self, '__dict__', {{{', '.join(f'{name!r}: {value}' for name, value in values)}}})"]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    words = ", ".join(["self", *ordered, *(["*", *by_name] if by_name else [])])
    lines = "\n  ".join(body or ["pass"])
    found: dict[str, Any] = {}
    exec(
        f"def make({', '.join(known)}):\n def __init__({words}):\n  {lines}\n return __init__",
        vars(sys.modules[cls.__module__]),
        found,
    )
    made: Callable[..., None] = found["make"](**known)
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {part.name: part.type for part in parts if part.init} | {"return": None}
    return made


class _Made:
    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The values of some attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple([getattr(one, name) for name in names])


def _compares(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _hashes(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _shows(names: list[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        words = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{self.__class__.__qualname__}({words})"

    return __repr__


def _refusals(
    cls: type[Any], names: frozenset[str]
) -> tuple[Callable[[Any, str, object], None], Callable[[Any, str], None]]:
    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__
