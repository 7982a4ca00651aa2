"""``rank_columns``: what every context rank has to do under a mask, for many microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.masks.balance import Cut, cut_tokens
from semu.masks.bits import seen_of_file
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import IntArray, Spans
from semu.masks.tile_lists import reads_of_blocks
from semu.masks.tiles import Tiles, count, work_of_blocks
from semu.nn.masked_kernel import FIELDS, FULL, OTHERS, OWN, TRAFFIC, WHOLE, WIDTH, MaskedKernel
from semu.nn.trace.sharding import ContextKind
from semu.nn.window import Window
from semu.parallel.context import Balance, group_widths
from semu.records import dataclass
from semu.workload.batch import Microbatch


@dataclass(frozen=True)
class ContextPlan:
    """How a job masks its text and spreads it over context ranks.

    Attributes:
        mask: a ``MaskKind``'s word, or the path of a file of bits. cp: context ranks.
        balance: of the text. block: its blocks [tokens]. seed: of a random order.
        machines: tiles that a device computes at once; 0: unknown, nothing is lost at the end of a kernel.
        token_multiple: tokens of a rank are padded to a multiple of it.
        kind: how keys and values are exchanged. nodes: that the context ranks occupy, as many on each.
        slack: tiles of the busiest rank over the mean, less 1, that fewer bytes are worth (``local``, ``hybrid``).
    """

    mask: str = MaskKind.CAUSAL.value
    cp: int = 1
    balance: Balance = Balance.ZIGZAG
    block: int = 128
    seed: int = 0
    machines: int = 0
    token_multiple: int = 1
    kind: ContextKind = ContextKind.RING
    nodes: int = 1
    slack: float = 0.0

    def seen(self, spans: Spans, label: str, window: Window | None = None) -> Seen:
        """What tokens see. ``label``: a mask, ``full``, or ``file``."""
        if label == FULL:
            whole = Seen.whole(spans.starts)
            seen = Seen(whole.ptr, whole.first, whole.low, whole.high, np.zeros_like(whole.is_causal))
        elif label == "file":
            seen = seen_of_file(self.mask, spans.starts)
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

        def _reads(bounds: IntArray) -> tuple[IntArray, NDArray[np.int32]]:
            return reads_of_blocks(self.seen(spans, self.label), spans.starts, bounds)

        return cut_tokens(
            policy,
            spans,
            self.cp,
            self.block,
            _work,
            self.seed,
            reads=_reads,
            slack=self.slack,
            is_apart=self.label not in (MaskKind.CAUSAL.value, "file"),
        )


def rank_columns(
    microbatches: Sequence[Microbatch], kernels: Sequence[MaskedKernel], plan: ContextPlan
) -> dict[str, NDArray[np.int64]]:
    """What operator costs depend on, rank by rank.

    Args:
        microbatches: of the batch. kernels: masked kernels of the model. plan: of the job.
    Returns:
        int64[cp, num_microbatches] per key: the sizes of every kernel, ``text.shard`` where ranks hold different
        numbers of tokens, and ``text.shard:4`` of those in stretches that lie on groups of four ranks.
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
        for width in group_widths(plan.cp, plan.balance):
            found[f"text.shard{WIDTH}{width}"] = -(-cuts["text"].tokens_in(width) // plan.token_multiple)
    counted: dict[tuple[str, str, str, int, int, bool], Tiles] = {}
    for kernel in kernels:
        own = spans.get(kernel.stream)
        if own is None:
            continue
        if own.num_tokens == 0:  # a part of another module's items
            fields = (*FIELDS, *(TRAFFIC if kernel.scope == OTHERS else ()))
            found |= {kernel.symbol(field): np.zeros(plan.cp, np.int64) for field in fields}
            continue
        together = _ranks_together(kernel, plan)
        key = kernel.stream, kernel.mask, kernel.window, together, kernel.width, kernel.is_gathered
        if key not in counted:
            cut = cuts[kernel.stream]
            if kernel.scope == WHOLE:
                cut = Cut(own.starts, np.zeros(len(own.starts) - 1, np.int32), 1)
            elif together > 1:
                cut = Cut(cut.bounds, (cut.rank // together).astype(np.int32), cut.num_ranks // together)
            seen = plan.seen(own, kernel.mask, kernel.reach)
            by_owner = not kernel.is_gathered and kernel.scope != WHOLE
            counted[key] = count(seen, own.starts, cut, by_owner=by_owner, width=kernel.width)
        for field, values in sizes_of(counted[key], kernel, plan).items():
            found[kernel.symbol(field)] = values
    return found


def _ranks_together(kernel: MaskedKernel, plan: ContextPlan) -> int:
    """Ranks that hold the same queries, each for heads of its own."""
    if kernel.scope == WHOLE:
        return plan.cp
    return kernel.step[1] if kernel.exchange == "ring" else 1


def _owners(kernel: MaskedKernel, ranks: int) -> NDArray[np.bool_]:
    """Whose keys the kernel reads on every rank, or group of ranks: bool[ranks, owners]."""
    if kernel.is_gathered or kernel.scope == WHOLE:
        return np.ones((ranks, 1), np.bool_)
    own = np.eye(ranks, dtype=np.bool_)
    if kernel.scope == OTHERS:
        return ~own
    group, place = np.divmod(np.arange(ranks), kernel.width or ranks)
    source = (place - (0 if kernel.scope == OWN else kernel.step[0])) % (kernel.width or ranks)
    is_read: NDArray[np.bool_] = own[group * (kernel.width or ranks) + source]
    return is_read


def sizes_of(tiles: Tiles, kernel: MaskedKernel, plan: ContextPlan) -> dict[str, IntArray]:
    """The sizes of a kernel on every rank: int64[cp] by ``FIELDS``, of the scope ``others`` by ``TRAFFIC`` too."""
    is_read = _owners(kernel, len(tiles.columns))
    sums = [(tiles.sums(table) * is_read).sum(axis=1) for table in (tiles.pairs, tiles.tiles, tiles.partial)]
    found = [*sums, (tiles.keys_read() * is_read).sum(axis=1)]
    spans, columns, parts, merged = [], [], [], []
    for rank, mine in enumerate(is_read):
        of_rank = tiles.rows_of(rank)
        rows = tiles.tiles[of_rank][:, mine].sum(axis=1).astype(np.int64)
        pieces = parts_of(rows, kernel.split, tiles)
        parts.append(len(pieces) if kernel.split else 0)
        spans.append(_busy(pieces, kernel.heads, plan.machines))
        merged.append(int(tiles.size[of_rank][rows > 0].sum()))
        columns.append(_busy(tiles.columns[rank][mine[tiles.key_owner]].astype(np.int64), kernel.heads, plan.machines))
    found += [np.array(values, np.int64) for values in (parts, spans, columns)]
    by_field = dict(zip(FIELDS, found, strict=True))
    if kernel.scope == OTHERS:
        by_field |= traffic_of(tiles, plan.nodes) | {"merged": np.array(merged, np.int64)}
    return {field: np.repeat(values, _ranks_together(kernel, plan)) for field, values in by_field.items()}


def traffic_of(tiles: Tiles, nodes: int) -> dict[str, IntArray]:
    """Tokens whose keys and values context ranks send one another where each gets what its tiles read.

    Args:
        tiles: counted by owner. nodes: as many ranks on each.
    Returns:
        int64[cp] by the names in ``TRAFFIC``: within the node (near) and to other nodes (far), in, out, and the larger.
    """
    moved = tiles.keys_read()
    np.fill_diagonal(moved, 0)
    node = np.arange(len(moved)) * nodes // len(moved)
    is_near = node[:, None] == node[None, :]
    found: dict[str, IntArray] = {}
    for way, mine in (("near", moved * is_near), ("far", moved * ~is_near)):
        found[f"{way}_in"], found[f"{way}_out"] = mine.sum(axis=1), mine.sum(axis=0)
        found[way] = np.maximum(found[f"{way}_in"], found[f"{way}_out"])
    return {field: found[field] for field in TRAFFIC if field in found}


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
