"""``even_bins``: samples to bins with the smallest largest load, by CP-SAT; for a few dozen samples, as a reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EvenBins:
    """An answer.

    Attributes:
        bins: int64[n], of every sample. height: the largest load of any bin and column. bound: none is smaller.
    """

    bins: I64
    height: int
    bound: int

    @property
    def is_optimal(self) -> bool:
        """Whether the bound is met."""
        return self.height == self.bound


def even_bins(
    load: I64, num_bins: int, *, tokens: I64 | None = None, limit: int | None = None, seconds: float = 10.0
) -> EvenBins:
    """Samples to bins so that the largest load of a bin is as small as it can be.

    Args:
        load: int64[n, num_columns], >= 0. num_bins: bins, each of which gets a sample.
        tokens: int64[n]. limit: tokens of a bin; None: any number. seconds: for the solver.
    Raises:
        ValueError: the samples do not fit.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    count, columns = load.shape
    has = [[model.new_bool_var("") for _ in range(num_bins)] for _ in range(count)]
    height = model.new_int_var(0, int(load.sum(axis=0).max()), "")
    for own in has:
        model.add_exactly_one(own)
    for number in range(num_bins):
        mine = [own[number] for own in has]
        model.add_at_least_one(mine)
        for column in range(columns):
            model.add(sum(int(load[item, column]) * mine[item] for item in range(count)) <= height)
        if tokens is not None and limit is not None:
            model.add(sum(int(tokens[item]) * mine[item] for item in range(count)) <= limit)
    for item in range(min(count, num_bins)):  # bins are alike: sample i is in one of the first i + 1
        for number in range(item + 1, num_bins):
            model.add(has[item][number] == 0)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raise ValueError("the samples do not fit into the bins")
    bins = np.array([next(n for n in range(num_bins) if solver.value(own[n])) for own in has], np.int64)
    return EvenBins(bins, int(solver.value(height)), int(np.ceil(solver.best_objective_bound - 1e-6)))
