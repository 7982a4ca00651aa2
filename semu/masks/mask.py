"""Which keys a query sees: ``MaskKind``, and ``Seen``, the same as intervals of keys per run of queries.

    causal        all tokens of the sequence up to the query
    document      all tokens of the query's document up to it
    multimodal    text: as document. A token of an image or a sound: all tokens of it, before and behind (Cornstarch,
                  3.4.2)
    prefix        tokens before a document's first text see one another; all others as document (PaliGemma, 2407.07726)

A window (``semu.nn.window``) hides keys that are too far away. Files say other masks: as bits (``semu.masks.bits``) or
as the intervals themselves (``semu.masks.intervals``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu.masks.spans import TEXT, IntArray, Spans
from semu.nn.window import Window, WindowKind
from semu.records import dataclass


class MaskKind(Enum):
    """How attention of a language model is masked; the value is run.toml's word."""

    CAUSAL = "causal"
    DOCUMENT = "document"
    MULTIMODAL = "multimodal"
    PREFIX = "prefix"


MASKS = {
    MaskKind.CAUSAL: "a token sees those before it in its sequence",
    MaskKind.DOCUMENT: "a token sees those before it in its document",
    MaskKind.MULTIMODAL: "text sees what is before it in its document, a token of an image or a sound sees all of that",
    MaskKind.PREFIX: "tokens before a document's first text see one another, others those before them in the document",
}
"""The masks, in words."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What runs of queries see.

    Attributes:
        ptr: int64[num_runs + 1], tokens of every run. first: int64[num_runs + 1], intervals of every run.
        low, high: int64[num_intervals], keys [low, high).
        is_causal: bool[num_runs], no key behind the query.
        reach: int64[num_intervals], tokens of an interval less than that away are seen; 0: all of them. Empty: all 0.
    """

    ptr: IntArray
    first: IntArray
    low: IntArray
    high: IntArray
    is_causal: NDArray[np.bool_]
    reach: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def arrays(self) -> tuple[object, ...]:
        """``seen`` of the kernels."""
        return self.ptr, self.first, self.low, self.high, self.is_causal, self.reaches

    @property
    def reaches(self) -> IntArray:
        """``reach`` of every interval."""
        return self.reach if len(self.reach) else np.zeros_like(self.low)

    @classmethod
    def whole(cls, bounds: IntArray) -> Seen:
        """Causal attention inside stretches. ``bounds``: int64[num_stretches + 1], where they begin and end."""
        count = len(bounds) - 1
        return cls(bounds, np.arange(count + 1), bounds[:-1], bounds[1:], np.ones(count, np.bool_))

    @classmethod
    def of(cls, kind: MaskKind, spans: Spans) -> Seen:
        """What a mask lets the runs of sequences see."""
        if kind is MaskKind.CAUSAL:
            return cls.whole(spans.starts)
        bounds = spans.document_starts
        if kind is MaskKind.DOCUMENT or not (spans.kind != TEXT).any():
            return cls.whole(bounds)
        document = np.searchsorted(bounds, spans.ptr[:-1], side="right") - 1
        begin, end = bounds[document], bounds[document + 1]
        is_text = spans.kind == TEXT
        if kind is MaskKind.PREFIX:
            text_before = np.cumsum(is_text) - is_text
            head = text_before[np.searchsorted(spans.ptr, begin)]  # runs of text before the document
            is_prefix = ~is_text & (text_before == head)
            last = np.zeros(len(bounds) - 1, np.int64)
            np.maximum.at(last, document[is_prefix], spans.ptr[1:][is_prefix])
            high = np.where(is_prefix, last[document], end)
            return cls(spans.ptr, np.arange(len(begin) + 1), begin, high, ~is_prefix)
        return cls._of_items(spans, begin, end, is_text)

    @classmethod
    def _of_items(cls, spans: Spans, begin: IntArray, end: IntArray, is_text: NDArray[np.bool_]) -> Seen:
        """Items see themselves, text what is before it."""
        runs = np.arange(len(begin))
        order = np.argsort(spans.item, kind="stable")
        order = order[~is_text[order]]
        distinct, at, count = np.unique(spans.item[order], return_index=True, return_counts=True)
        place = np.searchsorted(distinct, spans.item)
        counts = np.ones(len(begin), np.int64)
        counts[~is_text] = count[place[~is_text]]
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        of_run = np.repeat(runs, counts)
        offset = np.arange(first[-1]) - first[of_run]
        low, high = begin[of_run].copy(), end[of_run].copy()
        mine = ~is_text[of_run]
        parts = order[at[place[of_run[mine]]] + offset[mine]]
        low[mine], high[mine] = spans.ptr[:-1][parts], spans.ptr[1:][parts]
        return cls(spans.ptr, first, low, high, is_text)

    def within(self, window: Window, starts: IntArray) -> Seen:
        """The same through a window. ``starts``: of the sequences, from which chunks of a chunked window are counted.

        A chunked window cuts the runs at the borders of its chunks."""
        if window.kind is WindowKind.SLIDING:
            reaches = self.reaches
            return replace(self, reach=np.where(reaches > 0, np.minimum(reaches, window.size), window.size))
        borders = np.concatenate([np.arange(a, b, window.size) for a, b in pairwise(starts)])
        ptr = np.union1d(self.ptr, borders)
        run = np.searchsorted(self.ptr, ptr[:-1], side="right") - 1
        chunk = np.searchsorted(borders, ptr[:-1], side="right") - 1
        ends = np.append(borders[1:], starts[-1])
        counts = np.diff(self.first)[run]
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        of_run = np.repeat(np.arange(len(run)), counts)
        source = self.first[run[of_run]] + np.arange(first[-1]) - first[of_run]
        low = np.maximum(self.low[source], borders[chunk[of_run]])
        high = np.maximum(np.minimum(self.high[source], ends[chunk[of_run]]), low)
        return Seen(ptr, first, low, high, self.is_causal[run], self.reaches[source])

    @classmethod
    def of_keys(cls, ptr: IntArray, keys: Sequence[Sequence[tuple[int, int]]], is_causal: NDArray[np.bool_]) -> Seen:
        """Intervals spelt out. ``keys``: per run its intervals, in order and apart."""
        first = np.concatenate((np.zeros(1, np.int64), np.cumsum([len(own) for own in keys], dtype=np.int64)))
        table = np.array([pair for own in keys for pair in own], np.int64).reshape(-1, 2)
        return cls(ptr, first, np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1]), is_causal)
