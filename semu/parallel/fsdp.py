"""``Fsdp``: which generation of PyTorch's FSDP shards the parameters, and what it copies on the device.

Parameters are gathered in the training precision and gradients reduced in another type (a mixed-precision policy).
Counted from PyTorch's sources, in bytes per parameter of a unit, beside the collectives themselves:

* FSDP1 (``torch.distributed.fsdp._runtime_utils``): parameters are views of the gathered buffer. Gradients of the views
  are joined into the flat parameter's (``SplitWithSizesBackward``), cast to the type of the reduction and divided
  (``gradient_predivide_factor``, 2 or more from two ranks on): three kernels.
* FSDP2 (``torch.distributed.fsdp._fully_shard._fsdp_collectives``): what was gathered is copied out into the parameters
  (``split_with_sizes_copy``); gradients are copied into the reduction's buffer and cast by one kernel (``chunk_cast``).

Either casts the rank's shard before it is gathered, which is one part in so many ranks.
"""

from __future__ import annotations

from enum import Enum

from semu.hardware.kinds import DType

SECOND_SINCE = "2024-10"
"""PyTorch 2.5, whose FSDP2 torchtitan then ran."""


class Fsdp(Enum):
    """A generation of PyTorch's FSDP; the value is run.toml's word. NONE: parameters are sharded otherwise."""

    NONE = "none"
    FIRST = "fsdp1"
    SECOND = "fsdp2"

    def gather_bytes(self, elements: int, tensor: DType, master: DType, ranks: int) -> int:
        """Memory traffic of the copies around one gather of a unit [bytes].

        Args:
            elements: of the unit, unsharded. tensor, master: types in which they are gathered and kept. ranks: that
                share them.
        """
        if self is Fsdp.NONE:
            return 0
        cast = 0 if tensor is master else -(-elements // ranks) * (master.size_bytes + tensor.size_bytes)
        return cast + (2 * elements * tensor.size_bytes if self is Fsdp.SECOND else 0)

    def reduce_bytes(self, elements: int, tensor: DType, reduced: DType) -> int:
        """Memory traffic of the copies before one reduction of a unit's gradients [bytes].

        Args:
            elements: with gradients. tensor, reduced: types of the gradients and of the reduction.
        """
        if self is Fsdp.NONE:
            return 0
        cast = tensor.size_bytes + reduced.size_bytes
        if self is Fsdp.SECOND:
            return elements * cast
        joined, divided = 2 * tensor.size_bytes, 2 * reduced.size_bytes
        return elements * (joined + (0 if tensor is reduced else cast) + divided)
