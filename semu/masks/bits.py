"""Masks as one int64 a token (Cornstarch, 3.4.2): import of files, export of spans.

Bits 0 to 61 name what a token belongs to and looks at; bit 62 or 63 marks a causal token (text), 62 is written. A
causal query sees the keys up to it with which it shares a bit; any other query sees, before and behind it, the keys
with the same bits. A token without bits sees nothing. Sequences do not see one another: each has 62 bits to itself.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_word
from semu.errors import ConfigError
from semu.masks.intervals import in_sequences, read_intervals
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import TEXT, IntArray, Spans

MASK_WORDS = tuple(kind.value for kind in MaskKind)
MOST_BITS = 62
CAUSAL_BIT = np.int64(1) << 62
_NAMED = np.int64((1 << MOST_BITS) - 1)


def read_bits(path: str | Path) -> IntArray:
    """A mask of a file that ``numpy.save`` wrote: int64[tokens], for every sequence, or int64[sequences, tokens].

    Raises:
        ConfigError: no such file, or another array.
    """
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the mask: {error}", where=str(path), expected="an int64 array that numpy.save wrote"
        ) from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.ndim not in (1, 2) or not found.size:
        got = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise ConfigError("not a mask", where=str(path), expected="int64[tokens] or int64[sequences, tokens]", got=got)
    return np.ascontiguousarray(found).astype(np.int64)


def read_mask(value: object, where: str) -> str:
    """The word of a mask, or a file of bits, which must be readable.

    Raises:
        ConfigError: another word, a file that is no mask.
    """
    if isinstance(value, str) and value.endswith((".npy", ".npz")):
        (read_bits if value.endswith(".npy") else read_intervals)(value)
        return value
    return check_word(value.value if isinstance(value, MaskKind) else value, MASK_WORDS, "mask", where)


def seen_of_file(path: str, starts: IntArray) -> Seen:
    """What a file lets the tokens of sequences see. ``starts``: int64[num_sequences + 1].

    Raises:
        ConfigError: no such mask, or a longer sequence.
    """
    if path.endswith(".npz"):
        return in_sequences(read_intervals(path), starts, path)
    return seen_of_bits(read_bits(path), starts, path)


def seen_of_bits(bits: IntArray, starts: IntArray, where: str = "bits") -> Seen:
    """What bits let the tokens of sequences see.

    Args:
        bits: int64[tokens] or int64[rows, tokens]; row i mod rows is for sequence i, which may be shorter.
        starts: int64[num_sequences + 1]. where: of the bits, for messages.
    Raises:
        ConfigError: a sequence longer than the mask, or tokens with equal bits of which some are causal.
    """
    rows = np.atleast_2d(bits)
    ptr, keys, is_causal = [0], [], []
    for number, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if end - begin > rows.shape[1]:
            raise ConfigError(
                f"a sequence of {end - begin} tokens is longer than the mask",
                where=where,
                expected=f"at most {rows.shape[1]} tokens",
                got=end - begin,
                nearest=f"training.seq_len = {rows.shape[1]}",
            )
        own = rows[number % len(rows), : end - begin]
        borders = np.concatenate(([0], np.flatnonzero(np.diff(own)) + 1, [end - begin])) if end > begin else np.zeros(1)
        first = own[borders[:-1].astype(np.int64)]
        causal, named = (first & ~_NAMED) != 0, first & _NAMED
        mixed = np.intersect1d(named[causal], named[~causal])
        if mixed.size:
            raise ConfigError(
                "a causal bit on some of the tokens with equal bits: a token of a modality has none",
                where=where,
                expected="bit 62 or 63 on text alone",
                got=f"bits {int(mixed[0]):#x} with and without it in sequence {number}",
            )
        for run in range(len(first)):
            meets = (named & named[run]) != 0 if causal[run] else (named == named[run]) & (named != 0)
            keys.append(_intervals(meets, borders + begin))
            ptr.append(begin + int(borders[run + 1]))
            is_causal.append(bool(causal[run]))
    return Seen.of_keys(np.array(ptr, np.int64), keys, np.array(is_causal, np.bool_))


def bits_of(kind: MaskKind, spans: Spans) -> IntArray:
    """A mask as bits: int64[num_tokens].

    Raises:
        ConfigError: more documents and items in one sequence than there are bits.
    """
    starts, run_starts = spans.starts, spans.ptr[:-1]
    sequence = np.searchsorted(starts, run_starts, side="right") - 1
    document = spans.document if kind is not MaskKind.CAUSAL else sequence
    bounds = spans.document_starts
    of_document = np.searchsorted(bounds, run_starts, side="right") - 1
    is_text = np.ones(len(run_starts), np.bool_) if kind in (MaskKind.CAUSAL, MaskKind.DOCUMENT) else spans.kind == TEXT
    item = np.where(is_text, -1, spans.item)
    if kind is MaskKind.PREFIX:
        seen = Seen.of(kind, spans)
        is_text = seen.is_causal if len(seen.is_causal) == len(is_text) else np.ones_like(is_text)
        item = np.where(is_text, -1, of_document)
    result = np.zeros(len(run_starts), np.int64)
    for number in range(len(starts) - 1):
        mine = np.flatnonzero(sequence == number)
        names = list(dict.fromkeys(("document", int(document[run])) for run in mine))
        names += dict.fromkeys(("item", int(item[run])) for run in mine if item[run] >= 0)
        if len(names) > MOST_BITS:
            raise ConfigError(
                f"{len(names)} documents and items in sequence {number} do not fit in {MOST_BITS} bits",
                where="mask",
                expected=f"at most {MOST_BITS} in a sequence, or spans instead of bits",
                got=len(names),
                nearest=MOST_BITS,
            )
        bit = {name: np.int64(1) << place for place, name in enumerate(names)}
        looks: dict[int, np.int64] = {}
        for run in mine:
            if item[run] >= 0:
                looks[int(document[run])] = looks.get(int(document[run]), np.int64(0)) | bit["item", int(item[run])]
        for run in mine:
            own = int(document[run])
            if is_text[run]:
                result[run] = CAUSAL_BIT | bit["document", own] | looks.get(own, np.int64(0))
            else:
                result[run] = bit["item", int(item[run])]
    return spans.per_token(result)


def _intervals(meets: NDArray[np.bool_], borders: NDArray[np.integer]) -> list[tuple[int, int]]:
    """Runs that are seen, neighbours joined."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], meets, [False])).astype(np.int8)))
    return [(int(borders[a]), int(borders[b])) for a, b in zip(edges[::2], edges[1::2], strict=True)]
