"""Microbatch, text sequences and shape_columns against sums written out."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import semu.workload
from semu.errors import ConfigError
from semu.workload import Microbatch, shape_columns, t2v_batch, text_batch, vlm_batch

lengths = st.lists(st.integers(0, 5000), max_size=6)


@st.composite
def iterations(draw: st.DrawFn) -> list[Microbatch]:
    """Microbatches with a stream ``text`` and two streams of equal count."""
    microbatches = []
    for _ in range(draw(st.integers(1, 5))):
        vision = draw(lengths)
        merged = draw(st.lists(st.integers(0, 300), min_size=len(vision), max_size=len(vision)))
        streams = {"text": draw(lengths), "vision": vision, "vision_tokens": merged}
        microbatches.append(Microbatch(streams, samples=1))
    return microbatches


@given(iterations(), st.integers(1, 64))
def test_columns_are_the_sums_written_out(microbatches: list[Microbatch], divisor: int) -> None:
    columns = shape_columns(microbatches, divisor)
    for name in ("text", "vision", "vision_tokens"):
        streams = [microbatch.streams[name] for microbatch in microbatches]
        assert columns[f"{name}.tokens"].tolist() == [sum(s) for s in streams]
        assert columns[f"{name}.pairs"].tolist() == [sum(x * x for x in s) for s in streams]
        assert columns[f"{name}.sequences"].tolist() == [len(s) for s in streams]
        assert columns[f"{name}.shard"].tolist() == [(sum(s) + divisor - 1) // divisor for s in streams]
    expected = [
        sum(a * b for a, b in zip(m.streams["vision"], m.streams["vision_tokens"], strict=True)) for m in microbatches
    ]
    assert columns["vision*vision_tokens.pairs"].tolist() == expected
    assert columns["vision_tokens*vision.pairs"].tolist() == expected
    same_count = all(len(m.streams["text"]) == len(m.streams["vision"]) for m in microbatches)
    assert ("text*vision.pairs" in columns) == same_count


def test_columns_do_not_overflow_at_a_long_context() -> None:
    length = 1 << 24
    columns = shape_columns([Microbatch({"text": [length] * 4}, 4)], 8)
    assert columns["text.pairs"].tolist() == [4 * length * length]


def test_columns_refuse_different_streams_and_a_bad_divisor() -> None:
    one, two = Microbatch({"text": [1]}, 1), Microbatch({"video": [1]}, 1)
    with pytest.raises(ConfigError, match="microbatch 1"):
        shape_columns([one, two], 1)
    with pytest.raises(ConfigError, match="token_divisor"):
        shape_columns([one], 0)
    assert shape_columns([], 1) == {}


def test_microbatch_is_a_value() -> None:
    first = Microbatch({"text": (3, 4), "vision": ()}, samples=2, video_seconds=1.5)
    same = Microbatch({"vision": [], "text": [3, 4]}, samples=2, video_seconds=1.5)
    assert first == same and hash(first) == hash(same)
    assert first != Microbatch({"text": (3, 5), "vision": ()}, samples=2, video_seconds=1.5)
    assert first != Microbatch({"text": (3, 4), "vision": ()}, samples=1, video_seconds=1.5)
    assert first != Microbatch({"text": (3, 4)}, samples=2, video_seconds=1.5)
    assert first != "text"
    assert pickle.loads(pickle.dumps(first)) == first
    assert first.streams == {"text": (3, 4), "vision": ()}
    assert first.tokens("text") == 7 and first.tokens("video") == 0
    with pytest.raises(ValueError, match="read-only"):
        first.lengths["text"][0] = 9
    with pytest.raises(AttributeError):
        first.samples = 3  # type: ignore[misc]


@pytest.mark.parametrize("bad", [[1.5], [-1], ["a"], [[1, 2]], [True]])
def test_microbatch_refuses_what_is_not_a_length(bad: list[object]) -> None:
    with pytest.raises(ConfigError, match=r"microbatch\.streams\.text"):
        Microbatch({"text": bad}, 1)  # type: ignore[dict-item]


@pytest.mark.parametrize("batch", [vlm_batch(seed=3), t2v_batch(seed=3)])
def test_generated_microbatches_cannot_be_changed(batch: semu.workload.AbstractBatch) -> None:
    for array in batch.microbatches(1, 1)[0].lengths.values():
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_text_batch() -> None:
    assert text_batch().default_seq_len == 2048
    microbatches = text_batch(seq_len=1024).microbatches(3, 2)
    assert [m.streams for m in microbatches] == [{"text": (1024, 1024)}] * 3
    assert text_batch(1024).microbatches(1, 1, seq_len=16)[0].streams == {"text": (16,)}
    assert microbatches[0].samples == 2


@pytest.mark.parametrize("arguments", [(0, 1, None), (1, 0, None), (1, 1, 0), (True, 1, None), (1, 1.0, None)])
@pytest.mark.parametrize("batch", [text_batch(), vlm_batch(), t2v_batch()])
def test_requests_are_checked(batch: semu.workload.AbstractBatch, arguments: tuple[int, int, int | None]) -> None:
    with pytest.raises(ConfigError, match="not a valid number"):
        batch.microbatches(*arguments)


def test_text_batch_refuses_an_empty_sequence() -> None:
    with pytest.raises(ConfigError) as caught:
        text_batch(0)
    assert caught.value.nearest == 1


def test_what_is_declared_can_be_imported() -> None:
    assert all(hasattr(semu.workload, name) for name in semu.workload.__all__)
