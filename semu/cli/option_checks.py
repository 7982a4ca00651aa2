"""Checks of options before any work is done: which ones are given, and whether a file can be written."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from semu.errors import ConfigError, SemuError


def given_flags(arguments: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Flags of the options among ``names`` (attributes of ``arguments``) that the command line gives; 0 is a value."""
    values = {name: getattr(arguments, name) for name in names}
    given = [name for name, value in values.items() if value is not None and value is not False and value != []]
    return ["--set" if name == "assignments" else "--" + name.replace("_", "-") for name in given]


@contextmanager
def named_by_flags(*names: str) -> Iterator[None]:
    """Errors inside that name an argument of a function name the option that gives it.

    Args:
        names: arguments that are options of the same name.
    """
    try:
        yield
    except SemuError as error:
        first, blank, rest = (error.where or "").partition(" ")
        if first in names:
            error.where = f"--{first.replace('_', '-')}{blank}{rest}"
        raise


def check_place(flag: str, path: str | None) -> None:
    """Refuse a path at which no file can be written; None: no file is asked for.

    Raises:
        ConfigError: no such folder, or a folder in the file's place.
    """
    if path is None:
        return
    if Path(path).is_dir():
        raise ConfigError("a folder is there", where=f"{flag} {path}", expected="a file", got=path)
    if not Path(path).absolute().parent.is_dir():
        raise ConfigError(
            "no such folder",
            where=f"{flag} {path}",
            expected="a file in a folder that is there",
            got=str(Path(path).parent),
        )
