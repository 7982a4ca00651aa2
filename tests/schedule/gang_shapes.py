"""Pipelines with gangs, and a slow reference of their times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semu.graph.operator import Phase
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey


def with_gangs(inner: PipelineShape) -> PipelineShape:
    """A chain of layers between an embedding and a head that all ranks hold: FlexPipe's MLLM placement."""
    p, n = inner.num_ranks, inner.num_chunks
    first, last = inner.chunk_rank[0], inner.chunk_rank[-1]
    sources: list[tuple[int, ...]] = [()] * p
    sources += [(first,)] + [tuple(s + p for s in own) for own in inner.sources[1:]]
    sources += [(p + n - 1,) if rank == last else () for rank in range(p)]
    return replace(
        inner,
        chunk_rank=(*range(p), *inner.chunk_rank, *range(p)),
        sources=tuple(sources),
        has_backward=(True,) * (n + 2 * p),
        chunk_slot=(0,) * p + inner.chunk_slot + (max(inner.chunk_slot),) * p,
        chunk_module=("lm",) * (n + 2 * p),
        chunk_split=(1,) * (n + 2 * p),
        chunk_flow=(0,) * (n + 2 * p),
        chunk_gang=(0,) * p + (-1,) * n + (1,) * p,
    )


def reference_times(
    schedule: Schedule,
    shape: PipelineShape,
    seconds: Callable[[StageKey], float],
    delay: Callable[[int, int, bool, int], float] = lambda source, reader, is_forward, microbatch: 0.0,
    *,
    meets: bool = True,
) -> dict[StageKey, tuple[float, float]]:
    """Start and end of every stage, stage by stage as ranks come to them; of a gang's when all its ranks have come.

    ``delay``: of a result on its way from a chunk to another one, forwards or back; results that go from one rank to
    another go one after the other, as they are made. ``meets``: gangs begin together; else each member begins when all
    that it reads has come, and gives gradients to chunks of its own rank alone.
    """
    readers: dict[int, list[int]] = {chunk: [] for chunk in range(shape.num_chunks)}  # that give gradients
    takers: dict[int, list[int]] = {chunk: [] for chunk in range(shape.num_chunks)}
    for chunk, sources in enumerate(shape.sources):
        for source in sources:
            takers[source].append(chunk)
            if meets or shape.chunk_gang[chunk] < 0 or shape.chunk_rank[chunk] == shape.chunk_rank[source]:
                readers[source].append(chunk)
    found: dict[StageKey, tuple[float, float]] = {}
    ends: dict[tuple[int, bool, int], float] = {}
    arrived: dict[tuple[int, bool, int, int], float] = {}
    free: dict[tuple[int, int], float] = {}
    clock, at = [0.0] * shape.num_ranks, [0] * shape.num_ranks

    def ready(stage: StageKey) -> float | None:
        chunk, m = stage.chunk, stage.microbatch
        if stage.phase is Phase.FORWARD:
            needs = [(source, True, m) for source in shape.sources[chunk]]
        elif stage.phase is Phase.WEIGHT_GRADIENT:
            needs = [(chunk, False, m)]
        else:
            needs = [(chunk, True, m), *((reader, False, m) for reader in readers[chunk])]
        if not all(need in ends for need in needs):
            return None
        return max([0.0, *(arrived.get((*need, chunk), ends[need]) for need in needs)])

    def send(stage: StageKey, end: float) -> None:
        is_forward = stage.phase is Phase.FORWARD
        others = takers[stage.chunk] if is_forward else shape.sources[stage.chunk]
        if not is_forward and not meets and shape.chunk_gang[stage.chunk] >= 0:
            others = tuple(o for o in others if shape.chunk_rank[o] == shape.chunk_rank[stage.chunk])
        for other in others:
            link = shape.chunk_rank[stage.chunk], shape.chunk_rank[other]
            if link[0] != link[1]:
                begin = max(end, free.get(link, 0.0))
                free[link] = begin + delay(stage.chunk, other, is_forward, stage.microbatch)
                arrived[stage.chunk, is_forward, stage.microbatch, other] = free[link]

    def here(rank: int) -> StageKey | None:
        order = schedule.orders[rank]
        return order[at[rank]] if at[rank] < len(order) else None

    progress = True
    while progress:
        progress = False
        for rank in range(shape.num_ranks):
            stage = here(rank)
            if stage is None:
                continue
            gang = shape.chunk_gang[stage.chunk] if meets and stage.phase is not Phase.WEIGHT_GRADIENT else -1
            fellows = [c for c, own in enumerate(shape.chunk_gang) if own == gang] if gang >= 0 else [stage.chunk]
            stages = [StageKey(chunk, stage.phase, stage.microbatch) for chunk in fellows]
            ranks = [shape.chunk_rank[chunk] for chunk in fellows]
            times = [ready(own) for own in stages]
            if any(here(r) != own for r, own in zip(ranks, stages, strict=True)) or None in times:
                continue
            start = max(*(clock[r] for r in ranks), *(t for t in times if t is not None))
            for r, own in zip(ranks, stages, strict=True):
                clock[r] = start + seconds(own)
                found[own] = (start, clock[r])
                at[r] += 1
                if own.phase is not Phase.WEIGHT_GRADIENT:
                    ends[own.chunk, own.phase is Phase.FORWARD, own.microbatch] = clock[r]
                    send(own, clock[r])
            progress = True
    assert all(here(rank) is None for rank in range(shape.num_ranks)), "stuck"
    return found
