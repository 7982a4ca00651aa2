"""Memory between modality modules of which one cuts microbatches.

What a module hands to another is cut into pieces, one for every part of the other, when the stage that made it ends;
each piece is sent, or stays on the rank. When a stage of the other begins, its pieces are joined into a tensor of its
own and go. A tensor whose parts are padded each by itself takes more in pieces than whole. Gradients go the other way
alike.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.compile.stage import StageProgram
from semu.costs.evaluation import CostedJob
from semu.graph.operator import Phase
from semu.schedule.phases import BACKWARD, FORWARD
from semu.simulation.context import TimedJob
from semu.simulation.memory.memory_events import MemoryEvents, unkept_bytes
from semu.simulation.transfers import edge_bytes, leaving_positions

I64 = NDArray[np.int64]


def module_boundaries(layout: Layout) -> Iterator[tuple[int, int]]:
    """(chunk, chunk that reads it) between which microbatches are cut or joined."""
    for target, chunk in enumerate(layout.chunks):
        for source in dict.fromkeys(chunk.arrivals):
            if source >= 0 and layout.parts_differ(source, target):
                yield source, target


def module_boundary_events(timed: TimedJob) -> list[MemoryEvents | None]:
    """The changes of memory where pieces are cut and joined, of every rank; empty where nothing is cut."""
    boundaries = list(module_boundaries(timed.layout))
    if not boundaries:
        return []
    num_ranks = timed.layout.cut.num_ranks
    time: list[list[NDArray[np.float64]]] = [[] for _ in range(num_ranks)]
    size: list[list[I64]] = [[] for _ in range(num_ranks)]
    for boundary in boundaries:
        for phase in (FORWARD, BACKWARD):
            for rank, moment, change in _at(timed, *boundary, phase):
                time[rank].append(moment)
                size[rank].append(change)
    return [
        MemoryEvents(np.concatenate(moments, axis=1), np.concatenate(changes, axis=1)) if moments else None
        for moments, changes in zip(time, size, strict=True)
    ]


def _at(timed: TimedJob, source: int, target: int, phase: int) -> Iterator[tuple[int, NDArray[np.float64], I64]]:
    """Rank, times, changes: where a result is cut into pieces, and where they are joined.

    Args:
        source, target: chunks, as ``module_boundaries``. phase: ``FORWARD``, or of the gradients.
    """
    layout, run, chunks = timed.layout, timed.run, timed.layout.chunks
    giver, taker = (source, target) if phase == FORWARD else (target, source)
    if phase == BACKWARD and (chunks[giver].backward is None or chunks[taker].backward is None):
        return
    is_same = chunks[giver].chunk.rank == chunks[taker].chunk.rank
    letter = Phase.FORWARD if phase == FORWARD else Phase.BACKWARD
    variants = layout.recipe.numbers[giver]
    left = np.stack([_left(timed, kind, giver, taker, letter) for kind in variants])
    whole = _taken(timed, source, taker, letter)
    problem, shape = run.problem, run.problem.shape
    made, used = problem.stage_nodes[giver, phase], problem.stage_nodes[taker, phase]
    made = made[np.argsort(problem.microbatch[made], kind="stable")]
    used = used[np.argsort(problem.microbatch[used], kind="stable")]
    ends = [
        (giver, part, taker, other) for part in shape.every_part(giver) for other in shape.shared(giver, part, taker)
    ]
    table = np.array(ends, dtype=np.int64).reshape(-1, 4).T
    columns = layout.recipe.moved_columns(*table)
    given = np.searchsorted(problem.microbatch[made], table[1])
    taken = np.searchsorted(problem.microbatch[used], table[3])
    variant = np.searchsorted(variants, layout.recipe.kind_of(giver, problem.microbatch[made]))
    pieces = left[variant[given], run.shape[:, columns]]
    change = -left[variant, run.shape[:, run.column[made]]]
    np.add.at(change.T, given, pieces.T)
    if change.any():
        yield int(chunks[giver].chunk.rank), run.end[:, made], change
    if not is_same:
        pieces = edge_bytes(timed, giver, taker, letter)[run.shape[:, columns]]
    change = whole[run.shape[:, run.column[used]]]
    np.add.at(change.T, taken, -pieces.T)
    if change.any():
        yield int(chunks[taker].chunk.rank), run.start[:, used], change


def _left(costed: CostedJob, kind: int, giver: int, taker: int, phase: Phase) -> I64:
    """Bytes of a result that no backward needs: int64[num_shapes]. ``kind``: which variant of the giver."""
    chunk, costs = costed.layout.kinds[kind], costed.evaluation.chunks[kind]
    if phase is Phase.FORWARD:
        return unkept_bytes(chunk.forward, costs.leaving, range(len(chunk.forward.leaving)))
    assert chunk.backward is not None
    positions = leaving_positions(costed.layout, giver, taker, phase)
    return unkept_bytes(chunk.backward, costs.gradient_leaving, positions)


def _taken(costed: CostedJob, source: int, taker: int, phase: Phase) -> I64:
    """Bytes of the tensors that a stage takes: int64[num_shapes]; one that arrives twice counts once."""
    chunk = costed.layout.chunks[taker]
    stage: StageProgram = chunk.forward
    if phase is Phase.FORWARD:
        wanted = [k for k, other in enumerate(chunk.arrivals) if other == source]
    else:
        assert chunk.backward is not None
        stage, wanted = chunk.backward, list(range(len(chunk.backward.arriving)))
    rows = {stage.arriving_storage[k]: stage.arriving[k] for k in wanted if stage.arriving[k] >= 0}
    total: I64 = costed.evaluation.by_shape.sizes_of_rows([*rows.values()]).sum(axis=0)
    return total
