"""``Edge``: what one stage hands to another, found from a plan's chunks, pairs and the order of its modules.

A plan lists what crosses ranks. What stays on a rank follows from the same rules: a chunk reads the chunk before it in
its module, part by part; a module's first chunk reads the last chunks of the modules that are its sources. Where both
cut a microbatch, two parts meet where they share items; where only one does, its parts meet the whole. Of a module in
``ExecutionPlan.reads`` its reader takes the parts that are listed for the reader's microbatch, in their order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

import numpy as np

from semu.errors import ExecutorError
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass


@dataclass(slots=True, eq=False)
class Edge:
    """From the pair ``source`` to the pair ``target``; gradients go back along it.

    Attributes:
        items: which items of the finer module it carries on this replica; None: all that the source makes.
        is_empty: nothing is handed over on this replica. has_gradient: gradients come back.
        message, gradient: the messages that carry it, -1: it stays on the rank.
        is_exchanged: one end is a member of a gang that has it, or gives it, through another member, when the ranks of
            the gang meet.
    """

    source: int
    target: int
    items: tuple[int, int] | None
    is_empty: bool
    has_gradient: bool
    message: int = -1
    gradient: int = -1
    is_exchanged: bool = False


@dataclass(slots=True, eq=False)
class Stage:
    """A pair on one replica.

    Attributes:
        pair, chunk, microbatch, part: as in the plan. rank: of its chunk. items: first, one past the last.
        is_empty: this replica has nothing for it. is_first, is_last: of the chunks of its module.
        strategies: of its layers; None: as the modules are.
        reads: per source, what it reads; one unnamed source where it follows a chunk of its own module.
        readers: what it hands on.
    """

    pair: int
    chunk: int
    microbatch: int
    part: int
    rank: int
    items: tuple[int, int]
    is_empty: bool
    is_first: bool
    is_last: bool
    has_backward: bool
    strategies: tuple[str, ...] | None
    reads: list[list[Edge]] = field(default_factory=list)
    readers: list[Edge] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk stands: ``before`` in its module (-1: it is the first), last chunks of ``sources`` by module.

    Attributes:
        is_exchanged: a member of a gang that gets the result of ``before`` from another member.
        reader: of a gang that others read, the chunk that reads it, where another member hands on to it; else -1.
    """

    before: int
    is_last: bool
    sources: tuple[int, ...]
    is_exchanged: bool = False
    reader: int = -1


def chains_of(plan: ExecutionPlan, modules: Collection[str]) -> dict[tuple[str, int], list[int]]:
    """(module, flow) -> numbers of the chunks of a module in one copy of the model, in order, but repetitions.

    Raises:
        ExecutorError: a module of the plan that is not among ``modules``.
    """
    chains: dict[tuple[str, int], list[int]] = {}
    for number, chunk in enumerate(plan.chunks):
        if chunk.module not in modules:
            raise ExecutorError(
                "the model lacks a module of the plan",
                where=f"plan.chunks[{number}]",
                expected=", ".join(modules),
                got=chunk.module,
            )
        if not chunk.repeats:
            chains.setdefault((chunk.module, chunk.flow), []).append(number)
    return chains


def groups_of(plan: ExecutionPlan, chain: Sequence[int]) -> list[list[int]]:
    """The chunks of a chain, members of a gang together."""
    found: list[list[int]] = []
    for number in chain:
        gang = plan.chunks[number].gang
        if gang >= 0 and found and plan.chunks[found[-1][0]].gang == gang:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _same_rank(plan: ExecutionPlan, chunks: Sequence[int], number: int) -> int:
    """Of one chunk, or of the members of a gang, the one next to which a chunk stands; -1: none is on its rank."""
    if len(chunks) == 1 and plan.chunks[number].gang < 0:
        return chunks[0]
    return next((other for other in chunks if plan.chunks[other].rank == plan.chunks[number].rank), -1)


def places_of(plan: ExecutionPlan, sources: Mapping[str, Sequence[str]]) -> list[ChunkPlace]:
    """Every chunk's place in its copy of the model.

    Args:
        plan: the plan. sources: module -> modules that it reads.
    Raises:
        ExecutorError: a module of the plan that is not among ``sources``, one of its sources that the plan lacks, or
            others than the plan says.
    """
    chains = chains_of(plan, sources)
    found = []
    for number, chunk in enumerate(plan.chunks):
        groups = [[number]] if chunk.repeats else groups_of(plan, chains[chunk.module, chunk.flow])
        at = next(place for place, group in enumerate(groups) if number in group)
        reads = []
        for name in sources[chunk.module] if at == 0 else ():
            if (name, chunk.flow) not in chains:
                raise ExecutorError(
                    f"{chunk.module} reads a module that the plan does not have",
                    where="plan.chunks",
                    expected=", ".join(sorted({one.module for one in plan.chunks})),
                    got=name,
                )
            beside = [n for n, one in enumerate(plan.chunks) if one.module == name and one.rank == chunk.rank]
            reads.append(beside[0] if chunk.repeats else chains[name, chunk.flow][-1])
        before = _same_rank(plan, groups[at - 1], number) if at else -1
        is_exchanged, is_last = bool(at) and before < 0, at == len(groups) - 1
        reader = -1
        if chunk.gang >= 0 and not is_last:
            after = groups[at + 1][0]
            reader = after if _same_rank(plan, groups[at], after) != number else -1
        place = ChunkPlace(groups[at - 1][0] if is_exchanged else before, is_last, tuple(reads), is_exchanged, reader)
        if plan.meeting[number]:  # what its other members read comes when they meet
            reads = [source for source in reads if plan.chunks[source].rank == chunk.rank]
        told = set(reads) | ({place.before} - {-1} if not is_exchanged else set())
        if chunk.sources is not None and set(chunk.sources) != told:
            raise ExecutorError(
                "the model's modules read one another otherwise than the plan's",
                where=f"plan.chunks[{number}].sources",
                expected=f"chunks {sorted(told)}",
                got=list(chunk.sources),
            )
        found.append(place)
    return found


def linked_stages(plan: ExecutionPlan, sources: Mapping[str, Sequence[str]], replica: int) -> list[Stage]:
    """All pairs of a plan with their edges, on one replica, by the modules alone: no edge has a message.

    Args:
        plan: the plan. sources: module -> modules that it reads, in the order in which it gets them.
        replica: data-parallel replica.
    Raises:
        ExecutorError: modules that do not fit.
    """
    places = places_of(plan, sources)
    pairs = plan.pairs
    items = pairs.items[replica].tolist()
    with_items = {
        plan.chunks[chunk].module
        for chunk in np.unique(pairs.chunk[(pairs.items[:, :, 1] > pairs.items[:, :, 0]).any(axis=0)]).tolist()
    }
    stages: list[Stage] = []
    by_place: dict[tuple[int, int], list[int]] = {}
    columns = (pairs.chunk.tolist(), pairs.microbatch.tolist(), pairs.part.tolist(), pairs.variant.tolist())
    for pair, (chunk, microbatch, part, variant) in enumerate(zip(*columns, strict=True)):
        own, (first, last) = plan.chunks[chunk], items[pair]
        words = own.variants[variant] if own.variants else None
        is_empty = first >= last and own.module in with_items
        ends = places[chunk].before < 0, places[chunk].is_last
        place = (pair, chunk, microbatch, part, own.rank)
        stages.append(Stage(*place, (first, last), is_empty, *ends, own.has_backward, words or None))
        by_place.setdefault((chunk, microbatch), []).append(pair)
    for own_pairs in by_place.values():
        own_pairs.sort(key=columns[2].__getitem__)
    for stage in stages:
        before, is_exchanged = places[stage.chunk].before, places[stage.chunk].is_exchanged
        if is_exchanged:
            stage.reads.append([_exchanged(stages[by_place[before, stage.microbatch][0]], stage)])
        if (reader := places[stage.chunk].reader) >= 0:
            stage.readers.append(_exchanged(stage, stages[by_place[reader, stage.microbatch][0]]))
        if before >= 0 and not is_exchanged:
            same = [p for p in by_place.get((before, stage.microbatch), ()) if stages[p].part == stage.part]
            stage.reads.append([_edge(stages[p], stage, None) for p in same])
        for source in places[stage.chunk].sources:
            if plan.meeting[stage.chunk] and plan.chunks[source].rank != stage.rank:
                stage.reads.append([_exchanged(stages[by_place[source, stage.microbatch][0]], stage)])
                continue
            reads = plan.reads.get(plan.chunks[source].module)
            if reads is None:
                given = by_place.get((source, stage.microbatch), [])
            else:  # parts of a microbatch are in order
                given = [by_place[source, whose][part] for whose, part in reads[stage.microbatch]]
            taken = by_place[stage.chunk, stage.microbatch]
            stage.reads.append([_meeting(stages[p], len(given), stage, len(taken)) for p in given])
            if plan.chunks[stage.chunk].gang >= 0 and plan.chunks[source].rank != stage.rank:
                for edge in stage.reads[-1]:  # gangs give gradients to their own ranks
                    edge.has_gradient = False
        for group in stage.reads:
            for edge in group:
                if not edge.is_exchanged:
                    stages[edge.source].readers.append(edge)
    return stages


def _edge(source: Stage, target: Stage, items: tuple[int, int] | None) -> Edge:
    is_empty = source.is_empty or target.is_empty or (items is not None and items[0] >= items[1])
    return Edge(source.pair, target.pair, items, is_empty, source.has_backward and target.has_backward)


def _exchanged(source: Stage, target: Stage) -> Edge:
    """What a member of a gang has of another member. Gangs run whole microbatches."""
    edge = _edge(source, target, None)
    edge.is_exchanged = True
    return edge


def _meeting(source: Stage, given: int, target: Stage, taken: int) -> Edge:
    """What a part of a module gives to one of its reader's parts, of which there are ``given`` and ``taken``."""
    if taken == 1:
        return _edge(source, target, None)
    if given == 1:
        return _edge(source, target, target.items)
    first, last = max(source.items[0], target.items[0]), min(source.items[1], target.items[1])
    return _edge(source, target, (first, max(first, last)))


def match_messages(plan: ExecutionPlan, stages: Sequence[Stage]) -> None:
    """Give the edges of all stages their messages.

    Raises:
        ExecutorError: an edge across ranks without a message, a message without an edge.
    """
    edges = {(e.source, e.target): e for stage in stages for e in stage.readers if not e.is_exchanged}
    messages = plan.messages
    for number, (source, target) in enumerate(zip(messages.source.tolist(), messages.target.tolist(), strict=True)):
        is_gradient = source % 2
        key = (target // 2, source // 2) if is_gradient else (source // 2, target // 2)
        edge = edges.get(key)
        if edge is None or source % 2 != target % 2 or (is_gradient and not edge.has_gradient):
            raise ExecutorError(
                "a message between stages of which neither reads the other",
                where=f"plan.messages[{number}]",
                expected="what the model's modules hand on",
                got=f"stage {source} to stage {target}",
            )
        if is_gradient:
            edge.gradient = number
        else:
            edge.message = number
    for (source, target), edge in edges.items():
        crosses = stages[source].rank != stages[target].rank
        lacks = edge.message < 0 or (edge.has_gradient and edge.gradient < 0)
        if crosses and lacks and not edge.is_empty:
            raise ExecutorError(
                "no message for what crosses ranks",
                where="plan.messages",
                expected=f"one from stage {2 * source} to stage {2 * target}"
                + (" and its gradient's" if edge.has_gradient else ""),
                got="none",
            )
