"""``Values``: the canonical fields of a configuration that was read, with the places of their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from semu.checks import is_integer, nearest_divisor
from semu.errors import ConfigError, InternalError
from semu.records import dataclass
from semu_models.hf.document import Document


@dataclass
class Values:
    """Canonical fields.

    Attributes:
        model_type: of the section. document: where it came from.
        fields: canonical name -> value, None where it is not set.
        keys: canonical name -> dotted key of the file from its top.
        sections: canonical name -> nested configuration.
        architecture: the class that the file names, if it names one.
        derived: (name, value, how) of what the builder concluded. notes: sentences for the user.
    """

    model_type: str
    document: Document
    fields: Mapping[str, Any]
    keys: Mapping[str, str]
    sections: Mapping[str, Part] = field(default_factory=dict)
    architecture: str | None = None
    derived: list[tuple[str, Any, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def get(self, name: str) -> Any:
        """The value of a canonical field, None where it is not set or the dialect does not have it."""
        return self.fields.get(name)

    def size(self, name: str) -> int:
        """A value that must be there."""
        value = self.fields.get(name)
        if value is None:
            raise self.error(name, "a size is missing", expected="an integer >= 1", got="null")
        if not is_integer(value):
            raise InternalError(f"{name} of {self.model_type} is read as a size and declared as another type")
        return value

    def size_or(self, name: str, other: int, how: str) -> int:
        """A value, or where it is not set another, which is then reported as derived.

        Args:
            name: canonical field. other: taken instead. how: why that.
        """
        if self.fields.get(name) is not None:
            return self.size(name)
        self.derived.append((self.keys.get(name, name), other, how))
        return other

    def switch(self, name: str) -> bool:
        """A switch, false where it is not set."""
        return bool(self.fields.get(name))

    def quotient(self, whole: str, parts: str) -> int:
        """``whole / parts``.

        Raises:
            ConfigError: it does not divide.
        """
        total, pieces = self.size(whole), self.size(parts)
        if total % pieces:
            raise self.error(
                parts,
                f"{self.short(whole)} = {total} does not divide into {self.short(parts)} = {pieces}",
                expected=f"a divisor of {total}",
                got=pieces,
                nearest=nearest_divisor(total, pieces),
            )
        return total // pieces

    def section(self, name: str) -> Part:
        """A nested configuration.

        Raises:
            ConfigError: the file does not have it.
        """
        if name not in self.sections:
            raise ConfigError(f"no {name} section", where=self.document.name, expected=f"a configuration of the {name}")
        return self.sections[name]

    def short(self, name: str) -> str:
        """The last part of a field's key."""
        return self.keys.get(name, name).rpartition(".")[2]

    def place(self, name: str) -> str:
        """Where a canonical field stands."""
        return self.document.place(self.keys.get(name, name))

    def error(
        self,
        name: str,
        message: str,
        *,
        expected: str | None = None,
        got: object = None,
        nearest: object = None,
    ) -> ConfigError:
        """An error about a canonical field, at its key."""
        return ConfigError(message, where=self.place(name), expected=expected, got=got, nearest=nearest)


@dataclass(frozen=True)
class Part:
    """A section that was read: its ``model_type``, values, and the configuration that they make."""

    model_type: str
    values: Values
    config: Any
