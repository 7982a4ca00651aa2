"""``Argument``: what a file says of one argument of a program; ``Given``: all of it, with the size of the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field

from semu.errors import ConfigError
from semu.imports.flags import Flag, FlagTable
from semu.records import dataclass

_SWITCHED = {"True": True, "true": True, "False": False, "false": False, "None": False}
_NOTHING = ("None", "none", "", "[]", "False", "false", "0", "0.0", "{}")
_PRINTED_MEMBER = re.compile(r"<\w+\.(\w+): [^>]*>")
"""A member of an enum in a list as Python prints it."""
_BETWEEN = re.compile(r"[,\s]+")
_MEMBER = re.compile(r"^[A-Z]\w*\.(?=\w+$)")
"""A member of an enum prints as ``AttnBackend.auto``."""


def _integer(text: str) -> int:
    """Of ``4096``, ``4_096`` and, as YAML and TOML have it, ``4096.0`` and ``4e3``."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


_READ: Mapping[str, Callable[[str], object]] = {"integer": _integer, "number": float}
_DTYPES: Mapping[str, str] = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


@dataclass(frozen=True)
class Argument:
    """One argument.

    Attributes:
        flag: what is known of it, None: nothing. written: its name as the file writes it.
        values: its words, none for a switch. line: where it stands.
        gap: what of the words only running the script would tell, and why; empty: nothing.
        is_printed: the file prints all arguments, defaults too.
    """

    flag: Flag | None
    written: str
    values: tuple[str, ...]
    line: int
    gap: str = ""
    is_printed: bool = False

    @property
    def shown(self) -> str:
        """Its value, for a report."""
        return " ".join(self.values) if self.values else "true"

    @property
    def is_nothing(self) -> bool:
        """Whether its value says that something is off, or not given."""
        if self.flag is not None and self.flag.type == "off" and not self.is_printed:
            return False
        return bool(self.values) and all(value in _NOTHING for value in self.values)

    @property
    def is_harmless(self) -> bool:
        """Whether an argument that is not modelled has a value that changes nothing."""
        if self.flag is None or (self.flag.type == "off" and not self.is_printed):
            return self.is_nothing
        legal = [_plain(str(value)) for value in self.flag.harmless]
        words = [_plain(value) for value in (self.values or ("true",))]
        return self.is_nothing or all(word in legal for word in words)

    def value(self, where: str) -> object:
        """The value in the flag's type: int, float, str, bool, a tuple of words, None for nothing.

        Args:
            where: its place, for messages.
        Raises:
            ConfigError: a value of another type, a word that Megatron-LM does not know, a gap.
        """
        flag = self.flag
        assert flag is not None
        if self.gap:
            raise ConfigError(
                f"{self.written} cannot be told from the script: {self.gap}",
                where=where,
                expected="a value in the script, or --define NAME=VALUE",
                got=self.gap.split(" ")[0],
            )
        if flag.is_switch:
            return self._switch(flag, where)
        if self.values == ("None",):
            return None
        if self.is_printed and flag.type == "word":
            return _DTYPES.get(self.values[0], _MEMBER.sub("", self.values[0]))
        if flag.type == "words":
            told = (_PRINTED_MEMBER.sub(r"\1", value).strip("[]").replace("'", "") for value in self.values)
            return tuple(word for value in told for word in _BETWEEN.split(value) if word)
        if len(self.values) != 1:
            got = self.shown if self.values else "none"
            raise ConfigError(f"{self.written} takes one value", where=where, expected=_expected(flag), got=got)
        text = self.values[0]
        try:
            if flag.type in _READ:
                return _READ[flag.type](text)
            return _DTYPES.get(text, text)
        except ValueError:
            raise ConfigError(f"{self.written} = {text}", where=where, expected=_expected(flag), got=text) from None

    def _switch(self, flag: Flag, where: str) -> bool:
        if not self.values:
            return flag.type == "switch"
        if len(self.values) > 1 or self.values[0] not in _SWITCHED:
            message = f"{self.written} is a switch and takes no value"
            raise ConfigError(message, where=where, expected="nothing behind it", got=self.shown)
        is_on = _SWITCHED[self.values[0]]
        return is_on if flag.type == "switch" or self.is_printed else not is_on


@dataclass(frozen=True)
class Given:
    """What a file says.

    Attributes:
        source: the file, for messages. kind: what sort of file. flags: the program's table of them.
        arguments: in order, a name may come twice.
        nodes, gpus_per_node: of the cluster as the launcher says; None: it does not.
        cluster_line: where; 0: nowhere. notes: sentences for the report. environment: variables that the file sets.
    """

    source: str
    kind: str
    flags: FlagTable
    arguments: tuple[Argument, ...]
    nodes: int | None = None
    gpus_per_node: int | None = None
    cluster_line: int = 0
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def where(self, line: int) -> str:
        """A place in the file."""
        return f"{self.source}:{line}" if line else self.source


def _expected(flag: Flag) -> str:
    return {"integer": "an integer", "number": "a number"}.get(flag.type, ", ".join(flag.values) or "a word")


def _plain(word: str) -> str:
    """A word without differences in spelling."""
    word = word.lower()
    try:
        return repr(float(word))
    except ValueError:
        return word
