"""Batches of text, images and audio: what they hold, what the model decides, metadata files with sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semu.errors import ConfigError
from semu.nn.merging import Merging, Rounding
from semu.workload import file_batch, make_batch, mixed_batch, read_metadata
from semu.workload.distributions import LIBRISPEECH_SECONDS, LIBRISPEECH_UTTERANCES, SPEECH_TOKENS_PER_S
from semu.workload.mixed import FRAMES_TO_TOKENS

PADDED = Merging("audio", "audio_tokens", FRAMES_TO_TOKENS.steps, 3000, is_padded=True, item="clip")
SPOKEN = Merging("audio", None, length=3000, item="clip")
IMAGES = Merging("vision", "vision_tokens", ((4, Rounding.EXACT),))


def test_every_sequence_holds_what_its_items_take() -> None:
    batch = mixed_batch(seed=1)
    for item in batch.microbatches(40, 2, 4096):
        taken = item.tokens("vision_tokens") + item.tokens("audio_tokens")
        assert 2 * 4096 >= item.tokens("text") > taken
        assert set(item.lengths["vision"].tolist()) <= {2704}
        assert item.lengths["audio_tokens"].tolist() == [(n + 1) // 2 // 2 for n in item.lengths["audio"].tolist()]


def test_the_first_microbatches_do_not_depend_on_their_number() -> None:
    batch = mixed_batch(seed=3)
    assert batch.microbatches(50, 1)[:7] == batch.microbatches(7, 1)
    assert batch.microbatches(7, 1) != mixed_batch(seed=4).microbatches(7, 1)


def test_speech_has_the_published_means() -> None:
    clips = np.concatenate(
        [item.lengths["audio"] for item in mixed_batch(audio_share=1, image_share=0).microbatches(400, 1)]
    )
    cut = 30 * 100
    assert clips.max() <= cut
    assert clips.mean() / 100 == pytest.approx(LIBRISPEECH_SECONDS / LIBRISPEECH_UTTERANCES, rel=0.02)
    assert pytest.approx(3.62, abs=0.01) == SPEECH_TOKENS_PER_S


def test_shares_are_of_samples() -> None:
    items = mixed_batch(image_share=0.2, audio_share=0.5, text_per_image=16).microbatches(200, 1)
    samples = sum(item.samples for item in items)
    assert sum(len(item.lengths["vision"]) for item in items) / samples == pytest.approx(0.2, abs=0.02)
    assert sum(len(item.lengths["audio"]) for item in items) / samples == pytest.approx(0.5, abs=0.02)


def test_clips_of_one_length() -> None:
    (item,) = mixed_batch(audio_share=1, image_share=0, audio_seconds=10).microbatches(1, 1)
    assert set(item.lengths["audio"].tolist()) == {1000}
    assert set(item.lengths["audio_tokens"].tolist()) == {250}


def test_padded_clips_keep_their_tokens() -> None:
    (item,) = mixed_batch(audio_share=1, image_share=0, audio=PADDED).microbatches(1, 1)
    assert set(item.lengths["audio"].tolist()) == {3000}
    assert len(set(item.lengths["audio_tokens"].tolist())) > 5


def test_clips_that_text_attends_to_take_no_places() -> None:
    batch = make_batch({"kind": "mixed"}, streams=["text", "audio"], mergings=[SPOKEN])
    assert batch.default_seq_len == 448
    (item,) = batch.microbatches(1, 1)
    assert set(item.lengths) == {"text", "vision", "vision_tokens", "audio"}
    assert len(item.lengths["text"]) == len(item.lengths["audio"]) == item.samples
    assert item.tokens("text") <= 448
    with pytest.raises(ConfigError, match="cannot attend across samples"):
        make_batch({"kind": "mixed", "attend_across_samples": True}, streams=["text", "audio"], mergings=[SPOKEN])


@pytest.mark.parametrize(
    ("streams", "shares"),
    [(["text", "audio"], (0.0, 0.5)), (["text", "vision", "audio"], (1 / 3, 1 / 3)), (["text"], (0.0, 0.0))],
)
def test_the_model_decides_the_shares(streams: list[str], shares: tuple[float, float]) -> None:
    batch = make_batch({"kind": "mixed"}, streams=streams, mergings=[IMAGES])
    assert (batch.image_share, batch.audio_share, batch.tokens_per_image) == (*shares, 676)  # type: ignore[attr-defined]
    assert set(batch.input_streams) == {"text", *(s for s in streams if s != "text")}


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"image_share": 0.7, "audio_share": 0.5}, "batch.audio_share"),
        ({"audio_share": -0.1}, "batch.audio_share"),
        ({"image_share": 1.1}, "batch.image_share"),
        ({"audio_seconds": 31}, "batch.audio_seconds"),
        ({"patches_per_image": 0}, "batch.patches_per_image"),
        ({"patches_per_image": 10}, "batch.patches_per_image"),
        ({"text_per_image": "laon"}, "batch.text_per_image"),
        ({"images_max": 3}, "batch.images_max"),
        ({"seed": -1}, "batch.seed"),
    ],
)
def test_bad_options(options: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_batch({"kind": "mixed", **options}, mergings=[IMAGES])
    assert caught.value.where == where


def test_a_context_too_short_for_an_item() -> None:
    with pytest.raises(ConfigError, match="too short") as caught:
        mixed_batch().microbatches(1, 1, 700)
    assert caught.value.nearest == 751


def test_images_of_the_model_are_the_default_of_vlm_too() -> None:
    batch = make_batch({"kind": "vlm"}, mergings=[Merging("vision", "vision_tokens", ((4, Rounding.EXACT),), 1024)])
    (item,) = batch.microbatches(1, 1)
    assert set(item.lengths["vision"].tolist()) == {1024}
    assert set(item.lengths["vision_tokens"].tolist()) == {256}
    with pytest.raises(ConfigError, match="the model's images have 1024 patches") as caught:
        make_batch(
            {"kind": "vlm", "patches_per_image": 576},
            mergings=[Merging("vision", "vision_tokens", ((4, Rounding.EXACT),), 1024)],
        )
    assert (caught.value.where, caught.value.nearest) == ("batch.patches_per_image", 1024)


# -- metadata ----------------------------------------------------------------------------------------------------------
LINES = """{"text_tokens": 45, "audio": [{"frames": 1230, "tokens": 307}, {"frames": 90, "tokens": 22}]}
{"text_tokens": 12, "images": [{"patches": 64, "tokens": 16}], "audio": 1}
{"text_tokens": 500}
"""


def test_a_file_with_sound(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(LINES)
    batch = file_batch(path)
    assert batch.metadata.contents.value == "mixed"
    assert batch.input_streams == ("text", "vision", "audio")
    (item,) = batch.microbatches(1, 1, 4096)
    assert item.streams == {
        "text": (45 + 329, 12 + 16 + 750, 500),
        "vision": (64,),
        "vision_tokens": (16,),
        "audio": (1230, 90, 3000),
        "audio_tokens": (307, 22, 750),
    }
    sized = file_batch(path, sizes={"audio": (100, 25)})
    assert sized.microbatches(1, 1, 4096)[0].streams["audio"] == (1230, 90, 100)
    beside = file_batch(path, audio_in_text=False).microbatches(1, 1, 4096)[0].streams
    assert beside["text"] == (45, 28, 500)
    assert "audio_tokens" not in beside


@pytest.mark.parametrize(
    ("line", "contents", "message"),
    [
        ('{"text_tokens": 1, "audio": [{"frames": 3}]}', None, "a clip of sound without a size"),
        ('{"text_tokens": 1, "audio": [7]}', None, "not a clip of sound"),
        ('{"text_tokens": 1, "audio": [{"frames": 0, "tokens": 1}]}', None, "not a valid number"),
        ('{"text_tokens": 1, "audio": [{"frame": 3, "tokens": 1}]}', None, "frame"),
        ('{"text_tokens": 1, "audio": 1}', "vlm", "sound in a file without sound"),
        ('{"text_tokens": 0, "audio": 0}', "mixed", "nothing in the sample"),
        ('{"audio": 1, "video_seconds": 2}', "mixed", "a clip in a file of text or images"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, contents: str | None, message: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match=message) as caught:
        file_batch(path, contents)
    assert str(caught.value.where).startswith(f"{path}:2")


def test_contents_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"text_tokens": 3}\n')
    assert read_metadata(path).contents.value == "text"
    batch = make_batch({"kind": "file", "path": str(path)}, streams=["text", "audio"], mergings=[PADDED])
    assert batch.input_streams == ("text",)
    (item,) = batch.microbatches(1, 1)
    assert item.streams["audio"] == ()
