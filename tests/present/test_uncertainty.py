"""The interval of an iteration time, from contributions that are written down here."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.hardware.kinds import Provenance
from semu.present.report_text import render
from semu.present.uncertainty import LEVEL, MAPE_TO_SIGMA, SPREADS, UncertainKind, Uncertainty, coverage, spread_of
from tests.present.test_report_text import line, make_report

KINDS = st.lists(
    st.builds(UncertainKind, st.sampled_from(["matmul", "norm", "nic.p2p"]), st.floats(0, 5), st.floats(0, 1)),
    max_size=6,
)


def test_a_mean_absolute_error_becomes_a_standard_deviation() -> None:
    errors = np.random.default_rng(0).normal(0, 0.08, 200_000)
    assert spread_of(Provenance.FITTED, fmean(np.abs(errors))) == pytest.approx(0.08, rel=0.01)
    assert pytest.approx(1.2533, abs=1e-4) == MAPE_TO_SIGMA


def test_without_an_error_the_provenance_says_how_far() -> None:
    spreads = [spread_of(provenance, None) for provenance in Provenance]
    assert spreads == sorted(spreads) == list(SPREADS.values())
    assert spread_of(Provenance.DEFAULT, 0.0) == 0.0


def test_kinds_add_up_as_squares_and_the_interval_is_log_normal() -> None:
    found = Uncertainty.of(10.0, [UncertainKind("norm", 4.0, 0.1), UncertainKind("matmul", 3.0, 0.1)])
    assert found.sigma_s == pytest.approx(0.5)
    assert [item.kind for item in found.kinds] == ["norm", "matmul"]
    low, high = found.interval_s()
    assert (low, high) == pytest.approx((10 * math.exp(-1.6448536 * 0.05), 10 * math.exp(1.6448536 * 0.05)))


def test_nine_in_ten_drawn_times_lie_inside() -> None:
    kinds = [UncertainKind("matmul", 6.0, 0.05), UncertainKind("nic.p2p", 2.0, 0.1), UncertainKind("norm", 1.0, 0.2)]
    low, high = Uncertainty.of(10.0, kinds).interval_s()
    draws = np.random.default_rng(1).standard_normal((100_000, 3))
    times = 10.0 + draws @ np.array([kind.time_s * kind.spread for kind in kinds])
    assert ((low <= times) & (times <= high)).mean() == pytest.approx(LEVEL, abs=0.01)


@given(KINDS, st.floats(1e-3, 1e3), st.floats(0.05, 0.98))
def test_the_time_is_in_the_middle(kinds: list[UncertainKind], time: float, level: float) -> None:
    found = Uncertainty.of(time, kinds)
    assert found == Uncertainty.of(time, kinds[::-1]) or len({item.sigma_s for item in kinds}) < len(kinds)
    low, high = found.interval_s(level)
    wider = found.interval_s((1 + level) / 2)
    assert 0 <= wider[0] <= low <= time <= high <= wider[1]
    assert low * high == pytest.approx(time * time, rel=1e-6)
    assert found.communication_s == pytest.approx(sum(item.time_s for item in kinds if item.kind == "nic.p2p"))


def test_coverage_names_every_provenance() -> None:
    shares = coverage({"fitted": 0.75, "spec": 0.25})
    assert shares == {"measured": 0.0, "fitted": 0.75, "transferred": 0.0, "spec": 0.25, "default": 0.0}


def test_the_report_shows_the_interval_when_it_knows_one() -> None:
    asked: list[int] = []

    def find() -> Uncertainty:
        asked.append(1)
        return Uncertainty.of(4.0, [UncertainKind("matmul", 2.0, 0.1), UncertainKind("nic.p2p", 0.5, 0.2)])

    report = replace(make_report(), find_uncertainty=find)
    assert not asked
    assert line(render(report), "90% interval").split(maxsplit=2)[2].startswith("3.649 s to 4.385 s")
    assert "mostly that of matmul 5.0%, nic.p2p 2.5%" in line(render(report), "90% interval")
    document = report.to_json()
    assert document["iteration_time_interval_s"] == list(report.iteration_time_interval_s or ())
    assert asked == [1]
    assert "90% interval" not in render(make_report())
    assert "iteration_time_interval_s" not in make_report().to_json()
