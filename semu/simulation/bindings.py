"""Operators inside stages that units outside bound: edges into slots, and what it takes to time those stages again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.engine.unit_graph import Edges, Slots
from semu.simulation.context import SimulatedJob


@dataclass(frozen=True)
class Binding:
    """Edges from other units to operators of one stage, which bound these and not the stage.

    Attributes:
        unit: the stage. source: int[k], units. op: int[k], operators of the stage.
        lag: float64[num_replicas, k] [s], after each source's start; None: the sources' ends.
    """

    unit: int
    source: NDArray[np.int64]
    op: NDArray[np.int64]
    lag: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class Inside:
    """The operators of one stage on every replica.

    Attributes:
        program: its arrays. number: of the program among those seen. place: of its first latency among those seen.
        latency: float64[num_replicas, num_ops] [s].
        start: float64[num_replicas, num_ops] [s], after the stage's when nothing outside delays it.
    """

    program: StageProgram
    number: int
    place: int
    latency: NDArray[np.float64]
    start: NDArray[np.float64]


class StageInsides:
    """The operators of stages; stages of one kind with equal shapes on every replica are looked at once.

    Args:
        sim: the job.
    """

    def __init__(self, sim: SimulatedJob) -> None:
        self.layout, self.evaluation, self.units, self.shape = sim.layout, sim.evaluation, sim.units, sim.replicas.shape
        self._insides: dict[tuple[StageProgram, bytes], Inside] = {}
        self._rows: dict[bytes, NDArray[np.float64]] = {}
        self._programs: dict[StageProgram, int] = {}
        self._filled = 0

    def stage(self, unit: int) -> tuple[int, int]:
        """Which of ``Layout.kinds`` a stage runs, and the column of its shapes."""
        chunk, part = int(self.units.chunks_of(unit)), int(self.units.parts[divmod(unit, self.units.size)])
        return int(self.layout.recipe.kind_of(chunk, part)), int(self.layout.recipe.column_of(chunk, part))

    def of(self, unit: int) -> Inside:
        """The operators of a stage. ``unit``: its number."""
        microbatch, position = divmod(unit, self.units.size)
        kind, column = self.stage(unit)
        shapes = self.shape[:, column]
        code = int(self.units.codes[microbatch, position])
        program = program_of(self.layout, kind, code)  # alike in all copies of the model
        key = program, shapes.tobytes()
        if key not in self._insides:
            if key[1] not in self._rows:
                self._rows[key[1]] = self.evaluation.by_shape.latencies_of(shapes)
            number = self._programs.setdefault(program, len(self._programs))
            latency = self._rows[key[1]][:, program.rows]
            start = natural_starts(program, latency)
            self._insides[key] = Inside(program, number, self._filled, latency, start)
            self._filled += program.num_ops
        return self._insides[key]

    def bind(self, bindings: Sequence[Binding], num_nodes: int) -> tuple[Edges, Slots]:
        """All bindings as edges and slots; a slot for every bound operator. ``num_nodes``: of all units."""
        num_replicas = len(self.shape)
        if all(binding.lag is None for binding in bindings) and len({own.unit for own in bindings}) == len(bindings):
            return self._bind_ends(sorted(bindings, key=lambda binding: binding.unit), num_nodes)
        by_unit: dict[int, list[Binding]] = {}
        for binding in sorted(bindings, key=lambda binding: binding.unit):
            by_unit.setdefault(binding.unit, []).append(binding)
        prog = np.full(num_nodes, -1, dtype=np.int32)
        cost_ptr = np.full(num_nodes, -1, dtype=np.int64)
        count = np.zeros(num_nodes, dtype=np.int64)
        ops, starts, pieces, lags = [], [], [], []
        filled = 0
        for unit, own in by_unit.items():
            inside = self.of(unit)
            bound = np.unique(np.concatenate([binding.op for binding in own]))
            prog[unit], cost_ptr[unit], count[unit] = inside.number, inside.place, len(bound)
            ops.append(bound)
            starts.append(inside.start[:, bound])
            for binding in own:
                read = np.full(len(binding.op), -1) if binding.lag is None else binding.op
                slot = filled + np.searchsorted(bound, binding.op)
                pieces.append(np.stack((binding.source, np.full(len(binding.op), unit), read, slot)))
                lags.append(np.zeros((num_replicas, len(binding.op))) if binding.lag is None else binding.lag)
            filled += len(bound)
        source, target, op, slot = np.concatenate([np.zeros((4, 0), dtype=np.int64), *pieces], axis=1).astype(np.int32)
        nothing = np.zeros((num_replicas, 0))
        edges = Edges(source, target, op, np.concatenate([nothing, *lags], axis=1), slot)
        return edges, self._slots(count, prog, cost_ptr, ops, [nothing, *starts])

    def _bind_ends(self, bindings: Sequence[Binding], num_nodes: int) -> tuple[Edges, Slots]:
        """The same where each stage has one binding, to the ends of others. ``bindings``: by stage."""
        prog = np.full(num_nodes, -1, dtype=np.int32)
        cost_ptr = np.full(num_nodes, -1, dtype=np.int64)
        count = np.zeros(num_nodes, dtype=np.int64)
        ops, slots = [], []
        starts = [np.zeros((len(self.shape), 0))]
        filled = 0
        for binding in bindings:
            inside, bound = self.of(binding.unit), binding.op
            slot = np.arange(filled, filled + len(bound))
            if not (bound[1:] > bound[:-1]).all():
                bound, place = np.unique(bound, return_inverse=True)
                slot = filled + place
            prog[binding.unit], cost_ptr[binding.unit], count[binding.unit] = inside.number, inside.place, len(bound)
            ops.append(bound)
            slots.append(slot)
            starts.append(inside.start.take(bound, axis=1))
            filled += len(bound)
        integers = np.zeros(0, dtype=np.int32)
        target = np.repeat([binding.unit for binding in bindings], [len(binding.op) for binding in bindings])
        edges = Edges(
            np.concatenate([integers, *[binding.source for binding in bindings]]).astype(np.int32),
            target.astype(np.int32),
            np.full(len(target), -1, dtype=np.int32),
            np.zeros((len(self.shape), len(target))),
            np.concatenate([integers, *slots]).astype(np.int32),
        )
        return edges, self._slots(count, prog, cost_ptr, ops, starts)

    def _slots(
        self,
        count: NDArray[np.int64],
        prog: NDArray[np.int32],
        cost_ptr: NDArray[np.int64],
        ops: Sequence[NDArray[np.int64]],
        starts: Sequence[NDArray[np.float64]],
    ) -> Slots:
        return _slots([*self._programs], [*self._insides.values()], count, prog, cost_ptr, ops, starts)


def _slots(
    programs: Sequence[StageProgram],
    insides: Sequence[Inside],
    count: NDArray[np.int64],
    prog: NDArray[np.int32],
    cost_ptr: NDArray[np.int64],
    ops: Sequence[NDArray[np.int64]],
    starts: Sequence[NDArray[np.float64]],
) -> Slots:
    """Slots unit by unit, with every program and every latency that they refer to."""
    integers = np.zeros(0, dtype=np.int32)
    num_preds = np.concatenate([integers, *[np.diff(program.pred_ptr) for program in programs]])
    return Slots(
        ptr=np.concatenate(([0], np.cumsum(count))).astype(np.int32),
        op=np.concatenate([integers, *ops]).astype(np.int32),
        start=np.ascontiguousarray(np.concatenate(starts, axis=1)),
        prog=prog,
        prog_ptr=np.concatenate(([0], np.cumsum([program.num_ops for program in programs]))).astype(np.int32),
        op_pred_ptr=np.concatenate(([0], np.cumsum(num_preds))).astype(np.int32),
        op_pred=np.concatenate([integers, *[program.pred for program in programs]]).astype(np.int32),
        op_stream=np.concatenate([integers, *[program.stream for program in programs]]).astype(np.int32),
        prog_streams=np.array([program.num_streams for program in programs], dtype=np.int32),
        cost_ptr=cost_ptr,
        op_latency=np.ascontiguousarray(np.concatenate([starts[0], *[inside.latency for inside in insides]], axis=1)),
    )


def natural_starts(program: StageProgram, latency: NDArray[np.float64]) -> NDArray[np.float64]:
    """Start of every operator after its stage's when nothing outside delays it: float64[num_replicas, num_ops] [s].

    Args:
        latency: float64[num_replicas, num_ops] [s].
    """
    if program.is_serial:
        return np.cumsum(latency, axis=1) - latency
    rows = np.zeros(int(program.rows.max(initial=-1)) + 1)
    result = np.empty_like(latency)
    for replica, lasts in enumerate(latency):
        rows[program.rows] = lasts
        result[replica] = program.times(rows)[0]
    return result
