"""Reserved memory: what a rank's program asks of the caching allocator, in order, and what that keeps of the device.

The order is that in which the program issues its operators, because the allocator gives out and takes back memory on
the host: an operator's outputs come before it, and what nobody after it in its stage needs goes behind it. Outside
stages, what a transfer brings is there before the stage in which it begins, and what it took goes after the stage in
which it ends. Parameters, gradient buffer and optimizer state come first, once; the iteration is then repeated until
it reserves nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.compile.layout import Layout
from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.engine.allocator import AllocationTrace, Reserved, reserve
from semu.graph.operator import Phase
from semu.hardware.kinds import DType
from semu.job import TrainingJob
from semu.schedule.phases import CODE_OF_PHASE
from semu.simulation.context import TimedJob
from semu.simulation.memory.recipe_tape import RecipeTape
from semu.simulation.memory.static import rank_static
from semu.simulation.memory.unsharded import held_bytes
from semu.simulation.transfers import leaving_positions

CONTEXT_BYTES = 512 << 20
"""CUDA context and loaded kernels of a process, outside the allocator: what an idle process of CUDA 12 holds, about;
a default, not measured here."""
COMMUNICATOR_BYTES = 32 * (4 << 20)
"""Buffers of one NCCL communicator, outside the allocator: NCCL_BUFFSIZE = 4 MiB (its default) for each of at most 32
channels (NCCL user guide, environment variables)."""
WORKSPACE_BYTES = (2 * 4096 + 8 * 16) << 10
"""cuBLAS workspace of one handle and stream, from the allocator (PyTorch, CUBLAS_WORKSPACE_CONFIG = :4096:2:16:8)."""
HOPPER_WORKSPACE_BYTES = (8 * 4096) << 10
"""The same from Hopper on (PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp)."""
NUM_HANDLES = 2
"""Forward and autograd threads have a handle each."""


def outside_bytes(job: TrainingJob) -> int:
    """Device memory that the allocator never sees: context and communicators."""
    parallel = job.parallel
    return CONTEXT_BYTES + COMMUNICATOR_BYTES * sum(size > 1 for size in (parallel.tp, parallel.pp, parallel.dp))


def reserved_memory(timed: TimedJob, replicas: Sequence[int], peaks: Sequence[int]) -> tuple[int, ...]:
    """Highest reserved memory of every pipeline rank [bytes].

    Args:
        timed: the job under a schedule. replicas: per rank, the distinct replica to replay: the one whose
            allocation is highest. peaks: per rank, its highest allocation [bytes]; less is never reserved.
    """
    capacity = int(timed.job.cluster.profile.memory_bytes.value) - outside_bytes(timed.job)
    result = []
    for rank, (replica, peak) in enumerate(zip(replicas, peaks, strict=True)):
        trace = rank_trace(timed, rank, replica)
        found: Reserved = reserve(trace, capacity_bytes=max(capacity, 0))
        result.append(max(found.peak_bytes, -(-peak // (2 << 20)) * (2 << 20)))
    return tuple(result)


def rank_trace(timed: TimedJob, rank: int, replica: int) -> AllocationTrace:
    """Everything that one rank of one replica allocates and frees: static memory, then one iteration."""
    layout = timed.layout
    static = static_requests(layout, rank)
    if layout.recipe.is_uniform:
        recorded = UniformTape(timed, rank, replica).record()
    else:
        recorded = RecipeTape(timed, rank, replica, issued).record()
    tape = _held(layout, rank, recorded)
    first = len(static)
    slots = [np.arange(first, dtype=np.int64)] + [slot + first for slot, _ in tape]
    sizes = [np.array(static, dtype=np.int64)] + [size for _, size in tape]
    slot, size = np.concatenate(slots), np.concatenate(sizes)
    return AllocationTrace(slot, size, first)


_Piece = tuple[NDArray[np.int64], NDArray[np.int64]]


def _held(layout: Layout, rank: int, tape: list[_Piece]) -> list[_Piece]:
    """A tape with what ZeRO-3 holds unsharded through the iteration around it."""
    sizes = held_bytes(layout, rank) if layout.job.gathers_once else []
    if not sizes:
        return tape
    size = np.array(sizes, dtype=np.int64)
    slot = np.arange(len(size)) + max((int(slots.max(initial=-1)) for slots, _ in tape), default=-1) + 1
    return [(slot, size), *tape, (slot, np.zeros_like(size))]


def static_requests(layout: Layout, rank: int) -> list[int]:
    """Static memory as it is asked for [bytes]: cuBLAS workspaces, every parameter, one gradient buffer, master weights
    and the two moments of every parameter. Their sum, without the workspaces, is ``rank_static``."""
    job = layout.job
    has_fp8 = DType.FP8 in job.cluster.profile.flop_per_s
    workspace = HOPPER_WORKSPACE_BYTES if has_fp8 else WORKSPACE_BYTES
    static = rank_static(layout, rank)
    held = [entry[2] for entry in layout.held_by(rank)]
    trained = [item.elements for item in held if item.parameter.requires_grad]
    has_master = job.training.master_dtype is not job.training.precision.tensor_dtype
    state = job.training.optimizer_state_dtype.size_bytes
    parts = (job.training.master_dtype.size_bytes if has_master else 0, state, state)
    optimizer = shared_out(static.optimizer, parts)
    requests = [workspace] * NUM_HANDLES
    on_host = layout.cut.on_host
    requests += shared_out(static.parameters, [0 if item.parameter in on_host else item.elements for item in held])
    requests += [static.gradients]
    for size in optimizer:
        requests += shared_out(size, trained)
    return [size for size in requests if size > 0]


def shared_out(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to the weights that sum to a total; nothing where there is no weight."""
    ends = np.cumsum(np.array(weights, dtype=object))
    if not len(ends) or not ends[-1]:
        return []
    cut = [int(total * end // ends[-1]) for end in ends]
    return [b - a for a, b in zip([0, *cut], cut, strict=False)]


@dataclass(frozen=True)
class _Issue:
    """A stage's allocations (True) and frees, in the order in which its operators are issued.

    Attributes:
        storage: int64[num_events], position among the program's storages. comes: bool[num_events].
    """

    storage: NDArray[np.int64]
    comes: NDArray[np.bool_]


def issue_order(program: StageProgram) -> _Issue:
    """An operator allocates what is not there, then frees what nobody after it touches and does not survive."""
    op = np.repeat(np.arange(program.num_ops), np.diff(program.touch_ptr))
    touched, first = np.unique(program.touch, return_index=True)
    _, from_end = np.unique(program.touch[::-1], return_index=True)
    last = len(program.touch) - 1 - from_end
    come = ~program.alive_before[touched]
    go = ~program.alive_after[touched]
    idle = np.flatnonzero((program.touches == 0) & program.alive_before & ~program.alive_after)
    storage = np.concatenate((touched[come], touched[go], idle)).astype(np.int64)
    turn = np.concatenate((2 * op[first[come]], 2 * op[last[go]] + 1, np.full(len(idle), 2 * program.num_ops)))
    within = np.concatenate((first[come], last[go], idle))
    order = np.lexsort((within, turn))
    comes = np.arange(len(storage)) < int(come.sum())
    return _Issue(storage[order], comes[order])


def issued(program: StageProgram) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """``issue_order`` as two arrays."""
    issue = issue_order(program)
    return issue.storage, issue.comes


class UniformTape:
    """The tape of ``RecipeTape`` in arrays, where chunks have one variant and run microbatches whole; backwards may be
    split."""

    def __init__(self, timed: TimedJob, rank: int, replica: int) -> None:
        layout, run = timed.layout, timed.run
        self.layout, self.evaluation, self.run, self.rank, self.replica = layout, timed.evaluation, run, rank, replica
        self.nodes = np.flatnonzero(run.problem.node_rank == rank)
        self.count = int(run.shape.shape[1])
        self._base: dict[int, int] = {}
        self._alias: dict[tuple[int, int], tuple[int, int]] = {}
        self._slots: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._issue: dict[StageProgram, _Issue] = {}
        self._sizes: dict[int, NDArray[np.int64]] = {}
        at = 0
        for chunk in layout.chunks_of(rank):
            self._base[chunk.chunk.index] = at
            at += _num_storages(chunk) * self.count
            self._name_shared(chunk)

    def _name_shared(self, chunk: ChunkStages) -> None:
        """A tensor that a chunk of the same rank hands over is the same storage there and here."""
        number = chunk.chunk.index
        for source in dict.fromkeys(chunk.arrivals):
            if source < 0 or self.layout.chunks[source].chunk.rank != self.rank:
                continue
            giver = self.layout.chunks[source]
            positions = leaving_positions(self.layout, source, number, Phase.FORWARD)
            for k, theirs in zip(positions, giver.forward.leaving_storage, strict=False):
                self._alias[number, chunk.forward.arriving_storage[k]] = source, theirs
            if chunk.backward is None or giver.backward is None:
                continue
            for k, theirs in zip(positions, giver.backward.arriving_storage, strict=False):
                if theirs >= 0 and chunk.backward.leaving_storage[k] >= 0:
                    self._alias[source, theirs] = number, chunk.backward.leaving_storage[k]

    def record(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Slots and sizes (0: free), piece by piece."""
        problem, run = self.run.problem, self.run
        outside = self._outside()
        pieces: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for position, node in enumerate(self.nodes):
            pieces += outside.get(position, [])
            chunk, phase, microbatch = (int(row[node]) for row in (problem.chunk, problem.phase, problem.microbatch))
            program = program_of(self.layout, chunk, phase)
            if phase == 0:
                pieces.append(self._loaded(self.layout.chunks[chunk], microbatch))
            issue = self._issued(program)
            slots = self._slots_of(chunk, phase, program)[issue.storage]
            size = self._size(int(run.shape[self.replica, microbatch]))[program.size_row][issue.storage]
            pieces.append(_events(slots + microbatch, size, issue.comes))
        return pieces + outside.get(len(self.nodes), [])

    def _outside(self) -> dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]]:
        """Receive buffers that come, sent tensors that go: by the stage before which they do."""
        run, problem, replica = self.run, self.run.problem, self.replica
        begins, ends = run.start[replica, self.nodes], run.end[replica, self.nodes]
        found: list[tuple[int, float, bool, tuple[NDArray[np.int64], NDArray[np.int64]]]] = []
        for edge in run.sent.edges:
            target, source = problem.shape.chunk_rank[edge.consumer], problem.shape.chunk_rank[edge.source]
            for transfer, microbatch in zip(edge.transfers.tolist(), edge.microbatch.tolist(), strict=True):
                node = problem.num_stages + transfer
                if target == self.rank:
                    time = float(run.start[replica, node])
                    piece = self._carried(edge.consumer, edge.source, edge.phase, microbatch, comes=True)
                    found.append((int(np.searchsorted(ends, time, side="right")), time, True, piece))
                if source == self.rank:
                    time = float(run.end[replica, node])
                    piece = self._carried(edge.source, edge.consumer, edge.phase, microbatch, comes=False)
                    found.append((int(np.searchsorted(begins, time, side="left")), time, False, piece))
        by_stage: dict[int, list[tuple[NDArray[np.int64], NDArray[np.int64]]]] = {}
        for position, _, _, piece in sorted(found, key=lambda entry: entry[:3]):
            by_stage.setdefault(position, []).append(piece)
        return by_stage

    def _carried(
        self, number: int, other: int, phase: Phase, microbatch: int, *, comes: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What a chunk receives of another one, or has sent to it and does not keep."""
        is_forward = phase is Phase.FORWARD
        program = program_of(self.layout, number, CODE_OF_PHASE[phase])
        storages, rows = program.leaving_storage, program.leaving
        positions: Sequence[int] = range(len(rows))
        if comes:
            storages, rows = program.arriving_storage, program.arriving
            positions = range(len(rows))
        if is_forward == comes:  # several sources: this side of the edge is one of many
            ends = (other, number) if is_forward else (number, other)
            positions = leaving_positions(self.layout, *ends, phase)
        wanted = {storages[k]: rows[k] for k in positions if rows[k] >= 0 and (comes or not program.leaving_kept[k])}
        slots = np.array([self._slot(number, storage) for storage in wanted], dtype=np.int64) + microbatch
        size = self._size(int(self.run.shape[self.replica, microbatch]))[list(wanted.values())]
        return _events(slots, size, np.full(len(slots), comes))

    def _loaded(self, chunk: ChunkStages, microbatch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What the data loader gives."""
        program = chunk.forward
        ours = [k for k, source in enumerate(chunk.arrivals) if source < 0]
        slots = [self._slot(chunk.chunk.index, program.arriving_storage[k]) for k in ours]
        size = self._size(int(self.run.shape[self.replica, microbatch]))[[program.arriving[k] for k in ours]]
        return _events(np.array(slots, dtype=np.int64) + microbatch, size, np.ones(len(ours), dtype=np.bool_))

    def _slot(self, chunk: int, storage: int) -> int:
        """Number of a storage of microbatch 0; the others follow."""
        while (chunk, storage) in self._alias:
            chunk, storage = self._alias[chunk, storage]
        return self._base[chunk] + storage * self.count

    def _slots_of(self, chunk: int, phase: int, program: StageProgram) -> NDArray[np.int64]:
        if (chunk, phase) not in self._slots:
            slots = self._base[chunk] + program.storage.astype(np.int64) * self.count
            for number, storage in enumerate(program.storage.tolist()):
                if (chunk, storage) in self._alias:
                    slots[number] = self._slot(chunk, storage)
            self._slots[chunk, phase] = slots
        return self._slots[chunk, phase]

    def _issued(self, program: StageProgram) -> _Issue:
        if program not in self._issue:
            self._issue[program] = issue_order(program)
        return self._issue[program]

    def _size(self, shape: int) -> NDArray[np.int64]:
        """Sizes of all storages for a shape: int64[num_size_rows] [bytes]."""
        if shape not in self._sizes:
            self._sizes[shape] = self.evaluation.by_shape.sizes_of(np.array([shape]))[0]
        return self._sizes[shape]


def _num_storages(chunk: ChunkStages) -> int:
    programs = [program for program in (chunk.forward, chunk.backward) if program is not None]
    numbers: list[int] = [n for p in programs for n in (*p.storage.tolist(), *p.arriving_storage, *p.leaving_storage)]
    return int(max(numbers, default=-1)) + 1


def _events(
    slot: NDArray[np.int64], size: NDArray[np.int64], comes: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Events without what is empty; a free has size 0."""
    real = size > 0
    return slot[real], np.where(comes, size, 0)[real].astype(np.int64)
