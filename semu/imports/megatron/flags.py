"""``FLAGS``: Megatron-LM's arguments as ``flags.toml`` lists them, found by their spelling or their printed name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from semu.errors import nearest_name


class Treatment(Enum):
    """What semu does with a flag."""

    UNDERSTOOD = "understood"
    IGNORED = "ignored"
    UNMODELLED = "not modelled"


@dataclass(frozen=True)
class Flag:
    """One argument, or, with a ``*`` in its name, all that look like it.

    Attributes:
        name: without the dashes in front. dest: name in the printed block of arguments.
        treatment, purpose, why: as the file groups them.
        type: integer, number, word, words, switch or off (a switch that turns its argument off).
        default: Megatron-LM's own; None: nothing, or it depends on other flags.
        to: keys of run.toml that it decides; empty: none, semu has what ``values`` or the default say.
        values: words that are modelled, empty: any. others: words that Megatron-LM knows beside them.
        harmless: values of an argument that is not modelled that change nothing.
    """

    name: str
    dest: str
    treatment: Treatment
    purpose: str
    why: str = ""
    type: str = "word"
    default: Any = None
    to: str = ""
    values: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    harmless: tuple[Any, ...] = ()

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for several arguments."""
        return "*" in self.name

    @property
    def absent(self) -> Any:
        """The value where the flag is not given: Megatron-LM's default, False for a switch, True for one that turns
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
    Attributes:
        flags: all of them. understood: printed name -> flag that semu understands.
        tokenizers: name -> entries of its vocabulary. added_tokens: name -> entries beside ``vocab_size``.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.flags = tuple(_flags(data))
        self.tokenizers: Mapping[str, int] = {
            name: size for name, size in data["tokenizers"].items() if isinstance(size, int)
        }
        self.added_tokens: Mapping[str, int] = data["tokenizers"]["more"]
        self._by_name = {flag.name: flag for flag in self.flags if not flag.is_pattern}
        self._by_dest = {flag.dest: flag for flag in reversed(self.flags) if not flag.is_pattern}
        self._patterns = [flag for flag in self.flags if flag.is_pattern]
        understood = [flag for flag in self.flags if flag.treatment is Treatment.UNDERSTOOD]
        self.understood = {flag.dest: flag for flag in reversed(understood)}

    def spelt(self, written: str) -> Flag | None:
        """The flag of a word such as ``--num-layers``, with or without its dashes; None: unknown."""
        name = _name(written)
        return self._by_name.get(name) or self._matching(name)

    def printed(self, dest: str) -> Flag | None:
        """The flag whose value a log prints under ``dest``; None: unknown."""
        return self._by_dest.get(dest) or self._matching(dest.replace("_", "-"))

    def nearest(self, written: str) -> str | None:
        """The flag that looks most like an unknown word, with its dashes."""
        found = nearest_name(_name(written), self._by_name)
        return None if found is None else f"--{found}"

    def _matching(self, name: str) -> Flag | None:
        """The flag of the longest pattern."""
        found = [flag for flag in self._patterns if fnmatchcase(name, flag.name)]
        return max(found, key=lambda flag: len(flag.name), default=None)


def _flags(data: Mapping[str, Any]) -> Iterator[Flag]:
    for purpose, table in data["understood"].items():
        for name, told in table.items():
            options: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value
                for key, value in told.items()
                if key not in ("same", "dest")
            }
            for spelling in (name, *told.get("same", ())):
                yield Flag(spelling, told.get("dest", name.replace("-", "_")), Treatment.UNDERSTOOD, purpose, **options)
    for treatment, key in ((Treatment.UNMODELLED, "unmodelled"), (Treatment.IGNORED, "ignored")):
        for purpose, table in data[key].items():
            harmless = table.get("harmless", {})
            known = data["switches"] if treatment is Treatment.IGNORED else ()
            own = [name for name in known if any(fnmatchcase(name, flag) for flag in table["flags"])]
            for name in dict.fromkeys((*table["flags"], *harmless, *own)):
                kind = "switch" if name in data["switches"] else "word"
                told = tuple(harmless.get(name, ()))
                yield Flag(name, name.replace("-", "_"), treatment, purpose, table["why"], type=kind, harmless=told)
            for name, dest in table.get("off", {}).items():
                yield Flag(name, dest, treatment, purpose, table["why"], type="off", harmless=(True,))


def _name(written: str) -> str:
    return written.removeprefix("--").replace("_", "-")


FLAGS = FlagTable(tomllib.loads(files("semu.imports.megatron").joinpath("flags.toml").read_text("utf-8")))
"""The flags that semu knows."""
