"""``SearchTables``: a search problem in the arrays that kernels want, made once per problem."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.distinct import sorted_distinct
from semu.records import dataclass
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64, U8
from semu.searcher.problem.search_problem import SearchProblem

_LARGE_MICROBATCH = 1500
"""Stages of a microbatch beyond which what it holds at once is only summed up: the square of it is held."""


@dataclass(frozen=True, eq=False)
class SearchTables:
    """What ``semu.searcher.kernels`` read of a problem; attributes are described there.

    Attributes:
        problem: where all comes from.
        links: (sender, receiver) of each.
    """

    problem: SearchProblem
    links: tuple[tuple[int, int], ...]
    rank: I32
    succ_ptr: I32
    succ: I32
    succ_s: F64
    succ_link: I32
    num_pred: I32
    forward_ptr: I32
    forward_pairs: I32
    backward_ptr: I32
    backward_pairs: I32
    microbatch: I32
    room: I64

    @classmethod
    def of(cls, problem: SearchProblem) -> SearchTables:
        """The tables of a problem."""
        before, after = problem.edges
        rank = problem.stage_rank.astype(np.int32)
        by_producer = np.lexsort((after, before))
        source, target = rank[before[by_producer]], rank[after[by_producer]]
        sent = sorted_distinct((source.astype(np.int64) * problem.num_ranks + target)[source != target])
        pairs = [divmod(ends, problem.num_ranks) for ends in sent.tolist()]
        number = np.full((problem.num_ranks, problem.num_ranks), -1, dtype=np.int32)
        for link, (a, b) in enumerate(pairs):
            number[a, b] = link
        count = np.bincount(before, minlength=problem.num_stages)
        forward = _by_group(problem, np.arange(problem.num_pairs), problem.slot)
        backward = _by_group(problem, np.flatnonzero(problem.has_backward), -problem.slot)
        return cls(
            problem=problem,
            links=tuple(pairs),
            rank=rank,
            succ_ptr=np.concatenate(([0], np.cumsum(count))).astype(np.int32),
            succ=after[by_producer].astype(np.int32),
            succ_s=problem.transfer_s[by_producer],
            succ_link=number[source, target],
            num_pred=np.diff(problem.pred_ptr).astype(np.int32),
            forward_ptr=forward[0],
            forward_pairs=forward[1],
            backward_ptr=backward[0],
            backward_pairs=backward[1],
            microbatch=problem.joint,
            room=problem.limit_bytes - problem.static_bytes,
        )

    def limits(self, choice: I16 | None = None) -> tuple[U8, I64, I64, I32]:
        """``limits`` of ``interleave`` under a choice of candidates; None: the leanest. Nobody writes them."""
        return self._of_leanest if choice is None else self._limits(choice)

    @cached_property
    def _of_leanest(self) -> tuple[U8, I64, I64, I32]:
        return self._limits(None)

    def _limits(self, choice: I16 | None) -> tuple[U8, I64, I64, I32]:
        problem, microbatch = self.problem, self.microbatch
        _, held, peak = problem.costs_of(choice)
        need = np.zeros((problem.num_ranks, int(microbatch.max(initial=-1)) + 1), dtype=np.int64)
        above, stages = np.zeros_like(need), np.zeros(need.shape, dtype=np.int32)
        where = (problem.rank, microbatch)
        np.add.at(need, where, held)
        np.add.at(stages, where, 1 + problem.has_backward.astype(np.int32))
        np.maximum.at(above, where, np.maximum(peak[0::2] - held, peak[1::2]))
        is_limited = need.sum(axis=1) + above.max(axis=1, initial=0) > self.room
        at_once = need + above
        sizes = stages.sum(axis=0)
        if is_limited.any() and sizes.max() <= _LARGE_MICROBATCH:
            self._hold_at_once(sizes, held, peak, at_once)
        return is_limited, need + above, at_once, stages

    def _hold_at_once(self, sizes: NDArray[np.int32], held: I64, peak: I64, most: I64) -> None:
        """Write what each microbatch holds at most. ``sizes``: int[num_microbatches], stages of each."""
        from semu.searcher.kernels.interleaving import hold_at_once

        problem = self.problem
        order = problem.topological
        by_microbatch = order[np.argsort(self.microbatch[order // 2], kind="stable")]
        ptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        most[:] = 0
        edges = (problem.pred_ptr, problem.pred, self.rank, problem.has_backward)
        hold_at_once(ptr, by_microbatch, *edges, held, peak, most)

    @property
    def flow(self) -> tuple[Any, ...]:
        """``flow`` of the kernels."""
        edges = (self.succ_ptr, self.succ, self.succ_s, self.succ_link, len(self.links))
        return self.problem.rank_ptr, self.rank, *edges, self.num_pred

    @property
    def queues(self) -> tuple[Any, ...]:
        """``queues`` of ``interleave``."""
        pairs = (self.forward_ptr, self.forward_pairs, self.backward_ptr, self.backward_pairs)
        return (*pairs, self.microbatch)


def _by_group(problem: SearchProblem, pairs: I64, slot: NDArray[Any]) -> tuple[I32, I32]:
    """CSR of pairs by rank x num_groups + group, each in the fixed order."""
    cell = problem.rank[pairs].astype(np.int64) * problem.num_groups + problem.group[pairs]
    order = np.lexsort((pairs, slot[pairs], problem.part[pairs], cell))
    count = np.bincount(cell, minlength=problem.num_ranks * problem.num_groups)
    return np.concatenate(([0], np.cumsum(count))).astype(np.int32), pairs[order].astype(np.int32)


@memo.remembered(64)
def tables_of(problem: SearchProblem) -> SearchTables:
    """``SearchTables.of``, remembered: nothing in it changes."""
    return SearchTables.of(problem)
