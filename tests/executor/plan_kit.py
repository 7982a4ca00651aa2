"""Plans by hand: a schedule's orders with the plainest sends and receives that run it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
from schedule.shapes import predecessors

from semu.executor.edges import linked_stages
from semu.graph.operator import Phase
from semu.plan.action import ActionKind
from semu.plan.plan import ExecutionPlan, PlanChunk, PlanMessages, PlanPairs, RankActions, model_hash_of
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey

KIND = {
    Phase.FORWARD: ActionKind.FORWARD_STAGE,
    Phase.BACKWARD: ActionKind.BACKWARD_STAGE,
    Phase.INPUT_GRADIENT: ActionKind.INPUT_BACKWARD_STAGE,
    Phase.WEIGHT_GRADIENT: ActionKind.WEIGHT_BACKWARD_STAGE,
}
Counts = Mapping[str, Sequence[Sequence[int]]]
"""Module -> per replica, items of every microbatch."""


def empty_messages(replicas: int) -> PlanMessages:
    none = np.zeros(0, dtype=np.int32)
    ranks = none.astype(np.int16)
    return PlanMessages(
        none, none, ranks, ranks, none, np.zeros((replicas, 0), np.int64), np.zeros((replicas, 0, 2), np.int32)
    )


def make_plan(
    shape: PipelineShape,
    schedule: Schedule,
    layers: Sequence[int],
    items: Counts,
    sources: Mapping[str, Sequence[str]],
    variants: Sequence[Sequence[Sequence[str]]] = (),
    name: str = "by hand",
) -> ExecutionPlan:
    """``layers``: of every chunk. ``items``: what modules cut. ``variants``: per chunk; parts run them in turn."""
    replicas = len(next(iter(items.values())))
    begun: dict[tuple[str, int], int] = {}
    chunks = []
    for number, count in enumerate(layers):
        key = (shape.chunk_module[number], shape.chunk_flow[number])
        own = tuple(tuple(words) for words in variants[number]) if variants else (("none",) * count,)
        chunks.append(
            PlanChunk(
                key[0], shape.chunk_rank[number], begun.get(key, 0), count, shape.has_backward[number], own, key[1]
            )
        )
        begun[key] = begun.get(key, 0) + count
    numbers, rows = {}, []
    for chunk in range(shape.num_chunks):
        counts = items[shape.chunk_module[chunk]]
        for microbatch in range(shape.num_microbatches):
            for part, number in enumerate(shape.parts(chunk, microbatch)):
                numbers[chunk, number] = len(rows)
                own_items = []
                for replica in range(replicas):
                    have = counts[replica][microbatch]
                    parts = min(shape.count(chunk, microbatch), have)
                    own_items.append(
                        (part * have // parts, (part + 1) * have // parts) if part < parts else (have, have)
                    )
                variant = len(rows) % len(chunks[chunk].variants) if chunks[chunk].variants else 0
                rows.append((chunk, microbatch, part, variant, own_items))
    columns = [np.array([row[i] for row in rows], dtype=np.int32) for i in range(4)]
    pair_items = np.array([row[4] for row in rows], dtype=np.int32).transpose(1, 0, 2)
    pairs = PlanPairs(*columns, pair_items)
    digest = model_hash_of(chunks, shape.num_ranks)
    blank = RankActions(*(np.zeros(0, dtype=t) for t in (np.int8, np.int32, np.int32)))
    base = (name, digest, shape.num_ranks, replicas, shape.num_microbatches, tuple(chunks), pairs)
    bare = ExecutionPlan(
        *base, empty_messages(replicas), (blank,) * shape.num_ranks, np.zeros(shape.num_ranks, np.int64)
    )
    messages, actions = communication(bare, schedule, numbers, sources)
    return ExecutionPlan(*base, messages, actions, np.zeros(shape.num_ranks, np.int64))


def communication(
    bare: ExecutionPlan,
    schedule: Schedule,
    numbers: Mapping[tuple[int, int], int],
    sources: Mapping[str, Sequence[str]],
) -> tuple[PlanMessages, tuple[RankActions, ...]]:
    """Sends right behind the stages that make them; receives right before the stages that read them, but between two
    ranks in the order of the sends; waits for sends at the end."""
    every = [linked_stages(bare, sources, replica) for replica in range(bare.num_replicas)]
    stages = every[0]
    rank = [stage.rank for stage in stages]
    is_empty = {
        (edge.source, edge.target): all(e.is_empty for e in column)
        for column in zip(*([edge for stage in own for edge in stage.readers] for own in every), strict=True)
        for edge in column[:1]
    }
    orders = [[(KIND[key.phase], numbers[key.chunk, key.microbatch]) for key in order] for order in schedule.orders]
    found: list[tuple[int, int, int, int, int]] = []
    sent_by: dict[tuple[ActionKind, int], list[int]] = {}
    needed_by: dict[tuple[ActionKind, int], list[int]] = {}
    queues: dict[tuple[int, int], list[int]] = {}
    gradient_kinds = (ActionKind.BACKWARD_STAGE, ActionKind.INPUT_BACKWARD_STAGE)
    halves = {pair: kind for order in orders for kind, pair in order if kind in gradient_kinds}
    for order in orders:
        for kind, pair in order:
            outgoing = []
            if kind is ActionKind.FORWARD_STAGE:
                outgoing = [
                    (2 * pair, 2 * e.target, (ActionKind.FORWARD_STAGE, e.target)) for e in stages[pair].readers
                ]
            elif kind in gradient_kinds:
                edges = [edge for group in stages[pair].reads for edge in group if edge.has_gradient]
                outgoing = [(2 * pair + 1, 2 * e.source + 1, (halves[e.source], e.source)) for e in edges]
            for source, target, reader in outgoing:
                key = (source // 2, target // 2) if source % 2 == 0 else (target // 2, source // 2)
                ends = (rank[source // 2], rank[target // 2])
                if ends[0] == ends[1] or is_empty[key]:
                    continue
                number = len(found)
                queue = queues.setdefault(ends, [])
                found.append((source, target, *ends, len(queue)))
                queue.append(number)
                sent_by.setdefault((kind, pair), []).append(number)
                needed_by.setdefault(reader, []).append(number)
    actions = []
    for mine, order in enumerate(orders):
        rows: list[tuple[ActionKind, int, int]] = []
        launched = {ends: 0 for ends in queues if ends[1] == mine}
        sends: list[int] = []
        batch = 0
        for kind, pair in order:
            needs = needed_by.get((kind, pair), [])
            for number in needs:
                ends = (found[number][2], found[number][3])
                upto = found[number][4] + 1
                for early in queues[ends][launched[ends] : upto]:
                    rows.append((ActionKind.IRECV, early, batch))
                launched[ends] = max(launched[ends], upto)
            batch += 1
            rows += [(ActionKind.WAIT_IRECV, number, -1) for number in needs]
            rows.append((kind, pair, -1))
            for number in sent_by.get((kind, pair), ()):
                rows.append((ActionKind.ISEND, number, batch))
                sends.append(number)
            batch += 1
        rows += [(ActionKind.WAIT_ISEND, number, -1) for number in sends]
        actions.append(
            RankActions(
                np.array([kind.code for kind, _, _ in rows], dtype=np.int8),
                np.array([target for _, target, _ in rows], dtype=np.int32),
                np.array([batch for _, _, batch in rows], dtype=np.int32),
            )
        )
    table = np.array(found, dtype=np.int64).reshape(-1, 5).T
    replicas = bare.num_replicas
    messages = PlanMessages(
        table[0].astype(np.int32),
        table[1].astype(np.int32),
        table[2].astype(np.int16),
        table[3].astype(np.int16),
        table[4].astype(np.int32),
        np.ones((replicas, len(found)), dtype=np.int64),
        np.zeros((replicas, len(found), 2), dtype=np.int32),
    )
    return messages, tuple(actions)


def modular_shape(
    num_ranks: int,
    modules: Mapping[str, tuple[int, Sequence[int]]],
    sources: Mapping[str, Sequence[str]],
    frozen: Sequence[str] = (),
    *,
    is_v: bool = False,
) -> PipelineShape:
    """``modules``: name -> segments, parts of every microbatch. Chunks are dealt to the ranks in turn, or in a V."""
    ranks, chunk_sources, backward, slots, names, splits, counts = [], [], [], [], [], [], []
    last: dict[str, int] = {}
    slot = 0
    for name, (segments, parts) in modules.items():
        for at in range(segments * num_ranks):
            number = len(ranks)
            turn, place = divmod(at, num_ranks)
            ranks.append(num_ranks - 1 - place if is_v and turn % 2 else place)
            chunk_sources.append((number - 1,) if at else tuple(last[source] for source in sources[name]))
            backward.append(name not in frozen)
            slots.append(slot + turn)
            names.append(name)
            splits.append(max(1, *parts))
            counts.append(tuple(parts))
        last[name] = len(ranks) - 1
        slot += segments
    return PipelineShape(
        num_ranks,
        len(next(iter(modules.values()))[1]),
        tuple(ranks),
        tuple(chunk_sources),
        tuple(backward),
        tuple(slots),
        tuple(names),
        tuple(splits),
        part_counts=tuple(counts),
        joins=True,
    )


def random_schedule(shape: PipelineShape, seed: int, *, split: bool) -> Schedule:
    """A legal order of all stages, drawn at random: one list of all stages, each behind what it needs."""
    draw = random.Random(seed)
    stages: list[StageKey] = []
    for chunk in range(shape.num_chunks):
        for part in shape.every_part(chunk):
            stages.append(StageKey(chunk, Phase.FORWARD, part))
            if shape.has_backward[chunk]:
                halves = split and draw.random() < 0.7
                phases = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT) if halves else (Phase.BACKWARD,)
                stages += [StageKey(chunk, phase, part) for phase in phases]
    done: set[StageKey] = set()
    orders: list[list[StageKey]] = [[] for _ in range(shape.num_ranks)]
    waiting = stages
    while waiting:
        ready = [stage for stage in waiting if all(need in done for need in predecessors(shape, stage))]
        stage = draw.choice(ready)
        waiting.remove(stage)
        orders[shape.chunk_rank[stage.chunk]].append(stage)
        done.add(stage)
        if stage.phase is Phase.INPUT_GRADIENT:
            done.add(StageKey(stage.chunk, Phase.BACKWARD, stage.microbatch))
    return Schedule.build("random", orders)
