"""What a source's measurements hold besides the kernel: a cache, a wait, writes; and two protocols, found again."""

from __future__ import annotations

import numpy as np
import pytest

from semu.fitting.fit import fit_section, times
from semu.fitting.forms import peaks_of, predict
from semu.fitting.models import CACHE, FLOOR, defaults_of, is_beside_the_cache, model_of
from semu.fitting.readers.rows import LeftOut, attention
from semu.fitting.samples import Sample, Samples, by_section
from semu.hardware.profile import load_profile

H100 = load_profile("h100")
ROW = {
    "device": "H200-SXM", "dtype": "bf16", "pass": "fwd", "batch": "2", "heads": "8", "kv_heads": "4", "seq_q": "4096",
    "seq_kv": "4096", "head_dim": "64", "head_dim_v": "64", "causal": "1", "window": "0", "time_us": "9",
    "source": "aic", "note": "",
}  # fmt: skip


def made(section: str, shapes: list[tuple[float, ...]], numbers: dict[str, float], source: str) -> list[Sample]:
    values = {**defaults_of(section), **numbers}
    predicted = predict(section, values, np.array(shapes).T, peaks_of(H100, section))
    return [Sample(section, s, float(t), source, "h100", "x") for s, t in zip(shapes, predicted, strict=True)]


def test_protocols_are_recovered() -> None:
    pytest.importorskip("scipy")
    section = "link.nvlink.all_to_all"
    known = {"net": 0.8, "t0_s": 6e-6, "hop_s": 3e-7, "c_s": 2e-5, "few_ranks": 0.1}
    known |= {"short_net": 0.013, "setup_s": 8e-6, "p": 3.0}
    shapes = [(n, 1.0, 2.0**i, 0.0) for n in (2.0, 4.0, 8.0) for i in range(9, 30)]
    samples = by_section(made(section, shapes, known, "a"))[section]
    model = model_of(samples, defaults_of(section), "h100")
    assert model is not None
    fit = fit_section(samples, model, peaks_of(H100, section))
    assert np.abs(times(samples, fit.values, peaks_of(H100, section)) / samples.time_s - 1).max() < 0.03
    assert fit.values["short_net"] == pytest.approx(0.013, rel=0.05)
    assert fit.values["setup_s"] == pytest.approx(8e-6, rel=0.1)


def norms() -> Samples:
    """A base of a few small sizes, and a source whose kernel is slower and feels the cache of 50 MB."""
    section = "efficiency.norm"
    few = [(bytes_, 2560.0) for bytes_ in (2.1e7, 2.6e7, 3.1e7, 3.7e7, 4.2e7)]
    many = [(4e6 * rows, 4096.0) for rows in range(6, 40)]
    again = {"mem": 0.35, "cached": 1.4, "cache_bytes": 3.5e7}
    samples = made(section, few, {"mem": 0.6}, "good") + made(section, many, again, "again")
    return by_section(samples)[section]


def test_a_cache_is_a_sources_own() -> None:
    pytest.importorskip("scipy")
    samples, peaks = norms(), peaks_of(H100, "efficiency.norm")
    making = samples.take(samples.sources == "good")
    model = model_of(making, defaults_of(samples.section), "h100")
    assert model is not None
    fit = fit_section(samples, model, peaks, is_trusted=lambda source: source == "good")
    assert fit.values["cached"] == 1.0 and fit.values["mem"] == pytest.approx(0.6, rel=0.05)
    assert not set(CACHE) & set(fit.sites["good"])
    assert fit.sites["again"]["cached"] == pytest.approx(1.4, rel=0.1)
    assert fit.sites["again"]["cache_bytes"] * fit.values["cache_bytes"] == pytest.approx(
        3.5e7, rel=0.2
    )  # drawn to 5e7
    again = samples.sources == "again"
    error = times(samples, fit.values, peaks, fit.sites) / samples.time_s - 1
    assert np.abs(error[again]).mean() < 0.03


def test_a_cache_needs_sizes_on_both_sides() -> None:
    samples = norms()
    assert is_beside_the_cache(samples, 5e7)
    assert not is_beside_the_cache(samples, 5e6) and not is_beside_the_cache(samples, 1e9)


def test_the_wait_for_the_last_rank() -> None:
    pytest.importorskip("scipy")
    section = "link.nvlink.all_reduce"
    numbers = {"net": 0.8, "t0_s": 5e-6, "hop_s": 2e-6, "c_s": 1e-5}
    shapes = [(n, 1.0, 2.0**i, 0.0) for n in (2.0, 4.0) for i in range(12, 28)]
    samples = made(section, shapes, numbers, "aic")
    late = [(n, 1.0, 1.1e6 * 1.2**i, 0.0) for n in (2.0, 4.0) for i in range(20)]
    samples += [
        Sample(section, s.shape, max(s.time_s, 4e-5), "vidur", "h100", "x")
        for s in made(section, late, numbers, "vidur")
    ]
    columns, peaks = by_section(samples)[section], peaks_of(H100, section)
    model = model_of(columns, defaults_of(section), "h100")
    assert model is not None
    fit = fit_section(columns, model, peaks)
    assert fit.sites["vidur"][FLOOR] == pytest.approx(4e-5, rel=0.05)
    assert FLOOR not in fit.sites["aic"]
    assert np.abs(times(columns, fit.values, peaks, fit.sites) / columns.time_s - 1).mean() < 0.03


def test_a_window_is_the_causal_call_with_as_many_visible_pairs() -> None:
    for window in (1, 100, 4095):
        _, shape, source, _ = attention({**ROW, "window": str(window), "source": "cudnn"})
        visible = sum(min(i + 1, window) for i in range(4096))
        assert shape[4] * 4096 / 2 == pytest.approx(visible, rel=1e-12)
        assert source == "cudnn/window"
    section, shape, source, _ = attention({**ROW, "window": "4096"})
    assert (section, shape[4], source) == ("efficiency.attention_forward.head_dim_64", 4096, "aic")
    with pytest.raises(LeftOut):
        attention({**ROW, "window": "100", "causal": "0"})


def test_fp8_has_a_forward_only() -> None:
    section, _, source, _ = attention({**ROW, "dtype": "fp8"})
    assert (section, source) == ("efficiency.attention_forward.fp8", "aic")
    with pytest.raises(LeftOut):
        attention({**ROW, "dtype": "fp8", "pass": "bwd"})


def test_inference_engines_write_keys_and_values() -> None:
    """Beside what attention itself reads and writes, K and V are read and written once."""
    section, shape, source, _ = attention({**ROW, "note": "vllm/0.24.0 flash"})
    assert source == "aic/vllm" and shape[-1] == 1.0
    _, plain, _, _ = attention({**ROW, "note": "cudnn 9"})
    assert plain[-1] == 0.0
    values = {**defaults_of(section), "flop": 1.0, "mem": 1.0, "p": 1.0}
    with_cache, without = (
        predict(section, values, np.array([item]).T, peaks_of(H100, section))[0] for item in (shape, plain)
    )
    assert with_cache - without == pytest.approx(2 * 2 * 2 * 4 * 4096 * 128 / 3.35e12, rel=1e-6)
