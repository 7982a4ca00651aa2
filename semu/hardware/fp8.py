"""``Fp8Recipe``: how fp8 tensors are scaled, and the bytes of their scales."""

from __future__ import annotations

from enum import Enum

BLOCK = 128
"""Activations and gradients have a scale per 1 x 128 tile along the summed axis, weights one per 128 x 128 block
(DeepSeek-V3, 2412.19437 §3.3.2; Transformer Engine's ``Float8BlockScaling``)."""
SCALE_BYTES = 4
"""Scales are fp32."""
MX_BLOCK = 32
"""MXFP8: a scale of one byte (a power of two) for every 32 elements along the summed axis, of weights too (OCP
Microscaling Formats 1.0, §5.3 and §6.3)."""


class Fp8Recipe(Enum):
    """How fp8 tensors are scaled; the value is run.toml's word.

    TENSORWISE: one scale for each tensor, whose bytes are neglected. BLOCKWISE: one per tile or block. A transposed
    copy of an activation is scaled along the rows of the copy, so it is quantised again, not merely transposed. MXFP8:
    one per 32 elements, on devices that take operands in either layout; the second copy is of the same layout, scaled
    along the other axis, so that what is gathered twice is gathered in both (Transformer Engine's
    ``MXFP8BlockScaling``).
    """

    TENSORWISE = "tensorwise"
    BLOCKWISE = "blockwise"
    MXFP8 = "mxfp8"

    def row_bytes(self, width: int) -> int:
        """Bytes of one row of an activation or a gradient with its scales.

        Args:
            width: elements of the row. Of a transposed copy the tiles lie along the tokens; it weighs the same where
                both axes are multiples of 128, and is counted so.
        """
        if self is Fp8Recipe.MXFP8:
            return width - (-width // MX_BLOCK)
        return width + (SCALE_BYTES * -(-width // BLOCK) if self is Fp8Recipe.BLOCKWISE else 0)

    def scale_bytes(self, elements: int) -> int:
        """Bytes of the scales of one copy of a weight. ``elements``: of the weight on the rank."""
        if self is Fp8Recipe.MXFP8:
            return -(-elements // MX_BLOCK)
        return SCALE_BYTES * -(-elements // BLOCK**2) if self is Fp8Recipe.BLOCKWISE else 0
