"""``Priorities``: what one batch's schedule tells the search for the next one's.

Microbatches of two batches have nothing to do with each other but their sizes, so the one with the k-th most work in
one batch corresponds to the one with the k-th most in the other (in the same proportion where their numbers differ),
and its segment groups module by module. A group's wish is when its first stage began, as a part of the makespan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from semu.distinct import sorted_distinct
from semu.records import dataclass
from semu.searcher.orders.space import OrderSpace
from semu.searcher.problem.problem_arrays import F64, I32, I64
from semu.searcher.problem.search_problem import SearchProblem, Solution


@dataclass(frozen=True, eq=False)
class Priorities:
    """When the segment groups of a schedule began.

    Attributes:
        modules: names. wish: float64[2, num modules, num microbatches], of forwards and backwards, microbatches by
            falling work; parts of the makespan, NaN where a group or its backward does not exist.
        level: part of the leanest candidates that the search left out.
    """

    modules: tuple[str, ...]
    wish: F64
    level: float

    @classmethod
    def of(cls, problem: SearchProblem, solution: Solution, level: float = 0.0) -> Priorities:
        """Those of a schedule. ``level``: see there."""
        place = _by_work(problem)
        wish = np.full((2, len(problem.module_names), int(place.max(initial=-1)) + 1), np.inf)
        start = (solution.start_s / (solution.makespan_s or 1.0)).reshape(-1, 2)
        for phase in (0, 1):
            there = np.isfinite(start[:, phase])
            rows, columns = problem.module[there].astype(np.int64), place[problem.microbatch[there]]
            np.minimum.at(wish[phase], (rows, columns), start[there, phase])
        return cls(problem.module_names, np.where(np.isfinite(wish), wish, np.nan), level)

    def to_json(self) -> dict[str, object]:
        """As plain numbers; null where there is no wish."""
        wish = [[[None if np.isnan(v) else v for v in row] for row in own] for own in self.wish.tolist()]
        return {"modules": list(self.modules), "wish": wish, "level": self.level}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Priorities:
        """Of what ``to_json`` wrote.

        Raises:
            KeyError, TypeError, ValueError: something else.
        """
        wish = np.array(table["wish"], dtype=np.float64)
        modules = tuple(str(name) for name in table["modules"])
        if wish.ndim != 3 or wish.shape[:2] != (2, len(modules)):
            raise ValueError("wishes of another shape")
        return cls(modules, wish, float(table["level"]))

    def seeds(self, problem: SearchProblem, space: OrderSpace) -> list[I32]:
        """Legal sequences of another batch's groups, in the order of these: one, or none without a shared module."""
        number = {name: at for at, name in enumerate(self.modules)}
        rows = np.array([number.get(name, -1) for name in problem.module_names], dtype=np.int64)
        if self.wish.shape[2] == 0 or np.all(rows < 0):
            return []
        place = _by_work(problem)
        scaled = place * self.wish.shape[2] // (int(place.max(initial=0)) + 1)
        module, microbatch = np.zeros((2, problem.num_groups), dtype=np.int64)
        module[problem.group], microbatch[problem.group] = problem.module, problem.microbatch
        told = self.wish[:, rows[module], scaled[microbatch]]
        told[:, rows[module] < 0] = np.nan
        usual = space.default_wish / max(space.num_items, 1)
        wishes = np.where(np.isfinite(told), told, usual.reshape(2, -1)).reshape(1, -1)
        return [np.asarray(own, dtype=np.int32) for own in space.nearest(wishes)]


def _by_work(problem: SearchProblem) -> I64:
    """Per microbatch number, its place by falling work, ties by number: int64[largest number + 1], -1: no such one."""
    last = (np.arange(problem.num_pairs), problem.num_candidates - 1)
    count = int(problem.microbatch.max(initial=-1)) + 1
    work = np.bincount(problem.microbatch, problem.forward_s[last] + problem.backward_s[last], minlength=count)
    there = sorted_distinct(problem.microbatch)
    found = np.full(count, -1, dtype=np.int64)
    found[there[np.argsort(-work[there], kind="stable")]] = np.arange(len(there))
    return found
