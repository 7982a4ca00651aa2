"""``candidate_variants``: per chunk up to S ways to run it, a memory strategy for each of its layers (DIP §5.3).

Layers of a chunk that are alike count as alike: what a strategy saves and costs is measured on all of them at once,
and a variant is how many of them run under which strategy. From all variants: the fastest, the leanest, and the fastest
in each of S - 2 even ranges of memory between. The measure is linear in the layers; what the variants chosen by it
really take is found by simulating the whole chunk (``build``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.errors import ConfigError
from semu.job import Recompute, TrainingJob
from semu.records import dataclass
from semu.schedule.stage_plan import STRATEGIES, StagePlan
from semu.searcher.problem.problem_arrays import F64, I64
from semu.simulation import JobCheckpoint, prepare
from semu.simulation.schedules.costs_of_pairs import PairCosts

MOST_CANDIDATES = 10
"""S (DIP §5.3)."""
MOST_COUNTS = 20_000
"""Ways to spread strategies over alike layers that are looked at; where there are more, layers go in larger steps."""
EARLY = ("full", "selective", "offload", "none")
"""Strategies by place in a chunk: backwards run from its end, so what the first layers compute again is needed when the
others have let go of theirs."""

Words = tuple[str, ...]


@dataclass(frozen=True)
class LayerGroup:
    """Alike layers of a chunk.

    Attributes:
        positions: among the chunk's layers.
        time_s, held_bytes: float64[num strategies], what all of them together under a strategy take more than under the
            first one: forward plus backward [s], and bytes between.
    """

    positions: tuple[int, ...]
    time_s: F64
    held_bytes: F64


def best_counts(groups: Sequence[LayerGroup], most: int = MOST_CANDIDATES) -> list[tuple[tuple[int, ...], ...]]:
    """Multiple-choice knapsack over the layers of a chunk: how many of every group run under which strategy.

    Args:
        groups: at least one. most: S.
    Returns:
        By rising memory, up to S of them: per group a count for each strategy. No two with equal memory.
    """
    time, held, rows = np.zeros(1), np.zeros(1), np.zeros((1, 0), dtype=np.int64)
    for group in groups:
        counts = _spread(len(group.positions), len(group.time_s))
        share = counts / max(len(group.positions), 1)
        a, b = (time[:, None] + share @ group.time_s).ravel(), (held[:, None] + share @ group.held_bytes).ravel()
        kept = _front(a, b)
        time, held = a[kept], b[kept]
        rows = np.concatenate((rows[kept // len(counts)], counts[kept % len(counts)]), axis=1)
    chosen = _buckets(time, held, most)
    width = len(groups[0].time_s)
    return [tuple(tuple(rows[at, width * g : width * (g + 1)].tolist()) for g in range(len(groups))) for at in chosen]


def _spread(layers: int, strategies: int) -> I64:
    """All counts that add up to ``layers``: int64[k, strategies]; in larger steps where those are too many."""
    step = 1
    while math.comb(layers // step + strategies, strategies - 1) > MOST_COUNTS:
        step += 1
    whole, rest = divmod(layers, step)
    table = np.zeros((1, 0), dtype=np.int64)
    for _ in range(strategies - 1):
        used = table.sum(axis=1)
        again = np.repeat(np.arange(len(table)), whole + 1 - used)
        starts = np.cumsum(whole + 1 - used) - (whole + 1 - used)
        more = np.arange(len(again)) - starts[again]
        table = np.concatenate((table[again], more[:, None]), axis=1)
    table = step * np.concatenate((table, whole - table.sum(axis=1, keepdims=True)), axis=1)
    if not rest:
        return table
    return np.concatenate([table + rest * np.eye(strategies, dtype=np.int64)[s] for s in range(strategies)])


def _front(time: F64, held: F64) -> I64:
    """The ways that no other one beats in both, by rising memory."""
    order = np.lexsort((time, held))
    best = np.minimum.accumulate(np.concatenate(([np.inf], time[order][:-1])))
    kept: I64 = order[time[order] < best]
    return kept


def _buckets(time: F64, held: F64, most: int) -> list[int]:
    """The leanest, the fastest in each of ``most`` - 2 even ranges of memory, the fastest; of a front by memory."""
    last = len(held) - 1
    if last < most:
        return list(range(last + 1))
    if most < 3:
        return [0, last][:most]
    edges = np.linspace(held[0], held[last], most - 1)[1:]
    inside = np.arange(1, last)
    found = [0]
    for low, high in zip([held[0], *edges[:-1]], edges, strict=True):
        own = inside[(held[inside] > low) & (held[inside] <= high)]
        if len(own):
            found.append(int(own[np.argmin(time[own])]))
    return [*found, last]


def candidate_variants(
    job: TrainingJob,
    plan: StagePlan,
    *,
    strategies: Sequence[str] = STRATEGIES,
    most: int = MOST_CANDIDATES,
) -> StagePlan:
    """A plan with variants of every chunk.

    Args:
        job: what to train. plan: its chunks and parts. strategies: of layers; those that the job cannot run are left
            out. most: S.
    Raises:
        ConfigError: none of the strategies can run.
    """
    base = prepare(job, plan=plan)
    own = _own_strategy(job)
    layouts = [_groups(chunk) for chunk in base.layout.chunks]
    fixed = [_lends(base, chunk) for chunk in base.layout.chunks]
    legal, first = list(dict.fromkeys(strategies)), None
    while legal:
        try:
            first = prepare(job, plan=replace(plan, variants=tuple(_trials(base, layouts, fixed, legal, own))))
            break
        except ConfigError as error:
            legal = _runnable(job, plan, base, legal, error)
    if first is None:
        raise ConfigError("no memory strategy can run", where="strategies", expected=", ".join(STRATEGIES), got="none")
    costs = first.pair_costs()
    variants: list[tuple[Words, ...]] = []
    for number, chunk in enumerate(base.layout.chunks):
        count = costs.layers[number]
        mine = costs.chunk == number
        if not count or chunk.backward is None or not mine.any():
            variants.append(((own,) * count,) if count else ())
            continue
        groups = _measured(costs, mine, layouts[number], fixed[number], len(legal))
        chosen = best_counts(groups, most) if groups else [()]
        variants.append(tuple(dict.fromkeys(_words(groups, counts, legal, count, own) for counts in chosen)))
    return replace(plan, variants=tuple(variants))


def _own_strategy(job: TrainingJob) -> str:
    """What the job does with its layers."""
    if "activations" in (job.training.offload or ()):
        return "offload"
    return {Recompute.NONE: "none", Recompute.SELECTIVE: "selective", Recompute.FULL: "full"}[job.training.recompute]


def _groups(chunk: ChunkStages) -> list[list[int]]:
    """Positions of a chunk's layers, those that are alike together."""
    groups: dict[int, list[int]] = {}
    for position, block in enumerate(block for block in chunk.blocks if block.is_layer):
        groups.setdefault(block.template, []).append(position)
    return list(groups.values())


def _lends(base: JobCheckpoint, chunk: ChunkStages) -> bool:
    """Whether a chunk of the same rank reads its result as it is: then its last layer runs as the job says."""
    number, rank = chunk.chunk.index, chunk.chunk.rank
    return any(
        number in other.arrivals
        and other.chunk.rank == rank
        and not base.layout.parts_differ(number, other.chunk.index)
        for other in base.layout.chunks
    )


def _free(groups: Sequence[Sequence[int]], is_fixed: bool) -> list[list[int]]:
    """Layers whose strategy is to be chosen."""
    last = max((position for group in groups for position in group), default=-1)
    kept = [[position for position in group if not (is_fixed and position == last)] for group in groups]
    return [group for group in kept if group]


def _trials(
    base: JobCheckpoint,
    layouts: Sequence[Sequence[Sequence[int]]],
    fixed: Sequence[bool],
    legal: Sequence[str],
    own: str,
) -> list[tuple[Words, ...]]:
    """Per chunk: all layers under the first strategy, then each group under each other one."""
    found = []
    for chunk, groups, is_fixed in zip(base.layout.chunks, layouts, fixed, strict=True):
        count = sum(map(len, groups))
        plain = [own if is_fixed else legal[0]] * count
        free = _free(groups, is_fixed)
        for group in free:
            for position in group:
                plain[position] = legal[0]
        trials = [tuple(plain)]
        for group in free if chunk.backward is not None else ():
            for word in legal[1:]:
                trials.append(tuple(word if position in group else plain[position] for position in range(count)))
        found.append(tuple(trials) if count else ())
    return found


def _runnable(
    job: TrainingJob, plan: StagePlan, base: JobCheckpoint, legal: list[str], error: ConfigError
) -> list[str]:
    """The strategies that run by themselves; if all do, the error stands."""
    found = []
    for word in legal:
        words = tuple(
            ((word,) * n,) if (n := sum(block.is_layer for block in chunk.blocks)) else ()
            for chunk in base.layout.chunks
        )
        try:
            prepare(job, plan=replace(plan, variants=words))
        except ConfigError:
            continue
        found.append(word)
    if len(found) == len(legal):
        raise error
    return found


def _measured(
    costs: PairCosts, mine: NDArray[np.bool_], groups: Sequence[Sequence[int]], is_fixed: bool, strategies: int
) -> list[LayerGroup]:
    """What every group's strategies cost in the mean of the chunk's pairs; ``mine``: bool[n], those."""
    time = (costs.forward_s + costs.backward_s)[mine].mean(axis=0)
    held = costs.held_bytes[mine].mean(axis=0)
    found, at = [], 1
    for group in _free(groups, is_fixed):
        columns = [0, *range(at, at + strategies - 1)]
        found.append(LayerGroup(tuple(group), time[columns] - time[0], held[columns] - held[0]))
        at += strategies - 1
    return found


def _words(
    groups: Sequence[LayerGroup], counts: Sequence[Sequence[int]], legal: Sequence[str], layers: int, own: str
) -> Words:
    """Strategies by layer; layers in no group run as the job says."""
    words = [own] * layers
    order = sorted(range(len(legal)), key=lambda s: EARLY.index(legal[s]))
    for group, numbers in zip(groups, counts, strict=True):
        left = [legal[s] for s in order for _ in range(numbers[s])]
        for position, word in zip(sorted(group.positions), left, strict=True):
            words[position] = word
    return tuple(words)
