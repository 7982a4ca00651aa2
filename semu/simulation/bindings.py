"""Operators inside stages that wait for units outside: edges into slots, and arrays that time those stages again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.distinct import sorted_distinct
from semu.engine.unit_graph import Edges, Slots
from semu.records import dataclass
from semu.simulation.context import SimulatedJob
from semu.simulation.unit_programs import programs_of


@dataclass(frozen=True)
class Binding:
    """Edges from other units to operators of one stage: the operators wait, not the stage.

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
    """The operators of stages; stages of one kind with equal shapes on every replica are looked at once."""

    def __init__(self, sim: SimulatedJob) -> None:
        self.layout, self.evaluation, self.units, self.shape = sim.layout, sim.evaluation, sim.units, sim.replicas.shape
        self._runs = programs_of(sim.layout.recipe, sim.units)
        self._insides: dict[tuple[StageProgram, bytes], Inside] = {}
        self._rows: dict[bytes, NDArray[np.float64]] = {}
        self._programs: dict[StageProgram, int] = {}
        self._filled = 0

    def stage(self, unit: int) -> tuple[int, int]:
        """Which of ``Layout.kinds`` a stage runs, and the column of its shapes."""
        return int(self._runs.kind[unit]), int(self._runs.column[unit])

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
        ordered = sorted(bindings, key=lambda binding: binding.unit)
        counts = [len(binding.op) for binding in ordered]
        prog = np.full(num_nodes, -1, dtype=np.int32)
        cost_ptr = np.full(num_nodes, -1, dtype=np.int64)
        num_bound = np.zeros(num_nodes, dtype=np.int64)
        integers: NDArray[np.integer] = np.zeros(0, dtype=np.int32)
        times = np.zeros((len(self.shape), 0))
        ops, starts, slots_of, reads, lags = [integers], [times], [integers], [integers], [times]
        num_slots = 0
        for unit, group in groupby(ordered, key=lambda binding: binding.unit):
            of_unit, inside = [*group], self.of(unit)
            bound = of_unit[0].op
            if len(of_unit) > 1 or not (bound[1:] > bound[:-1]).all():
                bound = sorted_distinct(np.concatenate([binding.op for binding in of_unit]))
            prog[unit], cost_ptr[unit], num_bound[unit] = inside.number, inside.place, len(bound)
            ops.append(bound)
            starts.append(inside.start.take(bound, axis=1))
            for binding in of_unit:
                slots_of.append(num_slots + bound.searchsorted(binding.op))
                reads.append(np.full(len(binding.op), -1) if binding.lag is None else binding.op)
                lags.append(np.zeros((len(self.shape), len(binding.op))) if binding.lag is None else binding.lag)
            num_slots += len(bound)
        edges = Edges(
            np.concatenate([integers, *[binding.source for binding in ordered]]).astype(np.int32),
            np.repeat([binding.unit for binding in ordered], counts).astype(np.int32),
            np.concatenate(reads).astype(np.int32),
            np.concatenate(lags, axis=1),
            np.concatenate(slots_of).astype(np.int32),
        )
        programs = [*self._programs]
        num_preds = np.concatenate([integers, *[np.diff(program.pred_ptr) for program in programs]])
        slots = Slots(
            ptr=np.concatenate(([0], np.cumsum(num_bound))).astype(np.int32),
            op=np.concatenate(ops).astype(np.int32),
            start=np.ascontiguousarray(np.concatenate(starts, axis=1)),
            prog=prog,
            prog_ptr=np.concatenate(([0], np.cumsum([program.num_ops for program in programs]))).astype(np.int32),
            op_pred_ptr=np.concatenate(([0], np.cumsum(num_preds))).astype(np.int32),
            op_pred=np.concatenate([integers, *[program.pred for program in programs]]).astype(np.int32),
            op_stream=np.concatenate([integers, *[program.stream for program in programs]]).astype(np.int32),
            prog_streams=np.array([program.num_streams for program in programs], dtype=np.int32),
            cost_ptr=cost_ptr,
            op_latency=np.ascontiguousarray(
                np.concatenate([times, *[inside.latency for inside in self._insides.values()]], axis=1)
            ),
        )
        return edges, slots


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
