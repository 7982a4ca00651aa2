"""Metadata files: reading, packing against a slow reference, and every way a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.workload import Contents, FileBatch, file_batch, read_metadata, shape_columns
from semu.workload.recorded import FileBatch as RecordedBatch

images = st.one_of(
    st.integers(0, 5),
    st.lists(st.fixed_dictionaries({"patches": st.integers(1, 3000), "tokens": st.integers(1, 200)}), max_size=5),
)
samples = st.lists(
    st.fixed_dictionaries({"text_tokens": st.integers(1, 900), "images": images}), min_size=1, max_size=40
)


def write(path: Path, lines: list[object]) -> Path:
    path.write_text("".join(line + "\n" if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def sizes(sample: dict[str, object]) -> list[tuple[int, int]]:
    listed = sample.get("images", 0)
    if isinstance(listed, int):
        return [(2704, 169)] * listed
    assert isinstance(listed, list)
    return [(image["patches"], image["tokens"]) for image in listed]


@given(samples, st.integers(2000, 6000))
def test_packing_a_file_equals_the_loop(tmp_path_factory: pytest.TempPathFactory, lines: list, seq_len: int) -> None:
    path = write(tmp_path_factory.mktemp("meta") / "m.jsonl", lines)
    packed: list[dict[str, tuple[int, ...]]] = []
    room = 0
    for sample in lines:
        need = sample["text_tokens"] + sum(tokens for _, tokens in sizes(sample))
        if need > room or not packed:
            packed.append({"text": (), "vision": (), "vision_tokens": ()})
            room = seq_len
        room -= need
        packed[-1]["text"] += (need,)
        packed[-1]["vision"] += tuple(patches for patches, _ in sizes(sample))
        packed[-1]["vision_tokens"] += tuple(tokens for _, tokens in sizes(sample))
    microbatches = file_batch(path, "vlm").microbatches(len(packed), 1, seq_len)
    assert [microbatch.streams for microbatch in microbatches] == packed
    assert sum(microbatch.samples for microbatch in microbatches) == len(lines)


def test_kinds_are_inferred(tmp_path: Path) -> None:
    text = file_batch(write(tmp_path / "t.jsonl", [{"text_tokens": 5}, "", {"text_tokens": 7}]))
    assert text.metadata.contents is Contents.TEXT and text.default_seq_len == 2048
    assert text.microbatches(1, 1)[0].streams == {"text": (5, 7)}
    vlm = file_batch(write(tmp_path / "v.jsonl", [{"text_tokens": 5}, {"images": 1}]))
    assert vlm.metadata.contents is Contents.VLM and vlm.default_seq_len == 8192
    assert vlm.microbatches(1, 1)[0].streams == {"text": (5, 169), "vision": (2704,), "vision_tokens": (169,)}
    clip = file_batch(write(tmp_path / "c.jsonl", [{"text_tokens": 5, "video_seconds": 2}]))
    assert clip.metadata.contents is Contents.T2V and clip.default_seq_len is None
    microbatch = clip.microbatches(1, 1)[0]
    assert microbatch.streams == {"text": (5,), "video": (4 * 256,)} and microbatch.video_seconds == 2.0


@pytest.mark.parametrize("images", [0, []])
def test_no_images_on_purpose_is_vlm(tmp_path: Path, images: object) -> None:
    path = write(tmp_path / "z.jsonl", [{"text_tokens": 5}, {"text_tokens": 7, "images": images}])
    batch = file_batch(path)
    assert (batch.metadata.contents, batch.default_seq_len) == (Contents.VLM, 8192)
    (microbatch,) = batch.microbatches(1, 1)
    assert microbatch.streams == {"text": (5, 7), "vision": (), "vision_tokens": ()}
    assert {name: int(column[0]) for name, column in shape_columns([microbatch], 2).items()} == {
        "text.shard": 6,
        "text.tokens": 12,
        "text.pairs": 74,
        "text.sequences": 2,
        **{f"{name}.{what}": 0 for name in ("vision", "vision_tokens") for what in ("shard", "tokens", "pairs")},
        **{f"{name}.sequences": 0 for name in ("vision", "vision_tokens")},
        **{"vision*vision_tokens.pairs": 0, "vision_tokens*vision.pairs": 0},
    }
    assert file_batch(path, "text").microbatches(1, 1)[0].streams == {"text": (5, 7)}


def test_clips_of_a_file(tmp_path: Path) -> None:
    lines = [{"text_tokens": 10 + i, "video_seconds": 1 + i % 3, "resolution": [128, 256]} for i in range(30)]
    batch = file_batch(write(tmp_path / "c.jsonl", lines), seed=1, max_clips=4)
    groups = batch.microbatches(8, 1)
    assert sorted(x for m in groups for x in m.streams["text"]) == list(range(10, 40))
    # sorted by duration: 10 clips of 1 s, 10 of 2 s, 10 of 3 s, four at a time
    assert sorted(m.video_seconds for m in groups) == [4.0, 4.0, 6.0, 6.0, 8.0, 8.0, 12.0, 12.0]
    for microbatch in groups:
        assert sum(microbatch.streams["video"]) == microbatch.video_seconds * 2 * 8 * 16
    assert batch.microbatches(8, 1) == groups and batch.microbatches(3, 1) == groups[:3]


def test_file_options(tmp_path: Path) -> None:
    path = write(tmp_path / "v.jsonl", [{"text_tokens": 10, "images": 2}] * 6)
    one = file_batch(path, images_max=4).microbatches(3, 1)
    assert [len(m.streams["vision"]) for m in one] == [4, 4, 4]
    joined = file_batch(path, images_max=4, attend_across_samples=True).microbatches(1, 3)[0]
    assert joined.streams["text"] == (696, 696, 696)


def test_images_are_limited_beside_sound_too(tmp_path: Path) -> None:
    lines = [{"text_tokens": 10, "images": 2, "audio": 1}] * 6
    path = write(tmp_path / "mixed.jsonl", lines)
    (free,), (few, _) = file_batch(path).microbatches(1, 1), file_batch(path, images_max=4).microbatches(2, 1)
    assert len(free.lengths["vision"]) > 4 and len(few.lengths["vision"]) == 4
    with pytest.raises(ConfigError, match="a sample of 2 images is larger than images_max allows"):
        file_batch(path, images_max=1).microbatches(1, 1)
    text = write(tmp_path / "text.jsonl", [{"text_tokens": 10}] * 6)
    assert file_batch(text, images_max=1).microbatches(1, 1) == file_batch(text).microbatches(1, 1)


BAD_LINES = [
    ('{"text_tokens": 1', "not JSON"),
    ("\udcff", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("[1, 2]", "not a sample"),
    ("3", "not a sample"),
    ('{"text_token": 1}', "did you mean 'text_tokens'"),
    ('{"text_tokens": -1}', "text_tokens: not a valid number"),
    ('{"text_tokens": 1.5}', "text_tokens: not a valid number"),
    ('{"text_tokens": true}', "text_tokens: not a valid number"),
    ('{"text_tokens": null}', "text_tokens: not a valid number"),
    ('{"text_tokens": 99999999999999999999}', "text_tokens: not a valid number"),
    ('{"images": "3"}', "images: not a valid number"),
    ('{"images": 10000000000}', "images: not a valid number"),
    ('{"images": [3]}', r"images\[0\]: not an image"),
    ('{"images": [{"patches": 4}]}', r"images\[0\]: an image without a size.*'tokens'"),
    ('{"images": [{"patches": 4, "tokens": 0}]}', r"images\[0\]\.tokens: not a valid number"),
    ('{"images": [{"patches": 4, "tokns": 1}]}', "did you mean 'tokens'"),
    ('{"text_tokens": 1, "video_seconds": 0}', "video_seconds: not a number"),
    ('{"text_tokens": 1, "video_seconds": NaN}', "video_seconds: not a number"),
    ('{"text_tokens": 1, "video_seconds": Infinity}', "video_seconds: not a number"),
    ('{"text_tokens": 1, "video_seconds": 1e300}', "video_seconds: not a number"),
    ('{"text_tokens": 1, "video_seconds": "4"}', "video_seconds: not a number"),
    ('{"text_tokens": 1, "video_seconds": 1, "resolution": [256]}', "resolution: not a resolution"),
    ('{"text_tokens": 1, "video_seconds": 1, "resolution": [256, 0]}', "resolution: not a valid number"),
    ("{}", "nothing in the sample"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=[line[:40] for line, _ in BAD_LINES])
def test_a_corrupt_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text_tokens": 4}\n\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(ConfigError, match=message) as caught:
        read_metadata(path)
    assert caught.value.where == f"{path}:3"


@pytest.mark.parametrize(
    ("lines", "kind", "line", "message"),
    [
        ([{"text_tokens": 1, "video_seconds": 1}, {"text_tokens": 1}], None, 2, "without a clip"),
        ([{"text_tokens": 1, "video_seconds": 1, "images": 1}], None, 1, "an image in a file"),
        ([{"video_seconds": 1}], None, 1, "a caption"),
        ([{"text_tokens": 1}, {"text_tokens": 1, "images": 1}], "text", 2, "an image in a file"),
        ([{"text_tokens": 1, "video_seconds": 1}], "vlm", 1, "a clip in a file"),
    ],
)
def test_kinds_do_not_mix(tmp_path: Path, lines: list[object], kind: str | None, line: int, message: str) -> None:
    path = write(tmp_path / "mixed.jsonl", lines)
    with pytest.raises(ConfigError, match=message) as caught:
        file_batch(path, kind)
    assert caught.value.where == f"{path}:{line}"


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_an_empty_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match="empty") as caught:
        file_batch(path)
    assert caught.value.where == str(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="cannot read"):
            file_batch(path)


def test_a_sample_larger_than_the_context_names_line_and_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "v.jsonl", [{"text_tokens": 5}, "", {"images": 3}, {"text_tokens": 600}])
    with pytest.raises(ConfigError) as caught:
        file_batch(path).microbatches(1, 1, seq_len=500)
    assert (caught.value.where, caught.value.got, caught.value.nearest) == (f"{path}:3", 507, "seq_len = 600")
    assert file_batch(path).microbatches(1, 1, seq_len=600)[0].samples == 2
    with pytest.raises(ConfigError) as caught:
        file_batch(path, images_max=2).microbatches(1, 1)
    assert (caught.value.where, caught.value.nearest) == (f"{path}:3", "images_max = 3")


def test_a_clip_longer_than_a_group_names_line_and_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [{"text_tokens": 5, "video_seconds": s} for s in (2, 16.5, 20)])
    with pytest.raises(ConfigError) as caught:
        file_batch(path).microbatches(1, 1)
    assert (caught.value.where, caught.value.nearest) == (f"{path}:2", "max_seconds = 20.0")
    batch = file_batch(path, max_seconds=20)
    assert sorted(m.video_seconds for m in batch.microbatches(2, 1)) == [18.5, 20.0]
    with pytest.raises(ConfigError) as caught:
        batch.microbatches(1, 1, seq_len=10_000)
    assert (caught.value.where, caught.value.nearest) == (f"{path}:3", "seq_len = 10240")


def test_too_few_samples_says_how_many_are_needed(tmp_path: Path) -> None:
    path = write(tmp_path / "v.jsonl", [{"text_tokens": 400}] * 10)  # two to a sequence of 1000
    batch = file_batch(path)
    assert len(batch.microbatches(2, 2, seq_len=1000)) == 2
    with pytest.raises(ConfigError) as caught:
        batch.microbatches(4, 2, seq_len=1000)
    assert caught.value.where == str(path)
    assert caught.value.expected == "8 packed sequences of 1000 tokens, about 16 samples"
    assert caught.value.got == "5 packed sequences of 1000 tokens from 10 samples"
    assert caught.value.nearest == "2 microbatches"
    with pytest.raises(ConfigError, match="clip groups"):
        file_batch(write(tmp_path / "c.jsonl", [{"text_tokens": 5, "video_seconds": 9}])).microbatches(1, 2)


def test_files_are_equal_by_content(tmp_path: Path) -> None:
    first = file_batch(write(tmp_path / "a.jsonl", [{"text_tokens": 4}]))
    second = file_batch(write(tmp_path / "b.jsonl", [{"text_tokens": 4}]))
    third = file_batch(write(tmp_path / "c.jsonl", [{"text_tokens": 5}]))
    assert first == second and hash(first) == hash(second) and first != third
    assert FileBatch is RecordedBatch
    described = json.loads(json.dumps(first.describe()))
    assert (described["kind"], described["contents"], described["samples"]) == ("file", "text", 1)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"seed": -1}, "batch.seed"),
        ({"images_max": 0}, "batch.images_max"),
        ({"attend_across_samples": "no"}, "batch.attend_across_samples"),
        ({"max_seconds": 0}, "batch.max_seconds"),
        ({"max_clips": 1.5}, "batch.max_clips"),
        ({"kind": "video"}, "batch.contents"),
    ],
)
def test_bad_options(tmp_path: Path, arguments: dict[str, object], where: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"text_tokens": 4}])
    with pytest.raises(ConfigError) as caught:
        file_batch(path, **arguments)  # type: ignore[arg-type]
    assert caught.value.where == where
