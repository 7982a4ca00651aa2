"""``Merging``: how the items of a data stream (images, clips) become tokens of the backbone.

An encoder carries one: batches are made to fit it, and a batch that does not fit is refused.
"""

from __future__ import annotations

import itertools
import math
from enum import Enum

import numpy as np

from semu.errors import ConfigError
from semu.nn.window import Lengths
from semu.records import dataclass


class Rounding(Enum):
    """What an incomplete last group of tokens becomes: an error, one more token, or nothing."""

    EXACT = "exact"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True)
class Merging:
    """How many tokens an item makes.

    Attributes:
        stream: what enters the encoder (``vision``: patches, ``audio``: mel frames), one sequence per item.
        tokens: stream of what the backbone gets, one sequence per item; None: it attends to the encoder's output,
            which takes no place among its tokens.
        steps: in order, the size of a group that becomes one token, and what an incomplete group becomes.
        length: the only length of an item in ``stream`` that the encoder takes; None: any.
        is_padded: items are padded to ``length``; the backbone gets tokens of the unpadded part, at least 1.
        item: name of an item in messages.
    """

    stream: str
    tokens: str | None
    steps: tuple[tuple[int, Rounding], ...] = ()
    length: int | None = None
    is_padded: bool = False
    item: str = "image"

    @property
    def multiple(self) -> int:
        """The length of an item is a multiple of this."""
        exact = itertools.takewhile(lambda step: step[1] is Rounding.EXACT, self.steps)
        return math.prod(factor for factor, _ in exact)

    def tokens_of(self, length: Lengths) -> Lengths:
        """Tokens of items by their length: int64[num_items]; an exact step drops an incomplete group."""
        for factor, rounding in self.steps:
            length = -(-length // factor) if rounding is Rounding.UP else length // factor
        return length

    def tokens_of_one(self, length: int, where: str) -> int:
        """Tokens of one item.

        Raises:
            ConfigError: a length that the encoder does not take.
        """
        if self.length is not None and (length != self.length if not self.is_padded else length > self.length):
            raise ConfigError(
                f"the model's {self.item}s have {self.length} {self.unit}",
                where=where,
                expected=f"{'at most ' if self.is_padded else ''}{self.length}",
                got=length,
                nearest=self.length,
            )
        if length % self.multiple:
            raise ConfigError(
                f"{length} {self.unit} do not merge into whole tokens",
                where=where,
                expected=f"a multiple of {self.multiple}",
                got=length,
                nearest=max(round(length / self.multiple), 1) * self.multiple,
            )
        return int(self.tokens_of(np.array([length]))[0])

    @property
    def unit(self) -> str:
        """What an item is made of."""
        return {"audio": "frames", "text": "tokens"}.get(self.stream, "patches")

    def misfit(self, lengths: Lengths, tokens: Lengths | None) -> int | None:
        """The first item that contradicts the model; None where all fit.

        Args:
            lengths: in ``stream``, int64[num_items]. tokens: in the stream ``tokens``, int64[num_items]; None: the
                batch has no such stream.
        """
        bad = lengths % self.multiple != 0
        if self.length is not None:
            bad |= lengths != self.length
        if tokens is not None:
            expected = self.tokens_of(lengths)
            bad |= (tokens < 1) | (tokens > expected) if self.is_padded else tokens != expected
        return int(np.argmax(bad)) if bad.any() else None
