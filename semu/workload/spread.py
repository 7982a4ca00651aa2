"""Items of a microbatch spread over groups of ranks: what each group gets, and the group that gets most.

A modality module whose parallelism is smaller than the job's runs in several groups of ranks on the same GPUs. Each
takes whole sequences (images, clips): the longest one that is left goes to the group with the fewest tokens, the first
of several (longest processing time first, Graham 1969). Streams with as many sequences (an image's patches and the
tokens that it becomes, a clip and its caption) go together. All groups wait for the one with the most tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.nn.window import MARK, Window
from semu.records import dataclass
from semu.workload.batch import Lengths, Microbatch


@dataclass(frozen=True)
class Spread:
    """How a modality module spreads a microbatch.

    Attributes:
        module: its name. stream: whose lengths decide. groups: of ranks; 1: streams are padded in another way only.
        token_divisor, parts: of the module, as ``shape_columns`` takes them.
    """

    module: str
    stream: str
    groups: int
    token_divisor: int
    parts: int = 1


def _as_many(microbatches: Sequence[Microbatch], stream: str) -> list[str]:
    """Streams with a sequence for each of another stream's, that one among them."""
    return [
        name
        for name in microbatches[0].lengths
        if all(len(item.lengths[name]) == len(item.lengths[stream]) for item in microbatches)
    ]


def deal(lengths: Lengths, groups: int) -> NDArray[np.int64]:
    """The group of every item, int64[num_items]. ``lengths``: int64[num_items]. ``groups``: >= 1."""
    count = len(lengths)
    if not count or lengths.min() == lengths.max():
        return np.arange(count, dtype=np.int64) % groups
    result = np.zeros(count, dtype=np.int64)
    heap = [(0, group) for group in range(groups)]
    for item in np.argsort(-lengths, kind="stable").tolist():
        tokens, group = heap[0]
        result[item] = group
        heapq.heapreplace(heap, (tokens + int(lengths[item]), group))
    return result


def spread_columns(
    microbatches: Sequence[Microbatch], spread: Spread, windows: Mapping[str, Sequence[Window]] | None = None
) -> dict[str, NDArray[np.int64]]:
    """The numbers that operator costs of a spread module depend on.

    Args:
        microbatches: all with the same stream names. spread: of the module.
        windows: ``STREAM.MODULE`` -> windows of attention over the stream there; ``windows_in`` finds them.
    Returns:
        int64[num_microbatches] per key: as ``shape_columns``, with the module behind the stream: ``s.module.shard``,
        ``.pairs``, ``.sequences`` of the group with the most tokens (then the most pairs of tokens, then the first), of
        every stream that has a sequence for each of ``spread.stream``, with their windows; and ``s.module.shard@g`` of
        group g.
    """
    names = list(microbatches[0].lengths)
    alike = _as_many(microbatches, spread.stream)
    together = alike if spread.groups > 1 else names
    keys: dict[str, tuple[str, str]] = {}  # the sum of products of two streams' lengths
    for name in together:
        keys[f"{name}.{spread.module}.pairs"] = name, name
        others = _as_many(microbatches, name) if spread.groups == 1 else alike
        keys |= {f"{name}*{other}.{spread.module}.pairs": (name, other) for other in others if other != name}
    sizes = [f"{name}.{spread.module}.{what}" for name in together for what in ("shard", "sequences")]
    inside = {
        f"{name}.{spread.module}.pairs{MARK}{window.label}": (name, window)
        for name in together
        for window in (windows or {}).get(f"{name}.{spread.module}", ())
    }
    found = {key: np.zeros((spread.groups, len(microbatches)), np.int64) for key in (*keys, *sizes, *inside)}
    worst = np.zeros(len(microbatches), dtype=np.int64)
    for number, item in enumerate(microbatches):
        dealt = deal(item.lengths[spread.stream], spread.groups)
        chunks = {name: -(-item.lengths[name] // spread.parts) for name in together}
        group = {name: dealt if spread.groups > 1 else np.zeros_like(item.lengths[name]) for name in together}
        for name in together:
            tokens = spread.parts * _sums(chunks[name], group[name], spread.groups)
            found[f"{name}.{spread.module}.shard"][:, number] = -(-tokens // spread.token_divisor)
            found[f"{name}.{spread.module}.sequences"][:, number] = np.bincount(group[name], minlength=spread.groups)
        for key, (name, other) in keys.items():
            found[key][:, number] = _sums(chunks[name] * chunks[other], group[name], spread.groups)
        for key, (name, window) in inside.items():
            found[key][:, number] = _sums(window.pairs_of(item.lengths[name]), group[name], spread.groups)
        tokens = _sums(item.lengths[spread.stream], dealt, spread.groups)
        most = np.flatnonzero(tokens == tokens.max())
        worst[number] = most[np.argmax(found[f"{spread.stream}.{spread.module}.pairs"][most, number])]
    columns = {key: table[worst, np.arange(len(microbatches))] for key, table in found.items()}
    for key, table in found.items():
        columns |= {group_key(key, group): table[group] for group in range(spread.groups)}
    return columns


def group_key(key: str, group: int) -> str:
    """Column of one group of ranks."""
    return f"{key}@{group}"


def _sums(values: Lengths, group: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    return total
