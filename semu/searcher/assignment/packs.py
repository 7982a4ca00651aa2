"""Random packs of samples: what per-sample costs are fitted on, and judged by."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass
from semu.workload.batch import Microbatch
from semu.workload.packing import offsets
from semu.workload.samples import Samples

IntArray = NDArray[np.int64]

NUM_PACKS = 128
"""Packs that the engine costs; every fourth is held out of the fit."""
SMALLEST, LARGEST = 0.4, 1.8
"""Sizes of packs, in samples of a mean microbatch; one pack in four has any size from one sample on."""


@dataclass(frozen=True, eq=False)
class Packs:
    """Packs of samples.

    Attributes:
        order: int64[k], samples, pack after pack. bounds: int64[num_packs + 1].
    """

    order: IntArray
    bounds: IntArray

    @property
    def is_held_out(self) -> NDArray[np.bool_]:
        """bool[num_packs], packs that judge the fit."""
        fourth: NDArray[np.bool_] = np.arange(len(self.bounds) - 1) % 4 == 3
        return fourth

    def sums(self, columns: IntArray) -> IntArray:
        """Sums of columns of samples over packs: int64[num_packs, num_columns]."""
        total = np.zeros((len(self.order) + 1, columns.shape[1]), np.int64)
        np.cumsum(columns[self.order], axis=0, out=total[1:])
        return np.diff(total[self.bounds], axis=0)

    def microbatches(self, samples: Samples) -> list[Microbatch]:
        """Every pack as a microbatch."""
        return samples.taken(self.order).microbatches(self.bounds, len(self.bounds) - 1, 1, False)


def draw_packs(samples: Samples, per_microbatch: float, limit: int | None, seed: int) -> Packs:
    """Packs without repetition inside a pack.

    Args:
        samples: to draw from. per_microbatch: mean samples of a microbatch. limit: tokens of a microbatch; None: any
            number.
        seed: of the draw.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 0x9AC5]))
    lengths, count = samples.lengths, len(samples.text_tokens)
    orders, sizes = [], []
    for number in range(NUM_PACKS):
        low, high = (1.0, LARGEST) if number % 4 == 2 else (SMALLEST, LARGEST)
        wanted = round(float(generator.uniform(low if low == 1.0 else low * per_microbatch, high * per_microbatch)))
        own = generator.permutation(count)[: max(1, min(wanted, count))]
        if limit is not None:
            own = own[: max(1, int(np.searchsorted(np.cumsum(lengths[own]), limit, side="right")))]
        orders.append(own)
        sizes.append(len(own))
    return Packs(np.concatenate(orders), offsets(np.array(sizes, np.int64)))
