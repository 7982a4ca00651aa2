"""No row that a fit has seen is reported as held out; the fit is a median, so that nothing but numpy is needed."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest

from semu.fitting import calibration
from semu.fitting.calibration import CalibratedSection, calibrate
from semu.fitting.fit import FittedSection
from semu.fitting.forms import Peaks
from semu.fitting.models import Model, defaults_of
from semu.fitting.readers import Measurements
from semu.fitting.samples import Sample, Samples
from semu.fitting.text import calibration_json
from semu.hardware.profile import load_profile

H100 = load_profile("h100")
SECTION = "efficiency.copy"
PEAK_BYTES_PER_S = 3.35e12
MEM, SLOWER = 0.5, 1.25
"""Efficiency of the copies that the rule leaves in the fit; how much longer those take that it holds out."""


def copies(num_held_out: int, num_others: int) -> list[Sample]:
    """As many copies as asked for, of 30 to 45 MB and of 60 to 75 MB in turn, that the rule holds out, and others."""
    chosen: dict[bool, list[int]] = {True: [], False: []}
    for step in range(200):
        size = (30 if step % 2 else 60) * 10**6 + 75_000 * step
        chosen[zlib.crc32(f"{size},0".encode()) % 3 == 0].append(size)
    samples = []
    for is_held, count in ((True, num_held_out), (False, num_others)):
        assert len(chosen[is_held]) >= count
        for size in chosen[is_held][:count]:
            time_s = size / (MEM * PEAK_BYTES_PER_S) * (SLOWER if is_held else 1.0)
            samples.append(Sample(SECTION, (float(size), 0.0), time_s, "here", "h100", f"copies.csv:{size}"))
    return sorted(samples, key=lambda sample: sample.shape)


@pytest.fixture
def fitted_on(monkeypatch: pytest.MonkeyPatch) -> list[Samples]:
    """The rows of every fit from here on, each of which is the median of the rates."""
    seen: list[Samples] = []

    def fit(
        samples: Samples, model: Model, peaks: Peaks, *, extra: object, is_trusted: Callable[[str], bool]
    ) -> FittedSection:
        assert peaks.mem_bytes_per_s == PEAK_BYTES_PER_S and is_trusted("here")
        seen.append(samples)
        mem = float(np.median(samples.shape[0] / samples.time_s)) / PEAK_BYTES_PER_S
        return FittedSection(SECTION, {**defaults_of(SECTION), "mem": mem}, ("mem",), {}, {"here": len(samples)})

    monkeypatch.setattr(calibration, "fit_section", fit)
    return seen


def calibrated(samples: list[Sample]) -> CalibratedSection:
    done = calibrate(Measurements(tuple(samples), (), {}, ()), H100)
    own = done.sections[SECTION]
    (told,) = calibration_json(done)["sections"]  # type: ignore[misc]
    assert (told["held_out"] is None) == (own.held_out is None)
    assert (told["all"]["n"], told["rows"]) == (len(samples), {"here": own.fit.num_rows["here"]})
    return own


@pytest.mark.parametrize(("num_held_out", "num_others"), [(9, 1), (9, 2), (12, 3), (4, 1), (1, 1)])
def test_with_few_others_all_rows_are_fitted_and_none_is_held_out(
    num_held_out: int, num_others: int, fitted_on: list[Samples]
) -> None:
    """Fewer than a quarter of the rows, or than two, are left by the rule."""
    samples = copies(num_held_out, num_others)
    found = calibrated(samples)
    (rows,) = fitted_on
    assert list(rows.where) == [sample.where for sample in samples]
    assert int(found.samples.held_out.sum()) == num_held_out  # by their shapes
    assert found.held_out is None
    assert [held for _, held, _ in found.bands] == [None] * len(found.bands)
    assert sum(errors.n for _, _, errors in found.bands) == len(samples)
    assert found.error is found.all_rows and found.all_rows.n == len(samples)
    assert (found.num_spread, found.is_spread_held_out) == (len(samples), False)
    # the median's rate, and rows off by as much as they are slower or faster than it
    mem = float(np.median([MEM] * num_others + [MEM / SLOWER] * num_held_out))
    errors = [abs(MEM / mem - 1)] * num_others + [abs(MEM / SLOWER / mem - 1)] * num_held_out
    assert found.spread == pytest.approx(np.mean(errors), abs=1e-12)


@pytest.mark.parametrize(("num_held_out", "num_others"), [(9, 3), (8, 8), (6, 12), (5, 7), (3, 9), (0, 5)])
def test_what_the_rule_holds_out_is_not_fitted(num_held_out: int, num_others: int, fitted_on: list[Samples]) -> None:
    """Six held-out rows or more tell the profile's error; with fewer all rows do."""
    samples = copies(num_held_out, num_others)
    found = calibrated(samples)
    (rows,) = fitted_on
    assert len(rows) == num_others and not rows.held_out.any()
    assert found.fit.values["mem"] == pytest.approx(MEM, rel=1e-12)
    if num_held_out == 0:
        assert found.held_out is None and found.error is found.all_rows
        return
    assert found.held_out is not None
    assert found.held_out.n == num_held_out
    assert found.held_out.mape == pytest.approx(1 - 1 / SLOWER, rel=1e-12)
    assert found.all_rows.n == len(samples)
    assert found.all_rows.mape == pytest.approx((1 - 1 / SLOWER) * num_held_out / len(samples), rel=1e-9)
    assert sum(held.n for _, held, _ in found.bands if held is not None) == num_held_out
    is_enough = num_held_out >= 6
    assert found.error is (found.held_out if is_enough else found.all_rows)
    assert found.is_spread_held_out == is_enough
    assert found.num_spread == (num_held_out if is_enough else len(samples))
    assert found.spread == pytest.approx(found.error.mape, rel=1e-12)
