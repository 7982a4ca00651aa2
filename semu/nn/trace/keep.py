"""Outputs that recomputation keeps: torchtitan's per-operator policy (``selective_ac_option = "op"``).

A recomputed block keeps the outputs of the first, third, fifth, ... matrix product, of fused attention and of
reduce-scatters; everything else is computed again. A fused projection (queries, keys and values; gate and up) counts as
the products that it stands for, so part of its output may be kept: that part has a separate storage, which every reader
of the output reads too. Products in fp8 count as any other.

Source: torchtitan, torchtitan/parallelisms/parallelize_llama.py (_get_custom_policy, no_recompute_list).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from semu.graph.dim import product
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.records import dataclass

if TYPE_CHECKING:
    from semu.nn.trace.parameter_use import ParameterUse
    from semu.nn.trace.tensor import Tensor


@dataclass
class Ledger:
    """What one recomputed block keeps, in the order of its forward pass.

    Attributes:
        kept: per place, the tensors that are kept; None: none. products: matrix products so far.
        place: the next place to read, in the second run; None: the first run, which writes.
    """

    kept: list[tuple[Tensor, ...] | None] = field(default_factory=list)
    products: int = 0
    place: int | None = None

    def again(self) -> Ledger:
        """The ledger for the second run, which reads from the beginning."""
        return Ledger(self.kept, 0, 0)

    def next(self) -> tuple[Tensor, ...] | None:
        """What was kept at the next place."""
        assert self.place is not None
        self.place += 1
        return self.kept[self.place - 1]

    def saved_width(self, widths: Sequence[int]) -> int:
        """Width that is kept of products of these widths: the first, third, fifth, ... of the block."""
        saved = 0
        for width in widths:
            self.products += 1
            saved += width if self.products % 2 else 0
        return saved


def kept_product(
    x: Tensor,
    inputs: Sequence[Tensor | ParameterUse],
    out_shards: int,
    sizes: tuple[object, int, int],
    parts: Sequence[int],
    operand: DType | None = None,
) -> Tensor:
    """Append ``x W^T`` in a block that keeps some outputs; the second run computes only what was not kept.

    Args:
        x: the input. inputs: all that the product reads. out_shards: of the last axis.
        sizes: local m, n, k. parts: global widths of the products that it stands for.
        operand: arithmetic, and element type of the weight as it is read; None: those of the trace.
    """
    trace = x.trace
    ledger = trace.ledger
    assert ledger is not None
    _, n, k = sizes
    m = product(x.local_shape[:-1])
    whole = sum(parts)
    saved = ledger.saved_width([width * n // whole for width in parts])
    shards = (*x.shards[:-1], out_shards)

    def _multiply(done: int, width: int, extra: int) -> Tensor:
        size = trace.options.tensor_dtype.size_bytes
        weight = size * k * done
        if operand is DType.FP8:
            weight = k * done + trace.options.fp8_recipe.scale_bytes(k * done)
        return trace.emit(
            OpKind.MATMUL,
            inputs,
            (*x.shape[:-1], width * out_shards),
            shards=shards,
            sequences=x.sequences,
            flop=2 * m * done * k,
            mem_bytes=x.size_bytes + weight + size * m * done,
            key=(m, done, k),
            arithmetic=operand,
            extra_outputs=[((*x.local_shape[:-1], extra), trace.options.tensor_dtype)] if extra else [],
        )

    def _spread(part: Tensor, side: Tensor) -> Tensor:
        trace.companions[trace.graph.tensors[part.node].storage] = side.node
        return trace.view(part, (*x.shape[:-1], n * out_shards), shards)

    if ledger.place is None:
        if saved in (0, n):
            y = _multiply(n, n, 0)
            ledger.kept.append((y,) if saved else None)
            return y
        y = _multiply(n, n - saved, saved)
        (side,) = trace.side_outputs(1)
        ledger.kept.append((side,))
        return _spread(y, side)
    kept = ledger.next()
    if kept is None:
        return _multiply(n, n, 0)
    if saved == n:
        return replace(kept[0], requires_grad=trace.any_trainable(inputs))
    return _spread(_multiply(n - saved, n - saved, 0), kept[0])
