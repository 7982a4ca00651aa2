"""Published shapes of multimodal data sets, as seeded distributions.

Means and ranges are the sources' (each is cited below); where a source prints no more than those, the curve is a
log-normal, clipped to the range, with a spread (``sigma``) that is our choice and says so. The mean of the *clipped*
curve is the published mean.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_member, check_number
from semu.errors import ConfigError
from semu.records import dataclass

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class TextPerImage(Enum):
    """Which data set decides how much text comes with an image; the value is run.toml's word."""

    LAION = "laion"
    OBELICS = "obelics"
    MIXED = "mixed"


TextSource: TypeAlias = TextPerImage | str | float
"""A data set, its word, or the mean text of an image [tokens]; a batch holds no word."""


def check_text_source(value: TextSource) -> TextPerImage | float:
    """The data set of a word, a mean as it is.

    Raises:
        ConfigError: an unknown word, a number out of range.
    """
    if isinstance(value, str | TextPerImage):
        return check_member(value, TextPerImage, "batch.text_per_image")
    check_number(value, "batch.text_per_image", most=1e9)
    return value


def make_generator(seed: int, block: int) -> np.random.Generator:
    """The random numbers of one block of samples; blocks are independent of each other and of their number.

    The bit generator is named so that numpy's choice of a default cannot change results.
    """
    return np.random.Generator(np.random.PCG64([seed, block]))


def round_fairly(values: FloatArray, generator: np.random.Generator) -> IntArray:
    """Round each value up or down at random so that its expectation is kept (16.4 -> 16 or 17)."""
    return np.floor(values + generator.random(values.size)).astype(np.int64)


@dataclass(frozen=True)
class ClippedLogNormal:
    """A log-normal, clipped to [low, high], with a given mean after clipping.

    Attributes:
        mean: expectation of the clipped variable, low < mean < high.
        sigma: standard deviation of the logarithm before clipping, > 0.
        low, high: range, 0 < low < high.
    Raises:
        ConfigError: numbers out of order.
    """

    mean: float
    sigma: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.low < self.mean < self.high < math.inf and 0 < self.sigma < math.inf):
            raise ConfigError(
                "not a clipped log-normal", expected="0 < low < mean < high and sigma > 0", got=repr(self)
            )

    @cached_property
    def mu(self) -> float:
        """Mean of the logarithm before clipping, found by bisection (the clipped mean grows with it)."""
        below, above = math.log(self.low) - 40 * self.sigma, math.log(self.high) + 40 * self.sigma
        for _ in range(200):
            middle = 0.5 * (below + above)
            below, above = (middle, above) if self._clipped_mean(middle) < self.mean else (below, middle)
        return 0.5 * (below + above)

    def _clipped_mean(self, mu: float) -> float:
        """E min(max(X, low), high) for log X ~ N(mu, sigma^2): two clipped masses and a partial expectation."""
        a, b = (math.log(self.low) - mu) / self.sigma, (math.log(self.high) - mu) / self.sigma
        inside = _normal_cdf(b - self.sigma) - _normal_cdf(a - self.sigma)
        middle = math.exp(mu + 0.5 * self.sigma**2) * inside if inside > 0 else 0.0
        return self.low * _normal_cdf(a) + middle + self.high * _normal_cdf(-b)

    def draw(self, generator: np.random.Generator, count: int) -> FloatArray:
        """``count`` independent values, float64[count]."""
        values = np.exp(self.mu + self.sigma * generator.standard_normal(count))
        return np.clip(values, self.low, self.high)


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


# Text and images -----------------------------------------------------------------------------------------------------

LAION_TEXT_PER_IMAGE = ClippedLogNormal(mean=16.4, sigma=0.6, low=1.0, high=256.0)
"""Caption tokens of an image-text pair: mean 16.4 (LAION-2B, DIP §2.2). sigma and the upper end are our choice."""

OBELICS_TEXT_PER_IMAGE = ClippedLogNormal(mean=326.0, sigma=1.4, low=0.4, high=3115.0)
"""Text tokens per image of an interleaved document: 0.4 to 3115 (DIP §2.2); the mean is the data set's 115 B text
tokens over its 353 M images (2306.16527). sigma is our choice: the range is then 6.4 sigma wide, which is what a few
hundred documents span."""

OBELICS_IMAGES_MEAN = 353 / 141
"""Images of a document: 353 M images in 141 M documents (2306.16527); geometric, our choice."""
OBELICS_IMAGES_MAX = 30
"""Documents with more images than this were filtered out of OBELICS (2306.16527)."""


def draw_pairs(generator: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
    """Image-text pairs like LAION-2B: (images, text tokens) of ``count`` samples, one image each."""
    text = round_fairly(LAION_TEXT_PER_IMAGE.draw(generator, count), generator)
    return np.ones(count, np.int64), text


def draw_documents(generator: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
    """Interleaved documents like OBELICS: (images, text tokens) of ``count`` samples, 1 to 30 images each."""
    success = 1.0 / OBELICS_IMAGES_MEAN
    uniform = generator.random(count)
    images = 1 + np.floor(np.log1p(-uniform) / math.log1p(-success)).astype(np.int64)
    images = np.minimum(images, OBELICS_IMAGES_MAX)
    text = round_fairly(images * OBELICS_TEXT_PER_IMAGE.draw(generator, count), generator)
    return images, text


def draw_image_text(generator: np.random.Generator, count: int, source: TextSource) -> tuple[IntArray, IntArray]:
    """Images and text tokens of ``count`` samples.

    Args:
        generator: source of randomness.
        count: number of samples, >= 0.
        source: LAION or OBELICS; MIXED draws each sample from either with equal chance (DIP combines both and does
            not print the weights); a number is the mean text per image [tokens], one image per sample.
    Returns:
        images int64[count] >= 1, text tokens int64[count] >= 0.
    """
    if source is TextPerImage.LAION:
        return draw_pairs(generator, count)
    if source is TextPerImage.OBELICS:
        return draw_documents(generator, count)
    if source is TextPerImage.MIXED:
        is_pair = generator.random(count) < 0.5
        pair_images, pair_text = draw_pairs(generator, count)
        images, text = draw_documents(generator, count)
        return np.where(is_pair, pair_images, images), np.where(is_pair, pair_text, text)
    return np.ones(count, np.int64), round_fairly(np.full(count, float(source)), generator)


# Video ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VideoSource:
    """One video-caption data set.

    Attributes:
        name: of the data set.
        duration_s: clip durations before cutting [s].
        caption_tokens: tokens of a clip's caption.
    """

    name: str
    duration_s: ClippedLogNormal
    caption_tokens: ClippedLogNormal


TOKENS_PER_WORD = 4 / 3
"""English words to tokens of a large byte-pair vocabulary; the usual rule of thumb."""

SHORTEST_SCENE_S = 0.6
"""Shortest clip that the scene detector (PySceneDetect, 15 frames at 25 FPS by default) gives; InternVid and MMTrail
are cut with it."""

VIDEO_SOURCES = (
    VideoSource(
        "ShareGPT4Video",
        ClippedLogNormal(mean=26.0, sigma=0.8, low=2.0, high=120.0),
        ClippedLogNormal(mean=273 * TOKENS_PER_WORD, sigma=0.4, low=32.0, high=1024.0),
    ),
    VideoSource(
        "InternVid",
        ClippedLogNormal(mean=11.7, sigma=1.0, low=SHORTEST_SCENE_S, high=120.0),
        ClippedLogNormal(mean=17.6 * TOKENS_PER_WORD, sigma=0.4, low=4.0, high=128.0),
    ),
    VideoSource(
        "MMTrail",
        ClippedLogNormal(mean=4.9, sigma=0.8, low=SHORTEST_SCENE_S, high=60.0),
        ClippedLogNormal(mean=100.0, sigma=0.4, low=8.0, high=512.0),
    ),
)
"""The data sets of DIP §7.1, drawn with equal weights (DIP prints none). Published means: ShareGPT4Video 291 h in
40 K videos of 2 s to 2 min, 273 words a caption (2406.04325); InternVid 11.7 s and 17.6 words (2307.06942); MMTrail
27.1 K hours in 20 M clips = 4.9 s (2407.20962). Every sigma, the upper ends of InternVid and MMTrail and MMTrail's
caption length are our choice, made from what kind of clips these are (whole videos; shots of web videos; shots of
trailers with merged captions) and not adjusted to DIP's Fig. 4d."""


def draw_clips(generator: np.random.Generator, count: int) -> tuple[FloatArray, IntArray]:
    """Durations and captions of ``count`` clips from ``VIDEO_SOURCES``, mixed with equal weights.

    Returns:
        durations float64[count] [s], not yet cut to a longest clip; caption tokens int64[count] >= 1.
    """
    which = generator.integers(len(VIDEO_SOURCES), size=count)
    durations = np.choose(which, [source.duration_s.draw(generator, count) for source in VIDEO_SOURCES])
    captions = np.choose(which, [source.caption_tokens.draw(generator, count) for source in VIDEO_SOURCES])
    return durations, round_fairly(captions, generator)


# Speech --------------------------------------------------------------------------------------------------------------

LIBRISPEECH_UTTERANCES = 281_241
LIBRISPEECH_SECONDS = 960.9 * 3600
LIBRISPEECH_WORDS = 9.4e6
"""Training part of LibriSpeech: 960.9 h in 281,241 utterances, 9.4 M words of transcripts (Panayotov et al., ICASSP
2015, Table 1; counted from the released transcripts)."""

SPEECH_SECONDS = ClippedLogNormal(mean=LIBRISPEECH_SECONDS / LIBRISPEECH_UTTERANCES, sigma=0.4, low=1.0, high=36.0)
"""Playing time of an utterance [s]: mean 12.3 s, 1 to 36 s (LibriSpeech). The curve and sigma are our choice (the data
set's own is skewed to the other side: utterances were cut at about 16 s where the reader paused)."""

SPEECH_TOKENS_PER_S = LIBRISPEECH_WORDS * TOKENS_PER_WORD / LIBRISPEECH_SECONDS
"""Tokens of a transcript per second of speech: 3.6."""


def draw_speech(generator: np.random.Generator, count: int) -> tuple[FloatArray, IntArray]:
    """Utterances and their transcripts like LibriSpeech: seconds float64[count], text tokens int64[count] >= 0."""
    seconds = SPEECH_SECONDS.draw(generator, count)
    return seconds, round_fairly(SPEECH_TOKENS_PER_S * seconds, generator)
