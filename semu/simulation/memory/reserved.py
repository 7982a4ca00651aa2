"""Reserved memory: what a rank's program asks of the caching allocator, in order, and what that keeps of the device.

The order is that in which the program issues its operators, because the allocator gives out and takes back memory on
the host: an operator's outputs are allocated before it, and what no later operator of its stage needs is freed behind
it. Outside stages, a receive buffer is allocated before the stage in which its transfer begins, and a sent tensor is
freed after the stage in which its transfer ends. Parameters, gradient buffer and optimizer state come first, once; the
iteration is then repeated until it reserves nothing more.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.engine.allocator import AllocationTrace, reserve
from semu.hardware.cluster import Cluster
from semu.hardware.software import Software
from semu.job import Training, TrainingJob
from semu.present.estimate import DeviceRoom
from semu.records import dataclass
from semu.simulation.context import TimedJob
from semu.simulation.memory.allocation_tape import AllocationTape, PipelineTapes
from semu.simulation.memory.communicators import GpuAxes, communicators_bytes
from semu.simulation.memory.static import rank_static
from semu.simulation.memory.unsharded import unsharded_bytes
from semu.simulation.memory.workspaces import CUBLAS_HANDLES, cublas_bytes

CONTEXT_BYTES = 512 << 20
"""CUDA context and loaded kernels of a process, outside the allocator: what an idle process of CUDA 12 holds, about;
a default, not measured here."""
EARLY_CONTEXT_BYTES = 1343 << 20
"""The same of PyTorch before ``LAZY_SINCE``, which loads all kernels: what nvidia-smi shows with one tensor of one
element on the device (HuggingFace's *Model training anatomy*)."""
LAZY_SINCE = "2022-10"
"""Month of PyTorch 1.13, which loads a kernel when it is first called (``CUDA_MODULE_LOADING=LAZY``)."""
DEEPSPEED_BUCKET = 500_000_000
"""DeepSpeed's default ``reduce_bucket_size`` and ``allgather_bucket_size`` [elements]."""


def device_room(job: TrainingJob, sizes: GpuAxes | None = None) -> DeviceRoom:
    """How the memory of a job's devices is shared out; ``sizes``: in place of the job's own."""
    capacity = int(job.profile.memory_bytes.value)
    share = job.training.memory_margin
    margin = math.ceil(capacity * (job.profile.memory_margin.value if share is None else share))
    own = sizes or job.parallel
    if sizes is None and job.parallel.has_own_gpus:  # as many communicators as any rank has
        modules = [job.parallel.of_module(name) for name in job.parallel.modules]
        own = replace(job.parallel, modules={}, tp=max(m.tp for m in modules), dp=max(m.dp for m in modules))
    return DeviceRoom(capacity, outside_bytes(job.training, own, job.cluster), margin)


def outside_bytes(training: Training, sizes: GpuAxes, cluster: Cluster) -> int:
    """Device memory that the allocator never sees: context and communicators."""
    is_early = training.software_date is not None and training.software_date < LAZY_SINCE
    return (EARLY_CONTEXT_BYTES if is_early else CONTEXT_BYTES) + communicators_bytes(training, sizes, cluster)


@dataclass(frozen=True, eq=False)
class HeldMemory:
    """What the allocator holds of each rank's device: each is replayed once, however many copies of a report ask.

    Attributes:
        timed, replicas, peaks: as ``reserved_bytes``. known: what was asked for so far [bytes], by rank.
        tapes: the tapes of each replica.
    """

    timed: TimedJob
    replicas: Sequence[int]
    peaks: Sequence[int]
    known: dict[int, int] = field(default_factory=dict)
    tapes: dict[int, PipelineTapes] = field(default_factory=dict)

    def __call__(self, rank: int) -> int:
        """Of one rank [bytes]."""
        if rank not in self.known:
            replica = self.replicas[rank]
            if replica not in self.tapes:
                self.tapes[replica] = PipelineTapes(self.timed, replica)
            self.known[rank] = reserved_bytes(self.timed, self.replicas, self.peaks, rank, self.tapes[replica])
        return self.known[rank]


def reserved_bytes(
    timed: TimedJob, replicas: Sequence[int], peaks: Sequence[int], rank: int, tapes: PipelineTapes | None = None
) -> int:
    """Highest reserved memory of a pipeline rank [bytes]: cached blocks without a use are given back before the
    allocator takes what lies outside it or the margin, as they are where a device has no more.

    Args:
        timed: the job under a schedule. replicas: per rank, the distinct replica to replay: the one whose
            allocation is highest. peaks: per rank, its highest allocation [bytes]; less is never reserved.
        rank: which one. tapes: of its replica, where several ranks are asked.
    """
    program, capacity = RankProgram.of(timed, rank, replicas[rank], tapes), max(device_room(timed.job).usable_bytes, 0)
    key = program.content, capacity  # ranks and schedules often allocate and free alike
    found = _REPLAYED.get(key, lambda: reserve(program.trace(), capacity_bytes=capacity).peak_bytes)
    return max(found, -(-peaks[rank] // (2 << 20)) * (2 << 20))


_REPLAYED = memo.Table[int]("highest reserved memory, by what is allocated and freed and the room for it", 4096)


def rank_trace(timed: TimedJob, rank: int, replica: int) -> AllocationTrace:
    """Everything that one rank of one replica allocates and frees: static memory, then one iteration, around which
    ZeRO-3 may hold parameters and gradients unsharded."""
    return RankProgram.of(timed, rank, replica).trace()


class RankProgram(NamedTuple):
    """What a rank's program asks of the allocator, in parts.

    Attributes:
        static: once. unsharded: around an iteration. tape: an iteration. steps: what its optimizer holds together.
    """

    static: NDArray[np.int64]
    unsharded: NDArray[np.int64]
    tape: AllocationTape
    steps: list[list[int]]

    @classmethod
    def of(cls, timed: TimedJob, rank: int, replica: int, tapes: PipelineTapes | None = None) -> RankProgram:
        """Of a rank; arguments as ``rank_trace``, and the tapes of the replica."""
        layout, like = timed.layout, timed.layout.cut.alike[rank]
        static = _STATIC.get(layout.place, like, lambda: np.array(static_requests(layout, like), dtype=np.int64))
        unsharded = np.array(unsharded_bytes(layout, rank) if layout.job.gathers_once else [], dtype=np.int64)
        return cls(static, unsharded, (tapes or PipelineTapes(timed, replica)).of(rank), step_requests(layout, rank))

    @property
    def content(self) -> bytes:
        """The same for programs that ask for the same in the same order; it takes no writing down of every event."""
        counts = [len(self.static), len(self.unsharded), *map(len, self.steps)]
        found = hashlib.blake2b(np.array([len(counts), *counts], dtype=np.int64).tobytes(), digest_size=32)
        for sizes in (self.static, self.unsharded, *self.steps):
            found.update(np.asarray(sizes, dtype=np.int64).tobytes())
        found.update(self.tape.content)
        return found.digest()

    def trace(self) -> AllocationTrace:
        """All of it, event by event."""
        static, unsharded = self.static, self.unsharded
        slot, size = self.tape.record()
        behind = len(static) + int(slot.max(initial=-1)) + 1
        whole = behind + np.arange(len(unsharded))
        pieces = [
            (np.arange(len(static)), static),
            (whole, unsharded),
            (slot + len(static), size),
            (whole, np.zeros_like(unsharded)),
        ]
        for together in self.steps:
            buffers = behind + len(unsharded) + np.arange(len(together))
            asked = np.array(together, dtype=np.int64)
            pieces += [(buffers, asked), (buffers, np.zeros_like(asked))]
        slots, sizes = (np.concatenate(column) for column in zip(*pieces, strict=True))
        return AllocationTrace(slots, sizes, len(static))


_STATIC = memo.ScopedTable[NDArray[np.int64]](
    "static memory in a place as it is asked for, by the first rank that holds the same", 256, is_large=True
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


def step_requests(layout: Layout, rank: int) -> list[list[int]]:
    """What the optimizer step of a rank allocates and frees [bytes], in order: what is held together. Under DeepSpeed's
    ZeRO-1 a bucket of gradients; where they are no fp32, the largest gradient of its shard in fp32 (is it finite?) and
    in fp64 (its norm), then those of the shard as they are and in fp32; a bucket of gathered parameters.

    Source: DeepSpeed's ``stage_1_and_2.py`` (``ipg_buffer``, ``_has_inf_or_nan``, ``get_grad_norm_direct``,
    ``single_partition_of_fp32_groups``, ``all_gather_dp_groups``), with its default bucket sizes.
    """
    training, parallel = layout.job.training, layout.job.parallel
    if training.software is not Software.MEGATRON_DEEPSPEED or parallel.zero != 1 or parallel.data_ranks == 1:
        return []
    size, shard = training.precision.tensor_dtype.size_bytes, layout.stepped_elements(rank)
    bucket = min(DEEPSPEED_BUCKET, shard * parallel.shard_ranks) * size
    if layout.job.sums_gradients_twice or not shard:  # its fp32 gradients are reduced where they are
        return [[bucket]] if bucket else []
    trained = (entry[2] for entry in layout.held_by(rank))
    largest = min(shard, max(item.elements for item in trained if item.parameter.requires_grad))
    return [[bucket], [4 * largest], [8 * largest], [shard * size, shard * training.master_dtype.size_bytes], [bucket]]


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights that sum to a total; nothing where there is no weight."""
    ends = [*itertools.accumulate(map(int, weights))]
    if not ends or not ends[-1]:
        return []
    cut = [int(total) * end // ends[-1] for end in ends]
    return [b - a for a, b in itertools.pairwise([0, *cut])]
