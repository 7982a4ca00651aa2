"""``FlagTable``: the arguments or keys of a program, as its ``flags.toml`` lists them, and what semu does with each.

[understood.PURPOSE]   flag = { type, default, to, ... }
    type     integer | number | word | words | switch | off (a switch that turns its argument off)
    default  the program's own where it has one; a default that depends on others is in the code
    to       keys of a run file that it decides; empty: semu has what its default, or `values`, say and no choice
    dest     name in a log of the program, where it is not the flag's with underscores
    same     further spellings
    values   words that are modelled. others: words that the program has beside them: another arithmetic
    small    words that come close to another, `as`, by default to the default: word -> { why, as, slower, ... }
[ignored.PURPOSE]      flags that change neither time nor memory of an iteration; a * stands for anything
[small.PURPOSE]        flags that are not modelled and change little, with why and how much:
    slower, faster   an iteration may take this share of its time longer, or less; both: the sign is not known
    more, less       the same of the memory
    harmless         values that switch it off, beside none, false, 0 and nothing
    off              switches that turn an argument off, which is on unless told
[structural.PURPOSE]   flags that are not modelled and make another model or another arithmetic; as above
[families]             prefix -> why: an unknown flag that begins so is taken as small, by ``UNKNOWN``
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from semu.errors import nearest_name
from semu.records import dataclass


class Grade(Enum):
    """How far semu models a flag: exactly, not at all because it has no bearing, nearly, or not."""

    EXACT = "exact"
    HARMLESS = "harmless"
    SMALL = "small"
    STRUCTURAL = "structural"


@dataclass(frozen=True)
class Effect:
    """How far an iteration may be from what is predicted without a flag.

    Attributes:
        slower, faster: share of its time by which it may take longer, or less. more, less: the same of the memory.
    """

    slower: float = 0.0
    faster: float = 0.0
    more: float = 0.0
    less: float = 0.0

    @property
    def spread(self) -> float:
        """Relative standard deviation that it adds to the iteration time."""
        return max(self.slower, self.faster)

    def __str__(self) -> str:
        time = _sides(self.slower, "slower", self.faster, "faster")
        memory = _sides(self.more, "more", self.less, "less")
        told = [time and f"up to {time}", memory and f"{memory} memory"]
        return ", ".join(filter(None, told)) or "below 0.1 %"


UNKNOWN = Effect(slower=0.03, faster=0.03)
"""Of an unknown flag of a known family: assumed, most of those that are known change less."""
LEFT_OUT = Effect(slower=0.1, faster=0.1)
"""Of what changes the model or the arithmetic and is left out because the user says so: assumed."""


@dataclass(frozen=True)
class Flag:
    """One argument, or, with a ``*`` in its name, all that look like it.

    Attributes:
        name: without the dashes in front. dest: name in the program's log.
        grade, purpose, why, effect: as the file groups them.
        type: integer, number, word, words, switch or off (a switch that turns its argument off).
        default: the program's own; None: nothing, or it depends on other flags.
        to: keys of a run file that it decides; empty: none, semu has what ``values`` or the default say.
        values: words that are modelled, empty: any. others: words that the program knows beside them.
        small: words that are near another -> why, which (``as``; else the default), and by how much.
        harmless: values of an argument that is not modelled that change nothing.
    """

    name: str
    dest: str
    grade: Grade
    purpose: str
    why: str = ""
    effect: Effect = Effect()
    type: str = "word"
    default: Any = None
    to: str = ""
    values: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    small: Mapping[str, Mapping[str, Any]] | None = None
    harmless: tuple[Any, ...] = ()

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for several arguments."""
        return "*" in self.name

    @property
    def absent(self) -> Any:
        """The value where the flag is not given: the program's default, False for a switch, True for one that turns
        off."""
        return self.type == "off" if self.is_switch else self.default

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.type in ("switch", "off")


class FlagTable:
    """All flags of a file.

    Args:
        data: the parsed ``flags.toml``.
        program: name of the program, for messages.
        dashes: what a file writes before a flag's name, ``--``; empty: names are keys of a document, spelt one way.
    Attributes:
        flags: all of them. understood: name in a log -> flag that semu models.
    """

    def __init__(self, data: Mapping[str, Any], program: str, dashes: str = "") -> None:
        self.program, self.dashes = program, dashes
        self.flags = tuple(self._flags(data))
        self._families: Mapping[str, str] = data.get("families", {})
        self._by_name = {flag.name: flag for flag in self.flags if not flag.is_pattern}
        self._by_dest = {flag.dest: flag for flag in reversed(self.flags) if not flag.is_pattern}
        self._patterns = [flag for flag in self.flags if flag.is_pattern]
        understood = [flag for flag in self.flags if flag.grade is Grade.EXACT]
        self.understood = {flag.dest: flag for flag in reversed(understood)}

    def spelt(self, written: str) -> Flag | None:
        """The flag of a word such as ``--num-layers``, with or without its dashes; None: unknown."""
        name = self._name(written)
        return self._by_name.get(name) or self._matching(name)

    def printed(self, dest: str) -> Flag | None:
        """The flag whose value a log prints under ``dest``; None: unknown."""
        name = self._name(dest)
        return self._by_dest.get(dest) or self._by_name.get(name) or self._matching(name)

    def family(self, written: str) -> str | None:
        """What an unknown flag is about, by how it begins; None: that does not tell."""
        name = self._name(written)
        found = [prefix for prefix in self._families if name.startswith(prefix)]
        return self._families[max(found, key=len)] if found else None

    def nearest(self, written: str) -> str | None:
        """The flag that looks most like an unknown word, with its dashes."""
        found = nearest_name(self._name(written), self._by_name)
        return None if found is None else f"{self.dashes}{found}"

    def shown(self, flag: Flag) -> str:
        """A flag as a file would write it."""
        return f"{self.dashes}{flag.name}"

    def _name(self, written: str) -> str:
        return written.removeprefix("--").replace("_", "-") if self.dashes else written

    def _dest(self, name: str) -> str:
        return name.replace("-", "_") if self.dashes else name

    def _matching(self, name: str) -> Flag | None:
        """The flag of the longest pattern."""
        found = [flag for flag in self._patterns if fnmatchcase(name, flag.name)]
        return max(found, key=lambda flag: len(flag.name), default=None)

    def _flags(self, data: Mapping[str, Any]) -> Iterator[Flag]:
        for purpose, table in data["understood"].items():
            for name, told in table.items():
                options: dict[str, Any] = {
                    key: tuple(value) if isinstance(value, list) else value
                    for key, value in told.items()
                    if key not in ("same", "dest")
                }
                for spelling in (name, *told.get("same", ())):
                    yield Flag(spelling, told.get("dest", self._dest(name)), Grade.EXACT, purpose, **options)
        switches = data.get("switches", [])
        for grade, key in ((Grade.STRUCTURAL, "structural"), (Grade.SMALL, "small"), (Grade.HARMLESS, "ignored")):
            for purpose, table in data.get(key, {}).items():
                harmless = table.get("harmless", {})
                known = switches if grade is Grade.HARMLESS else ()
                own = [name for name in known if any(fnmatchcase(name, flag) for flag in table.get("flags", ()))]
                told = (grade, purpose, table["why"], effect_of(table) if grade is Grade.SMALL else Effect())
                for name in dict.fromkeys((*table.get("flags", ()), *harmless, *own)):
                    kind = "switch" if name in switches else "word"
                    yield Flag(name, self._dest(name), *told, type=kind, harmless=tuple(harmless.get(name, ())))
                for name, dest in table.get("off", {}).items():
                    yield Flag(name, dest, *told, type="off", harmless=(True,))


def effect_of(table: Mapping[str, Any]) -> Effect:
    """The effect that a table of ``flags.toml`` tells."""
    return Effect(**{key: table[key] for key in ("slower", "faster", "more", "less") if key in table})


def read_table(package: str) -> Mapping[str, Any]:
    """``flags.toml`` of a package."""
    return tomllib.loads(files(package).joinpath("flags.toml").read_text("utf-8"))


def _sides(up: float, above: str, down: float, below: str) -> str:
    """``2 % slower``, ``2 % slower or faster``, ``3 % slower or 1 % faster``."""
    if up and up == down:
        return f"{100 * up:.2g} % {above} or {below}"
    told = [f"{100 * size:.2g} % {word}" for size, word in ((up, above), (down, below)) if size]
    return " or ".join(told)
