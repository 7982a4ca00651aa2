"""``Settings``: the arguments of a file by name, in their types, with the program's defaults; notes what was asked."""

from __future__ import annotations

from typing import Any

from semu.checks import check_integer
from semu.errors import ConfigError, unknown_name
from semu.imports.arguments import Argument, Given
from semu.imports.flags import LEFT_OUT, UNKNOWN, Effect, Flag, Grade, effect_of
from semu.records import dataclass


@dataclass(frozen=True)
class Difference:
    """What a file asks for and semu does not model.

    Attributes:
        name: as the file writes it, or as it could have. value: as in the file. line: 0: it is not there.
        why: what is different. effect: how much at most, where it is small; None: another model or arithmetic.
    """

    name: str
    value: str
    line: int
    why: str
    effect: Effect | None = None

    @property
    def spread(self) -> float:
        """Relative standard deviation that leaving it out adds to the iteration time."""
        return (LEFT_OUT if self.effect is None else self.effect).spread

    def __str__(self) -> str:
        place = f" (line {self.line})" if self.line else ""
        value = "" if self.value in ("true", "") else f" {self.value}"
        return f"{self.name}{value}{place}: {self.why}"


class Settings:
    """Arguments by the names that the program prints, or the keys of its files.

    Args:
        given: what the file says; of an argument that comes twice the last counts.
    Attributes:
        told: the arguments that semu understands and the file has. asked: the values that were asked for.
        refused: what makes another model or arithmetic. near: what is left out and changes little.
        ignored, notes: for the report.
    Raises:
        ConfigError: on ``get`` and its kin: a value of a wrong type, a word that the program does not have.
    """

    def __init__(self, given: Given) -> None:
        self.given = given
        self.flags = given.flags
        self.refused: list[Difference] = []
        self.near: list[Difference] = []
        self.ignored: list[tuple[Argument, str]] = []
        self.asked: dict[str, Any] = {}
        self.notes: list[str] = list(given.notes)
        self.told: dict[str, Argument] = {}
        for argument in given.arguments:
            self._sort(argument)

    def _sort(self, argument: Argument) -> None:
        flag = argument.flag
        if flag is None:
            self._sort_unknown(argument)
        elif flag.grade is Grade.HARMLESS:
            self.ignored.append((argument, f"{flag.purpose.replace('_', ' ')}: {flag.why}"))
        elif flag.grade is Grade.EXACT:
            self.told[flag.dest] = argument
        elif argument.is_harmless and not argument.gap:
            self.ignored.append((argument, "changes nothing with this value"))
        else:
            self._add(argument, flag.why, flag.effect if flag.grade is Grade.SMALL else None)

    def _sort_unknown(self, argument: Argument) -> None:
        family = self.flags.family(argument.written)
        if argument.is_printed and argument.is_nothing:
            self.ignored.append((argument, "off"))
        elif family is not None:
            self._add(argument, f"unknown, by its name about {family}", UNKNOWN)
        else:
            nearest = self.flags.nearest(argument.written)
            self._add(argument, "unknown" + ("" if nearest is None else f", did you mean {nearest}?"), None)

    def _add(self, argument: Argument, why: str, effect: Effect | None) -> None:
        self._note(Difference(argument.written, argument.shown, argument.line, why, effect))

    def _note(self, difference: Difference) -> None:
        kept = self.refused if difference.effect is None else self.near
        if difference not in kept:
            kept.append(difference)

    def refuse(self, dest: str, why: str) -> None:
        """Note that an argument's value, or its default, makes another model or arithmetic."""
        self.approximate(dest, why, None)

    def approximate(self, dest: str, why: str, effect: Effect | None) -> None:
        """Note that an argument's value, or its default, is not modelled, and how much that changes.

        Args:
            why: what is different. effect: how much at most; None: another model or arithmetic.
        """
        told = self.told.get(dest)
        value = str(self.flags.understood[dest].default) if told is None else told.shown
        self._note(Difference(self.name(dest), value, self.line(dest), why, effect))

    def get(self, dest: str) -> Any:
        """The value of an argument, else the program's default; False for a switch, True for one that turns off."""
        flag = self.flags.understood[dest]
        told = self.told.get(dest)
        value = None if told is None else told.value(self.where(dest))
        if value is not None:
            value = self._checked(flag, value)
        if value is None:
            value = flag.absent
        self.asked[dest] = value
        return value

    def size(self, dest: str, least: int = 1) -> int | None:
        """An integer of at least ``least``, None where neither the file nor a default says one."""
        value: int | None = self.get(dest)
        return None if value is None else check_integer(value, self.where(dest), "a size", least=least)

    def required(self, dest: str) -> int:
        """A size that the file must have.

        Raises:
            ConfigError: it is not.
        """
        value = self.size(dest)
        if value is None:
            name = self.name(dest)
            raise ConfigError(f"no {name}", where=self.given.source, expected=f"{name} with an integer >= 1")
        return value

    def is_told(self, dest: str) -> bool:
        """Whether the file gives a value."""
        told = self.told.get(dest)
        return told is not None and told.value(self.where(dest)) is not None

    def is_default(self, dest: str) -> bool:
        """Whether the value is the one that the program has by itself."""
        return bool(self.asked[dest] == self.flags.understood[dest].absent)

    def name(self, dest: str) -> str:
        """An argument as the file writes it, or would."""
        told = self.told.get(dest)
        return self.flags.shown(self.flags.understood[dest]) if told is None else told.written

    def line(self, dest: str) -> int:
        """Where an argument stands, 0: nowhere."""
        told = self.told.get(dest)
        return 0 if told is None else told.line

    def where(self, dest: str) -> str:
        """Place of an argument, for messages."""
        return f"{self.given.where(self.line(dest))} {self.name(dest)}"

    def error(self, dest: str, message: str, *, expected: str, got: object, nearest: object = None) -> ConfigError:
        """An error about the value of an argument, to be raised."""
        return ConfigError(message, where=self.where(dest), expected=expected, got=got, nearest=nearest)

    def _checked(self, flag: Flag, value: object) -> object:
        """The value in words that are modelled; None: nothing is left of it."""
        if not flag.values:
            return value
        if not isinstance(value, tuple):
            return self._modelled(flag, value)
        kept = [word for word in (self._modelled(flag, word) for word in value) if word is not None]
        return tuple(dict.fromkeys(kept)) or None

    def _modelled(self, flag: Flag, word: object) -> object:
        """A word, or what comes near it; None: nothing does."""
        small = flag.small or {}
        if word in flag.values:
            return word
        if isinstance(word, str) and word in small:
            self.approximate(flag.dest, small[word]["why"], effect_of(small[word]))
            return small[word].get("as")
        if word not in flag.others:
            legal = (*flag.values, *small, *flag.others)
            raise unknown_name(f"value of {self.flags.shown(flag)}", str(word), legal, where=self.where(flag.dest))
        self.refuse(flag.dest, f"{word} is not modelled")
        return None
