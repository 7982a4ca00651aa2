"""Shape terms of the efficiencies through ``semu.simulate``: against the slow reference, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.models.test_experts import moe
from simulation.reference.expansion import expand

from semu.parallel.config import Parallel
from semu.simulation import simulate

MODELS: dict[str, tuple[Any, Any]] = {
    "text": (gpt, text_items),
    "vlm": (vlm, vlm_items),
    "t2v": (t2v, t2v_items),
    "moe": (moe, text_items),
}
TILES = {"tiles_at_once": 12.0, "tile_k0": 90.0, "tile_rest": 0.3, "tile_128": 0.9, "power": 0.15}
NEUTRAL = {"tile_128": 1.0, "weight_gradient": 1.0, "cached": 1.0}
"""Values of terms that cost nothing; of all others it is zero."""
SMALL_HEADS = {"attention_forward": "head_dim_64", "attention_backward": "head_dim_64"}
"""The test models have small heads, whose coefficients are a variant's."""
TERMS: dict[str, dict[str, float]] = {
    "matmul": TILES | {"weight_gradient": 0.93},
    "grouped_matmul": TILES,
    "attention_forward": {"tiles_at_once": 12.0, "tile_rest": 0.4, "s0_tokens": 300.0},
    "attention_backward": {"tiles_at_once": 12.0, "tile_rest": 0.7, "power": 0.1},
    "norm": {"row0": 200.0, "cached": 1.5, "cache_bytes": 3e5},
    "softmax": {"row0": 70.0},
    "cross_entropy": {"row0": 500.0},
}


def override(name: str, numbers: dict[str, float]) -> dict[str, Any]:
    """The table that changes a kind's coefficients, or those of its small heads."""
    return {name: {SMALL_HEADS[name]: numbers} if name in SMALL_HEADS else numbers}


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from(sorted(MODELS)),
    chosen=st.sets(st.sampled_from(sorted(TERMS)), min_size=1),
    shape=st.sampled_from([(1, 1, 1), (1, 2, 2), (2, 1, 2)]),
    recompute=st.sampled_from(["none", "full"]),
    seed=st.integers(0, 5),
)
def test_any_job_as_the_reference(
    kind: str, chosen: set[str], shape: tuple[int, int, int], recompute: str, seed: int
) -> None:
    model, items = MODELS[kind]
    dp, tp, pp = shape
    job = job_of(
        model(),
        items(2 * dp, seed=seed),
        Parallel(dp=dp, tp=tp, pp=pp, ep=dp if kind == "moe" else 1),
        recompute=recompute,
        override={"efficiency": {key: table for name in chosen for key, table in override(name, TERMS[name]).items()}},
    )
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("name", sorted(TERMS))
def test_every_term_costs_time(name: str) -> None:
    """A term that nothing reads would go unnoticed above."""

    options: dict[str, Any] = {"launch": False} | ({"attention": "unfused"} if name == "softmax" else {})
    if name in SMALL_HEADS:  # a framework's attention kernel has a curve of its own
        options["software"] = "kernels"

    def time_s(**terms: float) -> float:
        numbers = override(name, terms if name in ("norm", "cross_entropy") else terms | {"p": 1.0})
        job = job_of(moe(), text_items(2), Parallel(), override={"efficiency": numbers}, **options)
        return simulate(job).iteration_time_s

    neutral = {term: NEUTRAL.get(term, 0.0) for term in TERMS[name]}
    assert time_s(**TERMS[name]) > time_s(**neutral)
