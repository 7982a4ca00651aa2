"""``consolidate``: simulates every unit of a partition alone and replaces it by a single node; of equal units one is
simulated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compile.segments import cost_stage
from semu.compile.stage import StageProgram, csr
from semu.engine.graph_units import GraphUnits, UnitShape
from semu.records import dataclass


@dataclass(frozen=True)
class UnitMemory:
    """Memory of what a unit alone touches, relative to its beginning [bytes].

    Attributes:
        entry: allocated at its beginning. peak: highest allocation. net: left at its end.
    """

    entry: int
    peak: int
    net: int


@dataclass(frozen=True)
class Consolidated:
    """Units simulated alone.

    Attributes:
        partition: the units. latency: float64[num_ops] [s], of every operator.
        variant: int32[num_units], which distinct (structure, latencies, sizes) a unit is.
        programs: per variant. unit_latency: float64[num_variants] [s]. memory: per variant.
        start, end: per variant, float64[num_ops of the unit] [s], relative to the unit's start.
    """

    partition: GraphUnits
    latency: NDArray[np.float64]
    variant: NDArray[np.int32]
    programs: tuple[StageProgram, ...]
    unit_latency: NDArray[np.float64]
    memory: tuple[UnitMemory, ...]
    start: tuple[NDArray[np.float64], ...]
    end: tuple[NDArray[np.float64], ...]

    @property
    def num_simulated(self) -> int:
        """Units that were really simulated; the others are equal to one of them."""
        return len(self.programs)


def consolidate(
    partition: GraphUnits, latency: NDArray[np.float64], size: NDArray[np.int64], *, reuse: bool = True
) -> Consolidated:
    """Simulate every distinct unit.

    Args:
        partition: the units. latency: float64[num_ops] [s]. size: int64[num_storages] [bytes].
        reuse: false: simulate equal units again and again (for comparison).
    """
    known: dict[object, int] = {}
    variant = np.zeros(len(partition.units), dtype=np.int32)
    members: list[int] = []
    for number, unit in enumerate(partition.units):
        lasts = latency[unit.first : unit.last]
        sizes = size[list(unit.storages)]
        key = (unit.shape, lasts.tobytes(), sizes.tobytes()) if reuse else number
        variant[number] = known.setdefault(key, len(known))
        if variant[number] == len(members):
            members.append(number)
    programs: list[StageProgram] = []
    by_pattern: dict[object, StageProgram] = {}
    results = []
    for number in members:
        unit = partition.units[number]
        lasts, sizes = latency[unit.first : unit.last], size[list(unit.storages)]
        row_values, rows = np.unique(lasts, return_inverse=True)
        size_values, size_rows = np.unique(sizes, return_inverse=True)
        pattern = (unit.shape, rows.tobytes(), size_rows.tobytes())
        if pattern not in by_pattern:
            by_pattern[pattern] = _program(partition.shapes[unit.shape], rows, size_rows)
        program = by_pattern[pattern]
        programs.append(program)
        costs = cost_stage(program, row_values[None, :], size_values[None, :])
        start, end = program.times(row_values)
        memory = UnitMemory(0, int(costs.peak[0]), int(costs.net[0]))
        results.append((float(costs.latency[0]), memory, start, end))
    return Consolidated(
        partition=partition,
        latency=latency,
        variant=variant,
        programs=tuple(programs),
        unit_latency=np.array([r[0] for r in results]),
        memory=tuple(r[1] for r in results),
        start=tuple(r[2] for r in results),
        end=tuple(r[3] for r in results),
    )


def _program(shape: UnitShape, rows: NDArray[np.integer], size_rows: NDArray[np.integer]) -> StageProgram:
    """A unit's structure as the arrays that the stage kernels take.

    Args:
        shape: the structure. rows: int[num_ops], latency row of each operator: equal operators share one,
            so that equal layers are seen. size_rows: int[num_storages].
    """
    pred_ptr, pred = csr(shape.preds)
    touch_ptr, touch = csr(shape.touches)
    nobody = np.zeros(len(shape.roles), dtype=np.bool_)
    return StageProgram(
        rows=rows.astype(np.int32),
        block=np.array(shape.block, dtype=np.int32),
        pred_ptr=pred_ptr,
        pred=pred,
        stream=np.array(shape.stream, dtype=np.int32),
        touch_ptr=touch_ptr,
        touch=touch,
        size_row=size_rows.astype(np.int32),
        role=np.array(shape.roles, dtype=np.int32),
        alive_before=nobody,
        alive_after=nobody,
        num_streams=max(shape.num_streams, 1),
    )
