"""The exact solver against all assignments listed, and methods against it."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from searcher.assignment.jobs import draw_vlm

import semu
from semu.searcher.assignment import exact
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.problem import Dealt


def small_assigner(num_microbatches: int, pp: int) -> Assigner:
    settings = [f"training.global_batch={2 * num_microbatches}"]
    job = semu.load_run("vlm-s", settings, cluster=f"h800:2x{2 * pp}", parallel=f"dp2-tp2-pp{pp}")
    return Assigner(job, samples=draw_vlm(500, 1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_optimum_is_that_of_all_assignments_listed(seed):
    """Two replicas of two microbatches, six samples, with every deferral from the first to the second."""
    assigner = small_assigner(2, 2)
    samples = draw_vlm(6, seed)
    found, exact = assigner.exact(samples, seconds=20.0)
    problem = found.problem
    choices = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 1)]
    best = np.inf
    for own in product(choices, repeat=6):
        replica, microbatch, reader = np.array(own, np.int64).T
        dealt = Dealt(replica, microbatch, reader, 2)
        if len(set(dealt.bins.tolist())) < 4 or len(set(dealt.reader_bins.tolist())) < 4 or replica[0]:
            continue
        best = min(best, problem.worst_s(dealt))
    assert exact.is_optimal
    assert exact.bound_s <= best * (1 + 1e-9)
    assert exact.time_s == pytest.approx(best, rel=1e-3)
    assert problem.worst_s(found.dealt) == exact.time_s


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pp", [1, 3])
def test_entrain_is_close_to_the_optimum(pp):
    assigner = small_assigner(4, pp)
    for seed in range(2):
        samples = draw_vlm(10, 20 + seed)
        _, exact = assigner.exact(samples, seconds=3.0)
        ratio = assigner(samples).fitted_s.max() / exact.time_s
        assert 1 <= ratio <= 1.15


def test_more_samples_than_the_solver_can_take_are_refused():
    with pytest.raises(semu.ConfigError, match="at most 128 samples for 2 replicas x 16 microbatches"):
        small_assigner(16, 2).exact(draw_vlm(300, 1))


def test_the_second_model_begins_with_the_best_of_the_first(monkeypatch):
    """Without deferral the start is improved from 3 s to 2 s; with it nothing faster than that is found."""
    asked = []
    seconds = {"start": 3.0, "faster": 2.0}

    def model(problem, features, times, *, defers):
        answers = (None, 0.5) if defers else ("faster", 1.0)
        return SimpleNamespace(solve=lambda *given: asked.append((defers, *given)) or answers)

    monkeypatch.setattr(exact, "_Model", model)
    problem = SimpleNamespace(
        num_samples=2, dp=1, num_microbatches=2, encoder=np.ones(2, np.int64), worst_s=seconds.__getitem__
    )
    pipelines = SimpleNamespace(of=lambda count, defers: None)
    found = exact.solve_exactly(problem, np.zeros((2, 1), np.int64), pipelines, "start", seconds=7.0)
    assert asked == [(False, "start", 3.0, 7.0), (True, "faster", 2.0, 7.0)]
    assert (found.dealt, found.time_s, found.bound_s) == ("faster", 2.0, 0.5)
    assert not found.is_optimal


@pytest.mark.parametrize(("objective", "ticks"), [(-3.0, 0.0), (0.25, 0.25), (70.5, 70.5), (1e9, 99.0)])
def test_a_bound_without_a_solution_is_between_nothing_and_what_is_known(objective, ticks, monkeypatch):
    """Of ticks of half a second, 99 are a little less than the 50 s that are known."""
    from ortools.sat.python import cp_model

    solver = SimpleNamespace(
        parameters=SimpleNamespace(), solve=lambda _: cp_model.UNKNOWN, best_objective_bound=objective
    )
    monkeypatch.setattr(cp_model, "CpSolver", lambda: solver)
    model = object.__new__(exact._Model)
    model._model = cp_model.CpModel()
    model._makespan = model._model.new_int_var(0, 1000, "")
    model._tick_s = 0.5
    model._hint = lambda start: None
    assert model.solve("start", 50.0, 7.0) == (None, 0.5 * ticks)
    assert solver.parameters.max_deterministic_time == 7.0
