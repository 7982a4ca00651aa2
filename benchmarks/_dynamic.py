"""Pipelines whose streams have no given order, or many: their arrays, and the rows of engine.py for many orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from _pipeline import Pipeline, make_pipeline
from _rows import Row
from _timing import fastest
from numpy.typing import NDArray

from semu.costs import kernels
from semu.engine.kernels import dispatch as dispatch_kernels
from semu.engine.kernels import orders as order_kernels


def latencies(pipeline: Pipeline) -> NDArray[np.float64]:
    """Latency of every operator [s]."""
    n = pipeline.num_nodes
    start, end, cursor = np.empty(n), np.empty(n), np.empty(len(pipeline.stream_ptr) - 1, dtype=np.int64)
    graph = (pipeline.stream_ptr, pipeline.pred_ptr, pipeline.pred)
    count = kernels.fixed_order_roofline_times(*graph, *pipeline.costs, *pipeline.s_per_cost, start, end, cursor)
    assert count == n, "the pipeline deadlocks"
    return end - start


@dataclass
class Units:
    """The pipeline's operators as units of one stream each, whose order is free; results of a dispatch."""

    pipeline: Pipeline
    latency: NDArray[np.float64]
    stream: NDArray[np.int32] = field(init=False)
    edge_ptr: NDArray[np.int32] = field(init=False)
    edge_target: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        n, pred = self.pipeline.num_nodes, self.pipeline.pred
        self.stream = np.repeat(np.arange(self.num_streams, dtype=np.int32), np.diff(self.pipeline.stream_ptr))
        reader = np.repeat(np.arange(n, dtype=np.int32), np.diff(self.pipeline.pred_ptr))
        self.edge_target = reader[np.argsort(pred, kind="stable")]
        self.edge_ptr = np.concatenate([[0], np.cumsum(np.bincount(pred, minlength=n))]).astype(np.int32)
        self.start, self.end, self.order = np.empty(n), np.empty(n), np.empty(n, dtype=np.int32)

    @property
    def num_streams(self) -> int:
        return len(self.pipeline.stream_ptr) - 1

    @property
    def results(self) -> tuple[NDArray[Any], ...]:
        return self.start, self.end, self.order

    def arguments_for_c(self, rank: NDArray[np.int32]) -> tuple[NDArray[Any], ...]:
        """Arrays of ``dynamic_order``."""
        return (self.stream, rank, self.latency, self.edge_ptr, self.edge_target, *self.results)

    def arguments(self, rank: NDArray[np.int32]) -> tuple[Any, ...]:
        """Arguments of ``dispatch_units``: no further edges, no slots."""
        n, num_edges = len(self.latency), len(self.edge_target)
        none, no_time, zero = np.zeros(0, dtype=np.int32), np.zeros(0), np.zeros(1, dtype=np.int32)
        nothing = np.full(num_edges, -1, dtype=np.int32)
        return (
            *(np.arange(n + 1, dtype=np.int32), self.stream, self.num_streams, rank, self.latency),
            *(self.edge_ptr, self.edge_target, np.zeros(num_edges), nothing, nothing),
            *(none, none, no_time, none, none),
            *(np.zeros(n + 1, dtype=np.int32), none, no_time),
            *(np.full(n, -1, dtype=np.int32), zero, zero, none, none, none, np.full(n, -1, dtype=np.int64), no_time),
            *(self.start, self.end, np.empty(0), np.empty(n, dtype=np.bool_), self.order),
        )

    def random_orders(self, num_orders: int) -> NDArray[np.int32]:
        """Orders that random priorities lead to, stream by stream: int32[num_orders, num_nodes]."""
        rng = np.random.default_rng(3)
        orders = np.empty((num_orders, len(self.latency)), dtype=np.int32)
        for row in orders:
            dispatch_kernels.dispatch_units(*self.arguments(rng.permutation(len(row)).astype(np.int32)))
            row[:] = self.order[np.argsort(self.stream[self.order], kind="stable")]
        return orders


def number_anew(
    pipeline: Pipeline, order: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Predecessors as ``fixed_order_times`` wants them: (new number of each node, pred_ptr, pred)."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=np.int32)
    first = pipeline.pred_ptr[order]
    count = pipeline.pred_ptr[order + 1] - first
    pred_ptr = np.zeros(len(order) + 1, dtype=np.int32)
    np.cumsum(count, out=pred_ptr[1:])
    edge = np.arange(pred_ptr[-1]) + np.repeat(first - pred_ptr[:-1], count)
    return place, pred_ptr, place[pipeline.pred[edge]]


def measure_orders(seconds: float) -> list[Row]:
    """Times of 256 orders of one pipeline in one call against one call per order."""
    pipeline = make_pipeline(2000)
    n, num_orders = pipeline.num_nodes, 256
    latency = latencies(pipeline)
    orders = Units(pipeline, latency).random_orders(num_orders)
    start, end, timed = np.empty((num_orders, n)), np.empty((num_orders, n)), np.empty(num_orders, dtype=np.int64)
    drains = (np.zeros(n + 1, dtype=np.int32), np.zeros(0, dtype=np.int32))
    graph = (pipeline.stream_ptr, orders, pipeline.pred_ptr, pipeline.pred)
    one_start, one_end = np.empty((2, n))
    cursor, none = np.empty(len(pipeline.stream_ptr) - 1, dtype=np.int64), np.empty(0)
    ready_made = [(*number_anew(pipeline, order), latency[order]) for order in orders]

    def call(_: object, pred_ptr: NDArray[np.int32], pred: NDArray[np.int32], lasts: NDArray[np.float64]) -> None:
        kernels.fixed_order_times(pipeline.stream_ptr, pred_ptr, pred, lasts, none, one_start, one_end, cursor)

    def renumbered() -> None:
        for order in orders:
            call(*number_anew(pipeline, order), latency[order])

    def prepared() -> None:
        for arguments in ready_made:
            call(*arguments)

    contenders: dict[str, Callable[[], object]] = {
        "semu": partial(order_kernels.time_orders, *graph, *drains, latency, start, end, timed),
        "fixed_order_times, numbered anew": renumbered,
        "fixed_order_times, arrays ready-made": prepared,
    }
    contenders["semu"]()
    for row, arguments in enumerate(ready_made):
        call(*arguments)
        assert timed[row] == n, "an order deadlocks"
        assert np.array_equal(one_start[arguments[0]], start[row]), "one call per order finds other times"
        assert np.array_equal(one_end[arguments[0]], end[row]), "one call per order finds other times"
    times_s = fastest(contenders, seconds)
    name = f"many orders of {n} nodes"
    rows = [Row(name, times_s["semu"] / num_orders * 1e6, "us per order", "none", None, None)]
    for reference in list(times_s)[1:]:
        rows.append(Row(name, times_s[reference] / times_s["semu"], "x faster", reference, None, None))
    return rows
