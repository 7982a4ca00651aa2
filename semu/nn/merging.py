"""``Merging``: how the items of a data stream (images, clips) become tokens of the backbone.

A model says it of each encoder, so that a batch is made to fit, and one that does not is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from semu.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Lengths = NDArray[Any]


class Rounding(Enum):
    """What becomes of the last tokens where a group is not full: an error, one more token, or nothing."""

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
        steps: groups of so many become one, one step after the other.
        length: what every item has in ``stream`` where the encoder takes one size only; None: any.
        is_padded: items are padded to ``length``; their tokens are those of what is really there, from 1 up.
        item: what people call an item.
    """

    stream: str
    tokens: str | None
    steps: tuple[tuple[int, Rounding], ...] = ()
    length: int | None = None
    is_padded: bool = False
    item: str = "image"

    @property
    def multiple(self) -> int:
        """Items must be a multiple of this."""
        result = 1
        for factor, rounding in self.steps:
            if rounding is not Rounding.EXACT:
                break
            result *= factor
        return result

    def tokens_of(self, length: Lengths) -> Lengths:
        """Tokens of items of so many patches or frames: int64[num_items]; an exact step cuts off what is too much."""
        for factor, rounding in self.steps:
            length = -(-length // factor) if rounding is Rounding.UP else length // factor
        return length

    def tokens_of_one(self, length: int, where: str) -> int:
        """Tokens of one item, where its size is legal.

        Raises:
            ConfigError: another size than the only one, or one that does not divide.
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
        import numpy as np

        return int(self.tokens_of(np.array([length]))[0])

    @property
    def unit(self) -> str:
        """What an item is made of."""
        return {"audio": "frames", "text": "tokens"}.get(self.stream, "patches")

    def misfit(self, lengths: Lengths, tokens: Lengths | None) -> int | None:
        """The first item that contradicts the model; None where all fit.

        Args:
            lengths: of ``stream``, int64[num_items]. tokens: of ``tokens``, the same; None where there is no stream.
        """
        import numpy as np

        bad = lengths % self.multiple != 0
        if self.length is not None:
            bad |= lengths != self.length
        if tokens is not None:
            expected = self.tokens_of(lengths)
            bad |= (tokens < 1) | (tokens > expected) if self.is_padded else tokens != expected
        found = np.flatnonzero(bad)
        return int(found[0]) if found.size else None
