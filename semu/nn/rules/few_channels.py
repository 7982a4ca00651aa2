"""Convolutions of few channels: what cuDNN's kernels take longer than the matrix product with as many FLOP.

A tile of the product is loaded tap by tap, the channels of a pixel at once, padded to ``PADDED``. Both operands of a
tile of 128 x 128 results come anew for every tile: ``2 m n k' / 128`` elements, k' padded, at 0.45 of the rate of
element-wise kernels; as traffic, m n k' / 28 elements. Weight gradients of patches lose about half of that, which is
not counted.

Measured (``calibration/measurements/h100-sxm-2026-11/convolutions.csv``, cuDNN 9.19, 3 and 4 channels in): with it the
forward of patches and of first convolutions is 0.64 to 1.4 times what was measured, 0.04 to 0.5 times without.
"""

from __future__ import annotations

from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.nn.trace.tensor import Tensor

PADDED = 8
"""Channels of 16 bits in a load of 16 bytes."""
ELEMENTS = 28
"""Of a product's m n k', so many make an element of traffic."""
COLOURS = 3
"""Channels of an image."""


def gather_passes(y: Tensor, m: Dim, n: int, k: int, channels: int) -> None:
    """Append what the product [m, k] x [k, n] takes longer as a convolution; nothing where channels fill loads.

    Args:
        y: the result. m, n, k: of the product, local to a rank. channels: of the input; they divide k.
    """
    if channels % PADDED == 0:
        return
    padded = k // channels * (channels + -channels % PADDED)
    moved = m * (n * padded * y.trace.options.tensor_dtype.size_bytes // ELEMENTS)
    y.trace.emit(OpKind.ADD, [y], mem_bytes=moved, key=(m, n, padded), name="gather_passes")


def as_convolution(y: Tensor, features: int, channels: int = COLOURS) -> Tensor:
    """The result of a linear map of patches, which may run as a convolution (``TraceOptions.convolves_patches``).

    Args:
        y: [patches, hidden]. features: of a patch. channels: of its pixels.
    """
    hidden = y.shape[-1]
    if y.trace.options.convolves_patches and isinstance(hidden, int):
        gather_passes(y, y.local_shape[0], hidden, features, channels)
    return y
