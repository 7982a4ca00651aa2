"""Streams of batches: what is written is read again; bad lines are named when their iteration comes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import Spans
from semu.workload import (
    ListedBatch,
    Microbatch,
    file_batch,
    listed_batch,
    read_stream,
    t2v_batch,
    text_batch,
    vlm_batch,
    write_stream,
)
from semu.workload.batch import AbstractBatch

LENGTHS = st.lists(st.integers(0, 5000), max_size=4)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(
            st.builds(
                lambda text, images, samples, seconds: Microbatch(
                    {"text": text, "vision": images, "vision_tokens": images}, samples, seconds
                ),
                LENGTHS,
                LENGTHS,
                st.integers(0, 9),
                st.floats(0, 100),
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_listed_batches_come_back(batches: list[list[Microbatch]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.jsonl"
        assert write_stream(path, map(listed_batch, batches), count=1, micro_batch=1) == len(batches)
        found = list(read_stream(path, vlm_batch(), count=2, micro_batch=1))
    assert [list(own.items) for own in found if isinstance(own, ListedBatch)] == batches


@pytest.mark.parametrize("batch", [vlm_batch(seed=3), t2v_batch(seed=3), text_batch(512)])
def test_generated_batches_come_back(batch: object, tmp_path: Path) -> None:
    path = tmp_path / "stream.jsonl"
    write_stream(path, [batch], count=4, micro_batch=2)  # type: ignore[list-item]
    [found] = read_stream(path, batch, count=4, micro_batch=2)  # type: ignore[arg-type]
    assert found.microbatches(4, 2) == batch.microbatches(4, 2)  # type: ignore[attr-defined]


def spans_of(path: Path, batch: AbstractBatch, count: int) -> list[tuple[Spans, Spans]]:
    """The runs of every microbatch, before it is written and after."""
    write_stream(path, [batch], count=count, micro_batch=2, seq_len=2048)
    [found] = read_stream(path, batch, count=count, micro_batch=2)
    again, items = found.microbatches(count, 2), batch.microbatches(count, 2, 2048)
    assert again == items and all(item.places is not None for item in again)
    return [(own.spans(), other.spans()) for own, other in zip(items, again, strict=True)]


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("placement", ["prefix", "embedded"])
def test_places_of_images_come_back(placement: str, across: bool, tmp_path: Path) -> None:
    """With them what any mask lets tokens see."""
    batch = vlm_batch(seed=3, placement=placement, attend_across_samples=across)
    for own, other in spans_of(tmp_path / "stream.jsonl", batch, 3):
        assert (own.kind > 0).any()
        for name in ("starts", "ptr", "kind", "item"):
            np.testing.assert_array_equal(getattr(own, name), getattr(other, name))
        np.testing.assert_array_equal(own.document_starts, other.document_starts)
        for kind in MaskKind:
            for one, two in zip(vars(Seen.of(kind, own)).values(), vars(Seen.of(kind, other)).values(), strict=True):
                np.testing.assert_array_equal(one, two)


def test_recorded_layouts_come_back(tmp_path: Path) -> None:
    """An image in two parts, after text; a sample without a layout beside it."""
    sample = {"images": [{"patches": 36, "tokens": 9}], "layout": [["text", 40], ["vision", 0, 4], ["text", 8]]}
    sample["layout"].append(["vision", 0, 5])  # type: ignore[attr-defined]
    path = lines(tmp_path / "samples.jsonl", *[sample, {"text_tokens": 7, "images": 1}] * 200)
    for own, other in spans_of(tmp_path / "stream.jsonl", file_batch(path, "vlm"), 1):
        assert own.per_token(own.kind)[:61].tolist() == [0] * 40 + [1] * 4 + [0] * 8 + [1] * 5 + [1] * 4
        for name in ("starts", "ptr", "document", "kind", "item"):
            np.testing.assert_array_equal(getattr(own, name), getattr(other, name))


@pytest.mark.parametrize(
    ("layout", "where", "said"),
    [
        (7, " layout", "not a layout"),
        ([[[["text", 60]]]], " layout", "sequences"),
        ([[[["text", 59]]], [[["text", 4]]]], " layout[0]", "60 tokens"),
        ([[[["text", 51], ["vision", 0, 9]]], [[["text", 4]]]], " layout", "10 tokens of vision"),
        ([[[["text", 50], ["vision", 10]]], [[["text", 4]]]], " layout[0]", "not a run"),
        ([[[["text", 50], ["video", 0, 10]]], [[["text", 4]]]], " layout[0]", "kind of run"),
        ([[["text", 50]], [[["text", 4]]]], " layout[0]", "not a run"),
        ([[[["text", 50], ["vision", -1, 10]]], [[["text", 4]]]], " layout[0]", "-1"),
    ],
)
def test_bad_layouts_are_named(layout: object, where: str, said: str, tmp_path: Path) -> None:
    streams = {"text": [60, 0, 4], "vision": [40], "vision_tokens": [10]}
    good = [[[["text", 50]], [["vision", 0, 10]]], [[["text", 4]]]]
    path = lines(
        tmp_path / "stream.jsonl",
        {"microbatches": [{"streams": streams, "layout": good}]},
        {"microbatches": [{"streams": streams, "layout": layout}]},
    )
    stream = read_stream(path, vlm_batch(), count=1, micro_batch=1)
    next(stream)
    with pytest.raises(ConfigError) as caught:
        next(stream)
    assert f":2 microbatches[0]{where}" in str(caught.value.where)
    assert said in str(caught.value)


VLM_SAMPLES = [{"text_tokens": 100 + i, "images": i % 3} for i in range(40)]
CLIPS = [{"text_tokens": 20 + i, "video_seconds": 1.0 + i % 7} for i in range(40)]


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    return path


@pytest.mark.parametrize(("samples", "like"), [(VLM_SAMPLES, vlm_batch()), (CLIPS, t2v_batch())])
def test_samples_are_packed_as_in_a_metadata_file(samples: list[object], like: object, tmp_path: Path) -> None:
    seq_len = 1024 if like == vlm_batch() else None
    whole = lines(tmp_path / "samples.jsonl", *samples)
    stream = lines(tmp_path / "stream.jsonl", {"samples": samples}, {"samples": samples[:30]})
    alone = file_batch(whole, "vlm" if seq_len else "t2v")
    first, second = read_stream(stream, like, count=2, micro_batch=1, seq_len=seq_len)  # type: ignore[arg-type]
    assert first.microbatches(2, 1, seq_len) == alone.microbatches(2, 1, seq_len)
    assert len(second.microbatches(2, 1, seq_len)) == 2
    total = alone.capacity(1, seq_len)
    dealt = list(read_stream(whole, like, count=2, micro_batch=1, seq_len=seq_len))  # type: ignore[arg-type]
    assert len(dealt) == total // 2 >= 2
    flat = [item for own in dealt for item in own.microbatches(2, 1)]
    assert flat == alone.microbatches(total // 2 * 2, 1, seq_len)
    with pytest.raises(ConfigError):
        alone.microbatches(total + 1, 1, seq_len)


@pytest.mark.parametrize(
    ("bad", "where", "said"),
    [
        ("{", ":3", "not JSON"),
        ("[]", ":3", "not an iteration"),
        ('{"samples": [{"text_tokens": 5}], "microbatches": []}', ":3", "not an iteration"),
        ('{"samples": [{"text_tokens": 5}], "samles": 3}', ":3", "samles"),
        ('{"samples": []}', ":3", "no samples"),
        ('{"samples": [{"text_tokens": 5}, {"text_tokens": -5}]}', ":3 samples[1]", "text_tokens"),
        ('{"samples": [{"text_tokens": 5}, 7]}', ":3 samples[1]", "not a sample"),
        ('{"samples": [{"text_tokens": 5, "video_seconds": 3}]}', ":3 samples:0", "clip"),
        ('{"microbatches": [{"streams": {"text": [5.5]}}]}', ":3 microbatches[0] microbatch.streams.text", "lengths"),
        ('{"microbatches": [{"streams": {"text": [[1], [1, 2]]}}]}', ":3 microbatches[0]", "lengths"),
        ('{"microbatches": [{"streams": {"text": [5]}}, {"text": [5]}]}', ":3 microbatches[1]", "not a microbatch"),
        ('{"microbatches": [{"streams": {"text": [5]}, "sample": 3}]}', ":3 microbatches[0]", "sample"),
        (
            '{"microbatches": [{"streams": {"text": [5]}, "samples": -3}]}',
            ":3 microbatches[0] samples",
            "not a valid number",
        ),
    ],
)
def test_a_bad_line_is_named_when_it_comes(bad: str, where: str, said: str, tmp_path: Path) -> None:
    path = lines(tmp_path / "stream.jsonl", {"samples": [{"text_tokens": 5}]})
    path.write_text(path.read_text() + bad + "\n")
    stream = read_stream(path, vlm_batch(), count=1, micro_batch=1)
    next(stream)
    with pytest.raises(ConfigError) as caught:
        next(stream)
    assert str(caught.value.where) == f"{path}{where}"
    assert said in str(caught.value)


def test_files_that_are_no_streams(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    for path in (empty, tmp_path / "missing.jsonl"):
        with pytest.raises(ConfigError) as caught:
            read_stream(path, vlm_batch(), count=1, micro_batch=1)
        assert str(caught.value.where) == str(path)
    few = lines(tmp_path / "few.jsonl", {"text_tokens": 10})
    with pytest.raises(ConfigError, match="fewer samples"):
        next(read_stream(few, vlm_batch(), count=4, micro_batch=1))


def test_listed_batches_are_not_made_longer() -> None:
    items = [Microbatch({"text": [5]}, 1)] * 2
    with pytest.raises(ConfigError, match="fewer microbatches"):
        listed_batch(items).microbatches(3, 1)
    with pytest.raises(ConfigError, match="no microbatches"):
        listed_batch([])
    assert listed_batch(items).microbatches(1, 1) == items[:1]
