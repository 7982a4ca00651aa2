"""``OrderStrategy``: what proposes sequences of segment groups and learns from their times; the simple ones.

A round is ``ask`` for every worker in turn, evaluation of all proposals side by side, and ``tell`` in the same turn:
so what a strategy does depends on the seed and on the number of workers, never on their speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b

import numpy as np

from semu.records import dataclass
from semu.searcher.orders.space import OrderSpace
from semu.searcher.problem.problem_arrays import F64, I32


class Objective(Enum):
    """What a search looks for: the shortest schedule, or the longest (DIP Fig. 9)."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, eq=False)
class Proposal:
    """Sequences to evaluate.

    Attributes:
        sequences: int32[k, num_items]; k = 0: the space is exhausted. note: what the strategy must remember of it.
    """

    sequences: I32
    note: object = None


class OrderStrategy:
    """Proposes sequences; see the module. ``space``: the legal ones."""

    def __init__(self, space: OrderSpace) -> None:
        self._space = space

    def ask(self, rng: np.random.Generator, count: int) -> Proposal:
        """At most ``count`` sequences to evaluate, at least one unless the space is exhausted."""
        raise NotImplementedError

    def tell(self, proposal: Proposal, scores: F64) -> None:
        """What came of a proposal: float64[k], the higher the better."""

    def begin_at(self, sequence: I32, score: float) -> None:
        """A good sequence from another search."""


class RandomStrategy(OrderStrategy):
    """Every legal sequence alike, again and again (the second rival of DIP Fig. 11)."""

    def ask(self, rng: np.random.Generator, count: int) -> Proposal:
        """See ``OrderStrategy``."""
        return Proposal(self._space.random(rng, count))


class DepthFirstStrategy(OrderStrategy):
    """All legal sequences, beginning with the default one, the last positions changing first (the first rival of DIP
    Fig. 11)."""

    def __init__(self, space: OrderSpace) -> None:
        super().__init__(space)
        self._leaves = self._walk()

    def ask(self, rng: np.random.Generator, count: int) -> Proposal:
        """See ``OrderStrategy``."""
        found = [leaf for _, leaf in zip(range(count), self._leaves, strict=False)]
        return Proposal(np.array(found, dtype=np.int32).reshape(-1, self._space.num_items))

    def _walk(self) -> Iterator[list[int]]:
        """Every legal sequence, by a stack of the choices that are left at each position."""
        space = self._space
        prefix: list[int] = []
        stack = [space.choices(np.array(prefix, dtype=np.int32))[::-1]]
        while stack:
            if len(prefix) == space.num_items:
                yield list(prefix)
            if len(prefix) == space.num_items or not stack[-1]:
                stack.pop()
                if prefix:
                    prefix.pop()
                continue
            prefix.append(stack[-1].pop())
            stack.append(space.choices(np.array(prefix, dtype=np.int32))[::-1])


_DRAWS = 4
"""Draws of neighbours until enough of them are new."""
_REMEMBERED = 1 << 18
"""Proposed sequences that are remembered, at most."""
_PATIENCE, _KICK = 160, 3
"""Sequences without a better one after which a search begins again; insertions between the best one and that."""


class LocalStrategy(OrderStrategy):
    """Insertions around a sequence in hand: an item, or several that follow one another, goes to another place.

    Every worker proposes neighbours of it; the best of them takes its place if it is better, or as good. After
    ``_PATIENCE`` sequences without a better one than all before it begins again some random insertions away from the
    best (iterated local search: Lourenço, Martin and Stützle, 2003).
    """

    def __init__(self, space: OrderSpace) -> None:
        super().__init__(space)
        self._best = self._here = space.default
        self._best_score = self._here_score = -np.inf
        self._stale = 0
        self._seen: set[bytes] = set()

    def begin_at(self, sequence: I32, score: float) -> None:
        """Take over a better sequence from elsewhere."""
        if score > self._best_score:
            self._best = self._here = sequence
            self._best_score = self._here_score = score
            self._stale = 0

    def ask(self, rng: np.random.Generator, count: int) -> Proposal:
        """See ``OrderStrategy``."""
        if self._stale > _PATIENCE:
            base = self._best
            for _ in range(_KICK):
                base = self._moved(base[None], rng)[0]
            self._here, self._here_score, self._stale = base, -np.inf, 0
        self._seen.add(_key(self._here))
        found = self._fresh(self._here, count, rng)
        if self._best_score == -np.inf:
            found[0] = self._here
        return Proposal(found)

    def _fresh(self, base: I32, count: int, rng: np.random.Generator) -> I32:
        """Neighbours of a sequence that were not proposed before, as far as some draws find them: int32[count, n]."""
        new, old = list[I32](), list[I32]()
        if len(self._seen) > _REMEMBERED:
            self._seen.clear()
        for _ in range(_DRAWS):
            for sequence in self._moved(np.repeat(base[None], count, axis=0), rng):
                key = _key(sequence)
                (old if key in self._seen else new).append(sequence)
                self._seen.add(key)
                if len(new) == count:
                    return np.stack(new)
        return np.stack((new + old)[:count])

    def tell(self, proposal: Proposal, scores: F64) -> None:
        """See ``OrderStrategy``."""
        self._stale += len(scores)
        if not len(scores):
            return
        at = int(scores.argmax())
        sequence, score = proposal.sequences[at], float(scores[at])
        if score >= self._here_score:
            self._here, self._here_score = sequence, score
        if score > self._best_score:
            self._best, self._best_score, self._stale = sequence, score, 0

    def _moved(self, bases: I32, rng: np.random.Generator) -> I32:
        """Of every sequence the nearest legal one in which some items have gone elsewhere: int32[k, num_items]."""
        space = self._space
        k, length = bases.shape
        wishes = np.full((k, 2 * space.num_groups), np.inf)
        np.put_along_axis(wishes, bases.astype(np.int64), np.arange(length, dtype=np.float64)[None], axis=1)
        row = np.arange(k)
        width = np.where(rng.random(k) < 0.7, 1, rng.integers(1, 5, k))
        reach = np.where(rng.random(k) < 0.5, 6.0, length)
        source = rng.integers(0, length, k)
        shift = np.rint((rng.random(k) * 2 - 1) * reach)
        shift += np.where(shift >= 0, 1.5, -1.5)
        for step in range(int(width.max(initial=1))):
            at = np.minimum(source + step, length - 1)
            own = step < width
            wishes[row[own], bases[row, at][own]] = (at + shift + step * 1e-3)[own]
        return space.nearest(wishes)


def _key(sequence: I32) -> bytes:
    return blake2b(sequence.tobytes(), digest_size=8).digest()
