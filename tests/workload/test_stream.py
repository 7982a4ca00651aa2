"""Streams of batches: what is written is read again; bad lines are named when their iteration comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
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
