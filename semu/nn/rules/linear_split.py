"""``LinearSplit``: how a linear layer is split over the tensor-parallel group, and the collectives that follow."""

from __future__ import annotations

from semu.errors import GraphError
from semu.nn.rules.collective import all_gather_tokens, all_reduce, reduce_scatter_tokens
from semu.nn.trace.sharding import ShardingStyle
from semu.nn.trace.tensor import Tensor
from semu.records import dataclass


@dataclass(frozen=True)
class LinearSplit:
    """The split of one weight [out, in] and of what it multiplies.

    Attributes:
        in_shards, out_shards: parts of the weight's axes: ``out`` is split by columns, ``in`` by rows (1909.08053 §3).
        is_gathered: column split under sequence parallelism: the input's tokens are gathered, its gradient's scattered.
        is_scattered: row split under sequence parallelism: the result's tokens are scattered, its gradient's gathered.
    """

    in_shards: int
    out_shards: int
    is_gathered: bool
    is_scattered: bool

    @classmethod
    def of(cls, x: Tensor, style: ShardingStyle) -> LinearSplit:
        """The split that a style means for the input ``x`` [..., in].

        Raises:
            GraphError: the input's features are split otherwise than the weight.
        """
        plan = x.trace.options.plan
        is_row = plan.tp > 1 and style is ShardingStyle.ROW
        is_column = plan.tp > 1 and style in (ShardingStyle.COLUMN, ShardingStyle.VOCABULARY)
        in_shards, out_shards = plan.tp if is_row else 1, plan.tp if is_column else 1
        if x.shards[-1] != in_shards and is_row:
            raise GraphError(
                "a row-split weight needs an input split over features",
                where=x.trace.where,
                expected=f"an input split {in_shards} ways, from a column-split layer",
                got=str(x.shards[-1]),
            )
        if x.shards[-1] != in_shards:
            raise GraphError(
                "a split activation meets a whole weight",
                where=x.trace.where,
                expected="style row after style column",
                got=style.value,
            )
        return cls(in_shards, out_shards, is_column and x.shards[0] > 1, is_row and plan.sequence_parallel)

    def gathered(self, x: Tensor) -> Tensor:
        """The input as the product reads it."""
        return all_gather_tokens(x) if self.is_gathered else x

    def reduced(self, y: Tensor) -> Tensor:
        """The product as the layer returns it."""
        if self.is_scattered:
            return reduce_scatter_tokens(y)
        return all_reduce(y) if self.in_shards > 1 else y

    def reduced_gradient(self, grad_x: Tensor) -> Tensor:
        """The gradient of the gathered input as that of the layer's input."""
        if self.is_gathered:
            return reduce_scatter_tokens(grad_x)
        return all_reduce(grad_x) if self.out_shards > 1 else grad_x
