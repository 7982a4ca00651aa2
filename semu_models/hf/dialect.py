"""``Dialect``: how the configurations of a ``model_type`` are spelt, as data; the reader itself holds no names.

Canonical names are those of the family's configuration class (``layers``, ``hidden``, ``kv_heads`` ...), so that an
error of that class can be put back to the key of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any

from semu.checks import is_integer
from semu.nn import Model
from semu.records import dataclass

if TYPE_CHECKING:
    from semu_models.hf.values import Values


class FieldKind(Enum):
    """Type of a value; the enum's value is what a message calls it."""

    SIZE = "an integer >= 1"
    COUNT = "an integer >= 0"
    NUMBER = "a finite number"
    SWITCH = "true or false"
    WORD = "a string"
    WORDS = "a list of strings"
    COUNTS = "a list of integers >= 0"
    OBJECT = "an object"
    INTEGER = "an integer"
    SIDE = "an integer >= 1, or a list of equal ones"

    def accepts(self, value: object) -> bool:
        """Whether a JSON value is of this type."""
        if self in (FieldKind.SIZE, FieldKind.COUNT):
            return is_integer(value) and value >= (self is FieldKind.SIZE)
        if self is FieldKind.INTEGER:
            return is_integer(value)
        if self is FieldKind.SIDE:
            sides = value if isinstance(value, list) else [value]
            return bool(sides) and all(FieldKind.SIZE.accepts(item) and item == sides[0] for item in sides)
        if self is FieldKind.NUMBER:
            return is_integer(value) or (isinstance(value, float) and math.isfinite(value))
        if self is FieldKind.SWITCH:
            return isinstance(value, bool)
        if self is FieldKind.WORD:
            return isinstance(value, str)
        if self is FieldKind.OBJECT:
            return isinstance(value, Mapping)
        inner = FieldKind.WORD if self is FieldKind.WORDS else FieldKind.COUNT
        return isinstance(value, list) and all(inner.accepts(item) for item in value)


@dataclass(frozen=True)
class Spelling:
    """How a canonical field is written.

    Attributes:
        keys: spellings, dotted paths from the section; the first that the file has counts, two may not contradict.
        kind: type of the value.
        default: value where the file has no key (transformers' default of the model type).
        nullable: ``null`` is the value None, not an absent key.
    """

    keys: tuple[str, ...]
    kind: FieldKind
    default: Any = None
    nullable: bool = False


def size(*keys: str, default: int | None = None) -> Spelling:
    """A size; where the default is None, ``null`` is legal and means that it follows from others."""
    return Spelling(keys, FieldKind.SIZE, default, nullable=default is None)


def optional_size(*keys: str, default: int | None) -> Spelling:
    """A size that the file may switch off with ``null`` although the library has a default."""
    return Spelling(keys, FieldKind.SIZE, default, nullable=True)


def side(*keys: str, default: int) -> Spelling:
    """The side of a square, once or for each direction."""
    return Spelling(keys, FieldKind.SIDE, default)


def count(*keys: str, default: int | None, nullable: bool = False) -> Spelling:
    """A size that may be 0."""
    return Spelling(keys, FieldKind.COUNT, default, nullable or default is None)


def switch(*keys: str, default: bool) -> Spelling:
    """A switch."""
    return Spelling(keys, FieldKind.SWITCH, default)


def number(*keys: str, default: float | None, nullable: bool = False) -> Spelling:
    """A number; ``null`` is legal where the default is None."""
    return Spelling(keys, FieldKind.NUMBER, default, nullable or default is None)


def word(*keys: str, default: str | None) -> Spelling:
    """A word; ``null`` is legal where the default is None."""
    return Spelling(keys, FieldKind.WORD, default, nullable=default is None)


def words(*keys: str) -> Spelling:
    """A list of words, or none."""
    return Spelling(keys, FieldKind.WORDS, None, nullable=True)


def counts(*keys: str, default: tuple[int, ...] | None = None) -> Spelling:
    """A list of integers, or none."""
    return Spelling(keys, FieldKind.COUNTS, list(default) if default is not None else None, nullable=True)


@dataclass(frozen=True)
class Fixed:
    """A key that only some values may have.

    Attributes:
        legal: those values; None among them: the key may be null. why: what another value would change.
    """

    legal: tuple[Any, ...]
    why: str


@dataclass(frozen=True)
class Section:
    """A configuration inside a configuration, e.g. ``vision_config``.

    Attributes:
        keys: its names; the first that the file has counts.
        dialect: name in the registry where the section has no ``model_type``.
        renames: ``model_type`` in the section -> name in the registry, where they differ (Qwen2-VL writes
            ``qwen2_vl`` in its vision section too).
        flat: where the section is absent, its keys stand at the top level.
        optional: the model may be without; else an absent section is all defaults.
    """

    keys: tuple[str, ...]
    dialect: str | None = None
    renames: Mapping[str, str] = field(default_factory=dict)
    flat: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Dialect:
    """How a model type's configuration is read.

    Attributes:
        family: as ``semu_models.Family`` calls it.
        model_types: model types that it reads; also its names for ``Section``.
        spellings: canonical field -> spelling.
        config: values -> the family's frozen configuration.
        model: name of the model, configuration -> model; None: it is only a section of others.
        understood: keys with a meaning in the model that do not affect time or memory -> meaning.
        ignored: keys without a meaning for the simulation -> why; ``common.IGNORED`` applies too.
        fixed: key -> which values are legal.
        sections: canonical name -> nested configuration.
        architectures: classes that the model stands for; empty: any.
        source: library and version of the defaults.
    """

    family: str
    model_types: tuple[str, ...]
    spellings: Mapping[str, Spelling]
    config: Callable[[Values], Any]
    model: Callable[[str, Any], Model] | None = None
    understood: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Fixed] = field(default_factory=dict)
    sections: Mapping[str, Section] = field(default_factory=dict)
    architectures: tuple[str, ...] = ()
    source: str = "transformers 4.57 and 5.23"
