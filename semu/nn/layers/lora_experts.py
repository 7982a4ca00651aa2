"""``LoRAExperts``: adapters of low rank beside the projections of routed experts, one per projection and expert."""

from __future__ import annotations

from semu.errors import GraphError
from semu.nn import functional as F
from semu.nn.layers.moe import Experts
from semu.nn.module import Module, Parameter
from semu.nn.rules.experts.grouped import grouped_linear, weighted_activation
from semu.nn.rules.low_rank_adapters import add_parts
from semu.nn.trace.tensor import Tensor


def expert_widths(experts: Experts) -> tuple[int, ...]:
    """Widths of an expert's projections: gate and up (or up alone), then down."""
    inner, hidden = experts.up.shape[1], experts.down.shape[1]
    return (inner // 2, inner // 2, hidden) if experts.gated else (inner, hidden)


class LoRAExperts(Experts):
    """Experts with adapters; an adapter is two grouped products over all experts, never in fp8.

    Args:
        base: the experts; their parameters stay as they are. rank: of the adapters.
        parts: adapted projections, numbered as in ``expert_widths``. dropout: on what an adapter reads.
    """

    def __init__(self, base: Experts, rank: int, parts: tuple[int, ...], dropout: float) -> None:
        Module.__init__(self)
        self.gated, self.activation = base.gated, base.activation
        self.up, self.down = base.up, base.down
        self.up_bias, self.down_bias = base.up_bias, base.down_bias
        self.dropout = dropout
        widths = expert_widths(base)
        self.down_part = len(widths) - 1
        self.up_parts = tuple(part for part in parts if part != self.down_part)
        self.adapts_down = self.down_part in parts
        count, _, hidden = base.up.shape
        for part in parts:
            read = base.down.shape[2] if part == self.down_part else hidden
            setattr(self, f"lora_a{part}", Parameter(count, rank, read))
            setattr(self, f"lora_b{part}", Parameter(count, widths[part], rank))

    def forward(self, rows: Tensor, probabilities: Tensor) -> Tensor:
        """As ``Experts``."""
        trace = rows.trace
        if trace.options.experts.etp > 1:
            raise GraphError(
                "adapters of experts under expert tensor parallelism are not modelled by this version",
                where=trace.where,
                expected="parallel.etp = 1, or adapters of other layers",
                got=f"etp = {trace.options.experts.etp}",
                nearest="etp = 1",
            )
        inner = grouped_linear(rows, self.up, self.up_bias, split_out=True)
        if self.up_parts:
            inner = add_parts(inner, [self._adapter(rows, part) for part in self.up_parts])
        active = weighted_activation(inner, probabilities, gated=self.gated, activation=self.activation)
        out = grouped_linear(active, self.down, self.down_bias, split_out=False)
        return add_parts(out, [self._adapter(active, self.down_part)]) if self.adapts_down else out

    def _adapter(self, x: Tensor, part: int) -> Tensor:
        """``(x_e A_e^T) B_e^T`` for the rows of every local expert."""
        x = F.dropout(x, self.dropout)
        narrow = grouped_linear(x, getattr(self, f"lora_a{part}"), split_out=True, may_be_fp8=False)
        return grouped_linear(narrow, getattr(self, f"lora_b{part}"), split_out=True, may_be_fp8=False)
