"""ZeRO-2 and ZeRO-3: against the slow reference, closed forms of bytes and traffic, timelines by hand."""

from __future__ import annotations

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items

from semu.parallel.config import Overlap, Parallel

OVERLAPS = {
    "none": overlap(),
    "gather": overlap(parameters=True),
    "reduce": overlap(gradients=True),
    "both": overlap(parameters=True, gradients=True),
    "tp": overlap(parameters=True, gradients=True, tensor=True),
}


@pytest.mark.parametrize("hidden", OVERLAPS)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"reshard_after_forward": False}, {"zero_group": 2}],
    ids=["sharded", "kept", "groups"],
)
def test_zero_3_against_the_reference(options: dict[str, object], tp: int, hidden: str) -> None:
    parallel = Parallel(dp=4, tp=tp, zero=3, **options)  # type: ignore[arg-type]
    assert_tails_equal(job_of(gpt(), text_items(8), parallel, overlap=OVERLAPS[hidden]))
    assert_tails_equal(job_of(vlm(frozen=["vit"]), vlm_items(4, empty=(1,)), parallel, overlap=OVERLAPS[hidden]))
    assert_tails_equal(job_of(t2v(frozen=["llm"]), t2v_items(8), parallel, overlap=OVERLAPS[hidden], recompute="full"))
