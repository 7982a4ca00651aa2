"""What profiles of real GPUs hold: ``GpuTrace``, kernels with their starts, or ``KernelSum``, total times by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from semu.fitting.kernel_names import Family
from semu.records import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel or copy on the GPU.

    Attributes:
        name, family: what it is. start_us, end_us: on the trace's clock [us]. pid: process or number of the GPU.
        step: number of its ``ProfilerStep``, None: outside all of them.
    """

    name: str
    family: Family
    start_us: float
    end_us: float
    pid: object
    step: int | None


@dataclass(frozen=True)
class GpuTrace:
    """What a trace holds.

    Attributes:
        kernels: in the order of the file. steps: number -> (start, end) [us].
        rank, world_size: of the process among all, None: the trace does not tell.
        has_process_per_rank: ``pid`` may be a rank; False: it numbers the GPUs of a node.
    """

    kernels: tuple[Kernel, ...]
    steps: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    has_process_per_rank: bool = True


@dataclass(frozen=True)
class NamedKernels:
    """All kernels of one name: how many, and the sum of their durations [s]."""

    name: str
    count: int
    busy_s: float


@dataclass(frozen=True)
class KernelSum:
    """Kernels added up by name, over all iterations and GPUs of a profile.

    Attributes:
        kernels: in the order of the file. listed: share of the profile's kernel time that they make; None: not told.
    """

    kernels: tuple[NamedKernels, ...]
    listed: float | None = None
