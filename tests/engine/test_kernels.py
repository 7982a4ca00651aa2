"""The engine's kernels against slow references, closed forms and the rules of DESIGN §3."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import pairwise
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
NO_RELEASE = np.empty(0)


def compress(rows: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Lists of lists as CSR."""
    ptr = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return ptr, np.array([item for row in rows for item in row], dtype=np.int32)


def pointers(lengths: list[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *lengths]).astype(np.int64)


def streams_of(stream_ptr: NDArray[np.int64]) -> list[list[int]]:
    return [list(range(a, b)) for a, b in pairwise(stream_ptr.tolist())]


class Timed:
    """Result of a time kernel, on fresh arrays that hold rubbish."""

    def __init__(self, kernel: Any, stream_ptr: NDArray[np.int64], preds: list[list[int]], *costs: Any) -> None:
        num_nodes = int(stream_ptr[-1])
        self.start = np.full(num_nodes, -7.0)
        self.end = np.full(num_nodes, -7.0)
        self.cursor = np.full(len(stream_ptr) - 1, -7, dtype=np.int64)
        ptr, pred = compress(preds)
        self.count = kernel(stream_ptr, ptr, pred, *costs, self.start, self.end, self.cursor)

    def times(self) -> dict[int, tuple[int, int]]:
        """Node -> start and end in grid steps, of those that were timed."""
        timed = np.flatnonzero(np.isfinite(self.end)).tolist()
        return {n: (reference.grid_steps(self.start[n]), reference.grid_steps(self.end[n])) for n in timed}


@st.composite
def ordered_graphs(draw: st.DrawFn, acyclic: bool, longest: int = 12) -> tuple[NDArray[np.int64], list[list[int]]]:
    """Streams (some empty) and predecessors; acyclic ones follow a hidden order of all nodes, drawn first."""
    lengths = draw(st.lists(st.integers(0, longest), min_size=1, max_size=5))
    stream_ptr = pointers(lengths)
    num_nodes = int(stream_ptr[-1])
    tickets = draw(st.permutations([s for s, length in enumerate(lengths) for _ in range(length)]))
    next_of = stream_ptr[:-1].tolist()
    hidden = []
    for stream in tickets:
        hidden.append(next_of[stream])
        next_of[stream] += 1
    preds: list[list[int]] = [[] for _ in range(num_nodes)]
    for position, node in enumerate(hidden):
        legal = hidden[:position] if acyclic else hidden
        if legal:
            preds[node] = draw(st.lists(st.sampled_from(legal), max_size=3))
    return stream_ptr, preds


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


# --------------------------------------------------------------------------------------------- times


@given(ordered_graphs(acyclic=True), st.data())
def test_times_equal_the_reference_bit_for_bit(graph: tuple[Any, Any], data: st.DataObject) -> None:
    stream_ptr, preds = graph
    steps = st.one_of(st.integers(0, 3), st.integers(0, 2**50))
    latency = data.draw(st.lists(steps, min_size=len(preds), max_size=len(preds)))
    release = data.draw(st.none() | st.lists(steps, min_size=len(preds), max_size=len(preds)))
    timed = Timed(
        kernels.fixed_order_times,
        stream_ptr,
        preds,
        np.array(latency, dtype=np.float64) / TIME_GRID_PER_S,
        NO_RELEASE if release is None else np.array(release, dtype=np.float64) / TIME_GRID_PER_S,
    )
    assert timed.count == len(preds)
    assert timed.cursor.tolist() == stream_ptr[1:].tolist()
    assert timed.times() == reference.fixed_order(streams_of(stream_ptr), preds, latency, release)


@given(ordered_graphs(acyclic=False))
def test_a_circle_stops_exactly_what_waits_for_it(graph: tuple[Any, Any]) -> None:
    stream_ptr, preds = graph
    expected = reference.fixed_order(streams_of(stream_ptr), preds, [1] * len(preds))
    timed = Timed(kernels.fixed_order_times, stream_ptr, preds, np.full(len(preds), TIME_STEP_S), NO_RELEASE)
    assert timed.count == len(expected)
    assert timed.times() == expected
    first_stuck = [next((n for n in s if n not in expected), s[-1] + 1 if s else None) for s in streams_of(stream_ptr)]
    expected_cursor = [int(p) if n is None else n for n, p in zip(first_stuck, stream_ptr, strict=False)]
    assert timed.cursor.tolist() == expected_cursor


def test_two_streams_that_wait_for_each_other() -> None:
    """0 waits for 3 and 2 waits for 1: the orders of the two streams close the circle."""
    stream_ptr = pointers([2, 2, 1])
    timed = Timed(kernels.fixed_order_times, stream_ptr, [[3], [], [1], [], []], np.ones(5), NO_RELEASE)
    assert timed.count == 1
    assert timed.cursor.tolist() == [0, 2, 5]
    assert timed.end.tolist() == [math.inf] * 4 + [1.0]


@pytest.mark.parametrize("num_waiting", [1, 2, 3, 6])
def test_many_streams_wait_for_one_that_stops_often(num_waiting: int) -> None:
    """Streams of one node each wait for the nodes of a hub, which takes turns with a partner: node by node."""
    n = num_waiting
    stream_ptr = pointers([1] * n + [n, n])
    hub, partner = n, 2 * n
    preds = [[hub + i] for i in range(n)]
    preds += [[partner + i - 1] if i else [] for i in range(n)]
    preds += [[hub + i] for i in range(n)]
    timed = Timed(kernels.fixed_order_times, stream_ptr, preds, np.ones(3 * n), NO_RELEASE)
    assert timed.count == 3 * n
    assert timed.end.tolist() == [2.0 * i + 2 for i in range(n)] + [2.0 * i + 1 for i in range(n)] + [
        2.0 * i + 2 for i in range(n)
    ]


@given(ordered_graphs(acyclic=True), st.integers(0, 2**32 - 1))
def test_roofline_times_equal_times_of_its_latencies(graph: tuple[Any, Any], seed: int) -> None:
    stream_ptr, preds = graph
    num_nodes, num_streams = len(preds), len(stream_ptr) - 1
    rng = np.random.default_rng(seed)
    costs = [rng.choice([0.0, 1.0], num_nodes) * rng.uniform(0, top, num_nodes) for top in (1e12, 1e9, 1e8)]
    costs = [cost.astype(np.float32) for cost in costs]
    rates = [rng.choice([0.0, 1.0], num_streams) / top for top in (5e14, 2e12, 2e11)]
    timed = Timed(kernels.fixed_order_roofline_times, stream_ptr, preds, *costs, *rates)
    stream = np.repeat(np.arange(num_streams), np.diff(stream_ptr)).tolist()
    latency = [
        reference.grid_steps(
            quantize_time(max(float(cost[n]) * float(rate[stream[n]]) for cost, rate in zip(costs, rates, strict=True)))
        )
        for n in range(num_nodes)
    ]
    assert timed.count == num_nodes
    assert timed.times() == reference.fixed_order(streams_of(stream_ptr), preds, latency)


@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(1, 3), (2, 1), (4, 4), (4, 9), (8, 3)])
def test_one_f_one_b_of_equal_stages_has_its_textbook_makespan(num_ranks: int, num_microbatches: int) -> None:
    """(m + p - 1) (forward + backward), when transfers take no time."""
    orders = reference.one_f_one_b(num_ranks, num_microbatches)
    stream_ptr = pointers([len(order) for order in orders])
    node = {
        (rank, *stage): int(stream_ptr[rank]) + position
        for rank, order in enumerate(orders)
        for position, stage in enumerate(order)
    }
    preds: list[list[int]] = [[] for _ in node]
    for (rank, phase, i), number in node.items():
        source = (rank - 1, "F", i) if phase == "F" else (rank + 1, "B", i)
        preds[number] = [node[n] for n in (source, (rank, "F", i)) if n in node and node[n] != number]
    latency = np.array([0.5 if phase == "F" else 1.25 for _, phase, _ in node])
    timed = Timed(kernels.fixed_order_times, stream_ptr, preds, latency, NO_RELEASE)
    assert timed.count == len(node)
    assert max(timed.end) == (num_microbatches + num_ranks - 1) * 1.75


# --------------------------------------------------------------------------------------------- memory


@st.composite
def storages(draw: st.DrawFn, ops: list[int]) -> tuple[list[list[int]], list[int]]:
    """Users of each storage (the first is its writer, that comes before the others in ``ops``) and sizes."""
    uses = []
    for _ in range(draw(st.integers(0, 8))):
        users = sorted(draw(st.sets(st.integers(0, len(ops) - 1), min_size=1, max_size=4)))
        others = draw(st.permutations(users[1:]))
        uses.append([ops[users[0]], *(ops[position] for position in others)])
    sizes = draw(st.lists(st.integers(0, 2**40), min_size=len(uses), max_size=len(uses)))
    return uses, sizes


def ordered_peaks(
    device_ptr: NDArray[np.int64], per_device: list[tuple[list[list[int]], list[int]]]
) -> tuple[list[int], list[int]]:
    """Peaks of ``ordered_peak_memory`` and where they are."""
    uses = [users for storage_users, _ in per_device for users in storage_users]
    peak, node = np.full(len(per_device), -7), np.full(len(per_device), -7)
    kernels.ordered_peak_memory(
        device_ptr,
        pointers([len(sizes) for _, sizes in per_device]),
        np.array([size for _, sizes in per_device for size in sizes], dtype=np.int64),
        np.array([users[0] for users in uses], dtype=np.int32),
        *compress([users[1:] for users in uses]),
        peak,
        node,
    )
    return peak.tolist(), node.tolist()


@given(st.lists(st.integers(0, 10), min_size=1, max_size=4), st.data())
def test_ordered_peaks_equal_sorted_events(lengths: list[int], data: st.DataObject) -> None:
    device_ptr = pointers(lengths)
    devices = streams_of(device_ptr)
    per_device = [data.draw(storages(ops)) if ops else ([], []) for ops in devices]
    peaks, nodes = ordered_peaks(device_ptr, per_device)
    for ops, (uses, sizes), peak, node in zip(devices, per_device, peaks, nodes, strict=True):
        if not ops:
            assert (peak, node) == (0, -1)
            continue
        times = [(op, op + 1) for op in range(device_ptr[-1])]
        curve = reference.memory_curve([a for a, _ in times], [b for _, b in times], uses, sizes)
        curve = [entry for entry in curve if ops[0] <= entry[0] <= ops[-1]]
        assert peak == max(highest for _, _, highest in curve)
        assert node == next(int(time) for time, _, highest in curve if highest == peak)


def test_inputs_outputs_and_workspace_coexist_and_frees_come_first() -> None:
    """Node 1 reads 10 and writes 20 with a workspace of 5; node 2 reads 20 and writes 30, the 10 and the 5 are gone."""
    uses, sizes = [[0, 1], [1, 2], [1], [2]], [10, 20, 5, 30]
    assert ordered_peaks(pointers([3]), [(uses, sizes)]) == ([50], [2])
    assert ordered_peaks(pointers([3]), [(uses, [10, 20, 25, 30])]) == ([55], [1])


# --------------------------------------------------------------------------------------------- compilation

COMPILE = """
import json, sys
import numpy as np
from semu.costs import kernels
end, cursor = np.empty(2), np.empty(1, np.int64)
none = np.zeros(0)
print("ready", flush=True)
sys.stdin.readline()
kernels.fixed_order_times(
    np.array([0, 2]), np.zeros(3, np.int32), np.zeros(0, np.int32), np.ones(2), none, np.empty(2), end, cursor
)
stats = kernels.fixed_order_times.stats
print(json.dumps([end.tolist(), sum(stats.cache_hits.values())]))
"""


def start_compiler(cache: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", COMPILE], cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


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
    assert [end for end, _ in results] == [[1.0, 2.0]] * 3
    assert results[2][1] > 0
