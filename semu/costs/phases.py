"""The stages of a chunk by their code: forward, whole backward, and the two parts of a backward that a schedule splits.

Parts are made when a schedule first asks for them, and shared as the stages they are made of.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from semu import memo
from semu.compile.layout import Layout
from semu.compile.split_backward import SplitStage, empty_stage, split_stage_program
from semu.compile.stage import StageCosts, StageProgram
from semu.costs.evaluation import CostedJob, Evaluation
from semu.costs.segment_costs import stage_costs
from semu.errors import ConfigError
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, NOTHING, WEIGHT

CODES = (FORWARD, BACKWARD, INPUT, WEIGHT, NOTHING)
"""All kinds of stages of a chunk."""
_NOTHING = memo.ScopedTable[StageProgram]("stage of a cut in which nothing happens", 1)
_SPLITS = memo.ScopedTable[tuple[SplitStage | None, ...]]("backward stages of a cut in two parts", 1)
_PARTS = memo.ScopedTable[Mapping[tuple[int, int], StageCosts]]("costs of parts of backward stages of costed chunks", 1)


def program_of(layout: Layout, chunk: int, code: int) -> StageProgram:
    """A stage of a chunk, or of a variant of one (``Layout.kinds``). ``code``: see ``semu.schedule.units``."""
    stages = layout.kinds[chunk]
    if code == FORWARD:
        return stages.forward
    if code == BACKWARD:
        assert stages.backward is not None
        return stages.backward
    if code == NOTHING:
        return _NOTHING.get(layout.cut, (), lambda: empty_stage(len(layout.streams)))
    split = split_of(layout)[chunk]
    assert split is not None
    return split.inputs if code == INPUT else split.weights


def stages_of_chunk(layout: Layout, chunk: int, *, splits: bool) -> list[tuple[int, StageProgram]]:
    """Every kind of stage of a chunk that may run under a schedule, with its code."""
    stages = layout.kinds[chunk]
    found = [(FORWARD, stages.forward)]
    if stages.backward is not None:
        codes = CODES[1:] if splits else (BACKWARD,)
        found += [(code, program_of(layout, chunk, code)) for code in codes]
    return found


def costs_of(costed: CostedJob, chunk: int, code: int) -> StageCosts:
    """What a stage of a chunk, or of a variant of one, costs, for every shape."""
    costs = costed.evaluation.chunks[chunk]
    if code == FORWARD:
        return costs.forward
    if code == BACKWARD:
        assert costs.backward is not None
        return costs.backward
    return split_costs(costed)[chunk, code]


def split_of(layout: Layout) -> tuple[SplitStage | None, ...]:
    """Per chunk, and per chunk as it runs in pairs, its backward stage in two parts; None where there is none."""
    return _SPLITS.get(layout.cut, (), lambda: _split(layout))


def split_costs(costed: CostedJob) -> Mapping[tuple[int, int], StageCosts]:
    """What the parts of the backward stages cost, by chunk and code."""
    layout, evaluation = costed.layout, costed.evaluation

    def _make() -> dict[tuple[int, int], StageCosts]:
        programs = {
            (number, code): program_of(layout, number, code)
            for number, split in enumerate(split_of(layout))
            if split is not None
            for code in (INPUT, WEIGHT, NOTHING)
        }
        busy = {key: program for key, program in programs.items() if program.num_ops}
        costs = dict(zip(busy, stage_costs([*busy.values()], evaluation.by_shape, None), strict=True))
        return {key: costs[key] if key in costs else _idle(program, evaluation) for key, program in programs.items()}

    return evaluation.parts if evaluation.parts is not None else _PARTS.get(evaluation.by_shape, (), _make)


def _idle(program: StageProgram, evaluation: Evaluation) -> StageCosts:
    """Costs of a stage without operators: it takes no time, and storages that only it still held are freed."""
    n = evaluation.num_shapes
    freed = program.size_row[program.alive_before & ~program.alive_after]
    return StageCosts(
        latency=np.zeros(n),
        exposed=np.zeros((n, program.num_streams)),
        peak=np.zeros(n, dtype=np.int64),
        net=-evaluation.by_shape.sizes_of_rows(freed.tolist()).sum(axis=0),
        peak_op=np.full(n, -1, dtype=np.int32),
    )


def _split(layout: Layout) -> tuple[SplitStage | None, ...]:
    serial = not layout.job.overlaps_tensor_parallel
    programs = [chunk.backward for chunk in (*layout.chunks, *layout.cut.combined)]
    splits = {
        program: split_stage_program(program, layout.library.operators, serial=serial)
        for program in dict.fromkeys(programs)
        if program is not None
    }
    return tuple([None if program is None else splits[program] for program in programs])


def check_split(layout: Layout) -> None:
    """Refuse jobs whose backwards cannot be split.

    Where W reads a tensor that another chunk or a transfer reads too, which of them is the last depends on times; but
    where compute waits for transfers, W comes after them.

    Raises:
        ConfigError: a chunk with such a tensor.
    """
    for chunk, split in zip(layout.chunks, split_of(layout)[: len(layout.chunks)], strict=True):
        if split is None or chunk.chunk.gang >= 0:  # backwards of gangs stay whole
            continue
        ranks = [layout.chunks[source].chunk.rank if source >= 0 else -1 for source in chunk.arrivals]
        kept = [rank for rank, is_kept in zip(ranks, split.inputs.leaving_kept, strict=True) if is_kept]
        is_sent_late = bool(kept) and (layout.job.overlaps_sends or chunk.chunk.rank in kept)
        if is_sent_late or split.weights.alive_after.any():
            raise ConfigError(
                "a weight gradient that reads what another chunk gave or takes is not modelled by this version: an "
                "input that a chunk of the same rank keeps, or a gradient that leaves",
                where="training.schedule",
                expected="a schedule with whole backwards, or another layout",
                got=f"{chunk.module}, blocks {chunk.chunk.first} to {chunk.chunk.last - 1}",
                nearest="1f1b",
            )
