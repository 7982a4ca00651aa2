"""The kernels of latencies against fifty digits and closed forms; two processes that compile at once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semu.costs import kernels
from semu.units import TIME_GRID_PER_S, TIME_STEP_S, quantize_time
from tests.engine import reference

ROOT = Path(__file__).resolve().parents[2]


# --------------------------------------------------------------------------------------------- latencies


@given(st.floats(0, 8000))
def test_quantize_is_the_rounding_of_units(latency_s: float) -> None:
    assert kernels.quantize(latency_s) == quantize_time(latency_s)


@pytest.mark.parametrize(("halves", "steps"), [(1, 0), (3, 2), (5, 2), (7, 4), (2**41 + 1, 2**40)])
def test_quantize_rounds_half_to_even(halves: int, steps: int) -> None:
    assert kernels.quantize(halves * TIME_STEP_S / 2) * TIME_GRID_PER_S == steps


def latencies(
    amounts: NDArray[np.float64], rates: NDArray[np.float64], t0_s: NDArray[np.float64], p: NDArray[np.float64]
) -> NDArray[np.float64]:
    """amounts: [3, num_ops, num_shapes]; rates: [3, num_ops]."""
    out = np.full(amounts.shape[1:], -7.0)
    kernels.roofline_latency(*amounts, *rates, t0_s, p, np.zeros_like(t0_s), out)
    return out


@pytest.mark.parametrize("p", [1.0, 3.0, math.inf])
def test_the_corner_of_a_collective_adds_a_square_root(p: float) -> None:
    net, rate, t0, corner = np.array([[0.0, 1e6, 3e9]]), np.array([2e11]), np.array([5e-6]), np.array([1.2e-5])
    none, ones, out = np.zeros_like(net), np.ones(1), np.empty_like(net)
    kernels.roofline_latency(none, none, net, ones, ones, rate, t0, np.array([p]), corner, out)
    for latency_s, size in zip(out[0], net[0], strict=True):
        transfer_s = size / 2e11
        assert latency_s == quantize_time(5e-6 + transfer_s + math.sqrt(1.2e-5 * transfer_s))


amount = st.one_of(st.just(0.0), st.floats(1.0, 1e13))
exponents = st.one_of(st.sampled_from([1.0, 2.0, 3.0, math.inf]), st.floats(1.0, 20.0))


@given(
    st.lists(
        st.tuples(
            st.tuples(amount, amount, amount),
            st.tuples(st.floats(1e12, 1e15), st.floats(1e11, 1e13), st.floats(1e10, 1e12)),
            st.sampled_from([0.0, 2e-6, 1e-3]),
            exponents,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 9),
)
def test_roofline_against_fifty_digits(ops: list[Any], num_shapes: int) -> None:
    """Off by one grid step at most, and only where the exact value is half-way between two."""
    scale = np.linspace(1.0, 3.0, num_shapes)
    amounts = np.array([np.outer([op[0][k] for op in ops], scale) for k in range(3)])
    rates = np.array([[op[1][k] for op in ops] for k in range(3)])
    got = latencies(amounts, rates, np.array([op[2] for op in ops]), np.array([op[3] for op in ops]))
    for i, (_, rate, t0_s, p) in enumerate(ops):
        for j in range(num_shapes):
            exact = reference.roofline_steps(amounts[:, i, j].tolist(), rate, t0_s, p)
            steps = reference.grid_steps(got[i, j])
            assert abs(steps - reference.round_half_even(exact)) <= 1
            assert abs(float(steps - exact)) <= 0.5 + 4e-15 * float(exact)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 2.5, math.inf])
def test_equal_terms_have_a_closed_form(p: float) -> None:
    """n equal terms t have the norm t n^(1/p)."""
    for n in (1, 2, 3):
        amounts = np.zeros((3, 1, 1))
        amounts[:n] = 0.5
        got = latencies(amounts, np.ones((3, 1)), np.array([0.25]), np.array([p]))
        assert got[0, 0] == pytest.approx(0.25 + 0.5 * n ** (1 / p), abs=TIME_STEP_S)


def test_maximum_is_exact() -> None:
    rng = np.random.default_rng(1)
    amounts, rates = rng.uniform(1e6, 1e12, (3, 7, 33)), rng.uniform(1e12, 1e15, (3, 7))
    got = latencies(amounts, rates, np.full(7, 3e-6), np.full(7, math.inf))
    for i in range(7):
        for j in range(33):
            assert got[i, j] == quantize_time(3e-6 + max(amounts[:, i, j] / rates[:, i]))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 2.5, math.inf])
def test_no_amount_takes_no_time_and_no_rate_takes_for_ever(p: float) -> None:
    amounts = np.array([[[0.0, 4.0]], [[1.0, 1.0]], [[0.0, 0.0]]])
    got = latencies(amounts, np.array([[0.0], [2.0], [0.0]]), np.array([0.125]), np.array([p]))
    assert got.tolist() == [[0.625, math.inf]]
    nothing = latencies(np.zeros((3, 1, 1)), np.zeros((3, 1)), np.array([0.125]), np.array([p]))
    assert nothing.tolist() == [[0.125]]


# --------------------------------------------------------------------------------------------- compilation

COMPILE = """
import json, sys
import numpy as np
from semu.costs import kernels
latency, ones = np.empty((1, 2)), np.ones(1)
print("ready", flush=True)
sys.stdin.readline()
kernels.roofline_latency(*np.array([[[1.0, 2.0]]] * 3), ones, ones, ones, ones, ones, np.zeros(1), latency)
print(json.dumps([latency[0].tolist(), "numba" in sys.modules]))
"""


def start_compiler(cache: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE], cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


@pytest.mark.slow
@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled under NUMBA_DISABLE_JIT")
def test_two_processes_may_compile_at_once(tmp_path: Path) -> None:
    """Both start from an empty cache at the same moment; a third finds what they left."""
    both = [start_compiler(tmp_path) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    results = []
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in [*both, start_compiler(tmp_path)]:
        out, err = process.communicate("\n", timeout=120)
        assert process.returncode == 0, err
        results.append(json.loads(out.splitlines()[-1]))
    assert [latency for latency, _ in results] == [[4.0, 7.0]] * 3
    assert [is_compiled for _, is_compiled in results] == [True, True, False]
