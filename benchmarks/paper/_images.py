"""Batches whose packed sequences have a bounded number of images, and the two waves of bounds of DIP Fig. 8b."""

from __future__ import annotations

from dataclasses import dataclass, replace

from semu.errors import ConfigError
from semu.workload.batch import AbstractBatch, Microbatch
from semu.workload.vlm import VlmBatch

RISE, WAVE, WAVES = 5, 20, 2
"""Iterations of a rise, and of a whole wave; waves (DIP §7.2)."""
LOWER, UPPER = 16, 32
"""Bounds at the top of a wave [images]."""
RARE = 16
"""Fewer images than this are rare in sequences of samples that all have some (18 on average)."""
MOST_DRAWN = 1 << 14
"""Packed sequences that are looked at before bounds count as impossible."""


def wave_bounds() -> list[tuple[int, int]]:
    """(lower, upper) number of images of a sequence in every iteration (DIP §7.2).

    In the first five iterations of a wave the lower bound rises from 0 to 16 under an upper bound of 32; in the other
    fifteen both fall to zero, here by equal steps.
    """
    bounds = []
    for number in range(WAVE):
        if number < RISE:
            bounds.append((round(LOWER * number / (RISE - 1)), UPPER))
        else:
            left = (WAVE - 1 - number) / (WAVE - RISE)
            bounds.append((round(LOWER * left), round(UPPER * left)))
    return bounds * WAVES


@dataclass(frozen=True)
class BoundedImages(AbstractBatch):
    """Packed sequences of a VLM batch, only those with so many images.

    Attributes:
        source: what sequences are drawn from. Where the middle of the bounds is below ``RARE`` images, documents
            without images are mixed in, so that sequences have that many on average.
        lower, upper: images of a sequence.
    """

    source: VlmBatch
    lower: int
    upper: int

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper:
            raise ConfigError(
                "not bounds", where="images", expected="0 <= lower <= upper", got=f"{self.lower}, {self.upper}"
            )

    @property
    def drawn(self) -> VlmBatch:
        """The batch that sequences are taken from."""
        middle = (self.lower + self.upper) / 2
        return replace(self.source, images_mean=middle if middle < RARE else None)

    @property
    def default_seq_len(self) -> int:
        """The source's."""
        return self.source.default_seq_len

    @property
    def input_streams(self) -> tuple[str, ...]:
        """The source's."""
        return self.source.input_streams

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """The first ``count`` microbatches within the bounds; with several sequences each, all of them together.

        Raises:
            ConfigError: there are too few.
        """
        tried = 4 * count
        while tried <= MOST_DRAWN:
            found = self.drawn.microbatches(tried, micro_batch, seq_len)
            low, high = self.lower * micro_batch, self.upper * micro_batch
            kept = [item for item in found if low <= len(item.lengths["vision"]) <= high]
            if len(kept) >= count:
                return kept[:count]
            tried *= 4
        raise ConfigError(
            "hardly any sequences within the bounds", where="images", got=f"{self.lower} to {self.upper} images"
        )

    def describe(self) -> dict[str, object]:
        """What the source says, and the bounds."""
        return {**self.drawn.describe(), "images_lower": self.lower, "images_upper": self.upper}


def mean_images(batch: AbstractBatch, count: int) -> float:
    """Images of a packed sequence, on average over so many."""
    return sum(len(item.lengths["vision"]) for item in batch.microbatches(count, 1)) / count


@dataclass(frozen=True)
class InTurn(AbstractBatch):
    """Several batches behind one another: a workload that changes.

    Attributes:
        batches: at least one. each: microbatches taken from every one of them.
    """

    batches: tuple[AbstractBatch, ...]
    each: int

    @property
    def default_seq_len(self) -> int | None:
        """The first one's."""
        return self.batches[0].default_seq_len

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` microbatches from the beginning.

        Raises:
            ConfigError: there are fewer.
        """
        if count > self.each * len(self.batches):
            raise ConfigError("too few batches", where="batches", expected=f">= {-(-count // self.each)}")
        used = self.batches[: -(-count // self.each)]
        return [item for own in used for item in own.microbatches(self.each, micro_batch, seq_len)][:count]

    def describe(self) -> dict[str, object]:
        """What each of them says."""
        return {"kind": "in turn", "each": self.each, "batches": [own.describe() for own in self.batches]}
