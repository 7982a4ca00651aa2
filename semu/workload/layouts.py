"""Runs of a sample as a metadata file records them: where images and sounds stand in the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semu.checks import check_count, check_word
from semu.errors import ConfigError
from semu.masks.spans import KINDS

Layout = tuple[tuple[str, int, int], ...]
"""Runs of a sample: kind, number of the item in its stream (text: -1), tokens."""


def read_layout(value: object, items: Mapping[str, Sequence[tuple[int, int]]], text: int | None) -> Layout:
    """The runs of a sample.

    Args:
        value: the key "layout". items: stream -> (what enters the encoder, tokens) of each item. text: tokens of text;
            None: as many as the runs have.
    Raises:
        ConfigError: not runs, or runs that are not the sample's text and items.
    """
    if not isinstance(value, list):
        raise ConfigError(
            "not a layout", where="layout", expected='[["text", 40], ["vision", 0]]', got=repr(value)[:60]
        )
    left = {(name, number): tokens for name, own in items.items() for number, (_, tokens) in enumerate(own)}
    runs = [_read_run(run, left, f"layout[{index}]") for index, run in enumerate(value)]
    for key, tokens in left.items():
        if tokens:
            whole = items[key[0]][key[1]][1]
            raise ConfigError(
                f"runs do not sum to the length of {key[0]} item {key[1]}",
                where="layout",
                expected=f"{whole} tokens",
                got=whole - tokens,
            )
    found = text_of(runs)
    if text is not None and found != text:
        raise ConfigError("runs do not sum to the tokens of text", where="layout", expected=f"{text} tokens", got=found)
    return tuple(runs)


def text_of(runs: Sequence[tuple[str, int, int]]) -> int:
    """Tokens of text in runs."""
    return sum(tokens for kind, _, tokens in runs if kind == "text")


def _read_run(run: object, left: dict[tuple[str, int], int], where: str) -> tuple[str, int, int]:
    """A run. ``left``: tokens that items still lack, written."""
    if not isinstance(run, list) or len(run) not in (2, 3):
        expected = '["text", tokens] or ["vision", number]'
        raise ConfigError("not a run", where=where, expected=expected, got=repr(run)[:60])
    kind = check_word(run[0], KINDS, "kind of run", where)
    number = check_count(run[1], where, least=0)
    if kind == "text":
        return kind, -1, number
    if (kind, number) not in left:
        count = sum(name == kind for name, _ in left)
        raise ConfigError(
            f"no such {kind} item in the sample", where=where, expected=f"a number below {count}", got=number
        )
    tokens = check_count(run[2], where) if len(run) == 3 else left[kind, number]
    left[kind, number] -= tokens
    return kind, number, tokens
