"""``sample_columns``: what the costs of samples depend on, a column per symbol and a row per sample.

Summed over the samples of a microbatch, a column is what ``shape_columns`` finds for the microbatch, but for padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.nn.streams import changes_of
from semu.nn.window import MARK, Window
from semu.workload.packing import offsets
from semu.workload.samples import Samples

IntArray = NDArray[np.int64]

_KINDS = ("tokens", "pairs", "sequences")


def feature_names(symbols: Iterable[str], streams: Iterable[str]) -> tuple[str, ...]:
    """The columns of samples that a model's costs depend on, sorted.

    Args:
        symbols: names that sizes use. streams: those that samples have.
    Returns:
        Names for ``sample_columns``; a padded sum (``text.shard``) counts as ``text.tokens``. Left out is what no
        sum over samples is: products of streams, tiles of masks, what ranks of a context group see.
    """
    have, found = set(streams), set()
    for symbol in symbols:
        stream, _, kind = symbol.partition(".")
        if "*" in stream or "~" in stream or changes_of(stream)[0] not in have:
            continue
        kind = "tokens" if kind == "shard" else kind
        if kind in _KINDS or kind.startswith(f"pairs{MARK}"):
            found.add(f"{stream}.{kind}")
    return tuple(sorted(found))


def sample_columns(samples: Samples, names: Sequence[str]) -> IntArray:
    """Columns of all samples: int64[num_samples, num_names].

    Args:
        samples: with the streams that the names begin with. names: of ``feature_names``.
    Raises:
        ConfigError: a name that is none.
    """
    columns = np.empty((len(samples.text_tokens), len(names)), np.int64)
    for number, name in enumerate(names):
        stream, _, kind = name.partition(".")
        base, changes = changes_of(stream)
        lengths, ptr = stream_lengths(samples, base)
        for change in changes:
            lengths = change.lengths(lengths)
        if kind == "tokens":
            values = lengths
        elif kind == "pairs":
            values = lengths * lengths
        elif kind == "sequences":
            values = (lengths > 0).astype(np.int64)
        elif kind.startswith(f"pairs{MARK}"):
            values = Window.from_label(kind.partition(MARK)[2]).pairs_of(lengths)
        else:
            raise ConfigError("not a column of samples", where=name, expected="tokens, pairs, sequences", got=kind)
        columns[:, number] = values if ptr is None else np.diff(offsets(values)[ptr])
    return columns


def stream_lengths(samples: Samples, stream: str) -> tuple[IntArray, IntArray | None]:
    """Lengths of a stream's sequences, and where those of each sample begin; None: every sample has one.

    Raises:
        ConfigError: no such stream.
    """
    if stream == "text":
        return samples.lengths, None
    name = stream.removesuffix("_tokens")
    if name not in samples.items:
        raise ConfigError("samples have no such stream", where=stream, expected=", ".join(samples.streams))
    items = samples.items[name]
    return (items.lengths if name == stream else items.tokens), items.ptr
