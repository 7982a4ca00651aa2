"""A slow, obvious evaluation of any order of stages on plain numbers, and random pipelines to try it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from semu.schedule.phases import PHASES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy

F, B, I, W = PHASES  # noqa: E741


@st.composite
def flows(draw: st.DrawFn) -> PipelineShape:
    """Chunks of modules on any ranks, which cut microbatches differently; or two copies of a model."""
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    count = draw(st.integers(1, 5))
    if draw(st.integers(0, 4)) == 0:
        ranks = [draw(st.integers(0, p - 1)) for _ in range(2 * count)]
        return PipelineShape(
            p,
            m,
            tuple(ranks),
            tuple((c - 1,) if c % count else () for c in range(2 * count)),
            (True,) * (2 * count),
            chunk_slot=(0,) * count + (1,) * count,
            chunk_flow=(0,) * count + (1,) * count,
            microbatch_flow=tuple(draw(st.integers(0, 1)) for _ in range(m)),
        )
    sources: list[tuple[int, ...]] = []
    back: list[bool] = []
    for chunk in range(count):
        reads = draw(st.sets(st.integers(0, chunk - 1), max_size=2)) if chunk else set()
        sources.append(tuple(sorted(reads)))
        back.append(draw(st.booleans()) or any(back[source] for source in reads))
    return PipelineShape(
        p,
        m,
        tuple(draw(st.integers(0, p - 1)) for _ in range(count)),
        tuple(sources),
        tuple(back),
        chunk_split=(splits := tuple(draw(st.sampled_from((1, 1, 2, 3))) for _ in range(count))),
        part_counts=tuple(tuple(draw(st.integers(0, split)) for _ in range(m)) for split in splits)
        if draw(st.booleans())
        else (),
    )


def number_of_parts(shape: PipelineShape, chunk: int, microbatch: int) -> int:
    """Into how many sub-microbatches a chunk's module cuts a microbatch."""
    return (shape.part_counts or [(split,) * shape.num_microbatches for split in shape.chunk_split])[chunk][microbatch]


def shares(shape: PipelineShape, one: StageKey, other: StageKey) -> bool:
    """Whether two stages work on an overlapping part of the same microbatch."""
    whole, mine = divmod(one.microbatch, shape.chunk_split[one.chunk])
    same, theirs = divmod(other.microbatch, shape.chunk_split[other.chunk])
    if whole != same:
        return False
    a, b = number_of_parts(shape, one.chunk, whole), number_of_parts(shape, other.chunk, whole)
    return max(Fraction(mine, a), Fraction(theirs, b)) < min(Fraction(mine + 1, a), Fraction(theirs + 1, b))


def stages_to_run(shape: PipelineShape, is_split: Mapping[tuple[int, int], bool]) -> list[StageKey]:
    found = []
    for chunk in range(shape.num_chunks):
        for part in range(shape.num_microbatches * shape.chunk_split[chunk]):
            if shape.chunk_flow[chunk] != shape.microbatch_flow[part // shape.chunk_split[chunk]]:
                continue
            if part % shape.chunk_split[chunk] >= number_of_parts(shape, chunk, part // shape.chunk_split[chunk]):
                continue
            phases = [F]
            if shape.has_backward[chunk]:
                phases += [I, W] if is_split[chunk, part] else [B]
            found += [StageKey(chunk, phase, part) for phase in phases]
    return found


def needs(shape: PipelineShape, stages: list[StageKey], stage: StageKey) -> set[StageKey]:
    """What must end before a stage, among the stages that run: from the definition."""
    result = set()
    for other in stages:
        upstream = other.chunk in shape.sources[stage.chunk] and other.phase is F and stage.phase is F
        downstream = stage.chunk in shape.sources[other.chunk] and other.phase in (B, I) and stage.phase in (B, I)
        own = other.chunk == stage.chunk and other.microbatch == stage.microbatch
        saved = own and other.phase is F and stage.phase in (B, I)
        rest = own and other.phase is I and stage.phase is W
        if saved or rest or ((upstream or downstream) and shares(shape, stage, other)):
            result.add(other)
    return result


@dataclass
class Slow:
    """What a clock would see: None where the order deadlocks."""

    spans: dict[StageKey, tuple[float, float]] | None
    peaks: list[int]


def slow_evaluation(study: PipelineStudy, schedule: Schedule) -> Slow:
    """Stage by stage: again and again, run the head of any rank whose needs have ended."""
    shape, arrays, costs = study.shape, study.arrays, study.costs
    stages = [stage for order in schedule.orders for stage in order]
    number = {s: int(4 * (arrays.first[s.chunk] + s.microbatch) + PHASES.index(s.phase)) for s in stages}
    spans: dict[StageKey, tuple[float, float]] = {}
    free = [0.0] * shape.num_ranks
    heads = [list(order) for order in schedule.orders]
    moved = True
    while moved:
        moved = False
        for rank, rest in enumerate(heads):
            if not rest:
                continue
            before = needs(shape, stages, rest[0])
            if not before <= spans.keys():
                continue
            stage = rest.pop(0)
            arrivals = [
                spans[b][1] + (float(costs.transfer_s[number[b]]) if shape.chunk_rank[b.chunk] != rank else 0.0)
                for b in before
            ]
            start = max([free[rank], *arrivals])
            free[rank] = start + float(costs.latency_s[number[stage]])
            spans[stage] = (start, free[rank])
            moved = True
    peaks = []
    for order in schedule.orders:
        level, top = 0, 0
        for stage in order:
            top = max(top, level + int(costs.internal_bytes[number[stage]]))
            level += int(costs.delta_bytes[number[stage]])
            top = max(top, level)
        peaks.append(top)
    return Slow(None if any(heads) else spans, peaks)


def random_study(shape: PipelineShape, seed: int) -> PipelineStudy:
    """Times in quarters of a second, some of them nothing."""
    rng = np.random.default_rng(seed)
    size = PipelineStudy.of(shape).arrays.num_pairs
    held = rng.integers(0, 50, size)
    return PipelineStudy.of(
        shape,
        forward_s=rng.integers(0, 9, size) / 4,
        input_s=rng.integers(0, 9, size) / 4,
        weight_s=rng.integers(0, 9, size) / 4,
        backward_s=rng.integers(0, 17, size) / 4,
        held_bytes=held,
        kept_bytes=rng.integers(0, 50, size),
        internal_bytes=tuple(rng.integers(0, 60, size) for _ in range(4)),  # type: ignore[arg-type]
        transfer_s=rng.integers(0, 3, size) / 4,
        transfer_back_s=rng.integers(0, 3, size) / 4,
    )


@st.composite
def orders(draw: st.DrawFn, shape: PipelineShape, *, legal: bool) -> Schedule:
    """Ready stages in random order, or any order at all; backwards whole or split at random."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    total = max(shape.chunk_split) * shape.num_microbatches
    is_split = {(c, i): bool(rng.integers(0, 2)) for c in range(shape.num_chunks) for i in range(total)}
    stages = stages_to_run(shape, is_split)
    made: list[list[StageKey]] = [[] for _ in range(shape.num_ranks)]
    before = {stage: needs(shape, stages, stage) for stage in stages}
    done: set[StageKey] = set()
    todo = list(stages)
    while todo:
        ready = [stage for stage in todo if before[stage] <= done] if legal else todo
        stage = ready[int(rng.integers(0, len(ready)))]
        todo.remove(stage)
        done.add(stage)
        made[shape.chunk_rank[stage.chunk]].append(stage)
    return Schedule.build("random", made)
