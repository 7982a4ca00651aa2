"""``[training] left_out``: what a run has and semu does not model, with how far each may move the iteration time."""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import ConfigError


def read_left_out(value: object, where: str) -> tuple[str, ...]:
    """Texts of a name and a spread in [0, 1], each name once.

    Args:
        value: a list of them. where: its place, for messages.
    Raises:
        ConfigError: something else.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            "not a list of texts", where=where, expected='texts such as "NAME 0.02"', got=repr(value)[:60]
        )
    names = set()
    for text in texts:
        name, _, spread = text.rpartition(" ")
        try:
            is_legal = bool(name.strip()) and name not in names and 0 <= float(spread) <= 1
        except ValueError:
            is_legal = False
        if not is_legal:
            expected = 'a name of its own and a spread between 0 and 1, as "NAME 0.02"'
            raise ConfigError("not something left out", where=where, expected=expected, got=text[:60])
        names.add(name)
    return tuple(texts)


def spreads_of(left_out: Sequence[str] | None) -> dict[str, float]:
    """Name -> relative standard deviation, of texts that ``read_left_out`` has checked."""
    pairs = (item.rpartition(" ") for item in left_out or ())
    return {name: float(spread) for name, _, spread in pairs}
