"""``Operator``: one kernel, collective or transfer, with its three costs and its shape key (DESIGN §2)."""

from __future__ import annotations

from enum import Enum

from semu.graph.dim import Dim
from semu.hardware.device import Stream
from semu.hardware.kinds import DType, OpKind
from semu.records import dataclass

__all__ = ["OpKind", "Operator", "Phase"]


class Phase(Enum):
    """Which part of training an operator or a stage belongs to; the value is the letter of the text form."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    RECOMPUTE = "R"
    REDUCTION = "G"
    OPTIMIZER = "O"

    @property
    def is_backward(self) -> bool:
        """True for the phases of a backward stage."""
        return self in (Phase.BACKWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT, Phase.RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator node. Created by ``Graph.add_operator``, never changed afterwards.

    Attributes:
        index: position in the graph; operators on one stream run in this order.
        path: dotted place in the model, e.g. ``llm.layers.3.attention.qkv``.
        kind: what it does; selects the efficiency.
        phase: which part of training it belongs to.
        stream: the in-order queue, on a device, that it occupies.
        flop: floating-point operations (tensor-core work only; see DECISIONS).
        mem_bytes: bytes read from and written to device memory.
        net_bytes: wire bytes per rank (link devices only).
        dtype: precision of the arithmetic, selects the peak.
        key: shape key, efficiencies are functions of it: (m, n, k) of a product, the lengths and heads of an attention
            (``semu.costs.roofline.ATTENTION_KEY``), (ranks, nodes) of a collective.
        inputs: tensors read, by index.
        outputs: tensors written, by index.
        after: operators that must end first, by index; data dependencies included.
        recomputed_flop: the part of ``flop`` that is no model FLOP: forward work repeated inside the kernel
            (FlashAttention's backward computes q k^T again), scores that a causal mask hides (unfused attention).
        causal_flop: what counting causal attention in full, not halved, would add to the model FLOP.
        copies: ranks of the tensor- and context-parallel groups that each do all of this work (1: it is split).
    """

    index: int
    path: str
    kind: OpKind
    phase: Phase
    stream: Stream
    flop: Dim
    mem_bytes: Dim
    net_bytes: Dim
    dtype: DType
    key: tuple[Dim, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...]
    recomputed_flop: Dim
    causal_flop: Dim
    copies: int
