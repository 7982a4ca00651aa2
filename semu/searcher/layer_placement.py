"""``place_layers``: how many layers each chunk of every modality module gets (DIP §4), remainders placed best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.records import dataclass

MOST_STATES = 200_000
"""Steps of the exact search over all modules together; beyond, they are placed one after another."""


@dataclass(frozen=True)
class ModuleLayers:
    """A module to place; its layers are taken as alike.

    Attributes:
        name: of the module. layers: L_i. segments: K_i, chunks on every rank.
        layer_s, first_s, last_s: forward plus backward of a layer, of what stands before the first one (an embedding)
            and of what stands behind the last one (a head) [s].
        has_first, has_last: whether anything stands there: such a chunk may have no layer.
        runs: how often a batch runs it (sub-microbatches).
    """

    name: str
    layers: int
    segments: int
    layer_s: float
    first_s: float = 0.0
    last_s: float = 0.0
    has_first: bool = False
    has_last: bool = False
    runs: float = 1.0

    def least(self, chunk: int, num_chunks: int) -> int:
        """Layers that a chunk needs."""
        return 0 if (chunk == 0 and self.has_first) or (chunk == num_chunks - 1 and self.has_last) else 1

    def cost(self, chunk: int, num_chunks: int, layers: int) -> float:
        """Of a chunk [s]."""
        extra = (self.first_s if chunk == 0 else 0.0) + (self.last_s if chunk == num_chunks - 1 else 0.0)
        return extra + layers * self.layer_s


def place_layers(modules: Sequence[ModuleLayers], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Layers of every module's P x K_i chunks, which are dealt to the ranks in turn.

    First every module's slowest chunk is as fast as can be; of those placements, the rank with the most work in a
    batch has as little as can be, over all modules together (exactly, but for models so large that the modules are
    placed one after another, that with the most work per layer first); then chunks of a rank are as equal as can be.

    Raises:
        ConfigError: fewer layers than chunks.
    """
    caps = [_caps(module, num_ranks * module.segments) for module in modules]
    slack = [sum(cap) - module.layers for module, cap in zip(modules, caps, strict=True)]
    steps = num_ranks
    for extra in slack:
        steps *= (extra + 1) ** 2
    loads = [0.0] * num_ranks
    taken: list[tuple[int, ...]] = [()] * len(modules)
    if steps <= MOST_STATES:
        groups = [list(range(len(modules)))]
    else:
        groups = [[i] for i in sorted(range(len(modules)), key=lambda i: -modules[i].runs * modules[i].layer_s)]
    for group in groups:
        chosen = _by_rank([modules[i] for i in group], [caps[i] for i in group], loads)
        for i, counts in zip(group, chosen, strict=True):
            taken[i] = counts
            for rank in range(num_ranks):
                loads[rank] += _load(modules[i], caps[i], rank, num_ranks, counts[rank])
    return tuple(_within(m, cap, counts, num_ranks) for m, cap, counts in zip(modules, caps, taken, strict=True))


def _caps(module: ModuleLayers, num_chunks: int) -> list[int]:
    """Most layers of every chunk with which the slowest chunk is as fast as can be."""
    least = [module.least(chunk, num_chunks) for chunk in range(num_chunks)]
    if sum(least) > module.layers:
        num_ranks = num_chunks // module.segments
        most = module.layers // num_ranks
        if most < 1:
            raise ConfigError(
                f"{module.name} has fewer layers than there are pipeline ranks, and gets chunks on all",
                where="parallel.pp",
                expected=f"at most {module.layers} ranks",
                got=num_ranks,
                nearest=module.layers,
            )
        raise ConfigError(
            f"{module.name} has fewer layers than chunks",
            where=f"segments.{module.name}",
            expected=f"at most {most} chunks on every rank for {module.layers} layers",
            got=module.segments,
            nearest=most,
        )

    def _cap(limit: float) -> list[int] | None:
        found = []
        for chunk, few in enumerate(least):
            if module.cost(chunk, num_chunks, few) > limit:
                return None
            count = few
            while count < module.layers and module.cost(chunk, num_chunks, count + 1) <= limit:
                count += 1
            found.append(count)
        return found if sum(found) >= module.layers else None

    ends = {0, num_chunks - 1, min(1, num_chunks - 1)}
    limits = sorted({module.cost(c, num_chunks, n) for c in ends for n in range(module.layers + 1)})
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if _cap(limits[middle]) is None:
            low = middle + 1
        else:
            high = middle
    best = _cap(limits[low])
    assert best is not None
    return best


def _load(module: ModuleLayers, cap: Sequence[int], rank: int, num_ranks: int, layers: int) -> float:
    """Work of a rank in a batch [s]."""
    n = len(cap)
    return module.runs * (
        sum(module.cost(chunk, n, 0) for chunk in range(rank, n, num_ranks)) + layers * module.layer_s
    )


def _by_rank(
    modules: Sequence[ModuleLayers], caps: Sequence[Sequence[int]], before: Sequence[float]
) -> list[tuple[int, ...]]:
    """Layers of each module on every rank, with the least load of the fullest one.

    Rank after rank: of every number of layers that the modules still have to give up, the least load so far and the
    number before this rank; of equal loads the one that was found first.
    """
    num_ranks = len(before)
    most = [[sum(cap[rank::num_ranks]) for rank in range(num_ranks)] for cap in caps]
    few = [
        [sum(m.least(c, len(cap)) for c in range(rank, len(cap), num_ranks)) for rank in range(num_ranks)]
        for m, cap in zip(modules, caps, strict=True)
    ]
    slack = tuple(sum(own) - module.layers for own, module in zip(most, modules, strict=True))
    shape = tuple(extra + 1 for extra in slack)
    loads = {slack: 0.0}
    came_from: list[NDArray[np.int64]] = []
    for rank in range(num_ranks):
        best, source = np.full(shape, np.inf), np.full(shape, -1, dtype=np.int64)
        turn = np.full(shape, np.iinfo(np.int64).max)
        room = [own[rank] - least[rank] for own, least in zip(most, few, strict=True)]
        added: NDArray[np.float64] = np.zeros(())  # work of this rank, by the layers that each module gives up
        for m, cap, own, spare in zip(modules, caps, most, room, strict=True):
            work = [_load(m, cap, rank, num_ranks, own[rank] - less) for less in range(spare + 1)]
            added = added[..., None] + np.array(work)
        added = before[rank] + added
        for number, (left, load) in enumerate(loads.items()):
            rest = tuple(slice(a, a - b - 1 if a > b else None, -1) for a, b in zip(left, room, strict=True))
            value = np.maximum(load, added[tuple(slice(min(a, b) + 1) for a, b in zip(left, room, strict=True))])
            is_new, is_better = np.isinf(best[rest]), value < best[rest]
            order = number * added.size + np.arange(value.size).reshape(value.shape)
            turn[rest] = np.where(is_new, order, turn[rest])
            best[rest] = np.where(is_better, value, best[rest])
            source[rest] = np.where(is_better, np.ravel_multi_index(left, shape), source[rest])
        reached = np.argsort(turn, axis=None, kind="stable")[: np.isfinite(best).sum()]
        places = zip(*(axis.tolist() for axis in np.unravel_index(reached, shape)), strict=True)
        loads = dict(zip(places, best.flat[reached].tolist(), strict=True))
        came_from.append(source)
    left = (0,) * len(modules)
    counts = []
    for rank in reversed(range(num_ranks)):
        earlier = tuple(int(k) for k in np.unravel_index(came_from[rank][left], shape))
        counts.append([own[rank] - (a - b) for own, a, b in zip(most, earlier, left, strict=True)])
        left = earlier
    return list(zip(*reversed(counts), strict=True))


def _within(module: ModuleLayers, cap: Sequence[int], by_rank: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Layers of every chunk: those of a rank go, one by one, to its chunk that costs least."""
    n = len(cap)
    counts = [module.least(chunk, n) for chunk in range(n)]
    for rank, wanted in enumerate(by_rank):
        own = range(rank, n, num_ranks)
        for _ in range(wanted - sum(counts[chunk] for chunk in own)):
            free = [chunk for chunk in own if counts[chunk] < cap[chunk]]
            counts[min(free, key=lambda chunk: (module.cost(chunk, n, counts[chunk]), chunk))] += 1
    return tuple(counts)
