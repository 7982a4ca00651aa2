"""``make_batch``: each key arrives, each wrong key is told where and what else."""

from __future__ import annotations

from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.workload import AbstractBatch, file_batch, make_batch, t2v_batch, text_batch, vlm_batch

WHERE = "run.toml [batch]"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, text_batch()),
        ({"kind": "text", "seed": 3}, text_batch()),
        ({"kind": "vlm"}, vlm_batch()),
        ({"kind": "vlm", "seed": 3, "text_per_image": "laion"}, vlm_batch(3, "laion")),
        ({"kind": "vlm", "text_per_image": 50, "images_mean": 4.5}, vlm_batch(0, 50, 4.5)),
        (
            {"kind": "vlm", "images_max": 16, "attend_across_samples": True},
            vlm_batch(images_max=16, attend_across_samples=True),
        ),
        (
            {"kind": "t2v", "seed": 1, "resolution": [768, 768], "max_seconds": 8, "max_clips": 4},
            t2v_batch(1, (768, 768), 8, 4),
        ),
    ],
)
def test_options_arrive(options: dict[str, object], expected: AbstractBatch) -> None:
    assert make_batch(options, WHERE) == expected


def test_a_file_is_found_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"text_tokens": 4}\n')
    batch = make_batch({"kind": "file", "path": "m.jsonl", "contents": "text", "images_max": 3}, WHERE, tmp_path)
    assert batch == file_batch(tmp_path / "m.jsonl", "text", images_max=3)
    assert make_batch({"kind": "file", "path": str(tmp_path / "m.jsonl")}, WHERE, "/elsewhere") != batch


@pytest.mark.parametrize(
    ("streams", "contents"),
    [
        (("vision", "text"), "vlm"),
        (("vision",), "vlm"),
        (("text", "video"), "t2v"),
        (("text",), "text"),
        (("audio",), "mixed"),
        (("smell",), "text"),  # tells nothing: the file's keys do
        (None, "text"),
    ],
)
def test_the_model_decides_what_a_file_holds(tmp_path: Path, streams: tuple[str, ...] | None, contents: str) -> None:
    sample = '{"text_tokens": 4, "video_seconds": 1}\n' if contents == "t2v" else '{"text_tokens": 4}\n'
    (tmp_path / "m.jsonl").write_text(sample)
    options = {"kind": "file", "path": "m.jsonl"}
    batch = make_batch(options, WHERE, tmp_path, streams)
    assert batch == file_batch(tmp_path / "m.jsonl", contents)
    if contents == "vlm":
        assert make_batch({**options, "contents": "text"}, WHERE, tmp_path, streams).default_seq_len == 2048


def test_images_for_a_model_without_eyes_name_line_and_way_out(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"text_tokens": 4}\n{"images": 2}\n')
    with pytest.raises(ConfigError, match="an image in a file without images") as caught:
        make_batch({"kind": "file", "path": "m.jsonl"}, WHERE, tmp_path, ("text",))
    assert (caught.value.where, caught.value.nearest) == (f"{tmp_path / 'm.jsonl'}:2", 'contents = "vlm"')


@pytest.mark.parametrize("options", [{}, {"kind": "vlm"}, {"kind": "t2v"}, {"kind": "vlm", "images_mean": 0}])
def test_a_batch_tells_its_streams_without_drawing(options: dict[str, object]) -> None:
    batch = make_batch(options)
    assert set(batch.input_streams) == set(AbstractBatch.input_streams.fget(batch))  # type: ignore[attr-defined]
    assert batch.context_length(None) == batch.default_seq_len
    assert batch.context_length(9000) == 9000


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"kind": "vml"}, "kind", "did you mean 'vlm'"),
        ({"kind": 3}, "kind", "unknown kind of batch"),
        ({"kind": "vlm", "image_mean": 3}, "image_mean", "did you mean 'images_mean'"),
        ({"kind": "vlm", "resolution": [1, 1]}, "resolution", "kind = 't2v'"),
        ({"images_mean": 3}, "images_mean", "kind = 'vlm'"),
        ({"kind": "text", "seed": -1}, "seed", "not a valid number"),
        ({"kind": "vlm", "seed": "0"}, "seed", "not a valid number"),
        ({"kind": "vlm", "text_per_image": "obelix"}, "text_per_image", "did you mean 'obelics'"),
        ({"kind": "vlm", "text_per_image": [1]}, "text_per_image", "not a number"),
        ({"kind": "t2v", "resolution": "256x256"}, "resolution", "not a resolution"),
        ({"kind": "file"}, "path", "no metadata file"),
        ({"kind": "file", "path": 3}, "path", "no metadata file"),
        ({"kind": "file", "path": "m.jsonl", "contents": 1}, "contents", "unknown contents"),
    ],
)
def test_wrong_options(options: dict[str, object], key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_batch(options, WHERE)
    assert caught.value.where == f"{WHERE}.{key}"


def test_a_file_called_like_the_table_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("batch.jsonl").write_text("{\n")
    with pytest.raises(ConfigError) as caught:
        make_batch({"kind": "file", "path": "batch.jsonl"}, WHERE)
    assert caught.value.where == "batch.jsonl:1"
