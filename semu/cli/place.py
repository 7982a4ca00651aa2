"""``check_place``: whether a file can be written where an option says, asked before the work and not after it."""

from __future__ import annotations

from pathlib import Path

from semu.errors import ConfigError


def check_place(flag: str, path: str | None) -> None:
    """A long run does not end with a file that cannot be written.

    Raises:
        ConfigError: no such folder, or a folder in the file's place.
    """
    if path is not None and Path(path).is_dir():
        raise ConfigError("a folder is there", where=f"{flag} {path}", expected="a file", got=path)
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(
            "no such folder",
            where=f"{flag} {path}",
            expected="a file in a folder that is there",
            got=str(Path(path).parent),
        )
