"""Masks as whole tables of pairs, token by token: the slow reference of ``semu.masks``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.masks.balance import Cut
from semu.masks.mask import MaskKind
from semu.masks.spans import Spans
from semu.nn.window import Window, WindowKind


def dense_mask(kind: MaskKind, spans: Spans, window: Window | None = None) -> NDArray[np.bool_]:
    """bool[num_tokens, num_tokens], query x key."""
    total = spans.num_tokens
    sequence = np.repeat(np.arange(len(spans.starts) - 1), np.diff(spans.starts))
    document, what, item = (spans.per_token(of) for of in (spans.document, spans.kind, spans.item))

    def _alike(of: NDArray[np.int64]) -> NDArray[np.bool_]:
        return of[:, None] == of[None, :]

    before = np.tri(total, dtype=np.bool_) & _alike(sequence)
    of_document = before & _alike(document)
    mask = before if kind is MaskKind.CAUSAL else of_document
    if kind is MaskKind.MULTIMODAL:
        mask = np.where((what == 0)[:, None], of_document, _alike(item) & (what != 0)[None, :])
    if kind is MaskKind.PREFIX:
        head = np.array([is_before_text(document, what, token) for token in range(total)])
        mask = of_document | (head[:, None] & head[None, :] & _alike(document))
    if window is not None:
        offset = np.arange(total) - spans.starts[sequence]
        far = np.abs(offset[:, None] - offset[None, :]) >= window.size
        mask = mask & (~far if window.kind is WindowKind.SLIDING else _alike(offset // window.size))
    return mask


def is_before_text(document: NDArray[np.int64], what: NDArray[np.int64], token: int) -> bool:
    """Whether no text of its document stands before a token or at it."""
    first = int(np.flatnonzero(document == document[token])[0])
    return bool((what[first : token + 1] != 0).all())


def dense_tiles(
    mask: NDArray[np.bool_], spans: Spans, cut: Cut, *, by_owner: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pairs, tiles, partial tiles by row and owner, and rows by rank and tile of keys, as ``tiles.count``."""
    sequence = np.repeat(np.arange(len(spans.starts) - 1), np.diff(spans.starts))
    rank = np.repeat(cut.rank, np.diff(cut.bounds))
    rows = _tiled(cut.permutation, rank, sequence)
    keys = rows if by_owner else _tiled(np.arange(spans.num_tokens), np.zeros_like(rank), sequence)
    owners = cut.num_ranks if by_owner else 1
    pairs, tiles, partial = (np.zeros((len(rows), owners), np.int64) for _ in range(3))
    columns = np.zeros((cut.num_ranks, len(keys)), np.int64)
    for i, (mine, queries) in enumerate(rows):
        for j, (owner, of_tile) in enumerate(keys):
            part = mask[np.ix_(queries, of_tile)]
            pairs[i, owner] += part.sum()
            tiles[i, owner] += part.any()
            partial[i, owner] += part.any() and not part.all()
            columns[mine, j] += part.any()
    return pairs, tiles, partial, columns


def _tiled(
    tokens: NDArray[np.int64], rank: NDArray[np.int32], sequence: NDArray[np.int64]
) -> list[tuple[int, NDArray[np.int64]]]:
    """Tokens of every rank and sequence in tiles of 128, with the rank of each."""
    groups: dict[tuple[int, int], list[int]] = {}
    for token in tokens.tolist():
        groups.setdefault((int(rank[token]), int(sequence[token])), []).append(token)
    return [
        (of[0], np.array(own[first : first + 128])) for of, own in groups.items() for first in range(0, len(own), 128)
    ]


def drawn_spans(draw: np.random.Generator, most: int = 500) -> Spans:
    """Up to three sequences of some documents of text, images and sounds, some of them in parts; fewer than ``most``
    tokens."""
    while True:
        sequences = []
        for _ in range(draw.integers(1, 4)):
            runs: list[tuple[str, int, int]] = []
            for _ in range(draw.integers(1, 4)):
                runs.append(("document", 0, 0))
                items = 0
                for _ in range(draw.integers(1, 6)):
                    if draw.random() < 0.5:
                        runs.append(("text", -1, int(draw.integers(1, 150))))
                    else:
                        is_new = items == 0 or draw.random() < 0.7
                        item = items if is_new else int(draw.integers(items))
                        runs.append((("vision", "audio")[draw.integers(2)], item, int(draw.integers(1, 90))))
                        items += is_new
            sequences.append(runs)
        spans = Spans.of_runs(sequences)
        if spans.num_tokens < most:
            return spans
