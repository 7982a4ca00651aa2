"""Modules on ranks of their own with frozen encoders, cut with and without regard to that: gradients are those of the
model in one piece."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from baselines.test_cornstarch import CUTS, FROZEN, job

from semu.executor.demo import run_demo
from semu.parallel.segments import OWN_RANKS
from semu.plan.compile import compile_plan

torch.set_num_threads(1)


@pytest.mark.parametrize("kind", FROZEN)
@pytest.mark.parametrize("by", CUTS)
@pytest.mark.parametrize("segments", OWN_RANKS)
def test_gradients_over_threads(kind: str, by: str, segments: str) -> None:
    plan = compile_plan(CUTS[by](job(kind, 4, segments)).job)
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=1)
    assert report.worst_gradient < 1e-12
    assert report.gradients > 20


@pytest.mark.parametrize("kind", FROZEN)
def test_stages_without_a_backward(kind: str) -> None:
    """Frozen layers with nothing trainable before them."""
    plan = compile_plan(CUTS["forward"](job(kind, 6)).job)
    assert not plan.chunks[0].has_backward
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=1)
    assert report.worst_gradient < 1e-12


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", FROZEN)
@pytest.mark.parametrize("by", CUTS)
@pytest.mark.parametrize("segments", OWN_RANKS)
def test_gradients_over_gloo(kind: str, by: str, segments: str) -> None:
    plan = compile_plan(CUTS[by](job(kind, 3, segments)).job)
    report = run_demo(plan, backend="gloo", iterations=1, fewer_layers=1, timeout_s=180.0)
    assert report.worst_gradient < 1e-12
