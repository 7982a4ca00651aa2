"""Moving rows to the ranks of their experts and back: all-to-all, all-gather over expert tensor ranks, sort.

Megatron-LM's ``MoEAlltoAllTokenDispatcher``: an all-to-all over the expert-parallel group, then, where experts are
split (etp > 1), an all-gather of the rows over the expert tensor-parallel group, then a sort by local expert of rows
from several ranks. The way back undoes the steps in reverse, with a reduce-scatter for the all-gather; the backward of
each way is the forward of the other. A row's fp32 probability travels with it to the expert.

Under DeepEP tokens travel instead of rows (``CommGroup.rank_share``) and the permutation stands behind the exchange: it
makes rows that are sorted by expert. It moves about the same bytes there as before the exchange, where it is kept here,
so that there is no sort; buffers of the exchange are counted as of rows, which is too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import Dim, Poly
from semu.graph.operator import OpKind
from semu.hardware.network import CommGroup, wire_factor
from semu.nn.rules.experts.routing import PROBABILITY
from semu.nn.trace.tensor import Tensor
from semu.nn.trace.tracing import COMPUTE, Trace
from semu.records import dataclass

_BACK = {OpKind.ALL_TO_ALL: OpKind.ALL_TO_ALL, OpKind.PERMUTE: OpKind.PERMUTE}
_BACK |= {OpKind.ALL_GATHER: OpKind.REDUCE_SCATTER, OpKind.REDUCE_SCATTER: OpKind.ALL_GATHER}


@dataclass(frozen=True)
class Step:
    """One operator of the way.

    Attributes:
        kind: a collective, or PERMUTE for the sort. source, target: rows of this rank before and after.
        group: of a collective.
    """

    kind: OpKind
    source: Dim
    target: Dim
    group: CommGroup | None = None

    def back(self) -> Step:
        """The operator that undoes it."""
        return Step(_BACK[self.kind], self.target, self.source, self.group)

    def whole(self, is_out: bool) -> Dim:
        """Rows of the buffer as nccl-tests counts it: the larger side; of an all-to-all, the side of the experts."""
        if self.kind is OpKind.ALL_TO_ALL:
            return self.target if is_out else self.source
        return self.target if self.kind is OpKind.ALL_GATHER else self.source


def way(trace: Trace, sent: Dim, received: Dim, experts: int) -> list[Step]:
    """The operators that bring rows to their experts; none where everything is on this rank.

    Args:
        sent: rows that leave a rank. received: rows that reach the worst rank. experts: all of them.
    """
    plan = trace.options.experts
    steps = []
    rows = sent
    if plan.ep > 1:
        steps.append(Step(OpKind.ALL_TO_ALL, sent, received, plan.ep_group))
        rows = received
    if plan.etp > 1:
        steps.append(Step(OpKind.ALL_GATHER, rows, rows * plan.etp, plan.etp_group))
        rows = rows * plan.etp
    if plan.ep * plan.etp > 1 and experts > plan.ep and not plan.sends_tokens:
        steps.append(Step(OpKind.PERMUTE, rows, rows))
    return steps


def dispatch(rows: Tensor, probabilities: Tensor, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
    """Bring rows [rows, h] and their probabilities [rows] to the experts."""
    for step in steps:
        rows, probabilities = _forth(rows, probabilities, step)
    return rows, probabilities


def collect(rows: Tensor, steps: Sequence[Step]) -> Tensor:
    """Bring what the experts made of rows back to the ranks of the tokens."""
    for step in reversed(steps):
        rows = _home(rows, step)
    return rows


def _forth(rows: Tensor, probabilities: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    trace = rows.trace
    y = _move([rows, probabilities], rows, step, "dispatch", is_out=True)
    p = replace(trace.side_outputs(1)[0], requires_grad=y.requires_grad)

    def _backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        grad, grad_p = gradients
        given = [item for item in (grad, grad_p) if item is not None]
        result = _move(given, rows, step.back(), "dispatch_bw", is_out=False, sides=int(grad_p is not None))
        return [result, trace.side_outputs(1)[0] if grad_p is not None else None]

    trace.record([rows, probabilities], [y, p], _backward)
    return y, p


def _home(rows: Tensor, step: Step) -> Tensor:
    y = _move([rows], rows, step.back(), "combine", is_out=False, sides=0)
    return rows.trace.recorded([rows], y, lambda grad: [_move([grad], rows, step, "combine_bw", is_out=True, sides=0)])


def _move(inputs: Sequence[Tensor], like: Tensor, step: Step, name: str, *, is_out: bool, sides: int = 1) -> Tensor:
    """Append one step.

    Args:
        inputs: rows, and their probabilities or gradients. like: type, width and shards of the rows.
        is_out: towards the experts. sides: 1: a probability per row travels along.
    """
    trace, width, shards = like.trace, like.shape[-1], like.shards[0]
    row_bytes = width * like.dtype.size_bytes + sides * PROBABILITY.size_bytes
    group = step.group
    label = {OpKind.PERMUTE: "sort", OpKind.ALL_TO_ALL: "all_to_all"}.get(step.kind, step.kind.value)
    return trace.emit(
        step.kind,
        inputs,
        (step.target * shards, width),
        shards=(shards, 1),
        dtype=like.dtype,
        mem_bytes=(step.source + step.target) * row_bytes if group is None else 0,
        net_bytes=0 if group is None else _wire(step.kind, step.whole(is_out), row_bytes, group),
        key=(step.target, width) if group is None else (group.num_ranks, group.num_nodes),
        stream=COMPUTE if group is None else trace.communication_stream(group),
        name=f"{name}.{label}",
        extra_outputs=[((step.target,), PROBABILITY)] * sides,
    )


def _wire(kind: OpKind, rows: Dim, row_bytes: Dim, group: CommGroup) -> Dim:
    """Bytes that a rank sends of a buffer of rows, each coefficient rounded up to whole bytes."""
    factor = wire_factor(kind, group.num_ranks)
    size = rows * row_bytes * factor.numerator
    if isinstance(size, Poly):
        return Poly({monomial: -(-count // factor.denominator) for monomial, count in size.terms.items()})
    return -(-size // factor.denominator)
