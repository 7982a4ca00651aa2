"""``OrderSpace``: the sequences of segment groups that a search chooses among, and the priorities that they stand for.

A segment group is a modality module's segments of one microbatch; they share a priority and keep a fixed order among
themselves (DIP §5.1, PipeWeaver §6.1). A sequence holds every group twice, as item g for its forward and item
``num_groups + g`` for its backward segments. Who comes earlier has the higher priority among items of its kind; only
the two relative orders count, as forwards and backwards wait in queues of their own (DIP §5.2): so the kind that is due
at a position is fixed. A group comes behind those whose results it needs, and one of two equal microbatches' groups
behind the other's.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.records import dataclass
from semu.searcher.problem.problem_arrays import F64, I32
from semu.searcher.problem.search_problem import SearchProblem


@dataclass(frozen=True, eq=False)
class OrderSpace:
    """The legal sequences.

    Attributes:
        num_groups: segment groups. exists: bool[2 x num_groups], false for backwards of groups that have none.
        needs: per item, those that must come before it: of the same kind.
        default: int32[num_items], the sequence of 1F1B: microbatch after microbatch along the flow.
    """

    num_groups: int
    exists: NDArray[np.bool_]
    needs: tuple[tuple[int, ...], ...]
    default: I32

    @classmethod
    def of(cls, problem: SearchProblem) -> OrderSpace:
        """The sequences of a problem's groups."""
        groups = problem.num_groups
        exists = np.zeros(2 * groups, dtype=np.bool_)
        exists[:groups] = True
        exists[groups + sorted_distinct(problem.group[problem.has_backward])] = True
        needs: list[set[int]] = [set() for _ in range(2 * groups)]
        for before, after in _flow(problem):
            needs[after].add(before)
        for earlier, later in _equal_groups(problem):
            needs[later].add(earlier)
            if exists[groups + later]:
                needs[groups + later].add(groups + earlier)
        microbatch = np.zeros(groups, dtype=np.int32)
        microbatch[problem.group] = problem.microbatch
        return cls(groups, exists, tuple(tuple(sorted(own)) for own in needs), _usual(exists, needs, microbatch))

    @property
    def num_items(self) -> int:
        """Length of a sequence."""
        return len(self.default)

    @cached_property
    def kinds(self) -> I32:
        """int32[num_items], the kind due at every position: 0 forward, 1 backward."""
        return (self.default >= self.num_groups).astype(np.int32)

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """Per item, those that need it."""
        found: list[list[int]] = [[] for _ in self.needs]
        for item, own in enumerate(self.needs):
            for before in own:
                found[before].append(item)
        return tuple(tuple(own) for own in found)

    @cached_property
    def _tables(self) -> tuple[I32, I32, I32]:
        """Number of needs of every item; CSR of its followers."""
        sizes = [len(own) for own in self.followers]
        return (
            np.array([len(own) for own in self.needs], dtype=np.int32),
            np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
            np.array([item for own in self.followers for item in own], dtype=np.int32),
        )

    @cached_property
    def default_wish(self) -> F64:
        """float64[2 x num_groups], positions in the default sequence."""
        return self.places(self.default)

    def nearest(self, wishes: F64, prefix: I32 | None = None) -> I32:
        """The legal sequences that take, of the items whose needs are met, always the one with the least wish.

        Args:
            wishes: float64[k, 2 x num_groups]; ties by number. prefix: int32[d], a legal beginning of all of them.
        Returns:
            int32[k, num_items].
        """
        from semu.searcher.kernels.sequences import nearest_sequences

        found = np.empty((len(wishes), self.num_items), dtype=np.int32)
        start = prefix if prefix is not None else np.zeros(0, dtype=np.int32)
        wanted = np.where(self.exists, wishes, np.inf)
        nearest_sequences(*self._tables, self.kinds, start, wanted, found)
        return found

    def random(self, rng: np.random.Generator, count: int, prefix: I32 | None = None) -> I32:
        """Legal sequences at random: int32[count, num_items]."""
        return self.nearest(rng.random((count, 2 * self.num_groups)), prefix)

    def choices(self, prefix: I32) -> list[int]:
        """Items that may come next, by their place in the default sequence."""
        depth = len(prefix)
        if depth == self.num_items:
            return []
        placed, kind = set(prefix.tolist()), int(self.kinds[depth])
        return [
            item
            for item in self.default.tolist()
            if (item >= self.num_groups) == kind
            and item not in placed
            and all(before in placed for before in self.needs[item])
        ]

    def places(self, sequence: I32) -> F64:
        """Position of every item: float64[2 x num_groups], infinite for those that do not exist."""
        place = np.full(2 * self.num_groups, np.inf)
        place[sequence] = np.arange(len(sequence))
        return place

    def orders(self, sequences: I32) -> tuple[I32, I32]:
        """What sequences mean to the interleaving: groups by falling priority, of forwards and of backwards.

        Args:
            sequences: int32[k, num_items].
        Returns:
            int32[k, num_groups] each; groups without backwards come last among the backwards.
        """
        k, groups = len(sequences), self.num_groups
        is_back = self.kinds.astype(bool)
        forward = sequences[:, ~is_back]
        none = np.flatnonzero(~self.exists[groups:]).astype(np.int32)
        backward = np.concatenate((sequences[:, is_back] - groups, np.tile(none, (k, 1))), axis=1)
        return np.ascontiguousarray(forward), np.ascontiguousarray(backward, dtype=np.int32)


def _usual(exists: NDArray[np.bool_], needs: list[set[int]], microbatch: I32) -> I32:
    """Microbatch after microbatch, forwards along the flow and then backwards; what needs a later one comes with it."""
    from graphlib import TopologicalSorter

    groups = len(microbatch)
    sorter = TopologicalSorter({item: own for item, own in enumerate(needs) if exists[item]})
    depth: dict[int, int] = {}
    due: dict[int, int] = {}
    for item in sorter.static_order():
        depth[item] = max((depth[before] + 1 for before in needs[item]), default=0)
        due[item] = max(int(microbatch[item % groups]), *(due[before] for before in needs[item]), 0)
    items = sorted(depth, key=lambda item: (due[item], item >= groups, depth[item], item))
    found = np.array(items, dtype=np.int32)
    place = {item: at for at, item in enumerate(items)}
    assert all(place[before] < place[item] for item in items for before in needs[item])
    return found


def _flow(problem: SearchProblem) -> set[tuple[int, int]]:
    """(item, item that needs its result), of different groups and the same kind."""
    groups = problem.num_groups
    before, after = problem.edges
    item_of = np.repeat(problem.group, 2) + groups * (np.arange(problem.num_stages) % 2)
    pairs = np.unique(np.stack((item_of[before], item_of[after]), axis=1), axis=0)
    same_kind = (pairs[:, 0] >= groups) == (pairs[:, 1] >= groups)
    return {(int(a), int(b)) for a, b in pairs[same_kind & (pairs[:, 0] != pairs[:, 1])]}


def _equal_groups(problem: SearchProblem) -> list[tuple[int, int]]:
    """(group, the next one that is equal to it): all stages of their microbatches are."""
    alike: dict[bytes, list[int]] = {}
    group_of: dict[tuple[int, int], int] = {}
    costs = problem.forward_s, problem.backward_s, problem.held_bytes
    peaks = problem.forward_peak_bytes, problem.backward_peak_bytes
    order = np.lexsort((problem.part, problem.chunk, problem.microbatch))
    bounds = np.flatnonzero(np.diff(problem.microbatch[order], prepend=-1, append=-1))
    for first, last in pairwise(bounds.tolist()):
        pairs = order[first:last]
        microbatch = int(problem.microbatch[pairs[0]])
        labels = np.stack((problem.rank[pairs], problem.chunk[pairs], problem.part[pairs], problem.module[pairs]))
        key = labels.tobytes() + b"".join(column[pairs].tobytes() for column in (*costs, *peaks))
        alike.setdefault(key, []).append(microbatch)
        for pair in pairs.tolist():
            group_of[microbatch, int(problem.module[pair])] = int(problem.group[pair])
    modules = sorted({module for _, module in group_of})
    return [
        (group_of[first, module], group_of[second, module])
        for same in alike.values()
        for first, second in pairwise(same)
        for module in modules
        if (first, module) in group_of
    ]
