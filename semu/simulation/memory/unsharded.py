"""Memory of what ZeRO-3 holds unsharded for most of an iteration (``fsdp_units``): parameters and gradients.

Parameters live from the start of their gather to the end of the last stage that uses them, which no weight gradient (W)
does; gradients from the start of their first writer, in the chunk's first backward, to the end of their reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.compile.stage import ROLES
from semu.costs.phases import program_of, split_of
from semu.graph.tensor import Role
from semu.hardware.kinds import OpKind
from semu.records import dataclass
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, WEIGHT
from semu.simulation.context import PipelineRun, TimedJob
from semu.simulation.data_parallel.fsdp_units import FsdpUnit, unit_name, units_of_rank
from semu.simulation.data_parallel.gradient_times import block_starts
from semu.simulation.iteration import Iteration
from semu.simulation.memory.memory_events import MemoryEvents


@dataclass(frozen=True)
class UnshardedMemory:
    """Changes of a rank's memory.

    Attributes:
        role: int64[num_events], positions in ``ROLES``. time: float64[num_replicas, num_events] [s].
        size: int64[num_events] [bytes].
    """

    role: NDArray[np.int64]
    time: NDArray[np.float64]
    size: NDArray[np.int64]

    @property
    def events(self) -> MemoryEvents:
        """The changes, in any order."""
        return MemoryEvents(self.time, np.broadcast_to(self.size, self.time.shape))


def unsharded_bytes(layout: Layout, rank: int) -> list[int]:
    """Whole parameters and whole gradients of a rank's sharded units [bytes]."""
    size = layout.job.training.grad_dtype.size_bytes
    units = [unit for unit in units_of_rank(layout, rank) if unit.parameter_bytes]
    sizes = [unit.parameter_bytes for unit in units]
    sizes += [size * sum(held.elements for held in unit.members if held.writers) for unit in units]
    return [size for size in sizes if size]


def pipeline_unsharded(iteration: Iteration) -> list[UnshardedMemory | None]:
    """``unsharded_memory`` of every pipeline rank, empty where none can hold anything."""
    if not iteration.job.gathers_once:
        return []
    return [unsharded_memory(iteration, rank) for rank in range(len(iteration.tails))]


def unsharded_memory(iteration: Iteration, rank: int) -> UnshardedMemory | None:
    """What a pipeline rank holds unsharded outside its stages; None: nothing."""
    layout, run, gathers = iteration.layout, iteration.run, iteration.gathers
    if rank not in gathers:
        return None
    done = {
        piece.name: piece.end_s for piece in iteration.tails[rank].reductions if piece.kind is OpKind.REDUCE_SCATTER
    }
    begun = {piece.name: piece.start_s for piece in gathers[rank].slices}
    writers = _FirstWriters(iteration)
    role: list[int] = []
    time: list[NDArray[np.float64]] = []
    size: list[int] = []

    def _hold(kind: Role, size_bytes: int, begin: NDArray[np.float64], end: NDArray[np.float64]) -> None:
        role.extend([ROLES.index(kind)] * 2)
        time.extend([begin, end])
        size.extend([size_bytes, -size_bytes])

    every = np.zeros(run.num_replicas)
    for number, unit in enumerate(units_of_rank(layout, rank)):
        if not unit.parameter_bytes:
            continue
        users = _users(layout, rank, unit)
        _hold(Role.PARAMETER, unit.parameter_bytes, every + begun[f"parameters {number}"], _last_use(run, users))
        written = sum(held.elements for held in unit.members if held.writers)
        if written:
            grad_bytes = written * layout.job.training.grad_dtype.size_bytes
            _hold(Role.GRADIENT, grad_bytes, writers.start(unit, users), every + done[unit_name(number)])
    if not size:
        return None
    return UnshardedMemory(np.array(role, dtype=np.int64), np.stack(time, axis=1), np.array(size, dtype=np.int64))


def _users(layout: Layout, rank: int, unit: FsdpUnit) -> dict[int, list[int]]:
    """Chunk -> its blocks that use a parameter of the unit."""
    parameters = {held.parameter for held in unit.members}
    users: dict[int, list[int]] = {}
    for chunk in layout.chunks_of(rank):
        blocks = [n for n, block in enumerate(chunk.blocks) if any(h.parameter in parameters for h in block.parameters)]
        if blocks:
            users[chunk.chunk.index] = blocks
    return users


def _last_use(run: PipelineRun, users: Mapping[int, Sequence[int]]) -> NDArray[np.float64]:
    """End of the last stage of any of the chunks: float64[num_replicas] [s]."""
    codes = (FORWARD, BACKWARD, INPUT) if run.problem.splits_backward else (FORWARD, BACKWARD)
    nodes = [run.problem.stage_nodes[chunk, code] for chunk in users for code in codes]
    end: NDArray[np.float64] = run.end[:, np.concatenate(nodes)].max(axis=1)
    return end


class _FirstWriters:
    """When the first operator that writes a unit's gradients begins."""

    def __init__(self, timed: TimedJob) -> None:
        self.layout, self.evaluation, self.run = timed.layout, timed.evaluation, timed.run
        self._starts: dict[tuple[int, int], NDArray[np.float64]] = {}

    def start(self, unit: FsdpUnit, users: Mapping[int, Sequence[int]]) -> NDArray[np.float64]:
        """float64[num_replicas] [s]."""
        parameters = {held.parameter for held in unit.members}
        begin = np.full(self.run.num_replicas, np.inf)
        for number, positions in users.items():
            chunk = self.layout.chunks[number]
            if chunk.backward is None:
                continue
            first = block_starts(chunk.backward, len(chunk.blocks))
            operators = [
                first[position] + writer
                for position in positions
                for held in chunk.blocks[position].parameters
                if held.parameter in parameters
                for writer in held.writers
            ]
            for code, some in self._by_stage(number, operators):
                begin = np.minimum(begin, self._operators(number, code)[:, some].min(axis=1))
        return begin

    def _by_stage(self, number: int, operators: list[int]) -> list[tuple[int, list[int]]]:
        """Operators of a chunk's backward in the kinds of stages in which the schedule runs them."""
        stages = [(BACKWARD, operators)]
        if self.run.problem.splits_backward:
            split = split_of(self.layout)[number]
            assert split is not None
            for code, is_weight in ((INPUT, False), (WEIGHT, True)):
                mine = [int(split.place[op]) for op in operators if split.is_weight[op] == is_weight]
                stages.append((code, mine))
        return [
            (code, writers) for code, writers in stages if writers and len(self.run.problem.stage_nodes[number, code])
        ]

    def _operators(self, number: int, code: int) -> NDArray[np.float64]:
        """Starts of the operators of a chunk's first backward stage of a kind: float64[num_replicas, num_ops] [s]."""
        if (number, code) not in self._starts:
            run, program = self.run, program_of(self.layout, number, code)
            node = int(run.problem.stage_nodes[number, code][0])
            shapes = run.shape[:, run.problem.microbatch[node]]
            rows = []
            for replica, latency in enumerate(self.evaluation.by_shape.latencies_of(shapes)):
                touched = run.inside.get((replica, node))
                if touched is not None:
                    inner = touched.start
                else:
                    inner = program.times(latency, run.release.get((replica, node)))[0]
                rows.append(run.start[replica, node] + inner)
            self._starts[number, code] = np.array(rows)
        return self._starts[number, code]
