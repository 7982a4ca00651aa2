"""``rank_columns``: what every context rank has to do under a mask, for many microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.masks.balance import Cut, cut_tokens
from semu.masks.bits import read_bits, seen_of_bits
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import IntArray, Spans
from semu.masks.tiles import Tiles, count, work_of_blocks
from semu.nn.masked_kernel import FIELDS, FULL, GATHERED, WHOLE, MaskedKernel
from semu.nn.window import Window
from semu.parallel.context import Balance
from semu.workload.batch import Microbatch


@dataclass(frozen=True)
class ContextPlan:
    """How a job masks its text and spreads it over context ranks.

    Attributes:
        mask: a ``MaskKind``'s word, or the path of a file of bits. cp: context ranks.
        balance: of the text. block: its blocks [tokens]. seed: of a random order.
        machines: tiles that a device computes at once; 0: unknown, nothing is lost at the end of a kernel.
        token_multiple: tokens of a rank are padded to a multiple of it.
    """

    mask: str = MaskKind.CAUSAL.value
    cp: int = 1
    balance: Balance = Balance.ZIGZAG
    block: int = 128
    seed: int = 0
    machines: int = 0
    token_multiple: int = 1

    def seen(self, spans: Spans, label: str, window: Window | None = None) -> Seen:
        """What tokens see. ``label``: a mask, ``full``, or ``file``."""
        if label == FULL:
            whole = Seen.whole(spans.starts)
            seen = Seen(whole.ptr, whole.first, whole.low, whole.high, np.zeros_like(whole.is_causal))
        elif label == "file":
            seen = seen_of_bits(read_bits(self.mask), spans.starts, self.mask)
        else:
            seen = Seen.of(MaskKind(label), spans)
        return seen if window is None else seen.within(window, spans.starts)

    def blind(self, spans: Spans) -> int:
        """Tokens that see nothing; only a file can have any, as under every ``MaskKind`` a token sees itself."""
        if self.label != "file":
            return 0
        seen = self.seen(spans, self.label)
        keys = np.add.reduceat(np.append(seen.high - seen.low, 0), seen.first[:-1]) * (np.diff(seen.first) > 0)
        return int(np.diff(seen.ptr)[keys <= 0].sum())

    @property
    def label(self) -> str:
        """Its mask in the names of sizes."""
        return self.mask if self.mask in [kind.value for kind in MaskKind] else "file"

    def cut(self, spans: Spans, *, is_text: bool = True) -> Cut:
        """Which rank holds which tokens."""
        policy = self.balance if is_text else Balance.ZIGZAG

        def _work(bounds: IntArray) -> IntArray:
            return work_of_blocks(self.seen(spans, self.label), spans.starts, bounds)

        return cut_tokens(policy, spans, self.cp, self.block, _work, self.seed)


def rank_columns(
    microbatches: Sequence[Microbatch], kernels: Sequence[MaskedKernel], plan: ContextPlan
) -> dict[str, NDArray[np.int64]]:
    """What operator costs depend on, rank by rank.

    Args:
        microbatches: of the batch. kernels: masked kernels of the model. plan: of the job.
    Returns:
        int64[cp, num_microbatches] per key: the sizes of every kernel, and ``text.shard`` where ranks hold different
        numbers of tokens.
    """
    by_content: dict[bytes, dict[str, IntArray]] = {}
    known: dict[int, dict[str, IntArray]] = {}
    rows = []
    streams = dict.fromkeys(kernel.stream for kernel in kernels)
    if plan.cp > 1 and plan.balance is not Balance.ZIGZAG:
        streams["text"] = None
    for item in microbatches:
        if id(item) not in known:
            spans = {stream: item.spans(stream) for stream in streams if stream in item.lengths}
            content = b"#".join(own.content for own in spans.values())
            if content not in by_content:
                key = (content, tuple(kernels), plan)
                by_content[content] = _COLUMNS.get(key, partial(_of_microbatch, spans, kernels, plan))
            known[id(item)] = by_content[content]
        rows.append(known[id(item)])
    return {name: np.stack([row[name] for row in rows], axis=1) for name in (rows[0] if rows else ())}


_COLUMNS = memo.Table["dict[str, IntArray]"]("tiles of masks on context ranks, by runs, kernels and plan", 8192)


def _of_microbatch(spans: dict[str, Spans], kernels: Sequence[MaskedKernel], plan: ContextPlan) -> dict[str, IntArray]:
    found: dict[str, IntArray] = {}
    cuts = {stream: plan.cut(own, is_text=stream == "text") for stream, own in spans.items()}
    if "text" in spans and plan.cp > 1 and plan.balance is not Balance.ZIGZAG:
        found["text.shard"] = -(-cuts["text"].tokens // plan.token_multiple)
    counted: dict[tuple[str, str, str, str], Tiles] = {}
    for kernel in kernels:
        own = spans.get(kernel.stream)
        if own is None:
            continue
        scope = kernel.scope if kernel.scope in (GATHERED, WHOLE) else "ring"
        key = kernel.stream, kernel.mask, kernel.window, scope
        if key not in counted:
            cut = cuts[kernel.stream]
            if scope == WHOLE:
                cut = Cut(own.starts, np.zeros(len(own.starts) - 1, np.int32), 1)
            counted[key] = count(plan.seen(own, kernel.mask, kernel.reach), own.starts, cut, by_owner=scope == "ring")
        for field, values in sizes_of(counted[key], kernel, plan).items():
            (name,) = kernel.size(field).terms  # type: ignore[union-attr]
            found[name[0]] = values
    return found


def sizes_of(tiles: Tiles, kernel: MaskedKernel, plan: ContextPlan) -> dict[str, IntArray]:
    """The sizes of a kernel on every rank: int64[cp] by ``FIELDS``."""
    ranks = np.arange(len(tiles.columns))
    owner = np.zeros_like(ranks)
    if kernel.scope not in (GATHERED, WHOLE):
        owner = (ranks - int(kernel.scope)) % len(ranks)
    sums = [tiles.sums(table)[ranks, owner] for table in (tiles.pairs, tiles.tiles, tiles.partial)]
    found = [*sums, tiles.keys_read()[ranks, owner]]
    spans, columns, parts = [], [], []
    for rank in ranks.tolist():
        rows = tiles.tiles[tiles.rows_of(rank), owner[rank]].astype(np.int64)
        pieces = parts_of(rows, kernel.split, tiles)
        parts.append(len(pieces) if kernel.split else 0)
        spans.append(_busy(pieces, kernel.heads, plan.machines))
        mine = tiles.columns[rank] if tiles.tiles.shape[1] == 1 else tiles.columns[rank][tiles.key_owner == owner[rank]]
        columns.append(_busy(mine.astype(np.int64), kernel.heads, plan.machines))
    found += [np.array(values, np.int64) for values in (parts, spans, columns)]
    by_field = dict(zip(FIELDS, found, strict=True))
    if len(ranks) < plan.cp:  # all ranks do the same, each for heads of its own
        return {field: np.repeat(values, plan.cp) for field, values in by_field.items()}
    return by_field


def parts_of(rows: IntArray, split: int, tiles: Tiles) -> IntArray:
    """Tiles of every part of rows whose keys are cut into at most ``split`` parts; 0: rows are whole.

    A part has as many tiles as the split leaves of a row that reads all keys (Cornstarch, 3.3.2.2)."""
    if not split:
        return rows
    size = max(-(-len(tiles.key_size) // split), 1)
    counts = -(-rows // size)
    pieces = np.full(int(counts.sum()), size, np.int64)
    last = np.cumsum(counts)[counts > 0] - 1
    pieces[last] = (rows - (counts - 1) * size)[counts > 0]
    return pieces


def _busy(work: IntArray, heads: int, machines: int) -> int:
    """Tiles until the last multiprocessor is done; where nobody knows how many there are, tiles of all heads."""
    from semu.masks.kernels import busy_until

    if machines < 1:
        return int(work.sum()) * heads
    return busy_until(np.ascontiguousarray(work), heads, machines)
