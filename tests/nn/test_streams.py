"""Derived streams: names, lengths, packings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.nn import Sequences
from semu.nn.streams import Change, ChangeKind, changes_of, derived_in, renamed
from semu.workload import Microbatch, shape_columns
from semu.workload.derived import with_derived

CHANGES = st.one_of(
    st.integers(1, 9).map(Change.longer),
    st.integers(1, 9).map(lambda n: Change.longer(-n)),
    st.integers(1, 9).map(Change.shorter),
    st.integers(1, 9).map(Change.to),
)


def naive(change: Change, length: int) -> int:
    """Token by token."""
    tokens = list(range(length))
    if change.kind is ChangeKind.SET:
        return change.number if tokens else 0
    if change.kind is ChangeKind.SHORTER:
        return len({token // change.number for token in tokens})
    return len(tokens[-change.number :]) if change.number < 0 else len(tokens) + change.number * bool(tokens)


@given(CHANGES, st.lists(st.integers(0, 200), max_size=8))
def test_lengths_are_those_of_the_tokens(change: Change, lengths: list[int]) -> None:
    expected = [naive(change, length) for length in lengths]
    assert [change.length(length) for length in lengths] == expected
    assert change.lengths(np.array(lengths, np.int64)).tolist() == expected


@given(st.lists(CHANGES, min_size=1, max_size=4))
def test_a_name_says_how_its_lengths_are_made(changes: list[Change]) -> None:
    name = "audio"
    for change in changes:
        name = change.stream(name)
    base, steps = changes_of(name)
    assert base == "audio"
    for length in (0, 1, 50, 97):
        written, meant = length, length
        for step in steps:
            written = step.length(written)
        for change in changes:
            meant = change.length(meant)
        if length >= 50 or all(c.kind is not ChangeKind.LONGER or c.number > 0 for c in changes):
            assert written == meant or meant == 0


def test_what_undoes_or_hides_leaves_no_trace() -> None:
    assert Change.longer(-1).stream("vision+1") == "vision"
    assert Change.to(1).stream("vision+1") == "vision=1"
    assert Change.shorter(2).stream(Change.shorter(2).stream("audio")) == "audio/2/2"


def test_streams_of_symbols() -> None:
    symbols = [
        "text.shard",
        "vision+1.pairs",
        "vision=1*vision.vit.pairs",
        "audio/2.pairs@chunked100",
        "text.shard~2*1/2~1~1",
    ]
    assert derived_in(symbols) == ("audio/2", "vision+1", "vision=1")


@pytest.mark.parametrize("number", [0, -2])
def test_no_change_is_refused(number: int) -> None:
    with pytest.raises(ConfigError, match="not a change"):
        Change.shorter(number)


@given(st.lists(st.integers(0, 60), max_size=6), st.sampled_from([1, 2, 8]), st.sampled_from([1, 4]))
def test_columns_of_derived_streams(lengths: list[int], divisor: int, parts: int) -> None:
    item = Microbatch({"text": [9], "vision": lengths}, samples=1)
    (more,) = with_derived([item], ["vision+1", "vision=1", "audio/2"])
    assert more.streams["vision+1"] == tuple(n + 1 if n else 0 for n in lengths)
    assert "audio/2" not in more.lengths
    columns = shape_columns([more], divisor * parts, parts)
    chunks = [-(-(n + 1 if n else 0) // parts) for n in lengths]
    assert columns["vision+1.pairs"].tolist() == [sum(n * n for n in chunks)]
    assert columns["vision+1.shard"].tolist() == [-(-sum(chunks) // divisor)]
    if parts == 1:
        assert columns["vision=1*vision.pairs"].tolist() == [sum(lengths)]


def test_one_microbatch_again_and_again_stays_one_object() -> None:
    item = Microbatch({"vision": [4]}, samples=1)
    made = with_derived([item, item], ["vision+1"])
    assert made[0] is made[1]
    assert with_derived([item], []) == [item]


def test_symbols_of_another_stream() -> None:
    packing = renamed(Sequences.of_stream("vision", 4, module="vit"), "vision_tokens")
    assert packing == Sequences.of_stream("vision_tokens", 4, module="vit")
