"""One or two factors from a site's own runs, and the factors that a profile file holds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fitting.fixtures import write
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.fitting.site import PRIOR_SPREAD, ROW_SPREAD, RunTimes, load_sites, site_factors
from semu.hardware.profile import load_profile

FACTORS = st.floats(0.7, 1.4)


def runs(compute: float, communication: float, shares: list[float]) -> list[RunTimes]:
    return [
        RunTimes(compute * 10 * (1 - share) + communication * 10 * share, 10 * (1 - share), 10 * share)
        for share in shares
    ]


def cost(items: list[RunTimes], a: float, b: float) -> float:
    """What is to be minimal, written out; no Huber where all errors are small."""
    total = (a / PRIOR_SPREAD) ** 2
    for run in items:
        predicted = run.compute_s * math.exp(a) + run.communication_s * math.exp(b) + run.other_s
        total += (math.log(run.measured_s / predicted) / ROW_SPREAD) ** 2
    return total


@given(factor=st.floats(0.95, 1.05), share=st.floats(0.0, 0.5), other=st.floats(0.0, 5.0))
def test_one_factor_is_the_minimum(factor: float, share: float, other: float) -> None:
    items = [
        RunTimes(r.measured_s + other, r.compute_s, r.communication_s, other) for r in runs(factor, factor, [share] * 2)
    ]
    found = site_factors(items)
    assert found.compute == found.communication
    best = math.log(found.compute)
    for step in (-1e-3, 1e-3):
        assert cost(items, best, best) <= cost(items, best + step, best + step) + 1e-12


@given(factor=FACTORS, n=st.integers(1, 8))
def test_a_site_is_told_by_its_runs(factor: float, n: int) -> None:
    found = site_factors(runs(factor, factor, [0.2] * n))
    assert found.rows == n
    assert abs(math.log(found.compute)) <= abs(math.log(factor)) + 1e-12  # never beyond what the runs say
    small = abs(math.log(factor)) < 2 * ROW_SPREAD
    if small:
        shrunk = math.log(factor) * n / (n + (ROW_SPREAD / PRIOR_SPREAD) ** 2)
        assert math.log(found.compute) == pytest.approx(shrunk, abs=1e-9)


def test_two_factors_need_three_runs_that_differ() -> None:
    alike = site_factors(runs(1.05, 0.95, [0.2, 0.21, 0.22]))
    assert alike.compute == alike.communication
    differ = site_factors(runs(1.05, 0.95, [0.05, 0.3, 0.6, 0.1, 0.5]))
    assert differ.compute == pytest.approx(1.05, abs=0.01)
    assert differ.communication == pytest.approx(0.95, abs=0.03)
    assert (
        site_factors(runs(1.05, 0.95, [0.05, 0.6])).compute == site_factors(runs(1.05, 0.95, [0.05, 0.6])).communication
    )
    for run in runs(1.05, 0.95, [0.05, 0.3]):
        assert differ.time_s(run) == pytest.approx(run.measured_s, rel=0.02)


def test_a_strange_run_does_not_rule() -> None:
    found = site_factors([*runs(1.02, 1.02, [0.2] * 3), RunTimes(100.0, 8.0, 2.0)])
    assert 1.0 < found.compute < 1.15


@pytest.mark.parametrize("bad", [RunTimes(0.0, 1.0, 0.0), RunTimes(math.nan, 1.0, 0.0), RunTimes(1.0, 0.0, 0.0)])
def test_bad_runs(bad: RunTimes) -> None:
    with pytest.raises(ConfigError, match="not a time"):
        site_factors([bad])
    with pytest.raises(ConfigError, match="no runs"):
        site_factors([])


def test_factors_in_a_profile(tmp_path: Path) -> None:
    text = 'base = "h100"\n[site.mine]\n"efficiency.matmul" = { time = 1.1, t0_s = 2, rows = 3 }\n'
    path = write(tmp_path, "mine.toml", text)
    assert load_sites(path) == {"efficiency.matmul": {"mine": {"time": 1.1, "t0_s": 2.0}}}
    assert (
        load_profile(path).efficiencies == load_profile(write(tmp_path, "plain.toml", 'base = "h100"\n')).efficiencies
    )
    for wrong in ("{ tme = 1.1 }", "{ time = -1 }", "{ net = 1 }", "3"):
        path = write(tmp_path, "bad.toml", f'base = "h100"\n[site.mine]\n"efficiency.matmul" = {wrong}\n')
        with pytest.raises(ConfigError):
            load_sites(path)
    assert "vidur" in load_sites("h100")["efficiency.matmul"]
