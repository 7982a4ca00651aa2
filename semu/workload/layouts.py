"""Runs of a sample as a metadata file records them: where images and sounds stand in the text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from semu.checks import check_count, check_word
from semu.errors import ConfigError
from semu.masks.spans import KINDS

if TYPE_CHECKING:
    from semu.workload.metadata import Sample


def with_layout(sample: Sample, value: object, has_text: bool) -> Sample:
    """A sample with its runs.

    Args:
        sample: without them. value: the key "layout". has_text: the line says how many tokens of text there are.
    Raises:
        ConfigError: not runs, or runs that are not the sample's text and items.
    """
    runs: list[tuple[str, int, int]] = []
    items = {"vision": sample.images or (), "audio": sample.audio or ()}
    left = {(name, number): tokens for name, own in items.items() for number, (_, tokens) in enumerate(own)}
    if not isinstance(value, list):
        raise ConfigError("not a layout", where="layout", expected='[["text", 40], ["vision", 0]]', got=repr(value)[:60])
    for index, run in enumerate(value):
        where = f"layout[{index}]"
        if not isinstance(run, list) or len(run) not in (2, 3):
            raise ConfigError("not a run", where=where, expected='["text", tokens] or ["vision", number]', got=repr(run)[:60])
        kind = check_word(run[0], KINDS, "kind of run", where)
        if kind == "text":
            runs.append((kind, -1, check_count(run[1], where, least=0)))
            continue
        key = kind, check_count(run[1], where, least=0)
        if key not in left:
            raise ConfigError(
                f"no such {kind} item in the sample",
                where=where,
                expected=f"a number below {len(items[kind])}",
                got=run[1],
            )
        tokens = check_count(run[2], where) if len(run) == 3 else left[key]
        left[key] -= tokens
        runs.append((*key, tokens))
    wrong = next((key for key, tokens in left.items() if tokens), None)
    if wrong is not None:
        all_tokens = items[wrong[0]][wrong[1]][1]
        raise ConfigError(
            f"runs do not sum to the length of {wrong[0]} item {wrong[1]}",
            where="layout",
            expected=f"{all_tokens} tokens",
            got=all_tokens - left[wrong],
        )
    text = sum(tokens for kind, _, tokens in runs if kind == "text")
    if has_text and text != sample.text_tokens:
        raise ConfigError(
            "runs do not sum to the tokens of text", where="layout", expected=sample.text_tokens, got=text
        )
    return replace(sample, layout=tuple(runs), text_tokens=text)
