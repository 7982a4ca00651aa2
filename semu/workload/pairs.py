"""Batches of dual encoders: pairs of an image and its caption, all of one size."""

from __future__ import annotations

from semu.checks import check_count
from semu.records import dataclass
from semu.workload.batch import AbstractBatch, Microbatch, check_request

DEFAULT_CAPTION_TOKENS = 77
"""Context of CLIP's text tower; captions are padded to it (2103.00020 §2.4 says 76, the released models have 77)."""
DEFAULT_IMAGE_PATCHES = 256
"""224 px in patches of 14 px."""


@dataclass(frozen=True)
class PairBatch(AbstractBatch):
    """Images with a caption each: streams ``vision`` and ``text``, one sequence a pair.

    Attributes:
        text_tokens: of a caption, padding included, where the job names no ``seq_len``, >= 1.
        patches_per_image: >= 1.
    Raises:
        ConfigError: a size below 1.
    """

    text_tokens: int = DEFAULT_CAPTION_TOKENS
    patches_per_image: int = DEFAULT_IMAGE_PATCHES

    def __post_init__(self) -> None:
        check_count(self.text_tokens, "batch.text_tokens")
        check_count(self.patches_per_image, "batch.patches_per_image")

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` times ``micro_batch`` pairs."""
        length = self.text_tokens if seq_len is None else seq_len
        check_request(count, micro_batch, length)
        streams = {"text": (length,) * micro_batch, "vision": (self.patches_per_image,) * micro_batch}
        return [Microbatch(streams, samples=micro_batch)] * count

    @property
    def input_streams(self) -> tuple[str, ...]:
        """Captions and patches."""
        return ("text", "vision")

    @property
    def default_seq_len(self) -> int:
        """``text_tokens``."""
        return self.text_tokens

    def describe(self) -> dict[str, object]:
        """Kind and sizes."""
        return {"kind": "pairs", "text_tokens": self.text_tokens, "patches_per_image": self.patches_per_image}


pair_batch = PairBatch
