"""What of a section is fitted and what stays; rows of a forward and its backward; how messages name rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from semu.fitting import calibration
from semu.fitting.fit import times
from semu.fitting.forms import Peaks, peaks_of, predict
from semu.fitting.models import TIME, defaults_of, kept_for_want_of_rows, model_of
from semu.fitting.samples import MOST_NAMED, Sample, Samples, by_section, places
from semu.hardware.profile import load_profile

H100 = load_profile("h100")


def samples_of(section: str, shapes: list[tuple[float, ...]], times_s: list[float] | None = None) -> Samples:
    known = times_s or [1e-3] * len(shapes)
    rows = [Sample(section, shape, time, "a", "h100", "made") for shape, time in zip(shapes, known, strict=True)]
    return by_section(rows)[section]


@pytest.mark.parametrize("count", range(MOST_NAMED + 3))
def test_messages_name_the_first_few_places(count: int) -> None:
    names = [f"file:{k}" for k in range(count)]
    assert places(names).removesuffix(" ...").split(", ") == (names[:MOST_NAMED] or [""])
    assert places(names).endswith(" ...") == (count > MOST_NAMED)


@pytest.mark.parametrize(("count", "is_many"), [(23, False), (24, True), (40, True)])
def test_many_rows_over_nodes_are_fitted_as_steps_and_few_keep_the_curve(count: int, is_many: bool) -> None:
    section = "link.nic.all_gather"
    shapes = [(16.0 * (1 + k % 2), 2.0 * (1 + k % 2), 2.0 ** (10 + k), 0.0) for k in range(count)]
    model = model_of(samples_of(section, shapes), {**defaults_of(section), "c_s": 3e-5, "t0_s": 2e-5}, "h100")
    assert model is not None
    names = {item.name for item in model.free}
    assert ("short_net" in names) == is_many and ("c_s" in names) != is_many
    assert model.fixed["t0_s"] == 0.0
    assert model.fixed["c_s"] == (0.0 if is_many else 3e-5)


@pytest.mark.parametrize("count", [4, 23, 24, 60])
def test_few_products_tell_a_rate_and_many_a_curve(count: int) -> None:
    shapes = [(512.0 * (1 + k), 1024.0, 2048.0, 1.0, 2.0, 2.0, 0.0, 0.0) for k in range(count)]
    model = model_of(samples_of("efficiency.matmul", shapes), defaults_of("efficiency.matmul"), "h100")
    assert model is not None
    names = [item.name for item in model.free]
    assert model.final == ((TIME, "t0_s") if count >= 24 else (TIME,))
    assert (names == ["flop"]) == (count < 24)
    kept = kept_for_want_of_rows("efficiency.matmul", names)
    assert ("t0_s" in kept and "mem" in kept) == (count < 24)
    assert "flop" not in kept


@pytest.mark.parametrize("sites", [None, {}, {"a": {TIME: 2.0}}])
def test_what_is_beside_a_call_is_added_to_it(sites: dict[str, dict[str, float]] | None) -> None:
    shapes = [(1e8 * (1 + k), 0.0) for k in range(3)]
    samples, values = samples_of("efficiency.add", shapes), {**defaults_of("efficiency.add"), "mem": 0.5, "t0_s": 0.0}
    extra = np.array([1.0, 2.0, 4.0])
    factor = 2.0 if sites else 1.0
    expected = [factor * shape[0] / (0.5 * 1e12) + more for shape, more in zip(shapes, extra, strict=True)]
    assert times(samples, values, Peaks(1e15, 1e12), sites, extra) == pytest.approx(expected, rel=1e-9)


def test_a_backward_is_what_its_own_forward_leaves_of_both() -> None:
    """Rows of both directions on a machine whose forward takes twice as long as the profile says."""
    pytest.importorskip("scipy")
    forward, backward = "efficiency.attention_forward", "efficiency.attention_backward"
    slow = {**calibration.coefficients_of(H100, forward)}
    slow["flop"] = slow["flop"] / 2
    own = {**calibration.coefficients_of(H100, backward), "flop": 0.35, "power": 0.0}
    shapes = [(2.0, 16.0, 16.0, 1024.0 * k, 1024.0 * k, 128.0, 128.0, 1.0, 1.0, 1.0) for k in (2, 4, 8, 16)]
    columns = np.array(shapes).T
    took = predict(forward, slow, columns, peaks_of(H100, forward)) + predict(
        backward, own, columns, peaks_of(H100, backward)
    )
    samples = samples_of(backward, shapes, took.tolist())
    fitted = {forward: SimpleNamespace(fit=SimpleNamespace(values=slow))}
    found = calibration._section(samples, H100, fitted, lambda _source: True)
    assert found is not None
    assert found.fit.values["flop"] == pytest.approx(0.35, rel=0.02)
    assert found.error.mape < 0.02
    other = calibration._section(samples, H100, {}, lambda _source: True)
    assert other is not None and other.fit.values["flop"] != pytest.approx(0.35, rel=0.05)
