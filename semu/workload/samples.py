"""Samples of text with images and audio clips: ``Items`` (what they hold of one kind), ``MixedSamples`` (all of it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.workload.batch import Lengths, Microbatch
from semu.workload.packing import pack_in_order

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Items:
    """Images or clips; item j of sample i is entry ptr[i] + j.

    Attributes:
        ptr: int64[num_samples + 1]. lengths: int64[num_items], what an item puts into the encoder.
        tokens: int64[num_items], what it puts into the backbone.
    """

    ptr: IntArray
    lengths: IntArray
    tokens: IntArray

    @classmethod
    def of(cls, counts: IntArray, lengths: IntArray, tokens: IntArray) -> Items:
        """Items of samples that have ``counts`` of them."""
        return cls(np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), lengths, tokens)

    @classmethod
    def joined(cls, parts: Sequence[Items]) -> Items:
        """Items of several blocks of samples."""
        counts = np.concatenate([np.diff(part.ptr) for part in parts])
        return cls.of(
            counts, np.concatenate([part.lengths for part in parts]), np.concatenate([part.tokens for part in parts])
        )

    @property
    def per_sample(self) -> IntArray:
        """Backbone tokens of each sample's items: int64[num_samples]."""
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.tokens)))
        return np.diff(before[self.ptr])


@dataclass(frozen=True, eq=False)
class MixedSamples:
    """Samples of text, images and audio.

    Attributes:
        text_tokens: int64[num_samples], without the items' tokens. items: stream -> items.
        merged: streams whose items take places among the text's tokens.
    """

    text_tokens: IntArray
    items: Mapping[str, Items]
    merged: frozenset[str] = frozenset({"vision", "audio"})

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sample in the backbone: int64[num_samples]."""
        total = self.text_tokens.copy()
        for name, items in self.items.items():
            if name in self.merged:
                total += items.per_sample
        return total

    def pack(self, seq_len: int) -> IntArray:
        """Bounds of the packed sequences: int64[num_sequences + 1], see ``pack_in_order``."""
        return pack_in_order([self.lengths], [seq_len])

    def microbatches(self, bounds: IntArray, count: int, micro_batch: int, across_samples: bool) -> list[Microbatch]:
        """Cut the first ``count * micro_batch`` packed sequences into microbatches; see ``ImageTextSamples``."""
        used = bounds[: count * micro_batch + 1]
        edges = used[::micro_batch]
        lengths = self.lengths
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        result = []
        for number, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            inside = used[number * micro_batch : (number + 1) * micro_batch + 1]
            streams: dict[str, Lengths] = {
                "text": np.diff(before[inside]) if across_samples else lengths[first:last].copy()
            }
            for name, items in self.items.items():
                start, end = int(items.ptr[first]), int(items.ptr[last])
                streams[name] = items.lengths[start:end].copy()
                if name in self.merged:
                    streams[f"{name}_tokens"] = items.tokens[start:end].copy()
            for array in streams.values():
                array.flags.writeable = False
            result.append(Microbatch.from_arrays(streams, last - first))
        return result
