"""``OrderSpace``: the sequences of segment groups that a search chooses among, and the priorities that they stand for.

A segment group is a modality module's segments of one microbatch; they share a priority and keep a fixed order among
themselves (DIP §5.1, PipeWeaver §6.1). A sequence holds every group twice, as item g for its forward and item
``num_groups + g`` for its backward segments. Who comes earlier has the higher priority among items of its kind; only
the two relative orders count, as forwards and backwards wait in queues of their own (DIP §5.2). A group comes behind
those whose results it needs, and a group equal to another one of its kind behind that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu.searcher.problem import SearchProblem

I32 = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class OrderSpace:
    """The legal sequences.

    Attributes:
        num_groups: segment groups. exists: bool[2 x num_groups], false for backwards of groups that have none.
        needs: per item, those that must come before it. microbatch: int32[num_groups].
        default: int32[num_items], the sequence of 1F1B: microbatch after microbatch along the flow.
    """

    num_groups: int
    exists: NDArray[np.bool_]
    needs: tuple[tuple[int, ...], ...]
    microbatch: I32
    default: I32

    @classmethod
    def of(cls, problem: SearchProblem) -> OrderSpace:
        """The sequences of a problem's groups."""
        groups = problem.num_groups
        exists = np.zeros(2 * groups, dtype=np.bool_)
        exists[:groups] = True
        exists[groups + np.unique(problem.group[problem.has_backward])] = True
        microbatch = np.zeros(groups, dtype=np.int32)
        microbatch[problem.group] = problem.microbatch
        flow = _flow(problem)
        needs: list[set[int]] = [set() for _ in range(2 * groups)]
        for before, after in flow:
            needs[after].add(before)
        for earlier, later in _equal_groups(problem, flow):
            needs[later].add(earlier)
            if exists[groups + later]:
                needs[groups + later].add(groups + earlier)
        space = cls(groups, exists, tuple(tuple(sorted(own)) for own in needs), microbatch, np.zeros(0, dtype=np.int32))
        items = np.flatnonzero(exists).astype(np.int32)
        rank = np.empty(2 * groups)
        rank[items] = microbatch[items % groups] * 2.0 + (items >= groups)
        return cls(groups, exists, space.needs, microbatch, space.nearest(rank))

    @property
    def num_items(self) -> int:
        """Length of a sequence."""
        return int(self.exists.sum())

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """Per item, those that need it."""
        found: list[list[int]] = [[] for _ in self.needs]
        for item, own in enumerate(self.needs):
            for before in own:
                found[before].append(item)
        return tuple(tuple(own) for own in found)

    def nearest(self, wish: NDArray[np.float64]) -> I32:
        """The legal sequence that takes, of the items whose needs are met, always the one with the least wish.

        Args:
            wish: float64[2 x num_groups]; ties by number.
        """
        import heapq

        missing = [len(own) for own in self.needs]
        ready = [(float(wish[i]), i) for i in np.flatnonzero(self.exists).tolist() if not missing[i]]
        heapq.heapify(ready)
        found = np.empty(self.num_items, dtype=np.int32)
        for position in range(len(found)):
            _, item = heapq.heappop(ready)
            found[position] = item
            for after in self.followers[item]:
                missing[after] -= 1
                if not missing[after]:
                    heapq.heappush(ready, (float(wish[after]), after))
        return found

    def random(self, rng: np.random.Generator) -> I32:
        """A legal sequence, every choice alike."""
        return self.nearest(rng.random(2 * self.num_groups))

    def is_legal(self, sequence: I32) -> bool:
        """Whether it holds every item once, behind what it needs."""
        if len(sequence) != self.num_items or not np.array_equal(np.sort(sequence), np.flatnonzero(self.exists)):
            return False
        place = self.places(sequence)
        return all(place[before] < place[item] for item, own in enumerate(self.needs) for before in own)

    def places(self, sequence: I32) -> NDArray[np.float64]:
        """Position of every item: float64[2 x num_groups], infinite for those that do not exist."""
        place = np.full(2 * self.num_groups, np.inf)
        place[sequence] = np.arange(len(sequence))
        return place

    def priorities(self, sequences: NDArray[np.int32]) -> NDArray[np.int32]:
        """What sequences mean to the interleaving: int32[k, 2, num_groups], forward and backward, higher is earlier.

        Args:
            sequences: int32[k, num_items].
        """
        k = len(sequences)
        found = np.zeros((k, 2 * self.num_groups), dtype=np.int32)
        high = np.arange(self.num_items, 0, -1, dtype=np.int32)
        np.put_along_axis(found, sequences.astype(np.int64), np.broadcast_to(high, sequences.shape), axis=1)
        return found.reshape(k, 2, self.num_groups)


def _flow(problem: SearchProblem) -> set[tuple[int, int]]:
    """(item, item that needs its result), of different groups."""
    groups = problem.num_groups
    after = np.repeat(np.arange(2 * problem.num_pairs), np.diff(problem.pred_ptr))
    before = problem.pred.astype(np.int64)
    item_of = problem.group[np.arange(2 * problem.num_pairs) // 2] + groups * (np.arange(2 * problem.num_pairs) % 2)
    pairs = np.unique(np.stack((item_of[before], item_of[after]), axis=1), axis=0)
    same_kind = (pairs[:, 0] >= groups) == (pairs[:, 1] >= groups)
    return {(int(a), int(b)) for a, b in pairs[same_kind & (pairs[:, 0] != pairs[:, 1])]}


def _equal_groups(problem: SearchProblem, flow: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """(group, the next one that is equal to it): the microbatches of both hold equal stages of every module."""
    alike: dict[bytes, list[int]] = {}
    parts = {int(m): np.flatnonzero(problem.microbatch == m) for m in np.unique(problem.microbatch)}
    for microbatch, pairs in parts.items():
        order = pairs[np.lexsort((problem.part[pairs], problem.chunk[pairs]))]
        labels = np.stack((problem.rank[order], problem.chunk[order], problem.part[order], problem.module[order]))
        costs = problem.forward_s, problem.backward_s, problem.held_bytes
        peaks = problem.forward_peak_bytes, problem.backward_peak_bytes
        key = labels.tobytes() + b"".join(column[order].tobytes() for column in (*costs, *peaks))
        alike.setdefault(key, []).append(microbatch)
    module_groups: dict[tuple[int, int], int] = {}
    for pair in range(problem.num_pairs):
        module_groups[int(problem.microbatch[pair]), int(problem.module[pair])] = int(problem.group[pair])
    modules = sorted({module for _, module in module_groups})
    found = []
    for same in alike.values():
        for first, second in pairwise(same):
            for module in modules:
                if (first, module) in module_groups:
                    found.append((module_groups[first, module], module_groups[second, module]))
    return found
