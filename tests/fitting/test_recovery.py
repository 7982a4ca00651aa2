"""Fits of data made from known coefficients give those coefficients back, with noise, outliers and sites."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.fitting.fit import fit_section, times
from semu.fitting.forms import Peaks, peaks_of, predict
from semu.fitting.models import TIME, Free, Model, defaults_of, model_of
from semu.fitting.samples import Family, Sample, Samples, by_section, family_of, is_held_out
from semu.hardware.efficiency import CollectiveEfficiency, Efficiency, coefficient_names
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup, wire_factor
from semu.hardware.network.cost import collective_latency
from semu.hardware.profile import load_profile
from semu.hardware.shape_terms import row_bytes_factor, tiled_flop

H100 = load_profile("h100")
SIZES = (256, 512, 768, 1024, 1536, 2048, 4096, 6144, 8192, 12288)


def products(values: dict[str, float], factors: dict[str, float], noise: float = 0.0, seed: int = 0) -> Samples:
    """Products of all sizes at several sites."""
    draw = np.random.default_rng(seed)
    samples = []
    for source, factor in factors.items():
        for m in SIZES:
            for n in SIZES[::2]:
                for k in SIZES[1::2]:
                    shape = (float(m), float(n), float(k), 1.0, 2.0, 2.0, 0.0, 0.0)
                    time = predict("efficiency.matmul", values, np.array([shape]).T, PEAKS)[0]
                    time *= factor * np.exp(noise * draw.standard_normal())
                    samples.append(Sample("efficiency.matmul", shape, float(time), source, "h100", f"made:{m}"))
    return by_section(samples)["efficiency.matmul"]


PEAKS = peaks_of(H100, "efficiency.matmul")
KNOWN = {
    **defaults_of("efficiency.matmul"),
    "flop": 0.8,
    "mem": 0.7,
    "t0_s": 4e-6,
    "p": 3.0,
    "tiles_at_once": 132.0,
    "tile_k0": 100.0,
    "tile_rest": 0.3,
    "tile_128": 0.9,
    "power": 0.15,
}


def test_form_of_products_is_that_of_a_simulation() -> None:
    """At the limit of long calls; the sustained rate is what ``Efficiency`` computes."""
    efficiency = Efficiency(**KNOWN)
    m, n, k = 65536.0, 16384.0, 16384.0
    tiles = tiled_flop(m, n, k, tiles_at_once=132, k0=100, rest=0.3, tile_128=0.9)
    run = efficiency.latency_s(float(tiles), 2 * (m * k + k * n + m * n), PEAKS.flop_per_s, PEAKS.mem_bytes_per_s)
    alone = predict("efficiency.matmul", KNOWN, np.array([[m, n, k, 1, 2, 2, 0, 0]]).T, PEAKS)[0]
    assert alone == pytest.approx(run, rel=0.02)
    assert alone < run


@pytest.mark.parametrize(
    ("kind", "ranks", "nodes"),
    [(kind, n, 1) for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all") for n in (2, 4, 8)]
    + [(kind, n, n // 8) for kind in ("all_reduce", "all_gather", "reduce_scatter") for n in (16, 64)]
    + [("p2p", 2, 1), ("p2p", 2, 2)],
)
def test_form_of_collectives_is_that_of_a_simulation(kind: str, ranks: int, nodes: int) -> None:
    section = f"link.{'nic' if nodes > 1 else 'nvlink'}.{kind}"
    names = coefficient_names(CollectiveEfficiency)
    values = {name: H100.number(f"{section}.{name}").value for name in names}
    whole = float(ranks == 8 and kind == "all_reduce")
    fast = H100.override({"nvlink_bytes_per_s": 450e9 if nodes == 1 else 1e13})  # so that the cards bind
    group = CommGroup("g", ranks, nodes)
    for buffer in (3e7, 3e4):
        got = predict(section, values, np.array([[ranks, nodes, buffer, whole]]).T, peaks_of(H100, section))[0]
        expected = collective_latency(fast, OpKind(kind), group, float(wire_factor(OpKind(kind), ranks)) * buffer)
        assert got == pytest.approx(expected, rel=1e-12)


def test_row_wise_kernels() -> None:
    values = {**defaults_of("efficiency.norm"), "mem": 0.5, "t0_s": 2e-6, "row0": 300.0}
    got = predict("efficiency.norm", values, np.array([[1e8, 4096.0]]).T, PEAKS)[0]
    assert got == pytest.approx(2e-6 + 1e8 * row_bytes_factor(4096.0, 300.0) / (0.5 * 3.35e12))


def test_products_are_recovered() -> None:
    pytest.importorskip("scipy")
    samples = products(KNOWN, {"a": 1.1, "b": 1 / 1.1}, noise=0.02)
    model = model_of(samples, defaults_of(samples.section), "h100")
    assert model is not None
    fit = fit_section(samples, model, PEAKS)
    for name, tolerance in (("flop", 0.02), ("mem", 0.05), ("t0_s", 0.05), ("tile_k0", 0.2), ("tile_128", 0.03)):
        assert fit.values[name] == pytest.approx(KNOWN[name], rel=tolerance), name
    assert fit.values["power"] == pytest.approx(0.15, abs=0.03)
    assert fit.sites["a"][TIME] / fit.sites["b"][TIME] == pytest.approx(1.21, rel=0.01)
    error = np.abs(times(samples, fit.values, PEAKS, fit.sites) / samples.time_s - 1)
    assert error.mean() < 0.025


def test_outliers_do_not_rule() -> None:
    pytest.importorskip("scipy")
    samples = products(KNOWN, {"a": 1.0}, noise=0.01)
    spoilt = samples.time_s.copy()
    spoilt[::20] *= 5.0
    model = model_of(samples, defaults_of(samples.section), "h100")
    assert model is not None
    fit = fit_section(Samples(**{**vars(samples), "time_s": spoilt}), model, PEAKS)
    predicted = times(samples, fit.values, PEAKS)
    assert np.median(np.abs(predicted / samples.time_s - 1)) < 0.01


@settings(max_examples=15)
@given(factor=st.floats(0.3, 3.0), rows=st.integers(1, 3))
def test_a_few_strange_rows_hardly_move_the_base(factor: float, rows: int) -> None:
    pytest.importorskip("scipy")
    model = Model((Free("mem", 0.6, 0.05, 1.0),), {**defaults_of("efficiency.add"), "t0_s": 0.0})
    peaks = Peaks(1e15, 1e12)
    shapes = [(1e8 * (1 + i / 7), 0.0) for i in range(40)]
    samples = [Sample("efficiency.add", shape, shape[0] / 0.5e12, "many", "h100", "made") for shape in shapes]
    alone = fit_section(by_section(samples)["efficiency.add"], model, peaks).values["mem"]
    samples += [
        Sample("efficiency.add", shape, factor * shape[0] / 0.5e12, "few", "h100", "made") for shape in shapes[:rows]
    ]
    fit = fit_section(by_section(samples)["efficiency.add"], model, peaks)
    assert alone == pytest.approx(0.5, rel=1e-4)
    assert fit.values["mem"] == pytest.approx(0.5, rel=0.3)
    # what the few say is shrunk: their factor lies between one and theirs
    low, high = sorted((1.0, factor * fit.values["mem"] / 0.5))
    assert low - 1e-3 <= fit.sites["few"][TIME] <= high + 1e-3


@settings(max_examples=20)
@given(net=st.floats(0.3, 0.85), t0=st.floats(1e-6, 3e-5), hop=st.floats(2e-7, 5e-6), few=st.floats(0.0, 0.6))
def test_collectives_are_recovered(net: float, t0: float, hop: float, few: float) -> None:
    pytest.importorskip("scipy")
    section, peaks = "link.nvlink.all_gather", Peaks(1e15, 1e12, 4e11)
    known = {**defaults_of(section), "net": net, "t0_s": t0, "hop_s": hop, "c_s": 1e-5, "few_ranks": few}
    shapes = np.array([(n, 1.0, 2.0**i, 0.0) for n in (2.0, 4.0, 8.0) for i in range(10, 31)]).T
    made = predict(section, known, shapes, peaks)
    samples = by_section(
        Sample(section, tuple(shape), float(time), "a", "h100", "made")
        for shape, time in zip(shapes.T, made, strict=True)
    )[section]
    model = model_of(samples, defaults_of(section), "h100")
    assert model is not None
    fit = fit_section(samples, model, peaks)
    assert np.abs(times(samples, fit.values, peaks) / samples.time_s - 1).max() < 0.03
    assert fit.values["net"] == pytest.approx(net, rel=0.03)


@pytest.mark.parametrize(
    "section",
    [
        "efficiency.matmul",
        "efficiency.attention_forward",
        "efficiency.norm",
        "link.nvlink.all_reduce",
        "link.nvlink.all_to_all",
    ],
)
def test_bounds_keep_times_finite_and_growing(section: str) -> None:
    """At both ends of every coefficient's range a larger shape takes no less time."""
    family = family_of(section)
    keys = family.num_key_columns
    ones = {
        Family.PRODUCT: [300, 300, 300, 1, 2, 2, 0, 0],
        Family.ATTENTION: [1, 8, 8, 512, 512, 128, 128, 1, 0, 1],
        Family.MEMORY: [1e7, 1024],
        Family.LINK: [4, 1, 1e6, 0],
    }[family]
    shapes = [np.array(ones, dtype=float)]
    for _ in range(40):
        larger = shapes[-1].copy()
        larger[: 3 if family is Family.PRODUCT else 1] *= 1.37
        if family is Family.LINK:
            larger[:1], larger[2] = shapes[-1][:1], larger[2] * 1.37
        shapes.append(np.round(larger))
    columns = np.array(shapes).T
    rows = [Sample(section, tuple(c), 1e-3, "s", "h100", "x") for c in columns.T]
    samples = by_section(rows * 2)[section]
    model = model_of(samples, defaults_of(section), "h100")
    assert model is not None and keys > 0
    for end in ("low", "high"):
        values = {**model.fixed, **{free.name: getattr(free, end) for free in model.free}}
        predicted = predict(section, values, columns, peaks_of(H100, section))
        assert np.isfinite(predicted).all() and (predicted > 0).all()
        assert (np.diff(predicted) >= -1e-12 * predicted[1:]).all()


def test_the_held_out_rule() -> None:
    held = [is_held_out(f"{m},{n},4096,1") for m in range(1, 60) for n in range(1, 60)]
    assert 0.3 < sum(held) / len(held) < 0.37
    assert is_held_out("4096,4096,4096,1") == (zlib.crc32(b"4096,4096,4096,1") % 3 == 0)
    sample = Sample("efficiency.matmul", (4096.0, 512.0, 300.0, 1.0, 2.0, 2.0, 0.0, 0.0), 1.0, "s", "h100", "x")
    assert sample.key == "4096,512,300,1"
