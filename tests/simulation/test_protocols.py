"""An all-to-all with a protocol for short messages through ``semu.simulate``: bit for bit, and by hand."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import job_of, text_items
from simulation.models.test_experts import moe

from semu.parallel.config import Parallel
from semu.simulation import simulate

NUMBERS = {"net": 0.8, "t0_s": 6e-6, "hop_s": 0.0, "c_s": 0.0, "few_ranks": 0.0}


def job(numbers: dict[str, float], *, top_k: int = 2, **sizes: int) -> Any:
    override = {"link": {"nvlink": {"all_to_all": {**NUMBERS, **numbers}}}}
    return job_of(moe(top_k=top_k), text_items(4), Parallel(**sizes), override=override)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize(
    "numbers",
    [
        {"short_net": 0.01, "setup_s": 8e-6, "p": 4.1, "c_s": 2e-5},
        {"short_net": 0.3, "setup_s": 1e-6, "p": 1.0},
        {"short_net": 0.0, "setup_s": 5e-6, "p": 2.5, "c_s": 1e-5},
    ],
    ids=["as fitted", "adding", "long only"],
)
@pytest.mark.parametrize(
    "sizes", [{"dp": 2, "ep": 2}, {"dp": 4, "ep": 4}, {"dp": 2, "tp": 2, "ep": 4, "etp": 1}], ids=str
)
def test_as_the_reference(sizes: dict[str, int], numbers: dict[str, float], top_k: int) -> None:
    assert_tails_equal(job(numbers, top_k=top_k, **sizes))


@pytest.mark.parametrize("top_k", [1, 2])
def test_slow_short_messages_cost_the_setup_of_long_ones(top_k: int) -> None:
    """Where the short protocol is hopeless every all-to-all waits for the setup, and nothing else changes."""
    sizes = {"dp": 4, "ep": 4}
    plain, waiting = (
        job({"p": 1.0, "short_net": 0.0, "setup_s": 0.0}, top_k=top_k, **sizes),
        job({"p": 1.0, "short_net": 1e-9, "setup_s": 2**-14}, top_k=top_k, **sizes),
    )
    before, after = simulate(plain), simulate(waiting)
    rows = {(row.path, row.phase): row for row in after.top_operators if row.kind == "all_to_all"}
    count = 0
    for row in before.top_operators:
        if row.kind == "all_to_all":
            waited = rows[row.path, row.phase].time_s - row.time_s
            assert waited == pytest.approx(row.calls * 2**-14, rel=1e-7)
            count += row.calls
    assert count > 0
    assert after.iteration_time_s > before.iteration_time_s
