"""``SoftwareFactors``: how much slower a device's kernels are under a training framework.

A profile's efficiencies are those of isolated kernels (``semu.hardware.efficiency``). A training run is slower:
sustained power lowers the clock, an older framework brings an older attention kernel, eager modules leave element-wise
kernels unfused, and kernels that run beside collectives share multiprocessors and memory with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType

from semu.checks import check_number
from semu.hardware.efficiency import Efficiency
from semu.hardware.kinds import OpKind, Provenance
from semu.hardware.number import Number, worst_provenance
from semu.records import dataclass


class Software(Enum):
    """The framework that runs the job; the value is run.toml's word.

    KERNELS: none, every kernel takes its isolated time. MEGATRON: Megatron-LM with Transformer Engine, or with
    Megatron's fused kernels before it. TORCH: PyTorch's FSDP around ordinary modules, with PyTorch's FlashAttention.
    MEGATRON_DEEPSPEED: Megatron's modules and kernels, run by DeepSpeed's pipeline engine and optimizers.
    """

    KERNELS = "kernels"
    MEGATRON = "megatron"
    TORCH = "torch"
    MEGATRON_DEEPSPEED = "megatron-deepspeed"

    @property
    def kernels(self) -> Software:
        """The framework whose kernels it runs, whose factors it has where a profile has none for it."""
        return _KERNELS_OF.get(self, self)


_KERNELS_OF: Mapping[Software, Software] = MappingProxyType({Software.MEGATRON_DEEPSPEED: Software.MEGATRON})
_AGGREGATED_TREES_SINCE: Mapping[Software, str] = MappingProxyType({Software.TORCH: "2025-04"})
_AGGREGATED_TREES_IN_CONTAINERS = "2024-11"
"""Since when NCCL has parallel aggregated trees (2.23): in NVIDIA's containers, in PyTorch's own packages (2.7)."""
_NEUTRAL = "a kernel by itself"
_BY_THEMSELVES = (OpKind.OPTIMIZER, OpKind.CUSTOM, OpKind.PERMUTE)
"""Kinds without a factor. The kernel that moves rows of experts is in no dense run, from which factors come; in a
profile of DeepSeek-V3 on H800 it reaches 2.5 to 3.0 of 3.35 TB/s (``h800_train_trace_ops.csv``), as a copy does."""


FACTORS: Mapping[str, float] = MappingProxyType(
    {"matmul": 1.0, "attention": 1.0, "memory_bound": 1.0, "interference": 0.0, "transfer_s": 0.0}
)
"""Names of the factors in a profile's ``[software.NAME]`` table -> neutral value, which is the smallest legal one."""


def _neutral(value: float) -> Number:
    return Number(value, Provenance.DEFAULT, _NEUTRAL)


@dataclass(frozen=True)
class SoftwareFactors:
    """Time in a training run relative to the time of isolated kernels, on one device under one framework.

    Attributes:
        matmul: of matrix products. attention: of fused attention kernels, forward and backward. memory_bound: of all
            other kernels inside the model.
        interference: time that concurrent kernels lose, as a share of the time of the data-parallel collectives that
            they hide.
        transfer_s: added to every transfer between pipeline ranks [s]: the host waits for the device, and the queue
            of kernels runs dry.
    """

    matmul: Number
    attention: Number
    memory_bound: Number
    interference: Number
    transfer_s: Number

    def __post_init__(self) -> None:
        for name, neutral in FACTORS.items():
            check_number(getattr(self, name).value, name, least=neutral)

    @classmethod
    def of(cls, numbers: Mapping[str, Number]) -> SoftwareFactors:
        """The factors of some names; all others are neutral."""
        return cls(**{**{name: _neutral(value) for name, value in FACTORS.items()}, **numbers})

    @property
    def is_neutral(self) -> bool:
        """Whether all factors are neutral."""
        return all(getattr(self, name).value == value for name, value in FACTORS.items())

    def name_of(self, kind: OpKind) -> str | None:
        """The name of a compute kind's factor; None: ``_BY_THEMSELVES`` have none."""
        if kind in (OpKind.MATMUL, OpKind.GROUPED_MATMUL):
            return "matmul"
        if kind in (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD):
            return "attention"
        return None if kind in _BY_THEMSELVES else "memory_bound"

    def of_kind(self, kind: OpKind) -> Number:
        """The factor of a compute kind; neutral where there is none."""
        name = self.name_of(kind)
        factor: Number = _neutral(1.0) if name is None else getattr(self, name)
        return factor


NEUTRAL_FACTORS = SoftwareFactors.of({})
"""Of a framework of which nothing is known."""


def has_aggregated_trees(software: Software, date: str | None) -> bool:
    """Whether the NCCL of a framework has parallel aggregated trees.

    Args:
        software: the framework. date: month of its release, YYYY-MM; None: today's.
    """
    since = _AGGREGATED_TREES_SINCE.get(software, _AGGREGATED_TREES_IN_CONTAINERS)
    return date is None or date >= since


def slowed(efficiency: Efficiency, factor: Number) -> Efficiency:
    """A kind's coefficients in a run: both rates divided by a factor, up to the peaks; the fixed time kept."""
    if factor.value == 1:
        return efficiency
    return replace(
        efficiency,
        flop=min(1.0, efficiency.flop / factor.value),
        mem=min(1.0, efficiency.mem / factor.value),
        provenance=worst_provenance(efficiency.provenance, factor.provenance),
        source=f"{efficiency.source}; in a run {factor.value:g} x its time: {factor.source}",
        relative_error=None,
    )
