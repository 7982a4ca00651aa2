"""``Spans``: what stands where in the sequences of a microbatch: documents, and in them text, images, sounds.

Tokens of all sequences are numbered one after another. A *run* is a stretch of tokens of one document that are text or
belong to one item (an image, a clip of sound).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.records import dataclass

IntArray = NDArray[np.int64]

TEXT = 0
"""Kind of a run of text; modalities are numbered from 1."""
KINDS = ("text", "vision", "audio")
"""Kinds of runs by number."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Runs of the sequences of a microbatch.

    Attributes:
        starts: int64[num_sequences + 1], the first token of every sequence, then the end of the last.
        ptr: int64[num_runs + 1], the first token of every run, then the end of the last; none crosses a sequence.
        document: int64[num_runs], not falling. kind: int64[num_runs], see ``KINDS``.
        item: int64[num_runs], which item it is part of, -1: text. Runs of one item may lie apart.
    Raises:
        ConfigError: runs that do not fill the sequences.
    """

    starts: IntArray
    ptr: IntArray
    document: IntArray
    kind: IntArray
    item: IntArray

    def __post_init__(self) -> None:
        if not np.isin(self.starts, self.ptr).all() or self.ptr[-1] != self.starts[-1] or (np.diff(self.ptr) < 0).any():
            raise ConfigError(
                "runs do not fill the sequences",
                where="spans",
                expected=f"runs that end at {self.starts[1:].tolist()[:8]}",
                got=self.ptr[1:].tolist()[:8],
            )

    @classmethod
    def of_text(cls, lengths: Sequence[int] | IntArray) -> Spans:
        """Sequences of nothing but text, a document each. ``lengths``: [tokens]."""
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, dtype=np.int64))))
        zeros = np.zeros(len(starts) - 1, np.int64)
        return cls(starts, starts, np.arange(len(zeros)), zeros, zeros - 1)

    @classmethod
    def of_runs(cls, sequences: Sequence[Sequence[tuple[str, int, int]]], length: int | None = None) -> Spans:
        """Runs spelt out.

        Args:
            sequences: per sequence its runs: what ("text", "vision", "audio", or "document", which begins a document),
                the item's number in the document (text: -1), tokens.
            length: what every sequence must come to [tokens]; None: anything.
        Raises:
            ConfigError: an unknown kind, or runs that do not sum to the length.
        """
        starts, ptr, rows = [0], [0], []
        document, items = -1, 0
        for number, runs in enumerate(sequences):
            document, first = document + 1, items
            for what, item, tokens in runs:
                if what == "document":
                    document, first = document + (ptr[-1] > starts[-1]), items
                    continue
                if what not in KINDS:
                    raise ConfigError("unknown kind of run", where="spans", expected=", ".join(KINDS), got=what)
                ptr.append(ptr[-1] + tokens)
                rows.append((document, KINDS.index(what), -1 if what == "text" else first + item))
                items = max(items, rows[-1][2] + 1)
            if length is not None and ptr[-1] - starts[-1] != length:
                raise ConfigError(
                    "runs do not sum to the length of their sequence",
                    where=f"spans[{number}]",
                    expected=f"{length} tokens",
                    got=ptr[-1] - starts[-1],
                )
            starts.append(ptr[-1])
        table = np.array(rows, np.int64).reshape(-1, 3)
        return cls(np.array(starts), np.array(ptr), table[:, 0], table[:, 1], table[:, 2])

    def part(self, first: int, last: int) -> Spans:
        """Sequences first to last - 1 alone, their tokens counted from 0."""
        begin, end = self.starts[first], self.starts[last]
        runs = slice(*np.searchsorted(self.ptr[:-1], (begin, end)).tolist())
        ptr = np.append(self.ptr[:-1][runs], end) - begin
        own = self.document[runs], self.kind[runs], self.item[runs]
        return Spans(self.starts[first : last + 1] - begin, ptr, *own)

    def spans(self) -> Spans:
        """Themselves: what a microbatch asks of whoever knows its runs."""
        return self

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences."""
        return int(self.starts[-1])

    @property
    def document_starts(self) -> IntArray:
        """The first token of every document, then the end of the last: int64[num_documents + 1]."""
        is_new = np.ones(len(self.document), np.bool_)
        is_new[1:] = self.document[1:] != self.document[:-1]
        return np.concatenate((self.ptr[:-1][is_new], self.starts[-1:]))

    @property
    def content(self) -> bytes:
        """Everything that they hold, as bytes."""
        return b"|".join(part.tobytes() for part in (self.starts, self.ptr, self.document, self.kind, self.item))

    def per_token(self, values: IntArray) -> IntArray:
        """A value per run -> per token: int64[num_tokens]."""
        return np.repeat(values, np.diff(self.ptr))
