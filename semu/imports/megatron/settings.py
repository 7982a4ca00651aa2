"""``Settings``: the arguments of a file by name, in their types, with Megatron-LM's defaults; notes what was asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semu.checks import check_integer
from semu.errors import ConfigError, unknown_name
from semu.imports.megatron.arguments import Argument, Given
from semu.imports.megatron.flags import FLAGS, Flag, Treatment


@dataclass(frozen=True)
class Problem:
    """What changes time or memory and is not modelled. name: as the file writes it, or as it could have."""

    name: str
    value: str
    line: int
    why: str

    def __str__(self) -> str:
        place = f" (line {self.line})" if self.line else ""
        value = "" if self.value in ("true", "") else f" {self.value}"
        return f"{self.name}{value}{place}: {self.why}"


class Settings:
    """Arguments by the names that Megatron-LM prints.

    Args:
        given: what the file says; of an argument that comes twice the last counts.
    Attributes:
        told: the arguments that semu understands and the file has. asked: the values that were asked for.
        problems, ignored, notes: for the report.
    Raises:
        ConfigError: on ``get`` and its kin: a value of a wrong type, a word that Megatron-LM does not have.
    """

    def __init__(self, given: Given) -> None:
        self.given = given
        self.problems: list[Problem] = []
        self.ignored: list[tuple[Argument, str]] = []
        self.asked: dict[str, Any] = {}
        self.notes: list[str] = list(given.notes)
        self.told: dict[str, Argument] = {}
        for argument in given.arguments:
            self._sort(argument)

    def _sort(self, argument: Argument) -> None:
        flag = argument.flag
        if flag is None:
            if argument.is_printed and argument.is_nothing:
                self.ignored.append((argument, "off"))
                return
            nearest = FLAGS.nearest(argument.written)
            hint = "" if nearest is None else f", did you mean {nearest}?"
            self._refuse(argument, f"unknown{hint}")
        elif flag.treatment is Treatment.IGNORED:
            self.ignored.append((argument, f"{flag.purpose.replace('_', ' ')}: {flag.why}"))
        elif flag.treatment is Treatment.UNMODELLED:
            if argument.is_harmless and not argument.gap:
                self.ignored.append((argument, "changes nothing with this value"))
            else:
                self._refuse(argument, flag.why)
        else:
            self.told[flag.dest] = argument

    def _refuse(self, argument: Argument, why: str) -> None:
        self.problems.append(Problem(argument.written, argument.shown, argument.line, why))

    def refuse(self, dest: str, why: str) -> None:
        """Note that an argument's value, or its default, is not modelled."""
        told = self.told.get(dest)
        value = str(FLAGS.understood[dest].default) if told is None else told.shown
        problem = Problem(self.name(dest), value, self.line(dest), why)
        if problem not in self.problems:
            self.problems.append(problem)

    def get(self, dest: str) -> Any:
        """The value of an argument, else Megatron-LM's default; False for a switch, True for one that turns off."""
        flag = FLAGS.understood[dest]
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
        """Whether the value is the one that Megatron-LM has by itself."""
        return bool(self.asked[dest] == FLAGS.understood[dest].absent)

    def name(self, dest: str) -> str:
        """An argument as the file writes it, or would."""
        told = self.told.get(dest)
        return f"--{FLAGS.understood[dest].name}" if told is None else told.written

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
        """The value, or None where it is not modelled."""
        if not flag.values:
            return value
        for word in value if isinstance(value, tuple) else (value,):
            if word in flag.others:
                self.refuse(flag.dest, f"{word} is not modelled")
                return None
            if word not in flag.values:
                legal = (*flag.values, *flag.others)
                raise unknown_name(f"value of --{flag.name}", str(word), legal, where=self.where(flag.dest))
        return value
