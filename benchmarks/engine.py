"""Speed of the engine's kernels: start and end times in a fixed order and in a dynamic one, and peak memory.

A row with a goal is a ratio within this run against a named reference: the same loops in C (when a C compiler is
there), SimPy and networkx (when installed). Absolute figures drift from machine to machine and from run to run, so they
have no goal, but for one limit in seconds. Contenders take turns, and the fastest turn of each counts.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _compiled import bind, compiled
from _dynamic import Units, latencies, measure_orders
from _pipeline import NUM_RANKS, Pipeline, make_pipeline, make_storages
from _rows import Row, print_rows
from _timing import fastest

from semu.costs import kernels
from semu.engine.kernels import dispatch as dispatch_kernels

SECONDS_PER_ROW = 2.0


def simpy_ends(pipeline: Pipeline, latency: list[float]) -> list[float]:
    """End times by SimPy: one process per stream, one event per node."""
    import simpy

    env = simpy.Environment()
    is_done = [env.event() for _ in latency]
    end = [0.0] * len(latency)
    pred_ptr, pred = pipeline.pred_ptr.tolist(), pipeline.pred.tolist()

    def run(first: int, stop: int) -> Iterator[Any]:
        for node in range(first, stop):
            for other in pred[pred_ptr[node] : pred_ptr[node + 1]]:
                if not is_done[other].processed:
                    yield is_done[other]
            yield env.timeout(latency[node])
            end[node] = env.now
            is_done[node].succeed()

    bounds = pipeline.stream_ptr.tolist()
    for first, stop in pairwise(bounds):
        env.process(run(first, stop))
    env.run()
    return end


def networkx_graph(pipeline: Pipeline, latency: list[float]) -> Any:
    """The same graph with the order of the streams as edges, each as long as the node that it leads to."""
    import networkx

    graph = networkx.DiGraph()
    pred_ptr, pred = pipeline.pred_ptr.tolist(), pipeline.pred.tolist()
    first_nodes = set(pipeline.stream_ptr.tolist())
    for node, length in enumerate(latency):
        before = {"source", *pred[pred_ptr[node] : pred_ptr[node + 1]]}
        if node not in first_nodes:
            before.add(node - 1)
        graph.add_weighted_edges_from((other, node, length) for other in before)
    return graph


def compare(name: str, times_s: dict[str, float], versus: str, reference: str, limit: float) -> Row:
    """Row of semu's time over the reference's."""
    value = times_s["semu"] / times_s[versus]
    return Row(name, value, "x the time", reference, f"<= {limit}", value <= limit)


def measure_size(num_nodes: int, c: tuple[str, ctypes.CDLL] | None, seconds: float, goal_s: float | None) -> list[Row]:
    """Times and peaks of one size against C."""
    pipeline = make_pipeline(num_nodes)
    n = pipeline.num_nodes
    graph = (pipeline.stream_ptr, pipeline.pred_ptr, pipeline.pred)
    start, end, cursor = np.empty(n), np.empty(n), np.empty(len(pipeline.stream_ptr) - 1, dtype=np.int64)
    arguments = (*graph, *pipeline.costs, *pipeline.s_per_cost, start, end, cursor)
    times: dict[str, Callable[[], object]] = {"semu": partial(kernels.fixed_order_roofline_times, *arguments)}
    storages = make_storages(pipeline)
    peak, node = np.empty(NUM_RANKS, dtype=np.int64), np.empty(NUM_RANKS, dtype=np.int64)
    peaks: dict[str, Callable[[], object]] = {"semu": partial(kernels.ordered_peak_memory, *storages, peak, node)}
    assert times["semu"]() == n, "the pipeline deadlocks"
    peaks["semu"]()
    if c is not None:
        times["C"] = bind(c[1].fixed_order_roofline_times, len(cursor), *arguments)
        peaks["C"] = bind(c[1].ordered_peak_memory, NUM_RANKS, *storages, peak, node)
        expected = (start.copy(), end.copy(), peak.copy(), node.copy())
        for array in (start, end, peak, node):
            array.fill(-1)
        times["C"]()
        peaks["C"]()
        for ours, theirs in zip(expected, (start, end, peak, node), strict=True):
            assert np.array_equal(ours, theirs), "C finds other numbers"
    latency = end - start
    times["latencies given"] = partial(kernels.fixed_order_times, *graph, latency, np.empty(0), start, end, cursor)
    times["latencies given"]()
    times_s, peaks_s = fastest(times, seconds), fastest(peaks, seconds)
    size = f"1e{round(np.log10(num_nodes))} nodes"
    num_storages = len(storages[2])
    rows = [
        Row(f"fixed order, {size}", n / times_s["semu"] / 1e6, "Mnode/s", "none", None, None),
        Row(
            f"fixed order, latencies given, {size}", n / times_s["latencies given"] / 1e6, "Mnode/s", "none", None, None
        ),
        Row(f"peak memory, {size}", num_storages / peaks_s["semu"] / 1e6, "Mnode/s", "none", None, None),
    ]
    if c is not None:
        rows.insert(1, compare(f"fixed order, {size}", times_s, "C", c[0], 1.4))
        rows.append(compare(f"peak memory, {size}", peaks_s, "C", c[0], 1.6))
    if goal_s is not None:
        both = times_s["semu"] + peaks_s["semu"]
        rows.append(Row(f"times + peaks, {size}", both, "s", "none", f"<= {goal_s}", both <= goal_s))
    return rows


def measure_dynamic(num_nodes: int, c: tuple[str, ctypes.CDLL] | None, seconds: float) -> list[Row]:
    """Times of one size against C when the order is found on the way."""
    pipeline = make_pipeline(num_nodes)
    n = pipeline.num_nodes
    units = Units(pipeline, latencies(pipeline))
    rank = np.arange(n, dtype=np.int32)
    contenders: dict[str, Callable[[], object]] = {
        "semu": partial(dispatch_kernels.dispatch_units, *units.arguments(rank))
    }
    assert contenders["semu"]() == n, "the pipeline deadlocks"
    if c is not None:
        contenders["C"] = bind(c[1].dynamic_order, n, units.num_streams, *units.arguments_for_c(rank))
        expected = [array.copy() for array in units.results]
        for array in units.results:
            array.fill(-1)
        contenders["C"]()
        for ours, theirs in zip(expected, units.results, strict=True):
            assert np.array_equal(ours, theirs), "C finds another order"
    times_s = fastest(contenders, seconds)
    name = f"dynamic order, 1e{round(np.log10(num_nodes))} nodes"
    rows = [Row(name, n / times_s["semu"] / 1e6, "Mnode/s", "none", None, None)]
    if c is not None:
        rows.append(compare(name, times_s, "C", c[0], 1.2))
    return rows


def measure_libraries(num_nodes: int, seconds: float) -> list[Row]:
    """Times against SimPy and networkx, which get the latencies ready-made and, networkx, the graph."""
    pipeline = make_pipeline(num_nodes)
    n = pipeline.num_nodes
    start, end, cursor = np.empty(n), np.empty(n), np.empty(len(pipeline.stream_ptr) - 1, dtype=np.int64)
    graph = (pipeline.stream_ptr, pipeline.pred_ptr, pipeline.pred)
    semu = partial(
        kernels.fixed_order_roofline_times, *graph, *pipeline.costs, *pipeline.s_per_cost, start, end, cursor
    )
    assert semu() == n, "the pipeline deadlocks"
    latency = (end - start).tolist()
    contenders: dict[str, Callable[[], object]] = {"semu": semu}
    goals = {}
    if importlib.util.find_spec("simpy") is not None:
        assert simpy_ends(pipeline, latency) == end.tolist(), "SimPy finds other times"
        contenders["SimPy, one process per stream"] = partial(simpy_ends, pipeline, latency)
        goals["SimPy, one process per stream"] = 300
    if importlib.util.find_spec("networkx") is not None:
        import networkx

        dag = networkx_graph(pipeline, latency)
        assert networkx.dag_longest_path_length(dag) == end.max(), "networkx finds another makespan"
        contenders["networkx, dag_longest_path"] = partial(networkx.dag_longest_path, dag)
        goals["networkx, dag_longest_path"] = 250
    times_s = fastest(contenders, seconds)
    rows = []
    for reference, goal in goals.items():
        value = times_s[reference] / times_s["semu"]
        name = f"fixed order, 1e{round(np.log10(num_nodes))} nodes"
        rows.append(Row(name, value, "x faster", reference, f">= {goal}", value >= goal))
    return rows


def measure_columns(seconds: float) -> list[Row]:
    """Roofline latencies of 256 operators for 4096 shapes against the same formula in numpy."""
    rng = np.random.default_rng(2)
    num_ops, num_shapes = 256, 4096
    amounts = [rng.uniform(top / 1e3, top, (num_ops, num_shapes)) for top in (1e12, 1e9, 1e8)]
    rates = [np.full(num_ops, rate) for rate in (5e14, 2e12, 2e11)]
    t0_s, latency = np.full(num_ops, 2e-6), np.empty((num_ops, num_shapes))
    grid = 2.0**40

    def in_numpy(p: float) -> NDArray[np.float64]:
        terms = [amount / rate[:, None] for amount, rate in zip(amounts, rates, strict=True)]
        if p == np.inf:
            norm = np.maximum(np.maximum(terms[0], terms[1]), terms[2])
        else:
            norm = np.cbrt(terms[0] ** 3 + terms[1] ** 3 + terms[2] ** 3)
        result: NDArray[np.float64] = np.rint((t0_s[:, None] + norm) * grid) / grid
        return result

    rows = []
    for p in (np.inf, 3.0):
        exponent, corner_s = np.full(num_ops, p), np.zeros(num_ops)
        semu = partial(kernels.roofline_latency, *amounts, *rates, t0_s, exponent, corner_s, latency)
        semu()
        assert np.abs(latency - in_numpy(p)).max() <= 1 / grid, "numpy finds other latencies"
        times_s = fastest({"semu": semu, "numpy": partial(in_numpy, p)}, seconds)
        name = f"roofline columns, p = {p:g}"
        rows.append(Row(name, times_s["semu"] / latency.size * 1e9, "ns per latency", "none", None, None))
        rows.append(Row(name, times_s["numpy"] / times_s["semu"], "x faster", "numpy, the same formula", None, None))
    return rows


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    seconds = 0.3 if quick else SECONDS_PER_ROW
    with compiled("reference.c") as c:
        if c is None:
            name = "fixed order, peak memory and dynamic order against C"
            yield Row(name, None, "x the time", "no C compiler found", None, None)
        for num_nodes in (10**4, 10**5) if quick else (10**4, 10**6, 10**7):
            yield from measure_size(num_nodes, c, seconds, 0.4 if num_nodes == 10**7 else None)
        for num_nodes in (10**4, 10**6) if quick else (10**4, 10**6, 10**7):
            yield from measure_dynamic(num_nodes, c, seconds)
    yield from measure_orders(seconds)
    yield from measure_libraries(10**4, seconds)
    yield from measure_columns(seconds)


if __name__ == "__main__":
    print_rows(__doc__, measure)
