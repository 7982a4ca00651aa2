"""The enums that hardware and graph share: operator kinds, precisions, ports, provenance.

An operator's kind selects its efficiency (``semu.hardware.efficiency``); ``semu.graph.operator`` re-exports ``OpKind``.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property


class OpKind(Enum):
    """What an operator does; the value is its name in profiles and reports."""

    MATMUL = "matmul"
    ATTENTION_FORWARD = "attention_forward"
    ATTENTION_BACKWARD = "attention_backward"
    NORM = "norm"
    SOFTMAX = "softmax"
    ACTIVATION = "activation"
    ADD = "add"
    ROPE = "rope"
    DROPOUT = "dropout"
    MODULATE = "modulate"
    EMBEDDING = "embedding"
    CROSS_ENTROPY = "cross_entropy"
    COPY = "copy"
    CAST = "cast"
    OPTIMIZER = "optimizer"
    CUSTOM = "custom"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    P2P = "p2p"
    GROUPED_MATMUL = "grouped_matmul"
    PERMUTE = "permute"
    TOP_K = "top_k"

    @property
    def is_communication(self) -> bool:
        """True for the kinds that run on a link."""
        return self in _COMMUNICATION


_COMMUNICATION = frozenset((OpKind.ALL_REDUCE, OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER, OpKind.ALL_TO_ALL, OpKind.P2P))


class DType(Enum):
    """Element types of tensors and of arithmetic; ``size_bytes`` per element."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT64 = "int64"
    UINT8 = "uint8"

    @cached_property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return _SIZE_BYTES[self]


_SIZE_BYTES = {
    DType.FP32: 4,
    DType.TF32: 4,
    DType.BF16: 2,
    DType.FP16: 2,
    DType.FP8: 1,
    DType.INT64: 8,
    DType.UINT8: 1,
}


class Port(Enum):
    """Where a GPU meets a network; each port is two link devices, out and in (DESIGN §3.1)."""

    NVLINK = "nvlink"
    NIC = "nic"
    PCIE = "pcie"


class Provenance(Enum):
    """Where a profile's number comes from (DESIGN §3.2), best first."""

    MEASURED = "measured"
    FITTED = "fitted"
    TRANSFERRED = "transferred"
    SPEC = "spec"
    DEFAULT = "default"
