"""``FrozenWeights``: how weights that are not trained are stored, and their bytes."""

from __future__ import annotations

from enum import Enum

BLOCK, SUPER_BLOCK = 64, 256
"""NF4: elements that share a scale, and scales that share a scale of their own (QLoRA, 2305.14314 §3)."""


class FrozenWeights(Enum):
    """How frozen weights of linear layers are stored; the value is run.toml's word.

    NF4: four bits, with a scale of eight bits for every 64 elements and one of fp32 for every 256 of those (2305.14314
    §3, double quantisation). Products need 16 bits: every pass unpacks a weight before its product.
    """

    NF4 = "nf4"

    def packed_bytes(self, elements: int) -> int:
        """Bytes of so many elements with their scales."""
        scales = -(-elements // BLOCK)
        return -(-elements // 2) + scales + 4 * -(-scales // SUPER_BLOCK)
