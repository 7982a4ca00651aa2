"""Batches of vision-language models: samples of text and images, packed to the context length.

Objects: ``PATCHES_PER_IMAGE``, ``TOKENS_PER_IMAGE``, ``VlmBatch`` (seeded generator), ``vlm_batch``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.checks import check_count, check_number, check_seed, check_switch
from semu.errors import ConfigError
from semu.records import dataclass
from semu.workload.batch import AbstractBatch, Microbatch, check_request
from semu.workload.distributions import (
    TextPerImage,
    TextSource,
    check_text_source,
    draw_documents,
    draw_image_text,
    make_generator,
)
from semu.workload.samples import Items, Placement, Samples, check_drawn, described_placement

IntArray = NDArray[np.int64]

IMAGE_PX = 728
PATCH_PX = 14
SPATIAL_MERGE = 4
PATCHES_PER_IMAGE = (IMAGE_PX // PATCH_PX) ** 2
"""2704 patches of one image enter the encoder as one sequence (DIP §7.1: 728 px, patch 14)."""
TOKENS_PER_IMAGE = (IMAGE_PX // PATCH_PX // SPATIAL_MERGE) ** 2
"""169 tokens of one image enter the backbone (4 x 4 patches merged, DIP §7.1)."""
DEFAULT_VLM_SEQ_LEN = 8192
"""Context length of DIP §7.1; it holds floor(8192 / 169) = 48 images."""

_BLOCK = 8192
_REFERENCE_SAMPLES = 1 << 16


@dataclass(frozen=True)
class VlmBatch(AbstractBatch):
    """Packed sequences of image-text samples with the shapes of DIP §7.1.

    Samples are drawn one after the other and packed greedily; a document that is longer than the context loses the
    end of its text. A sample is never split over two sequences, so sequences end with a little unused room, which is
    neither computed nor counted.

    Attributes:
        seed: >= 0.
        text_per_image: how much text comes with an image: a data set's shape (``"laion"``, ``"obelics"``, ``"mixed"``),
            or a mean [tokens] >= 0.
        images_mean: images per packed sequence on average; None: as the samples have it. A smaller number mixes in
            documents without images (with the text of OBELICS's documents), 0 leaves text only; a larger number is
            impossible. It is met to a few percent (the unused room is estimated), less well where images_max cuts in.
        images_max: largest number of images in a packed sequence; None: what the context holds (48 of 8192 tokens).
        attend_across_samples: attention runs over the whole packed sequence instead of inside each sample
            (``text`` then holds one entry per packed sequence).
        patches_per_image, tokens_per_image: what an image puts into the encoder and into the backbone, >= 1.
        placement: where in the text of its sample an image stands, ``"prefix"`` or ``"embedded"``; masks look at it.
    Raises:
        ConfigError: an unknown data set or a number out of range.
    """

    seed: int = 0
    text_per_image: TextSource = TextPerImage.MIXED
    images_mean: float | None = None
    images_max: int | None = None
    attend_across_samples: bool = False
    patches_per_image: int = PATCHES_PER_IMAGE
    tokens_per_image: int = TOKENS_PER_IMAGE
    placement: Placement | str = Placement.PREFIX

    def __post_init__(self) -> None:
        check_seed(self.seed, "batch.seed")
        object.__setattr__(self, "placement", check_drawn(self.placement))
        object.__setattr__(self, "text_per_image", check_text_source(self.text_per_image))
        if self.images_mean is not None:
            check_number(self.images_mean, "batch.images_mean", most=1e9)
        if self.images_max is not None:
            check_count(self.images_max, "batch.images_max")
        check_switch(self.attend_across_samples, "batch.attend_across_samples")
        check_count(self.patches_per_image, "batch.patches_per_image")
        check_count(self.tokens_per_image, "batch.tokens_per_image")

    @property
    def input_streams(self) -> tuple[str, ...]:
        """Text and patches."""
        return ("text", "vision")

    @property
    def default_seq_len(self) -> int:
        """8192 tokens."""
        return DEFAULT_VLM_SEQ_LEN

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` microbatches of ``micro_batch`` packed sequences of at most ``seq_len`` tokens."""
        context = self.default_seq_len if seq_len is None else seq_len
        check_request(count, micro_batch, context)
        self._check_context(context)
        return list(_read(self, count, micro_batch, context))

    def _packed(self, needed: int, context: int) -> tuple[Samples, IntArray]:
        """Samples, and the bounds of at least ``needed`` complete packed sequences of at most ``context`` tokens."""
        share = self._text_only_share(context)
        blocks: list[tuple[IntArray, IntArray]] = []
        tokens = num_images = 0
        most = self.images_max if self.images_max is not None else context
        while max(tokens // context, num_images // most) < needed + 2:  # so many sequences there are at least
            images, text = self._draw(make_generator(self.seed, len(blocks)), _BLOCK, context, share)
            blocks.append((images, text))
            num_images += int(images.sum())
            tokens += int(text.sum() + self.tokens_per_image * images.sum())
        images, text = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        vision = Items.uniform(images, self.patches_per_image, self.tokens_per_image)
        samples = Samples(text, {"vision": vision}, placement=Placement(self.placement), seed=self.seed)
        return samples, samples.pack(context, self.images_max)

    def describe(self) -> dict[str, object]:
        """Kind, seed and shapes."""
        source = self.text_per_image
        return {
            "kind": "vlm",
            "seed": self.seed,
            "text_per_image": source.value if isinstance(source, TextPerImage) else source,
            "images_mean": self.images_mean,
            "images_max": self.images_max,
            "attend_across_samples": self.attend_across_samples,
            "patches_per_image": self.patches_per_image,
            "tokens_per_image": self.tokens_per_image,
            **described_placement(self.placement),
            "default_seq_len": self.default_seq_len,
        }

    def _draw(
        self, generator: np.random.Generator, count: int, context: int, text_only_share: float
    ) -> tuple[IntArray, IntArray]:
        """(images, text tokens) of ``count`` samples, none longer than the context."""
        images, text = draw_image_text(generator, count, self.text_per_image)
        if text_only_share > 0:
            is_text = generator.random(count) < text_only_share
            _, document_text = draw_documents(generator, count)
            images, text = np.where(is_text, 0, images), np.where(is_text, np.maximum(document_text, 1), text)
        limit = context // self.tokens_per_image
        images = np.minimum(images, limit if self.images_max is None else min(limit, self.images_max))
        return images, np.minimum(text, context - images * self.tokens_per_image)

    def _check_context(self, context: int) -> None:
        per_image = 0.0 if isinstance(self.text_per_image, TextPerImage) else float(self.text_per_image)
        shortest = self.tokens_per_image + int(np.ceil(per_image))
        if self.images_mean != 0 and context < shortest:
            raise ConfigError(
                "the context is too short for one image and its text",
                where="training.seq_len",
                expected=f">= {shortest} tokens",
                got=context,
                nearest=shortest,
            )

    def _text_only_share(self, context: int) -> float:
        """Share of the samples that must be text only for ``images_mean`` images per packed sequence."""
        if self.images_mean is None or self.images_mean == 0:
            return 0.0 if self.images_mean is None else 1.0
        expected = _images_per_sequence(self, context)
        natural = expected(0.0)
        if self.images_mean > natural:
            raise ConfigError(
                "more images than samples with this much text leave room for",
                where="batch.images_mean",
                expected=f"<= {natural:.1f} in {context} tokens, or a smaller text_per_image",
                got=self.images_mean,
                nearest=np.floor(natural * 10).item() / 10,
            )
        below, above = 0.0, 1.0
        for _ in range(60):
            middle = 0.5 * (below + above)
            below, above = (middle, above) if expected(middle) > self.images_mean else (below, middle)
        return 0.5 * (below + above)


@memo.remembered(4)
def _read(batch: VlmBatch, count: int, micro_batch: int, context: int) -> tuple[Microbatch, ...]:
    """The microbatches of a batch: ``count`` of them, of ``micro_batch`` packed sequences of ``context`` tokens each.
    They are remembered, as a job is often simulated again."""
    samples, bounds = batch._packed(count * micro_batch, context)
    return tuple(samples.microbatches(bounds, count, micro_batch, batch.attend_across_samples))


@memo.remembered(64)
def _images_per_sequence(batch: VlmBatch, context: int) -> Callable[[float], float]:
    """Mean images of a packed sequence as a function of the share of text-only samples.

    A greedy sequence ends where a sample would overflow it; that sample covers the end of the context, so it is drawn
    in proportion to its length and cut evenly: the unused room is E[L^2] / (2 E[L]), the mean age of a renewal process.
    Moments come from a reference draw whose seed is fixed.
    """

    def _moments(share: float) -> NDArray[np.float64]:
        images, text = batch._draw(make_generator(0, 1 << 40), _REFERENCE_SAMPLES, context, share)
        lengths = (images * batch.tokens_per_image + text).astype(np.float64)
        return np.array([images.mean(), lengths.mean(), (lengths**2).mean()])

    with_images, text_only = _moments(0.0), _moments(1.0)
    cap = np.inf if batch.images_max is None else float(batch.images_max)

    def _expected(share: float) -> float:
        images, length, square = (1.0 - share) * with_images + share * text_only
        return float(min(cap, images * (context - square / (2.0 * length)) / length))

    return _expected


vlm_batch = VlmBatch
