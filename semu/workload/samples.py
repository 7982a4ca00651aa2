"""Samples of text with images and sounds: ``Items`` (what they hold of one stream), ``Samples`` (all of it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu.workload.batch import Microbatch
from semu.workload.packing import offsets, pack_in_order

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
    def uniform(cls, counts: IntArray, length: int, tokens: int) -> Items:
        """Items of one size. ``counts``: int64[num_samples], how many each sample has."""
        total = int(counts.sum())
        return cls(offsets(counts), np.full(total, length), np.full(total, tokens))

    @classmethod
    def joined(cls, parts: Sequence[Items]) -> Items:
        """Items of several blocks of samples."""
        counts, lengths, tokens = (
            np.concatenate(columns)
            for columns in zip(*((part.counts, part.lengths, part.tokens) for part in parts), strict=True)
        )
        return cls(offsets(counts), lengths, tokens)

    @property
    def counts(self) -> IntArray:
        """Items of each sample: int64[num_samples]."""
        return np.diff(self.ptr)

    @property
    def per_sample(self) -> IntArray:
        """Backbone tokens of each sample's items: int64[num_samples]."""
        return np.diff(offsets(self.tokens)[self.ptr])


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of text, images and sounds.

    Attributes:
        text_tokens: int64[num_samples], without the items' tokens.
        items: stream -> items; a stream may be there without an item.
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

    def pack(self, seq_len: int, images_max: int | None = None) -> IntArray:
        """Bounds of the packed sequences: int64[num_sequences + 1], see ``pack_in_order``.

        Args:
            seq_len: tokens of a sequence. images_max: its images, of samples with a stream ``vision``; None: no limit.
        """
        if images_max is None:
            return pack_in_order([self.lengths], [seq_len])
        return pack_in_order([self.lengths, self.items["vision"].counts], [seq_len, images_max])

    def microbatches(self, bounds: IntArray, count: int, micro_batch: int, across_samples: bool) -> list[Microbatch]:
        """Cut the first ``count * micro_batch`` packed sequences into microbatches.

        Args:
            bounds: of the packed sequences, int64[>= count * micro_batch + 1].
            count, micro_batch: as for ``AbstractBatch.microbatches``.
            across_samples: a text sequence is a whole packed sequence instead of one sample.
        """
        used = bounds[: count * micro_batch + 1]
        edges = used[::micro_batch]
        text = (self.lengths, edges)
        if across_samples:
            text = np.diff(offsets(self.lengths)[used]), np.arange(0, used.size, micro_batch)
        columns = {"text": text}
        for name, items in self.items.items():
            columns[name] = items.lengths.copy(), items.ptr[edges]
            if name in self.merged:
                columns[f"{name}_tokens"] = items.tokens.copy(), items.ptr[edges]
        streams = []
        for values, ends in columns.values():
            values.flags.writeable = False
            streams.append([values[first:last] for first, last in pairwise(ends.tolist())])
        return [
            Microbatch.from_arrays(dict(zip(columns, lengths, strict=True)), samples)
            for *lengths, samples in zip(*streams, np.diff(edges).tolist(), strict=True)
        ]
