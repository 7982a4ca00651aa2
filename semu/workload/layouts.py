"""What stands where in text: the runs of a sample in a metadata file, and those of a microbatch in a stream of batches.

Of a microbatch, per sequence of text that is not empty: its documents, of each its runs, ``["text", tokens]`` or
``["vision", number of the item in the microbatch, tokens]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_count, check_word
from semu.errors import ConfigError
from semu.masks.spans import KINDS, TEXT, Spans
from semu.workload.packing import offsets

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


def runs_of(spans: Spans) -> list[list[list[list[str | int]]]]:
    """The runs of a microbatch, as a stream of batches has them."""
    sizes = np.diff(spans.ptr)
    sequence = np.searchsorted(spans.starts, spans.ptr[:-1], side="right")
    columns = sequence, spans.document, spans.kind, spans.item, sizes
    rows = zip(*(column[sizes > 0].tolist() for column in columns), strict=True)
    return [
        [
            [[KINDS[kind], tokens] if kind == TEXT else [KINDS[kind], item, tokens] for *_, kind, item, tokens in runs]
            for _, runs in groupby(own, itemgetter(1))
        ]
        for _, own in groupby(rows, itemgetter(0))
    ]


def read_runs(value: object, lengths: Mapping[str, NDArray[np.int64]]) -> Spans:
    """The runs of a microbatch.

    Args:
        value: as ``runs_of`` writes them. lengths: of its streams [tokens].
    Raises:
        ConfigError: not runs, or runs that do not fill the text, or hold more or less of a modality than its stream.
    """
    text = lengths.get("text", np.zeros(0, np.int64))
    text = text[text > 0]
    sequences = _list(value, "layout", "a list of sequences")
    _check_sum("sequences", "layout", len(text), len(sequences))
    rows: list[tuple[int, int, int, int]] = []
    for number, (sequence, whole) in enumerate(zip(sequences, text.tolist(), strict=True)):
        where, left = f"layout[{number}]", whole
        for document in _list(sequence, where, "a list of documents"):
            name = rows[-1][0] + 1 if rows else 0
            runs = [_read_whole(run, where) for run in _list(document, where, "a list of runs")]
            rows += [(name, *run) for run in runs]
            left -= sum(tokens for *_, tokens in runs)
        _check_sum("tokens", where, whole, whole - left)
    document_of, kind, item, tokens = np.array(rows, np.int64).reshape(-1, 4).T
    for number, modality in enumerate(KINDS[1:], start=1):
        own = tokens[kind == number]
        _check_sum(f"tokens of {modality}", "layout", int(lengths.get(f"{modality}_tokens", own).sum()), int(own.sum()))
    return Spans(offsets(text), offsets(tokens), document_of, kind, item)


def _check_sum(what: str, where: str, expected: int, got: int) -> None:
    if got != expected:
        raise ConfigError(f"runs do not sum to the {what}", where=where, expected=f"{expected} {what}", got=got)


def _list(value: object, where: str, expected: str) -> list[object]:
    if not isinstance(value, list):
        raise ConfigError("not a layout", where=where, expected=expected, got=repr(value)[:60])
    return value


def _read_whole(run: object, where: str) -> tuple[int, int, int]:
    """Kind, item, tokens of a run that names all of them."""
    if not isinstance(run, list) or not run or len(run) != (2 if run[0] == KINDS[TEXT] else 3):
        expected = '["text", tokens] or ["vision", number, tokens]'
        raise ConfigError("not a run", where=where, expected=expected, got=repr(run)[:60])
    kind = KINDS.index(check_word(run[0], KINDS, "kind of run", where))
    item = -1 if kind == TEXT else check_count(run[1], where, least=0)
    return kind, item, check_count(run[-1], where)
