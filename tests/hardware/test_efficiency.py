"""The roofline of one operator, against the formula written out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.hardware.efficiency import CollectiveEfficiency, Efficiency, LinkEfficiency, with_coefficient
from semu.hardware.kinds import OpKind, Provenance

FLOP_PER_S, MEM_BYTES_PER_S = 1e15, 3e12
AMOUNTS = st.floats(min_value=0.0, max_value=1e18)
FRACTIONS = st.floats(min_value=0.01, max_value=1.0)


def latency(efficiency: Efficiency, flop: float, mem_bytes: float, **options: object) -> float:
    return efficiency.latency_s(flop, mem_bytes, FLOP_PER_S, MEM_BYTES_PER_S, **options)  # type: ignore[arg-type]


def test_papers_roofline_is_the_default() -> None:
    assert latency(Efficiency(), 2e12, 3e9) == pytest.approx(2e-3)
    assert latency(Efficiency(), 2e11, 3e9) == pytest.approx(1e-3)
    assert Efficiency().alpha_flop == Efficiency().alpha_mem == 1.0


def test_soft_corner_and_fixed_time() -> None:
    efficiency = Efficiency(flop=0.5, mem=0.75, t0_s=4e-6, p=3)
    compute, memory = 1e12 / (0.5 * FLOP_PER_S), 9e9 / (0.75 * MEM_BYTES_PER_S)
    expected = 4e-6 + (compute**3 + memory**3) ** (1 / 3)
    assert latency(efficiency, 1e12, 9e9) == pytest.approx(expected, rel=1e-12)
    assert efficiency.alpha_flop == 2.0
    assert efficiency.alpha_mem == pytest.approx(4 / 3)


def test_sustained_load_and_weight_gradients_lower_the_compute_rate() -> None:
    efficiency = Efficiency(flop=0.6, power=0.2, weight_gradient=0.9)
    assert latency(efficiency, 1e12, 0.0) == pytest.approx(1e12 * 1.2 / (0.6 * FLOP_PER_S))
    assert latency(efficiency, 1e12, 0.0, is_weight_gradient=True) == pytest.approx(1e12 * 1.2 / (0.54 * FLOP_PER_S))
    assert latency(efficiency, 0.0, 3e9) == pytest.approx(1e-3)


def test_nothing_to_do_takes_no_time() -> None:
    assert latency(Efficiency(t0_s=1e-5), 0, 0) == 0.0


@given(flop=AMOUNTS, mem=AMOUNTS, more=st.floats(0.0, 1e18), a=FRACTIONS, b=FRACTIONS, p=st.floats(1.0, 50.0))
def test_monotone_and_bounded(flop: float, mem: float, more: float, a: float, b: float, p: float) -> None:
    soft = Efficiency(flop=a, mem=b, t0_s=1e-6, p=p)
    sharp = Efficiency(flop=a, mem=b, t0_s=1e-6)
    time, slack = latency(soft, flop, mem), 1 + 1e-9
    assert latency(soft, flop + more, mem) * slack >= time
    assert latency(soft, flop, mem + more) * slack >= time
    assert latency(sharp, flop, mem) <= time * slack
    compute, memory = flop / (a * FLOP_PER_S), mem / (b * MEM_BYTES_PER_S)
    assert time <= (1e-6 + compute + memory) * slack


@pytest.mark.parametrize("name", ["flop", "mem"])
@pytest.mark.parametrize("value", [0.0, -0.1, 1.0001, math.nan, math.inf])
def test_efficiency_is_a_fraction(name: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        Efficiency(**{name: value})  # type: ignore[arg-type]
    assert caught.value.where == name


@pytest.mark.parametrize(("name", "value"), [("t0_s", -1e-9), ("p", 0.5), ("s0_tokens", math.inf), ("t0_s", math.inf)])
def test_other_ranges(name: str, value: float) -> None:
    with pytest.raises(ConfigError):
        Efficiency(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["t0_s", "hop_s", "c_s"])
def test_collective_latencies_are_not_negative(name: str) -> None:
    with pytest.raises(ConfigError):
        CollectiveEfficiency(**{name: -1e-6})  # type: ignore[arg-type]


def test_link_efficiency_has_exactly_the_communication_kinds() -> None:
    kinds = {kind: CollectiveEfficiency() for kind in OpKind if kind.is_communication}
    link = LinkEfficiency(kinds)
    assert link.of(OpKind.P2P) is kinds[OpKind.P2P]
    with pytest.raises(ConfigError, match="does not run on a link"):
        link.of(OpKind.MATMUL)
    with pytest.raises(ConfigError):
        LinkEfficiency({OpKind.P2P: CollectiveEfficiency()})
    with pytest.raises(ConfigError):
        LinkEfficiency({**kinds, OpKind.MATMUL: CollectiveEfficiency()})


def test_overridden_coefficient_is_trusted_less() -> None:
    fitted = Efficiency(0.7, 0.8, 1e-6, 3, Provenance.FITTED, "data", 0.05)
    changed = with_coefficient(fitted, "flop", 0.6)
    assert (changed.flop, changed.mem, changed.p) == (0.6, 0.8, 3)
    assert changed.provenance is Provenance.SPEC
    assert changed.relative_error is None
    assert with_coefficient(Efficiency(), "mem", 0.5).provenance is Provenance.DEFAULT
