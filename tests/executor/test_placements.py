"""Encoders on GPUs of their own, on shared ranks and on every rank: gradients are those of the model in one piece."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from baselines import test_cornstarch as cut_jobs
from simulation.jobs import valm, vlm
from simulation.test_own_gpus import FROZEN, VALM, VLM, job

from semu.executor.demo import run_demo
from semu.plan.compile import compile_plan
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.rules import verify

torch.set_num_threads(1)


def valm_plan(place: str, frozen: tuple[str, ...]) -> ExecutionPlan:
    gpus, segments, parallel = VALM[place]
    return compile_plan(job(valm(frozen=frozen), gpus, segments, parallel=parallel))


@pytest.mark.parametrize("frozen", [(), FROZEN, ("vit", "audio")], ids=["all train", "projectors", "frozen"])
@pytest.mark.parametrize("place", VALM)
def test_gradients_over_threads(place: str, frozen: tuple[str, ...]) -> None:
    plan = valm_plan(place, frozen)
    verify(plan)
    assert ExecutionPlan.from_json(plan.to_json()).model_hash == plan.model_hash
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=1)
    assert report.worst_gradient < 1e-12
    assert report.gradients > 20


def test_a_vision_encoder_on_two_gpus() -> None:
    gpus, tp, modules = VLM[0]
    plan = compile_plan(job(vlm(), gpus, parallel={"tp": tp, "modules": modules}))
    assert run_demo(plan, backend="fake", iterations=1, fewer_layers=1).worst_gradient < 1e-12


def test_replicas_of_modules_on_their_own_gpus() -> None:
    """dp 2 of an encoder on two groups of GPUs each and of a language model on two ranks of two: every replica has
    microbatches of its own, and gradients are those of all of them."""
    gpus, tp, modules = VLM[3]
    made = job(vlm(), gpus, parallel={"tp": tp, "modules": modules})
    assert made.parallel.dp == 2
    plan = compile_plan(made)
    assert plan.num_replicas == 2
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=1)
    assert report.worst_gradient < 1e-12 and report.gradients > 20


@pytest.mark.parametrize("kind", cut_jobs.FROZEN)
@pytest.mark.parametrize("by", cut_jobs.CUTS)
@pytest.mark.parametrize("segments", cut_jobs.PLACEMENTS)
def test_gradients_of_aware_and_unaware_cuts(kind: str, by: str, segments: str) -> None:
    """A VLM and a VALM with frozen encoders, in the three placements, cut with and without regard to freezing."""
    plan = compile_plan(cut_jobs.CUTS[by](cut_jobs.job(kind, 3, segments)).job)
    verify(plan)
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=1)
    assert report.worst_gradient < 1e-12 and report.gradients > 10


def test_repeated_encoders_are_in_the_plan() -> None:
    plan = valm_plan("replicated", ())
    assert [chunk.repeats for chunk in plan.chunks] == [False, True, False, True, False, False]
    assert [chunk.first_layer for chunk in plan.chunks[:4]] == [0] * 4
    assert all(not chunk.has_backward for chunk in plan.chunks if chunk.repeats)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("place", ["apart", "colocated", "replicated"])
def test_gradients_over_gloo(place: str) -> None:
    report = run_demo(valm_plan(place, FROZEN), backend="gloo", iterations=1, fewer_layers=1, timeout_s=180.0)
    assert report.worst_gradient < 1e-12
