"""Reserved memory: what a rank's program asks of the caching allocator, in order, and what that keeps of the device.

The order is that in which the program issues its operators, because the allocator gives out and takes back memory on
the host: an operator's outputs are allocated before it, and what no later operator of its stage needs is freed behind
it. Outside stages, a receive buffer is allocated before the stage in which its transfer begins, and a sent tensor is
freed after the stage in which its transfer ends. Parameters, gradient buffer and optimizer state come first, once; the
iteration is then repeated until it reserves nothing more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.engine.allocator import AllocationTrace, reserve
from semu.job import TrainingJob
from semu.present.estimate import DeviceRoom
from semu.simulation.context import TimedJob
from semu.simulation.memory.allocation_tape import AllocationTape
from semu.simulation.memory.static import rank_static
from semu.simulation.memory.unsharded import unsharded_bytes
from semu.simulation.memory.workspaces import CUBLAS_HANDLES, cublas_bytes

CONTEXT_BYTES = 512 << 20
"""CUDA context and loaded kernels of a process, outside the allocator: what an idle process of CUDA 12 holds, about;
a default, not measured here."""
COMMUNICATOR_BYTES = 32 * (4 << 20)
"""Buffers of one NCCL communicator, outside the allocator: NCCL_BUFFSIZE = 4 MiB (its default) for each of at most 32
channels (NCCL user guide, environment variables)."""


class GpuAxes(Protocol):
    """Sizes of the axes whose ranks need a communicator."""

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""

    @property
    def pp(self) -> int:
        """Pipeline ranks."""


def device_room(job: TrainingJob, sizes: GpuAxes | None = None) -> DeviceRoom:
    """How the memory of a job's devices is shared out; ``sizes``: in place of the job's own."""
    capacity = int(job.profile.memory_bytes.value)
    share = job.training.memory_margin
    margin = math.ceil(capacity * (job.profile.memory_margin.value if share is None else share))
    return DeviceRoom(capacity, outside_bytes(sizes or job.parallel), margin)


def outside_bytes(parallel: GpuAxes) -> int:
    """Device memory that the allocator never sees: context and communicators."""
    return CONTEXT_BYTES + COMMUNICATOR_BYTES * sum(size > 1 for size in (parallel.tp, parallel.pp, parallel.dp))


@dataclass(frozen=True, eq=False)
class HeldMemory:
    """What the allocator holds of each rank's device: each is replayed once, however many copies of a report ask.

    Attributes:
        timed, replicas, peaks: as ``reserved_bytes``. known: what was asked for so far [bytes], by rank.
    """

    timed: TimedJob
    replicas: Sequence[int]
    peaks: Sequence[int]
    known: dict[int, int] = field(default_factory=dict)

    def __call__(self, rank: int) -> int:
        """Of one rank [bytes]."""
        if rank not in self.known:
            self.known[rank] = reserved_bytes(self.timed, self.replicas, self.peaks, rank)
        return self.known[rank]


def reserved_bytes(timed: TimedJob, replicas: Sequence[int], peaks: Sequence[int], rank: int) -> int:
    """Highest reserved memory of a pipeline rank [bytes]: cached blocks without a use are given back before the
    allocator takes what lies outside it or the margin, as they are where a device has no more.

    Args:
        timed: the job under a schedule. replicas: per rank, the distinct replica to replay: the one whose
            allocation is highest. peaks: per rank, its highest allocation [bytes]; less is never reserved.
        rank: which one.
    """
    found = reserve(rank_trace(timed, rank, replicas[rank]), capacity_bytes=max(device_room(timed.job).usable_bytes, 0))
    return max(found.peak_bytes, -(-peaks[rank] // (2 << 20)) * (2 << 20))


def rank_trace(timed: TimedJob, rank: int, replica: int) -> AllocationTrace:
    """Everything that one rank of one replica allocates and frees: static memory, then one iteration, around which
    ZeRO-3 may hold parameters and gradients unsharded."""
    layout = timed.layout
    static = _STATIC.get(layout.place, rank, lambda: np.array(static_requests(layout, rank), dtype=np.int64))
    slot, size = AllocationTape(timed, rank, replica).record()
    unsharded = np.array(unsharded_bytes(layout, rank) if layout.job.gathers_once else [], dtype=np.int64)
    begin, end = len(static) + len(unsharded), len(static) + len(unsharded) + len(slot)
    slots = np.arange(end + len(unsharded))
    np.add(slot, len(static), out=slots[begin:end])
    behind = int(slots[begin:end].max(initial=len(static) - 1)) + 1
    slots[len(static) : begin] = slots[end:] = behind + np.arange(len(unsharded))
    sizes = np.zeros_like(slots)
    sizes[: len(static)], sizes[len(static) : begin], sizes[begin:end] = static, unsharded, size
    return AllocationTrace(slots, sizes, len(static))


_STATIC = memo.ScopedTable[NDArray[np.int64]](
    "static memory in a place as it is asked for, by rank", 256, is_large=True
)


def static_requests(layout: Layout, rank: int) -> list[int]:
    """Static memory as it is asked for [bytes]: cuBLAS workspaces, every parameter, one gradient buffer, master weights
    and the moments of every parameter. Their sum, without the workspaces, is ``rank_static``."""
    job = layout.job
    static = rank_static(layout, rank)
    held = [entry[2] for entry in layout.held_by(rank)]
    trained = [item.elements for item in held if item.parameter.requires_grad]
    has_master = job.training.master_dtype is not job.training.precision.tensor_dtype
    state = job.training.optimizer_state_dtype.size_bytes
    moments = [state] * job.training.optimizer.fewest_moments
    parts = (job.training.master_dtype.size_bytes if has_master else 0, *moments)
    optimizer = shared_out(static.optimizer, parts)
    requests = [cublas_bytes(job.cluster.profile)] * CUBLAS_HANDLES
    on_host = layout.cut.on_host
    requests += shared_out(static.parameters, [0 if item.parameter in on_host else item.elements for item in held])
    requests += [static.gradients]
    for size in optimizer:
        requests += shared_out(size, trained)
    return [size for size in requests if size > 0]


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights that sum to a total; nothing where there is no weight."""
    ends = [*itertools.accumulate(map(int, weights))]
    if not ends or not ends[-1]:
        return []
    cut = [int(total) * end // ends[-1] for end in ends]
    return [b - a for a, b in itertools.pairwise([0, *cut])]
