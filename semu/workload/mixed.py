"""Batches of models with several encoders: samples of text, images and audio clips, packed to the context length.

Objects: ``MixedBatch`` (seeded generator), ``mixed_batch``. Each sample is of one kind, drawn with given shares: an
image-text sample as in ``vlm.py``, an utterance with its transcript (LibriSpeech's), or a document without either
(OBELICS's text).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.checks import check_count, check_number, check_seed, check_switch
from semu.errors import ConfigError
from semu.nn.merging import Merging, Rounding
from semu.records import dataclass
from semu.workload.batch import AbstractBatch, Microbatch, check_request
from semu.workload.distributions import (
    TextPerImage,
    TextSource,
    check_text_source,
    draw_documents,
    draw_image_text,
    draw_speech,
    make_generator,
    round_fairly,
)
from semu.workload.packing import offsets
from semu.workload.samples import Items, Placement, Samples, check_drawn, described_placement
from semu.workload.vlm import PATCHES_PER_IMAGE, TOKENS_PER_IMAGE

IntArray = NDArray[np.int64]

DEFAULT_MIXED_SEQ_LEN = 8192
TRANSCRIPT_SEQ_LEN = 448
"""Context length where clips take no places in the text: that of Whisper's decoder (2212.04356 §2.3)."""
FRAMES_PER_S = 100
"""Mel frames of a second: hops of 10 ms (Whisper, 2212.04356 §2.2)."""
MAX_CLIP_SECONDS = 30.0
"""Longest clip (Whisper's window, 2212.04356 §2.2)."""
FRAMES_TO_TOKENS = Merging("audio", "audio_tokens", ((2, Rounding.UP), (2, Rounding.DOWN)), item="clip")
"""A convolution of stride 2, then means of two: 40 ms a token (Qwen2-Audio, 2407.10759 §2)."""
_BLOCK = 8192


@dataclass(frozen=True)
class MixedBatch(AbstractBatch):
    """Packed sequences of samples with images, with audio, or with text alone.

    Attributes:
        seed: >= 0.
        image_share, audio_share: share of the samples with images and with audio, together at most 1; the others are
            text. Shares are of samples, not of tokens.
        text_per_image: how much text comes with an image, as for ``VlmBatch``.
        patches_per_image: what an image puts into the encoder. tokens_per_image: and into the backbone.
        audio_seconds: length of every clip [s]; None: LibriSpeech's utterances. Longer clips are cut to 30 s.
        audio: how frames become tokens, and whether clips are padded; 100 frames a second.
        attend_across_samples: attention runs over the whole packed sequence instead of inside each sample.
        placement: where in the text of its sample an image or a clip stands, ``"prefix"`` or ``"embedded"``.
    Raises:
        ConfigError: an unknown data set or a number out of range.
    """

    seed: int = 0
    image_share: float = 0.5
    audio_share: float = 0.5
    text_per_image: TextSource = TextPerImage.MIXED
    patches_per_image: int = PATCHES_PER_IMAGE
    tokens_per_image: int = TOKENS_PER_IMAGE
    audio_seconds: float | None = None
    audio: Merging = FRAMES_TO_TOKENS
    attend_across_samples: bool = False
    placement: Placement | str = Placement.PREFIX

    def __post_init__(self) -> None:
        check_seed(self.seed, "batch.seed")
        object.__setattr__(self, "placement", check_drawn(self.placement))
        for name in ("image_share", "audio_share"):
            check_number(getattr(self, name), f"batch.{name}", most=1.0)
        if self.image_share + self.audio_share > 1:
            raise ConfigError(
                "the shares of the samples are more than all",
                where="batch.audio_share",
                expected=f"at most {1 - self.image_share:g} beside image_share = {self.image_share:g}",
                got=self.audio_share,
                nearest=round(1 - self.image_share, 12),
            )
        object.__setattr__(self, "text_per_image", check_text_source(self.text_per_image))
        check_count(self.patches_per_image, "batch.patches_per_image")
        check_count(self.tokens_per_image, "batch.tokens_per_image")
        if self.audio_seconds is not None:
            check_number(self.audio_seconds, "batch.audio_seconds", least=0.04, most=MAX_CLIP_SECONDS)
        check_switch(self.attend_across_samples, "batch.attend_across_samples")
        if self.attend_across_samples and self.audio.tokens is None:
            raise ConfigError(
                "text that attends to its own clip cannot attend across samples",
                where="batch.attend_across_samples",
                expected="false",
                got=True,
                nearest=False,
            )

    @property
    def input_streams(self) -> tuple[str, ...]:
        """Text, and what samples hold beside it."""
        shares = {"vision": self.image_share, "audio": self.audio_share}
        return ("text", *(name for name, share in shares.items() if share > 0))

    @property
    def default_seq_len(self) -> int:
        """8192 tokens; 448 where text only attends to its clip."""
        return DEFAULT_MIXED_SEQ_LEN if self.audio.tokens is not None else TRANSCRIPT_SEQ_LEN

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` microbatches of ``micro_batch`` packed sequences of at most ``seq_len`` tokens."""
        context = self.default_seq_len if seq_len is None else seq_len
        check_request(count, micro_batch, context)
        image, clip = self.tokens_per_image if self.image_share > 0 else 0, 0
        if self.audio_share > 0 and self.audio.tokens is not None:
            clip = int(self.audio.tokens_of(np.array([round(MAX_CLIP_SECONDS * FRAMES_PER_S)]))[0])
        shortest = max(image, clip) + 1
        if context < shortest:
            raise ConfigError(
                "the context is too short for one image or clip and its text",
                where="training.seq_len",
                expected=f">= {shortest} tokens",
                got=context,
                nearest=shortest,
            )
        return list(_read(self, count, micro_batch, context))

    def describe(self) -> dict[str, object]:
        """Kind, seed and shapes."""
        source = self.text_per_image
        return {
            "kind": "mixed",
            "seed": self.seed,
            "image_share": self.image_share,
            "audio_share": self.audio_share,
            "text_per_image": source.value if isinstance(source, TextPerImage) else source,
            "patches_per_image": self.patches_per_image,
            "tokens_per_image": self.tokens_per_image,
            "audio_seconds": self.audio_seconds,
            "padded_frames": self.audio.length,
            "attend_across_samples": self.attend_across_samples,
            **described_placement(self.placement),
            "default_seq_len": self.default_seq_len,
        }

    def _draw(self, generator: np.random.Generator, count: int, context: int) -> Samples:
        """``count`` samples, none longer than the context."""
        kind = generator.random(count)
        is_audio = kind < self.audio_share
        is_image = ~is_audio & (kind < self.audio_share + self.image_share)
        images, image_text = draw_image_text(generator, count, self.text_per_image)
        seconds, transcript = draw_speech(generator, count)
        if self.audio_seconds is not None:
            rate = transcript / seconds
            seconds = np.full(count, float(self.audio_seconds))
            transcript = round_fairly(rate * seconds, generator)
        _, document = draw_documents(generator, count)
        images = np.where(is_image, np.minimum(images, context // self.tokens_per_image), 0)
        frames = np.maximum(np.floor(np.minimum(seconds, MAX_CLIP_SECONDS) * FRAMES_PER_S).astype(np.int64), 1)
        frames = frames[is_audio]
        tokens = np.maximum(self.audio.tokens_of(frames), 1)
        vision = Items.uniform(images, self.patches_per_image, self.tokens_per_image)
        entering = np.full_like(frames, self.audio.length) if self.audio.length is not None else frames
        audio = Items(offsets(is_audio.astype(np.int64)), entering, tokens)
        text = np.where(is_audio, np.maximum(transcript, 1), np.where(is_image, image_text, np.maximum(document, 1)))
        merged = frozenset({"vision", "audio"} if self.audio.tokens is not None else {"vision"})
        samples = Samples(np.zeros(count, np.int64), {"vision": vision, "audio": audio}, merged)
        return replace(samples, text_tokens=np.minimum(text, context - samples.lengths))


@memo.remembered(4)
def _read(batch: MixedBatch, count: int, micro_batch: int, context: int) -> tuple[Microbatch, ...]:
    """The microbatches of a batch; a job that is simulated again reads the same."""
    blocks: list[Samples] = []
    tokens = 0
    while tokens // context < count * micro_batch + 2:  # so many packed sequences there are at least
        blocks.append(batch._draw(make_generator(batch.seed, len(blocks)), _BLOCK, context))
        tokens += int(blocks[-1].lengths.sum())
    samples = Samples(
        np.concatenate([block.text_tokens for block in blocks]),
        {name: Items.joined([block.items[name] for block in blocks]) for name in blocks[0].items},
        blocks[0].merged,
        Placement(batch.placement),
        batch.seed,
    )
    return tuple(samples.microbatches(samples.pack(context), count, micro_batch, batch.attend_across_samples))


mixed_batch = MixedBatch
