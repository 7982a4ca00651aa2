"""The VLM generator: DIP's counts, caps, determinism, image means, errors."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from semu import memo
from semu.errors import ConfigError
from semu.workload import TextPerImage, VlmBatch, shape_columns, vlm_batch

SOURCES = ["laion", "obelics", "mixed", 100.0]


@pytest.mark.paper
def test_image_counts_of_dip() -> None:
    microbatch = vlm_batch(text_per_image=0).microbatches(1, 1)[0]
    assert microbatch.streams["vision"] == (2704,) * 48  # floor(8192 / 169) images of (728 / 14)^2 patches
    assert microbatch.streams["vision_tokens"] == (169,) * 48
    assert microbatch.streams["text"] == (169,) * 48
    assert microbatch.samples == 48


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seq_len", [512, 8192])
def test_caps_hold_and_sequences_are_filled(source: str | float, seq_len: int) -> None:
    microbatches = vlm_batch(seed=1, text_per_image=source).microbatches(200, 1, seq_len)
    for microbatch in microbatches:
        text, merged = microbatch.streams["text"], microbatch.streams["vision_tokens"]
        assert sum(text) <= seq_len and min(text) >= 1
        assert sum(merged) <= sum(text)  # image tokens are part of the text stream
        assert len(merged) == len(microbatch.streams["vision"]) <= seq_len // 169
        assert len(text) == microbatch.samples
    fill = shape_columns(microbatches, 1)["text.tokens"].mean() / seq_len
    assert fill > (0.75 if seq_len == 8192 else 0.5)


@pytest.mark.parametrize("source", SOURCES)
def test_no_sequence_could_have_taken_the_next_sample(source: str | float) -> None:
    microbatches = vlm_batch(seed=2, text_per_image=source).microbatches(100, 1)
    for now, after in itertools.pairwise(microbatches):
        assert sum(now.streams["text"]) + after.streams["text"][0] > 8192


@pytest.mark.parametrize("batch", [vlm_batch(seed=5), vlm_batch(seed=5, images_mean=4), vlm_batch(5, "laion")])
def test_same_seed_same_result_and_a_prefix_does_not_depend_on_the_count(batch: VlmBatch) -> None:
    many = batch.microbatches(1500, 2)
    assert batch.microbatches(1500, 2) == many
    for count in (1, 7, 400):
        assert batch.microbatches(count, 2) == many[:count]
    singles = batch.microbatches(6, 1)
    for index in range(3):
        for name, both in many[index].streams.items():
            assert singles[2 * index].streams[name] + singles[2 * index + 1].streams[name] == both
    other = VlmBatch(seed=6, text_per_image=batch.text_per_image, images_mean=batch.images_mean)
    assert other.microbatches(7, 2) != many[:7]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("images_mean", [0, 1.5, 10])
def test_images_mean(source: str | float, images_mean: float) -> None:
    columns = shape_columns(vlm_batch(7, source, images_mean).microbatches(2000, 1), 1)
    assert columns["vision.sequences"].mean() == pytest.approx(images_mean, rel=0.1, abs=0)
    assert columns["text.tokens"].mean() > 0.75 * 8192


def test_images_mean_beyond_what_fits_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        vlm_batch(0, "laion", images_mean=46).microbatches(1, 1)
    nearest = caught.value.nearest
    assert caught.value.where == "batch.images_mean" and isinstance(nearest, float)
    columns = shape_columns(vlm_batch(0, "laion", images_mean=nearest).microbatches(500, 1), 1)
    assert columns["vision.sequences"].mean() == pytest.approx(nearest, rel=0.02)


def test_images_max() -> None:
    microbatches = vlm_batch(0, "laion", images_max=16).microbatches(50, 1)
    assert {len(microbatch.streams["vision"]) for microbatch in microbatches} == {16}
    documents = vlm_batch(0, "obelics", images_max=2).microbatches(200, 1)
    assert max(len(microbatch.streams["vision"]) for microbatch in documents) == 2


def test_attention_across_samples_joins_the_text_only() -> None:
    inside = vlm_batch(8).microbatches(20, 2)
    across = vlm_batch(8, attend_across_samples=True).microbatches(20, 2)
    for one, other in zip(inside, across, strict=True):
        assert len(other.streams["text"]) == 2 and one.samples == other.samples
        assert sum(other.streams["text"]) == sum(one.streams["text"])
        assert other.streams["vision"] == one.streams["vision"]
    assert across[0].streams["text"][0] == sum(vlm_batch(8).microbatches(1, 1)[0].streams["text"])


def test_more_text_per_image_means_fewer_images() -> None:
    counts = [
        shape_columns(vlm_batch(0, source).microbatches(500, 1), 1)["vision.sequences"].mean()
        for source in ("laion", "mixed", "obelics")
    ]
    assert counts[0] > 40 > counts[1] > counts[2] > 10
    # DIP's example of imbalance (§2.2): 1 and 10 images in sequences of the same 8192 tokens
    spread = shape_columns(vlm_batch(0).microbatches(500, 1), 1)["vision.sequences"]
    assert np.percentile(spread, 1) <= 4 and np.percentile(spread, 99) >= 30


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"seed": -1}, "batch.seed"),
        ({"seed": 1.0}, "batch.seed"),
        ({"text_per_image": -1}, "batch.text_per_image"),
        ({"text_per_image": float("nan")}, "batch.text_per_image"),
        ({"text_per_image": "leion"}, "batch.text_per_image"),
        ({"images_mean": -0.5}, "batch.images_mean"),
        ({"images_max": 0}, "batch.images_max"),
        ({"attend_across_samples": 1}, "batch.attend_across_samples"),
    ],
)
def test_bad_options(arguments: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        vlm_batch(**arguments)  # type: ignore[arg-type]
    assert caught.value.where == where


def test_a_context_shorter_than_an_image_is_refused() -> None:
    for source, shortest in (("mixed", 169), (100.5, 270)):
        with pytest.raises(ConfigError) as caught:
            vlm_batch(0, source).microbatches(1, 1, seq_len=shortest - 1)
        assert (caught.value.where, caught.value.nearest) == ("training.seq_len", shortest)
        assert vlm_batch(0, source).microbatches(3, 1, seq_len=shortest)
    assert vlm_batch(0, images_mean=0).microbatches(3, 1, seq_len=100)[0].streams["vision"] == ()


def test_describe_is_plain() -> None:
    described = json.loads(json.dumps(vlm_batch(4, "laion", images_mean=3).describe()))
    assert (described["kind"], described["seed"], described["text_per_image"]) == ("vlm", 4, "laion")
    assert vlm_batch().text_per_image is TextPerImage.MIXED and vlm_batch().default_seq_len == 8192


def test_a_batch_that_is_read_again_is_the_same_and_the_callers_own() -> None:
    first = VlmBatch(seed=3).microbatches(40, 2)
    again = VlmBatch(seed=3).microbatches(40, 2)
    assert again == first
    again.clear()
    assert VlmBatch(seed=3).microbatches(40, 2) == first
    memo.clear()
    assert VlmBatch(seed=3).microbatches(40, 2) == first
    assert VlmBatch(seed=4).microbatches(40, 2) != first
    assert VlmBatch(seed=3).microbatches(40, 1) != first
