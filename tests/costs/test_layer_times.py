"""What layers cost alone: together they are the stages; what is frozen costs what autograd leaves of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from simulation.jobs import job_of, vlm, vlm_items

import semu
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.present.report_data import LayerRow

ENCODER = ("vit.embedding", "vit.layers")


def job(frozen: Sequence[str] = (), recompute: str = "none", **sizes: int) -> TrainingJob:
    return job_of(vlm(frozen=frozen), vlm_items(4, empty=[1]), Parallel(**sizes), recompute=recompute)


def row_of(report: semu.Report, path: str) -> LayerRow:
    return next(row for row in report.layer_times if row.first == path)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("frozen", [(), ENCODER, (*ENCODER, "llm"), ("vit",), ("llm",)])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("sizes", [{}, {"pp": 2}, {"tp": 2, "pp": 2}])
def test_layers_make_the_stages(frozen: Sequence[str], recompute: str, sizes: dict[str, int]) -> None:
    """Without overlap, stages of all microbatches last as long as their layers one after another."""
    report = semu.simulate(job(frozen, recompute, **sizes))
    stages = [stage for rank in report.timeline.ranks for stage in rank.stages]
    for phase, name in (("F", "forward_s"), ("B", "backward_s")):
        busy = sum(stage.end_s - stage.start_s for stage in stages if stage.phase.value == phase)
        layers = sum(row.layers * getattr(row, name) for row in report.layer_times)
        assert report.num_microbatches * layers == pytest.approx(busy, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_frozen_layers_cost_what_autograd_leaves(recompute: str) -> None:
    """Eqs. 3.1 to 3.3: F; F + input gradient; F + both; recomputed only where a gradient flows."""
    trained, frozen = (semu.simulate(job(parts, recompute)) for parts in ((), (*ENCODER, "llm")))
    is_again = recompute == "full"
    encoder, language = (row_of(frozen, path) for path in ("vit.layers.0", "llm.layers.0"))
    assert (encoder.state, encoder.layers) == ("frozen", 3)
    assert encoder.backward_s == encoder.recompute_s == 0.0
    whole = row_of(trained, "llm.layers.0")
    assert language.forward_s == whole.forward_s > 0
    assert 0 < language.backward_s < whole.backward_s
    assert language.recompute_s == whole.recompute_s == (whole.forward_s if is_again else 0.0)
    assert row_of(frozen, "vit.adapter").state == "trained"
    assert row_of(frozen, "llm.layers.0").state == "frozen"


def test_the_first_trainable_layer_makes_no_input_gradient() -> None:
    """Eq. 3.3 charges one; autograd makes none, and what differs is a layer with something trainable before it."""
    before, behind = (semu.simulate(job(frozen)) for frozen in (("vit", "llm.embedding"), ("vit.layers",)))
    first, later = before.layer_times, behind.layer_times
    rows = [row for row in first if row.first.startswith("llm.layers")]
    assert [row.layers for row in rows] == [1, 2]  # the first one is a template of its own
    assert 0 < rows[0].backward_s < rows[1].backward_s
    assert rows[1].backward_s == next(row for row in later if row.first == "llm.layers.0").backward_s
    frozen = row_of(semu.simulate(job(("llm.layers",))), "llm.layers.0")
    gradient_of_weights = rows[1].backward_s - frozen.backward_s
    assert gradient_of_weights < rows[0].backward_s < gradient_of_weights + frozen.backward_s


def test_in_json_and_in_details() -> None:
    report = semu.simulate(job(ENCODER, "full", pp=2))
    document = report.to_json()["layer_times"]
    assert isinstance(document, list)
    assert [row["layers"] for row in document] == [row.layers for row in report.layer_times]
    assert sum(row.layers for row in report.layer_times) == sum(len(module.blocks()) for module in job().model.modules)
    assert set(document[0]) == {
        "module",
        "first",
        "last",
        "layers",
        "ranks",
        "state",
        "forward_s",
        "backward_s",
        "recompute_s",
    }
    text = report.details()
    assert "layers (time of one" in text
    assert "vit.layers.0" in text
