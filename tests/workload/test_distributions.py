"""Published means and ranges of the data sets, and the clipped log-normal against numerical integration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from semu.errors import ConfigError
from semu.workload.distributions import (
    VIDEO_SOURCES,
    ClippedLogNormal,
    TextPerImage,
    draw_clips,
    draw_documents,
    draw_image_text,
    draw_pairs,
    make_generator,
    round_fairly,
)

COUNT = 200_000


@pytest.mark.parametrize(
    "curve",
    [
        ClippedLogNormal(16.4, 0.6, 1.0, 256.0),
        ClippedLogNormal(326.0, 1.4, 0.4, 3115.0),
        ClippedLogNormal(1.1, 2.0, 1.0, 50.0),
        ClippedLogNormal(49.0, 2.0, 1.0, 50.0),
    ],
)
def test_clipped_mean_by_integration(curve: ClippedLogNormal) -> None:
    z = np.linspace(-12, 12, 400_001)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    values = np.clip(np.exp(curve.mu + curve.sigma * z), curve.low, curve.high)
    assert float((values * density).sum() * (z[1] - z[0])) == pytest.approx(curve.mean, rel=1e-6)


@pytest.mark.parametrize("numbers", [(1, 1, 1, 2), (3, 1, 1, 2), (1, 0, 0.5, 2), (1, 1, 0, 2), (math.nan, 1, 1, 2)])
def test_clipped_log_normal_refuses(numbers: tuple[float, float, float, float]) -> None:
    with pytest.raises(ConfigError, match="not a clipped log-normal"):
        ClippedLogNormal(*numbers)


def test_rounding_keeps_the_mean() -> None:
    rounded = round_fairly(np.full(COUNT, 16.4), make_generator(0, 0))
    assert set(rounded.tolist()) == {16, 17}
    assert rounded.mean() == pytest.approx(16.4, abs=0.01)


@pytest.mark.paper
def test_pairs_like_laion() -> None:
    images, text = draw_pairs(make_generator(0, 0), COUNT)
    assert (images == 1).all() and text.min() >= 1
    assert text.mean() == pytest.approx(16.4, rel=0.01)  # DIP §2.2


@pytest.mark.paper
def test_documents_like_obelics() -> None:
    images, text = draw_documents(make_generator(0, 0), COUNT)
    assert images.min() == 1 and images.max() <= 30
    assert images.mean() == pytest.approx(353 / 141, rel=0.01)
    assert text.sum() / images.sum() == pytest.approx(115e9 / 353e6, rel=0.03)
    ratio = text / images
    assert ratio.max() == pytest.approx(3115, abs=1) and ratio.min() < 1  # DIP §2.2: 0.4 to 3115


def test_mixed_is_half_of_each_and_a_number_is_a_mean() -> None:
    images, text = draw_image_text(make_generator(1, 0), COUNT, TextPerImage.MIXED)
    assert images.mean() == pytest.approx((1 + 353 / 141) / 2, rel=0.01)
    assert text.mean() == pytest.approx((16.4 + 115 / 0.141) / 2, rel=0.03)
    images, text = draw_image_text(make_generator(1, 0), COUNT, 0.25)
    assert (images == 1).all() and text.mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.paper
@pytest.mark.parametrize(
    ("name", "mean_s", "words"),
    [("ShareGPT4Video", 291 * 3600 / 40e3, 273), ("InternVid", 11.7, 17.6), ("MMTrail", 27.1e3 * 3600 / 20e6, 75)],
)
def test_video_sources(name: str, mean_s: float, words: float) -> None:
    source = next(source for source in VIDEO_SOURCES if source.name == name)
    durations = source.duration_s.draw(make_generator(2, 0), COUNT)
    captions = source.caption_tokens.draw(make_generator(3, 0), COUNT)
    assert durations.mean() == pytest.approx(mean_s, rel=0.02)
    assert captions.mean() == pytest.approx(words * 4 / 3, rel=0.02)


def test_clips_are_the_equal_mixture() -> None:
    durations, captions = draw_clips(make_generator(4, 0), COUNT)
    assert durations.mean() == pytest.approx(np.mean([s.duration_s.mean for s in VIDEO_SOURCES]), rel=0.02)
    assert captions.mean() == pytest.approx(np.mean([s.caption_tokens.mean for s in VIDEO_SOURCES]), rel=0.02)
    assert captions.min() >= 1 and durations.min() >= 0.6
    assert np.corrcoef(durations, captions)[0, 1] > 0.1  # both come from the same source
