"""Attention masks as spans: who sees whom, the tiles that a kernel computes of it, and how context ranks share them.

Objects: ``Spans`` (what stands where), ``MaskKind`` and ``Seen`` (who sees whom), ``Tiles`` and ``count`` (what kernels
compute), ``Balance``, ``Cut`` and ``cut_tokens`` (which rank holds what), ``bits_of`` and ``seen_of_bits`` (int64).
"""

from semu.masks.balance import Cut, cut_tokens, deal_blocks
from semu.masks.bits import bits_of, read_bits, seen_of_bits
from semu.masks.intervals import read_intervals, write_intervals
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import Spans
from semu.masks.tiles import Tiles, count, work_of_blocks
from semu.parallel.context import Balance

__all__ = [
    "Balance",
    "Cut",
    "MaskKind",
    "Seen",
    "Spans",
    "Tiles",
    "bits_of",
    "count",
    "cut_tokens",
    "deal_blocks",
    "read_bits",
    "read_intervals",
    "seen_of_bits",
    "work_of_blocks",
    "write_intervals",
]
