"""Fitted costs of samples against semu's engine, on packs that no fit has seen."""

from __future__ import annotations

import numpy as np
import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, text_assigner, text_job, vlm_assigner, vlm_job

import semu
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.costs import fit_costs
from semu.workload.features import feature_names, sample_columns
from semu.workload.samples import Samples


@pytest.mark.parametrize(
    ("make", "draw", "schedule"),
    [(vlm_assigner, draw_vlm, "1f1b"), (vlm_assigner, draw_vlm, "zb-h1"), (text_assigner, draw_text, None)],
    ids=["vlm", "vlm-split", "text"],
)
def test_fitted_pipelines_are_those_of_the_engine(make, draw, schedule):
    assigner = make() if schedule in (None, "1f1b") else make(2, 8, schedule)
    found = [assigner(draw(120, seed), method=method) for seed in (5, 6) for method in ("random", "coupled")]
    errors = [own.fitted_s.max() / own.estimate.makespan_s - 1 for own in found]
    assert np.abs(errors).max() < 0.01, errors


def test_residuals_are_small_and_name_every_pass():
    costs = vlm_assigner().costs(draw_vlm(10, 0))
    assert {(own.module, own.phase) for own in costs.residuals} == {
        ("vit", "F"),
        ("vit", "B"),
        ("llm", "F"),
        ("llm", "B"),
    }
    assert max(own.rms for own in costs.residuals) < 0.02
    assert max(own.worst for own in costs.residuals) < 0.1


def test_single_samples_summed_cost_more_than_their_pack():
    """What the fit is on packs for."""
    job, samples = vlm_job(), draw_vlm(2000, 1)
    costs = fit_costs(job, samples, 10.0, 8192)
    fixed, _ = costs.per_rank
    assert (fixed > 0).all()  # a stage pays it once for a pack, once for every single sample


def test_columns_of_samples_are_those_of_microbatches():
    samples = draw_vlm(40, 3)
    singles = samples.microbatches(np.arange(41), 40, 1, False)
    names = ("text.pairs", "text.sequences", "text.tokens", "vision.pairs", "vision.sequences", "vision.tokens")
    windows = {"vision": (semu.nn.Window.chunked(64),)}
    table = semu.workload.shape_columns(singles, 1, windows=windows)
    for name in (*names, "vision_tokens.tokens", "vision.pairs@chunked64"):
        assert np.array_equal(sample_columns(samples, (name,))[:, 0], table[name]), name


def test_features_leave_out_what_no_sum_is():
    names = feature_names(
        ["text.shard", "text.pairs@sliding64", "vision+1.pairs", "text*audio.pairs", "text.tiles#0", "audio.shard"],
        ("text", "vision"),
    )
    assert names == ("text.pairs@sliding64", "text.tokens", "vision+1.pairs")


def test_the_same_samples_give_the_same_bits_again():
    job, samples = text_job(), draw_text(300, 2)
    first, second = (Assigner(job, "coupled", samples=samples)(draw_text(90, 3)) for _ in range(2))
    assert first.costs.slope_s.tobytes() == second.costs.slope_s.tobytes()
    assert first.dealt.bins.tobytes() == second.dealt.bins.tobytes()


def test_columns_refuse_an_unknown_stream():
    with pytest.raises(semu.ConfigError, match="no such stream"):
        sample_columns(Samples(np.array([3]), {}), ("vision.tokens",))
