"""The instance that engine.py measures: operators of a 1F1B pipeline, and the storages that they write and read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_RANKS = 8
OPS_PER_STAGE = 64
COLLECTIVES_PER_STAGE = 4


@dataclass(frozen=True)
class Pipeline:
    """Operators of a 1F1B pipeline, numbered by stream: compute of each rank, its collectives, links up, links down.

    An operator of a stage follows the one before it, every fourth also a residual; a collective of the rank interrupts
    the stage at each quarter; a backward operator reads what its forward operator saved: 1 to 3 predecessors.
    """

    stream_ptr: NDArray[np.int64]
    pred_ptr: NDArray[np.int32]
    pred: NDArray[np.int32]
    costs: tuple[NDArray[np.float32], ...]
    s_per_cost: tuple[NDArray[np.float64], ...]

    @property
    def num_nodes(self) -> int:
        return int(self.stream_ptr[-1])


def make_pipeline(num_nodes: int) -> Pipeline:
    """A pipeline of about ``num_nodes`` operators; their number follows from a whole number of microbatches."""
    per_microbatch = NUM_RANKS * 2 * (OPS_PER_STAGE + COLLECTIVES_PER_STAGE) + 2 * (NUM_RANKS - 1)
    m = max(1, round(num_nodes / per_microbatch))
    lengths = [2 * m * OPS_PER_STAGE] * NUM_RANKS + [2 * m * COLLECTIVES_PER_STAGE] * NUM_RANKS
    stream_ptr = np.cumsum([0, *lengths, *[m] * (2 * (NUM_RANKS - 1))])
    compute, collective = stream_ptr[:NUM_RANKS], stream_ptr[NUM_RANKS : 2 * NUM_RANKS]
    link_up, link_down = stream_ptr[2 * NUM_RANKS :], stream_ptr[3 * NUM_RANKS - 1 :]
    preds = np.full((stream_ptr[-1], 3), -1, dtype=np.int32)
    microbatch, op = np.arange(m), np.arange(OPS_PER_STAGE)
    quarter = OPS_PER_STAGE // COLLECTIVES_PER_STAGE
    first_of_quarter = np.arange(0, OPS_PER_STAGE, quarter)
    for rank in range(NUM_RANKS):
        warmup = min(NUM_RANKS - 1 - rank, m)
        forward = np.where(microbatch < warmup, microbatch, 2 * microbatch - warmup)
        backward = np.where(microbatch < m - warmup, warmup + 1 + 2 * microbatch, m + microbatch)
        for position, is_forward in ((forward, True), (backward, False)):
            node = compute[rank] + position[:, None] * OPS_PER_STAGE + op
            call = collective[rank] + position[:, None] * COLLECTIVES_PER_STAGE + np.arange(COLLECTIVES_PER_STAGE)
            preds[node, 0] = node - 1
            preds[node[:, first_of_quarter], 0] = call - 1
            preds[node[:, 3::4], 1] = node[:, ::4]
            preds[call, 0] = node[:, first_of_quarter + quarter - 1]
            preds[node[:, 0], 0] = -1
            if is_forward and rank > 0:
                preds[node[:, 0], 0] = link_up[rank - 1] + microbatch
            if is_forward and rank < NUM_RANKS - 1:
                preds[link_up[rank] + microbatch, 0] = call[:, -1]
            if not is_forward:
                preds[node, 2] = compute[rank] + forward[:, None] * OPS_PER_STAGE + op[::-1]
            if not is_forward and rank < NUM_RANKS - 1:
                preds[node[:, 0], 0] = link_down[rank] + microbatch
            if not is_forward and rank > 0:
                preds[link_down[rank - 1] + microbatch, 0] = call[:, -1]
    exists = preds >= 0
    pred_ptr = np.concatenate([[0], np.cumsum(exists.sum(axis=1))]).astype(np.int32)
    rng = np.random.default_rng(0)
    is_compute = np.arange(stream_ptr[-1]) < stream_ptr[NUM_RANKS]
    tops = ((1e12, is_compute), (1e9, is_compute), (1e8, ~is_compute))
    costs = tuple((rng.uniform(top / 1e3, top, len(mask)) * mask).astype(np.float32) for top, mask in tops)
    s_per_cost = tuple(np.full(len(stream_ptr) - 1, 1 / rate) for rate in (5e14, 2e12, 2e11))
    return Pipeline(stream_ptr, pred_ptr, preds[exists], costs, s_per_cost)


def make_storages(pipeline: Pipeline) -> tuple[NDArray[Any], ...]:
    """The first arguments of ``ordered_peak_memory``: one output per compute operator, read on its own rank."""
    device_ptr = pipeline.stream_ptr[: NUM_RANKS + 1].copy()
    num_nodes = int(device_ptr[-1])
    num_edges = int(pipeline.pred_ptr[num_nodes])
    reader = np.repeat(np.arange(num_nodes, dtype=np.int32), np.diff(pipeline.pred_ptr[: num_nodes + 1]))
    written = pipeline.pred[:num_edges]
    is_local = written < num_nodes
    reader, written = reader[is_local], written[is_local]
    reader_ptr = np.concatenate([[0], np.cumsum(np.bincount(written, minlength=num_nodes))]).astype(np.int32)
    size_bytes = np.random.default_rng(1).integers(1 << 10, 1 << 24, num_nodes)
    writer = np.arange(num_nodes, dtype=np.int32)
    return device_ptr, device_ptr, size_bytes, writer, reader_ptr, reader[np.argsort(written, kind="stable")]
