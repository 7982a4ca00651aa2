"""One or two factors from a site's own runs, and the factors that a profile file holds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fitting.fixtures import write
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.fitting.site import load_sites
from semu.fitting.site_runs import EXPERT_ROW_SPREAD, RunTimes, SiteFactors, site_factors
from semu.hardware.profile import load_profile

FACTORS = st.floats(0.7, 1.4)
SHARES = [0.05, 0.3, 0.6, 0.1, 0.5, 0.2]


def runs(compute: float, communication: float, shares: list[float]) -> list[RunTimes]:
    return [
        RunTimes(compute * 10 * (1 - share) + communication * 10 * share, 10 * (1 - share), 10 * share)
        for share in shares
    ]


def bell(x: float, spread: float) -> float:
    return math.exp(-0.5 * (x / spread) ** 2) / spread


def posterior_means(items: list[RunTimes]) -> tuple[float, float]:
    """The two means by plain loops over a coarser grid of their own."""
    total = mean_a = mean_d = 0.0
    for a in [step / 150 - 1 for step in range(301)]:
        prior = 0.85 * bell(a, 0.015) + 0.15 * bell(a, 0.15)
        for d in [step / 40 - 0.6 for step in range(49)]:
            density = prior * math.exp(-0.5 * (d / 0.2) ** 2)
            for run in items:
                made = run.compute_s * math.exp(a) + run.communication_s * math.exp(a + d) + run.other_s
                error = math.log(run.measured_s / made)
                wide = 3 * run.spread
                tails = math.sqrt(2 / math.pi) / wide / (1 + (error / wide) ** 2)
                density *= 0.85 * bell(error, run.spread) + 0.15 * tails
            total, mean_a, mean_d = total + density, mean_a + density * a, mean_d + density * d
    return mean_a / total, mean_d / total


@pytest.mark.parametrize(("compute", "communication"), [(1.0, 1.0), (1.2, 1.2), (0.9, 1.3), (1.03, 0.97)])
def test_factors_are_posterior_means(compute: float, communication: float) -> None:
    items = [
        RunTimes(r.measured_s + 1.0, r.compute_s, r.communication_s, 1.0)
        for r in runs(compute, communication, SHARES[:3])
    ]
    found = site_factors(items)
    a, d = posterior_means(items)
    assert math.log(found.compute) == pytest.approx(a, abs=2e-3)
    assert math.log(found.communication) == pytest.approx(a + d, abs=4e-3)


@given(factor=FACTORS, n=st.integers(1, 8))
def test_a_site_is_told_by_its_runs(factor: float, n: int) -> None:
    items = runs(factor, factor, [0.2] * n)
    found = site_factors(items)
    assert found.rows == n
    away, told = (abs(math.log(item.time_s(items[0]) / 10)) for item in (found, SiteFactors(factor, factor, n)))
    assert away <= told + 4e-3  # never beyond what the runs say
    if n >= 2 and told > 0.2:
        assert away > 0.8 * told  # two runs that agree are believed
    if told < 0.015 and n <= 2:
        assert away < 0.7 * told + 4e-3  # what is within the spread of runs hardly counts


def test_links_are_told_from_kernels() -> None:
    found = site_factors(runs(1.05, 1.3, SHARES * 3))
    assert found.compute == pytest.approx(1.05, abs=0.03)
    assert found.communication == pytest.approx(1.3, abs=0.06)
    for run in runs(1.05, 1.3, SHARES):
        assert found.time_s(run) == pytest.approx(run.measured_s, rel=0.03)


def test_a_strange_run_does_not_rule() -> None:
    found = site_factors([*runs(1.02, 1.02, [0.2] * 3), RunTimes(100.0, 8.0, 2.0)])
    assert 1.0 < found.compute < 1.04
    alone = site_factors([RunTimes(13.0, 8.0, 2.0), RunTimes(10.0, 8.0, 2.0)])
    assert 1.0 < alone.compute < 1.05


def test_runs_of_models_with_experts_say_less() -> None:
    plain = site_factors(runs(1.3, 1.3, [0.2, 0.2]))
    vague = site_factors([replace(run, spread=EXPERT_ROW_SPREAD) for run in runs(1.3, 1.3, [0.2, 0.2])])
    assert 1.0 < vague.compute < 1.05 < plain.compute


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
