"""Which tokens of a microbatch every context rank holds: the policies of ``parallel.cp_balance`` (``POLICIES``).

A block is ``parallel.cp_block`` tokens of one sequence, the last of a sequence may be shorter; its work is how many
tiles of its queries are not empty. Blocks of all sequences of a microbatch are dealt together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.masks.groups import deal_stretches
from semu.parallel.context import Balance, largest_block
from semu.records import dataclass

if TYPE_CHECKING:
    from semu.masks.spans import IntArray, Spans


POLICIES = {
    Balance.ZIGZAG: "every sequence in 2 cp chunks, rank r has r and 2 cp - 1 - r (Megatron-LM; 2407.21783 3.3.2)",
    Balance.DOCUMENT_ZIGZAG: "every document so",
    Balance.CONTIGUOUS: "every sequence in cp chunks",
    Balance.STRIPED: "blocks in turn (2311.09431, there of one token)",
    Balance.LPT: "the block with most work first, each to the rank with the least (Graham 1969; Cornstarch, alg. 1); up"
    " to 512 blocks are then exchanged as long as that lowers the largest load",
    Balance.LPT_EQUAL: "the same with equally many blocks on every rank",
    Balance.SNAKE: "blocks by falling work, dealt to and fro (PyTorch's PTRR)",
    Balance.RANDOM: "blocks in a drawn order, dealt",
    Balance.LOCAL: "blocks where most of what they read is: few keys leave their rank, and no rank has more than"
    " 1 + parallel.cp_slack times the mean work and tokens, or than lpt leaves (DCP, SOSP '25)",
    Balance.HYBRID: "every document, or sequence where the mask crosses documents, in 2 n chunks on a group of n ranks,"
    " n any divisor of cp: as few as even work and tokens allow within parallel.cp_slack; keys stay in the group (as"
    " Megatron-LM's hybrid context parallelism)",
}
"""The policies, in words."""


@dataclass(frozen=True, eq=False)
class Cut:
    """Which rank holds which tokens.

    Attributes:
        bounds: int64[num_pieces + 1], tokens of every piece, in order, without gaps. rank: int32[num_pieces].
        num_ranks: context ranks.
        width: int32[num_pieces], neighbouring ranks that share the stretch of text that a piece is of, the first a
            multiple of them; empty: keys are not kept to groups.
    """

    bounds: IntArray
    rank: NDArray[np.int32]
    num_ranks: int
    width: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def tokens(self) -> IntArray:
        """Tokens of every rank: int64[num_ranks]."""
        return np.bincount(self.rank, weights=np.diff(self.bounds), minlength=self.num_ranks).astype(np.int64)

    def tokens_in(self, width: int) -> IntArray:
        """Tokens of every rank in stretches that so many ranks share: int64[num_ranks]."""
        sizes = np.diff(self.bounds) * (self.width == width)
        return np.bincount(self.rank, weights=sizes, minlength=self.num_ranks).astype(np.int64)

    @property
    def permutation(self) -> IntArray:
        """The tokens of rank 0 in order, then those of rank 1, and so on: int64[num_tokens]."""
        of_token = np.repeat(self.rank, np.diff(self.bounds))
        return np.argsort(of_token, kind="stable").astype(np.int64)


def cut_tokens(
    policy: Balance,
    spans: Spans,
    num_ranks: int,
    block: int = 128,
    work: Callable[[IntArray], IntArray] | None = None,
    seed: int = 0,
    *,
    reads: Callable[[IntArray], tuple[IntArray, NDArray[np.int32]]] | None = None,
    slack: float = 0.0,
    is_apart: bool = False,
) -> Cut:
    """The tokens of every rank.

    Args:
        policy: how. spans: of the microbatch. num_ranks: >= 1. block: tokens of a block, >= 1.
        work: bounds of blocks, int64[num_blocks + 1] -> work of every block; for policies that look at it.
        seed: of a random order.
        reads: bounds of blocks -> ``reads_of_blocks``; for ``local``.
        slack: work above the mean that ``local`` and ``hybrid`` allow, >= 0.
        is_apart: no token sees another document; for ``hybrid``.
    Raises:
        ConfigError: fewer blocks than ranks, or blocks of which no rank can have as many as another.
    """
    if spans.num_tokens == 0:
        return Cut(np.zeros(1, np.int64), np.zeros(0, np.int32), num_ranks)
    if num_ranks == 1:
        bounds = spans.starts
        return Cut(bounds, np.zeros(len(bounds) - 1, np.int32), 1)
    if policy.groups_ranks:
        assert work is not None
        bounds = spans.document_starts if is_apart else spans.starts
        return _grouped(bounds, deal_stretches(work(bounds), np.diff(bounds), num_ranks, slack), num_ranks)
    if not policy.is_by_block:
        bounds = spans.document_starts if policy is Balance.DOCUMENT_ZIGZAG else spans.starts
        return _chunked(bounds, num_ranks, is_zigzag=policy is not Balance.CONTIGUOUS)
    bounds = blocks_of(spans.starts, block)
    count = len(bounds) - 1
    if count < num_ranks:
        raise ConfigError(
            f"{spans.num_tokens} tokens are {count} blocks of {block}, fewer than cp = {num_ranks} ranks",
            where="parallel.cp_block",
            expected=f"blocks of at most {max(spans.num_tokens // num_ranks, 1)} tokens",
            got=block,
            nearest=largest_block(spans.num_tokens // num_ranks),
        )
    if policy is Balance.STRIPED:
        return Cut(bounds, (np.arange(count) % num_ranks).astype(np.int32), num_ranks)
    if policy is Balance.RANDOM:
        rank = np.empty(count, np.int32)
        rank[np.random.Generator(np.random.PCG64(seed)).permutation(count)] = np.arange(count) % num_ranks
        return Cut(bounds, rank, num_ranks)
    assert work is not None
    if policy is Balance.LOCAL:
        assert reads is not None
        rank = deal_near(work(bounds), *reads(bounds), np.diff(bounds), num_ranks, slack)
        return Cut(bounds, rank, num_ranks)
    if policy is not Balance.LPT:
        _check_equal(bounds, num_ranks, block, policy)
    weight = work(bounds)
    return Cut(bounds, deal_blocks(policy, weight, num_ranks), num_ranks)


def deal_blocks(policy: Balance, weight: IntArray, num_ranks: int) -> NDArray[np.int32]:
    """The rank of every block by its work.

    Args:
        policy: lpt, lpt-equal or snake. weight: int64[num_blocks], work >= 0. num_ranks: >= 1.
    Returns:
        int32[num_blocks].
    """
    from semu.masks.kernels import even_pairs, exchange_blocks, longest_first

    order = np.argsort(-weight, kind="stable")
    rank = np.empty(len(weight), np.int32)
    if policy is Balance.SNAKE:
        turn, place = np.divmod(np.arange(len(weight)), num_ranks)
        rank[order] = np.where(turn % 2 == 0, place, num_ranks - 1 - place)
        return rank
    is_equal = policy is Balance.LPT_EQUAL
    load = np.zeros(num_ranks, np.int64)
    longest_first(weight, order, load, len(weight) // num_ranks if is_equal else len(weight), rank)
    if len(weight) <= _FEW_BLOCKS:
        exchange_blocks(weight, rank, load, not is_equal)
    if len(weight) <= _FEWER_BLOCKS and not is_equal:
        even_pairs(weight, rank, load)
    return rank


def deal_near(
    weight: IntArray, ptr: IntArray, block: NDArray[np.int32], size: IntArray, num_ranks: int, slack: float
) -> NDArray[np.int32]:
    """The rank of every block such that few keys leave their rank, within limits on a rank's work and tokens.

    Blocks are moved one by one, and, where they are few, swapped, from two starts: as LPT deals them, and in stretches
    of equal work. The limits are (1 + slack) times the mean, or what LPT leaves on the fullest rank.

    Args:
        weight: int64[num_blocks], work >= 0. ptr, block: what every block reads, see ``reads_of_blocks``.
        size: int64[num_blocks], tokens. num_ranks: >= 1. slack: >= 0.
    Returns:
        int32[num_blocks].
    """
    from semu.masks.kernels import bring_near

    dealt = deal_blocks(Balance.LPT, weight, num_ranks)
    both = np.stack((weight * int(size.sum()), size * int(weight.sum())), axis=1)  # alike in sum
    most = [np.bincount(dealt, weights=column, minlength=num_ranks).max() for column in both.T]
    limit = np.maximum(np.array(most, np.int64), (both.sum(axis=0) * (1.0 + slack) / num_ranks).astype(np.int64))
    middle = np.cumsum(weight) - weight / 2
    stretches = np.minimum(middle * num_ranks // max(int(weight.sum()), 1), num_ranks - 1).astype(np.int32)
    found = []
    for start in (stretches, dealt):
        rank = start.copy()
        moved, excess = bring_near(both, (ptr, block), size, limit, num_ranks, len(weight) <= _FEW_BLOCKS, rank)
        found.append((excess, moved, rank))
    return min(found, key=lambda way: way[:2])[2]


_FEW_BLOCKS = 512
"""So few blocks are exchanged after they were dealt, where the largest load falls; with many LPT is as good alone."""
_FEWER_BLOCKS = 64
"""Of so few, those of two ranks at a time are shared anew."""


def blocks_of(starts: IntArray, block: int) -> IntArray:
    """Bounds of the blocks of sequences: int64[num_blocks + 1]."""
    lengths = np.diff(starts)
    counts = -(-lengths // block)
    first = np.repeat(starts[:-1], counts)
    number = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.append(first + block * number, starts[-1])


def _chunked(starts: IntArray, num_ranks: int, *, is_zigzag: bool) -> Cut:
    """Every stretch in 2 cp chunks, or cp."""
    chunks = 2 * num_ranks if is_zigzag else num_ranks
    bounds, number, _ = _chunks_of(starts, np.full(len(starts) - 1, chunks))
    rank = np.minimum(number, chunks - 1 - number) if is_zigzag else number
    return Cut(bounds, rank.astype(np.int32), num_ranks)


def _grouped(starts: IntArray, places: tuple[NDArray[np.int32], NDArray[np.int32]], num_ranks: int) -> Cut:
    """Every stretch in chunks from both its ends on a group of ranks. ``places``: see ``deal_stretches``."""
    bounds, number, stretch = _chunks_of(starts, 2 * places[0].astype(np.int64))
    width, first = (column[stretch] for column in places)
    rank = first + np.minimum(number, 2 * width - 1 - number)
    return Cut(bounds, rank.astype(np.int32), num_ranks, width)


def _chunks_of(starts: IntArray, chunks: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Stretches in chunks of equal length, the last ones shorter where it does not divide, or left out.

    Args:
        starts: of the stretches. chunks: int64[num_stretches].
    Returns:
        Bounds of chunks: int64[num_chunks + 1]; the number of each in its stretch; its stretch.
    """
    lengths = np.diff(starts)
    stretch = np.repeat(np.arange(len(lengths)), chunks)
    number = np.arange(len(stretch)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    size = -(-lengths // chunks)
    begin = np.minimum(number * size[stretch], lengths[stretch]) + starts[:-1][stretch]
    keep = np.diff(np.append(begin, starts[-1])) > 0
    return np.append(begin[keep], starts[-1]), number[keep], stretch[keep]


def _check_equal(bounds: IntArray, num_ranks: int, block: int, policy: Balance) -> None:
    sizes = np.diff(bounds)
    if len(sizes) % num_ranks or (sizes != block).any():
        short = int(np.count_nonzero(sizes != block))
        raise ConfigError(
            f"{policy.value} needs equal blocks, as many on every rank",
            where="parallel.cp_balance",
            expected=f"a multiple of {num_ranks} blocks of {block} tokens",
            got=f"{len(sizes)} blocks" + (f", {short} of them shorter" if short else ""),
            nearest=Balance.LPT.value,
        )
