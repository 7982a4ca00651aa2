"""Samples of text with images and sounds: ``Items`` (what they hold of one stream), ``Samples`` (all of it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.checks import check_word
from semu.distinct import sorted_distinct
from semu.masks.spans import KINDS, TEXT, Spans
from semu.records import dataclass
from semu.workload.batch import Microbatch
from semu.workload.layouts import Layout
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

    def of_samples(self, order: IntArray) -> Items:
        """The items of some samples, in their order. ``order``: int64[n], numbers of samples."""
        counts = self.counts[order]
        ptr = offsets(counts)
        place = np.repeat(self.ptr[order] - ptr[:-1], counts) + np.arange(ptr[-1])
        return Items(ptr, self.lengths[place], self.tokens[place])

    @property
    def counts(self) -> IntArray:
        """Items of each sample: int64[num_samples]."""
        return np.diff(self.ptr)

    @property
    def per_sample(self) -> IntArray:
        """Backbone tokens of each sample's items: int64[num_samples]."""
        return np.diff(offsets(self.tokens)[self.ptr])


class Placement(Enum):
    """Where images and sounds stand in the text of their sample; the value is run.toml's word.

    PREFIX: before it. EMBEDDED: at places that are drawn, each as likely as any other. RECORDED: as the file says.
    """

    PREFIX = "prefix"
    EMBEDDED = "embedded"
    RECORDED = "recorded"


def check_drawn(value: Placement | str) -> Placement:
    """A placement that needs no record.

    Raises:
        ConfigError: another word.
    """
    drawn = (Placement.PREFIX.value, Placement.EMBEDDED.value)
    word = value.value if isinstance(value, Placement) else value
    return Placement(check_word(word, drawn, "placement of generated samples", "batch.placement"))


def described_placement(value: Placement | str) -> dict[str, object]:
    """For result.json: nothing where items stand before the text."""
    word = Placement(value)
    return {} if word is Placement.PREFIX else {"placement": word.value}


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of text, images and sounds.

    Attributes:
        text_tokens: int64[num_samples], without the items' tokens.
        items: stream -> items; a stream may be there without an item.
        merged: streams whose items take places among the text's tokens.
        placement: where in the text items stand. seed: of places that are drawn.
        layouts: per sample its runs, where they are recorded; None: they are not.
    """

    text_tokens: IntArray
    items: Mapping[str, Items]
    merged: frozenset[str] = frozenset({"vision", "audio"})
    placement: Placement = Placement.PREFIX
    seed: int = 0
    layouts: Sequence[Layout | None] = ()

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sample in the backbone: int64[num_samples]."""
        total = self.text_tokens.copy()
        for name, items in self.items.items():
            if name in self.merged:
                total += items.per_sample
        return total

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams that microbatches of these samples have."""
        merged = [f"{name}_tokens" for name in self.items if name in self.merged]
        return ("text", *self.items, *merged)

    def taken(self, order: IntArray) -> Samples:
        """Some of the samples, in another order. ``order``: int64[n], their numbers."""
        layouts = [self.layouts[number] for number in order.tolist()] if self.layouts else ()
        items = {name: own.of_samples(order) for name, own in self.items.items()}
        return replace(self, text_tokens=self.text_tokens[order], items=items, layouts=layouts)

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
            Microbatch.from_arrays(
                dict(zip(columns, lengths, strict=True)),
                samples,
                places=PlacesOfSamples(self, used[first : first + micro_batch + 1], across_samples),
            )
            for first, *lengths, samples in zip(
                range(0, used.size, micro_batch), *streams, np.diff(edges).tolist(), strict=False
            )
        ]


@dataclass(frozen=True, eq=False)
class PlacesOfSamples:
    """What stands where in a microbatch.

    Attributes:
        samples: of the batch. bounds: int64[num_packed + 1], samples of every packed sequence.
        across: a text sequence is a packed sequence; else it is a sample.
    """

    samples: Samples
    bounds: IntArray
    across: bool

    def spans(self) -> Spans:
        """The runs of the microbatch's text; every sample is a document."""
        samples, first, last = self.samples, int(self.bounds[0]), int(self.bounds[-1])
        rows = _runs_of(samples, first, last)
        sizes, document, kind, item = rows[:, rows[0] > 0]
        lengths = samples.lengths[first:last]
        starts = offsets(lengths)
        starts = starts[self.bounds - first] if self.across else starts
        return Spans(sorted_distinct(starts), offsets(sizes), document, kind, item)


def _runs_of(samples: Samples, first: int, last: int) -> IntArray:
    """Runs of some samples, in order: int64[4, num_runs], tokens, document, kind, item (-1: text); some are empty."""
    parts = [np.zeros((4, 0), np.int64)]
    order = [np.zeros((2, 0), np.int64)]  # sample, then place among its runs
    text = samples.text_tokens[first:last]
    owner, place, numbers, kinds, tokens = (
        np.concatenate(row) for row in zip(*_placed(samples, first, last), strict=True)
    )
    by_place = np.lexsort((np.arange(len(owner)), place, owner))
    owner, place, numbers, kinds, tokens = (row[by_place] for row in (owner, place, numbers, kinds, tokens))
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    before = np.where(rank > 0, np.concatenate(([0], place[:-1])), 0)
    parts.append(np.stack((place - before, owner, np.full_like(owner, TEXT), np.full_like(owner, -1))))
    order.append(np.stack((owner, 2 * rank)))
    parts.append(np.stack((tokens, owner, kinds, numbers)))
    order.append(np.stack((owner, 2 * rank + 1)))
    count = np.bincount(owner, minlength=len(text))
    used = np.zeros(len(text), np.int64)
    np.maximum.at(used, owner, place)
    every = np.arange(len(text))
    parts.append(np.stack((text - used, every, np.full_like(every, TEXT), np.full_like(every, -1))))
    order.append(np.stack((every, 2 * count)))
    runs, keys = np.concatenate(parts, axis=1), np.concatenate(order, axis=1)
    runs = runs[:, np.lexsort((keys[1], keys[0]))]
    if samples.layouts and any(layout is not None for layout in samples.layouts[first:last]):
        runs = _as_recorded(runs, samples.layouts[first:last])
    return runs


def _placed(samples: Samples, first: int, last: int) -> list[tuple[IntArray, IntArray, IntArray, IntArray, IntArray]]:
    """Per stream: sample of each item, text tokens before it, its number, its kind, its tokens."""
    none = np.zeros(0, np.int64)
    found = [(none, none, none, none, none)]
    taken = 0
    for name, items in samples.items.items():
        if name not in samples.merged:
            continue
        begin, end = int(items.ptr[first]), int(items.ptr[last])
        owner = np.repeat(np.arange(last - first), items.counts[first:last])
        place = np.zeros(end - begin, np.int64)
        if samples.placement is Placement.EMBEDDED:
            draws = _draw(samples.seed, name, len(items.tokens))
            place = np.floor(draws[begin:end] * (samples.text_tokens[first + owner] + 1)).astype(np.int64)
        numbers = taken + np.arange(end - begin)
        taken += end - begin
        found.append((owner, place, numbers, np.full(end - begin, KINDS.index(name)), items.tokens[begin:end]))
    return found


@memo.remembered(8)
def _draw(seed: int, name: str, count: int) -> NDArray[np.float64]:
    """Places of the items of a stream in their texts, as shares of it: float64[count]."""
    return np.random.Generator(np.random.PCG64([seed, KINDS.index(name), 77])).random(count)


def _as_recorded(runs: IntArray, layouts: Sequence[Layout | None]) -> IntArray:
    """The same, where samples that say how their runs lie have them so."""
    rows = []
    for number, layout in enumerate(layouts):
        mine = runs[:, runs[1] == number]
        if layout is None:
            rows.append(mine)
            continue
        of_kind = {kind: sorted_distinct(mine[3][mine[2] == kind]) for kind in range(1, len(KINDS))}
        own = [
            (tokens, number, KINDS.index(name), -1 if name == "text" else int(of_kind[KINDS.index(name)][item]))
            for name, item, tokens in layout
        ]
        rows.append(np.array(own, np.int64).reshape(-1, 4).T)
    return np.concatenate(rows, axis=1)
