"""Assigned samples, deferred or not, through the executor: loss and gradients of the whole batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, text_job, vlm_assigner, write_samples

import semu
from semu.errors import ExecutorError
from semu.searcher.assignment.assignment import Assignment

torch = pytest.importorskip("torch")

from semu.executor.demo.run import run_demo  # noqa: E402
from semu.executor.demo.samples import run_assigned  # noqa: E402

torch.set_num_threads(1)


def vlm_run(*settings: str) -> semu.TrainingJob:
    return semu.load_run("vlm-s", ["training.global_batch=16", *settings], cluster="h800:2x4", parallel="dp2-tp2-pp2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "samples.jsonl", draw_vlm(200, 5))


@pytest.mark.parametrize("method", ["entrain-literal", "coupled"])
def test_gradients_are_those_of_the_whole_batch(method: str, path: Path) -> None:
    """Replicas and microbatches have unequal tokens; samples of one wait a microbatch for the backbone."""
    found = run_assigned(vlm_run(), path, method=method, per_iteration=64, backend="fake")
    assert all(count > 0 for count in found.deferred) is (method == "entrain-literal")
    assert max(found.worst_gradient) < 1e-12
    assert found.loss == pytest.approx(found.reference_loss, rel=1e-12)
    assert len(found.loss) == 2
    assert found.gradients > 50


@pytest.mark.slow
@pytest.mark.multiprocess
def test_processes_over_gloo(path: Path) -> None:
    """Every process assigns, plans and loads for itself."""
    found = run_assigned(vlm_run(), path, method="entrain-literal", per_iteration=64, backend="gloo", timeout_s=300.0)
    assert min(found.deferred) > 0
    assert max(found.worst_gradient) < 1e-12


def test_a_frozen_encoder_that_defers(path: Path) -> None:
    """It has no backward that could be late; gradients are those of the backbone alone."""
    job = vlm_run('model.frozen=["vit"]')
    frozen = run_assigned(job, path, method="entrain-literal", per_iteration=64, iterations=1, backend="fake")
    whole = run_assigned(vlm_run(), path, method="entrain-literal", per_iteration=64, iterations=1, backend="fake")
    assert frozen.deferred[0] > 0
    assert frozen.loss == pytest.approx(whole.loss, rel=1e-12)
    assert 0 < frozen.gradients < whole.gradients


def test_documents_of_a_language_model(tmp_path: Path) -> None:
    path = write_samples(tmp_path / "documents.jsonl", draw_text(120, 5, largest=512))
    found = run_assigned(text_job(2, 2), path, per_iteration=40, iterations=1, backend="fake")
    assert found.deferred == (0,)
    assert max(found.worst_gradient) < 1e-12


def test_samples_of_images_alone(tmp_path: Path) -> None:
    """Without text they add nothing to the loss, and what reads them does not mistake their numbers."""
    samples = draw_vlm(64, 7)
    text = samples.text_tokens.copy()
    text[::3] = 0
    path = write_samples(tmp_path / "samples.jsonl", replace(samples, text_tokens=text))
    found = run_assigned(vlm_run(), path, method="entrain-literal", per_iteration=64, iterations=1, backend="fake")
    assert found.deferred[0] > 0
    assert max(found.worst_gradient) < 1e-12


def test_other_weights_are_found_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of means is another loss where microbatches have unequal tokens."""
    own = Assignment.loss_weights.func
    monkeypatch.setattr(Assignment, "loss_weights", property(lambda self: own(self) * 0 + 1 / self.num_microbatches))
    with pytest.raises(ExecutorError, match="not those of the whole batch"):
        run_assigned(vlm_run(), path, per_iteration=64, iterations=1, backend="fake")


def test_the_demo_runs_a_plan_that_defers() -> None:
    plan = semu.compile_plan(vlm_assigner()(draw_vlm(60, 8), method="entrain-literal").checkpoint)
    assert plan.reads
    found = run_demo(plan, backend="fake", iterations=1, width=8)
    assert found.worst_gradient < 1e-9


def test_parts_of_other_microbatches_are_another_model() -> None:
    """The same plan whose readers read other parts of the encoder, of the same rank, has another loss."""
    plan = semu.compile_plan(vlm_assigner(1, 4)(draw_vlm(30, 8), method="entrain-literal").checkpoint)
    own = [list(pairs) for pairs in plan.reads["vit"]]
    assert len(own[1]) == 2
    other = replace(plan, reads={"vit": (own[0], own[1][::-1], *own[2:])})
    losses = [run_demo(each, backend="fake", iterations=1, width=8).loss for each in (plan, other)]
    assert losses[0] != pytest.approx(losses[1], rel=1e-9)
