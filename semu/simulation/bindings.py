"""Operators inside stages that wait for units outside: edges into slots, and arrays that time those stages again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.compile.stage import StageProgram
from semu.costs.phases import CODES, program_of
from semu.distinct import sorted_distinct
from semu.engine.unit_graph import Edges, Slots, UnitTimes
from semu.records import dataclass
from semu.simulation.context import SimulatedJob
from semu.simulation.unit_programs import programs_of


@dataclass(frozen=True)
class Binding:
    """Edges from other units to the same operators of some stages: the operators wait, not the stages.

    Attributes:
        units: int64[n], the stages. source: int64[n, k] or what spreads to it, units.
        op: int64[k], operators of each of the stages.
        lag: float64[num_replicas, k] [s], after each source's start; None: the sources' ends.
    """

    units: NDArray[np.int64]
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

    def of_each(self, stages: NDArray[np.integer]) -> tuple[list[Inside], NDArray[np.int64]]:
        """The operators of several stages: those that differ, and which of them each stage has: int64[n]."""
        units = stages.astype(np.int64)
        number = self._runs.kind[units] * len(CODES) + self.units.codes[np.divmod(units, self.units.size)]
        numbers: dict[bytes, int] = {}
        alike = [numbers.setdefault(column.tobytes(), len(numbers)) for column in self.shape.T]
        number = number * len(numbers) + np.array(alike, dtype=np.int64)[self._runs.column[units]]
        _, first, which = np.unique(number, return_index=True, return_inverse=True)
        return [self.of(unit) for unit in units[first].tolist()], which.reshape(-1)

    def bind(self, bindings: Sequence[Binding], num_nodes: int) -> tuple[Edges, Slots]:
        """All bindings as edges and slots; a slot for every bound operator. ``num_nodes``: of all units.

        Edges are in order of their stage, those of a stage in order of the bindings."""
        sizes = [(len(binding.units), len(binding.op)) for binding in bindings]
        unit = _joined([binding.units.repeat(k) for binding, (_, k) in zip(bindings, sizes, strict=True)])
        op = _joined([np.tile(binding.op, n) for binding, (n, _) in zip(bindings, sizes, strict=True)])
        source = _joined([np.broadcast_to(own.source, size).ravel() for own, size in zip(bindings, sizes, strict=True)])
        has_lag = np.repeat([binding.lag is not None for binding in bindings], [n * k for n, k in sizes])
        first = np.cumsum([0, *[k for _, k in sizes]]).tolist()
        lag_of = _joined([np.tile(np.arange(a, a + k), n) for a, (n, k) in zip(first, sizes, strict=False)])
        lags = [
            np.zeros((len(self.shape), k)) if binding.lag is None else binding.lag
            for binding, (_, k) in zip(bindings, sizes, strict=True)
        ]
        order = np.argsort(unit, kind="stable")
        unit, op = unit[order], op[order]
        width = 1 + int(op.max(initial=0))
        edges_of = unit * width + op
        slots = sorted_distinct(edges_of)
        slot_unit, slot_op = np.divmod(slots, width)
        edges = Edges(
            source[order].astype(np.int32),
            unit.astype(np.int32),
            np.where(has_lag[order], op, -1).astype(np.int32),
            np.concatenate(lags, axis=1).take(lag_of[order], axis=1),
            slots.searchsorted(edges_of).astype(np.int32),
        )
        return edges, self._slots(slot_unit, slot_op, num_nodes)

    def _slots(self, unit: NDArray[np.int64], op: NDArray[np.int64], num_nodes: int) -> Slots:
        """Slots of operators: unit and operator of each, int64[s], in order."""
        units = sorted_distinct(unit)
        found, which = self.of_each(units)
        prog = np.full(num_nodes, -1, dtype=np.int32)
        cost_ptr = np.full(num_nodes, -1, dtype=np.int64)
        prog[units] = np.array([inside.number for inside in found], dtype=np.int32)[which]
        cost_ptr[units] = np.array([inside.place for inside in found], dtype=np.int64)[which]
        every, programs = [*self._insides.values()], [*self._programs]
        nothing = np.zeros((len(self.shape), 0))
        starts = np.concatenate([nothing, *[inside.start for inside in every]], axis=1)
        latency = np.concatenate([nothing, *[inside.latency for inside in every]], axis=1)
        num_preds = _joined([np.diff(program.pred_ptr) for program in programs])
        return Slots(
            ptr=np.concatenate(([0], np.cumsum(np.bincount(unit, minlength=num_nodes)))).astype(np.int32),
            op=op.astype(np.int32),
            start=np.ascontiguousarray(starts.take(cost_ptr[unit] + op, axis=1)),
            prog=prog,
            prog_ptr=np.concatenate(([0], np.cumsum([program.num_ops for program in programs]))).astype(np.int32),
            op_pred_ptr=np.concatenate(([0], np.cumsum(num_preds))).astype(np.int32),
            op_pred=_joined([program.pred for program in programs]).astype(np.int32),
            op_stream=_joined([program.stream for program in programs]).astype(np.int32),
            prog_streams=np.array([program.num_streams for program in programs], dtype=np.int32),
            cost_ptr=cost_ptr,
            op_latency=np.ascontiguousarray(latency),
        )


def _joined(parts: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    """Parts behind each other; no part: nothing."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


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


class Releases(Mapping[tuple[int, int], NDArray[np.float64]]):
    """(replica, node) -> earliest starts of operators of a touched stage after the beginning of it: float64[num_ops]
    [s]; made when they are looked at.

    Args:
        layout: the job's. times: of all units. unit: int64[num_stages], the unit of each node. phase, kind: of each
            node.
    """

    def __init__(
        self,
        layout: Layout,
        times: UnitTimes,
        unit: NDArray[np.int64],
        phase: NDArray[np.integer],
        kind: NDArray[np.int64],
    ) -> None:
        self._layout, self._times, self._unit, self._phase, self._kind = layout, times, unit, phase, kind
        self._found: dict[tuple[int, int], NDArray[np.float64] | None] = dict.fromkeys(
            zip(*(axis.tolist() for axis in np.nonzero(times.touched[:, unit])), strict=True)
        )

    @classmethod
    def of(
        cls,
        layout: Layout,
        times: UnitTimes,
        unit: NDArray[np.int64],
        phase: NDArray[np.integer],
        kind: NDArray[np.int64],
    ) -> Mapping[tuple[int, int], NDArray[np.float64]]:
        """Those of a run; nothing where nothing outside bears on any operator. Arguments: of the class."""
        return cls(layout, times, unit, phase, kind) if len(times.slots.op) else {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._found)

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def __getitem__(self, key: tuple[int, int]) -> NDArray[np.float64]:
        found = self._found[key]
        if found is None:
            (replica, node), times = key, self._times
            unit = int(self._unit[node])
            mine = slice(times.slots.ptr[unit], times.slots.ptr[unit + 1])
            program = program_of(self._layout, int(self._kind[node]), int(self._phase[node]))
            found = np.zeros(program.num_ops)
            found[times.slots.op[mine]] = np.maximum(times.release[replica, mine] - times.start[replica, unit], 0.0)
            self._found[key] = found
        return found
