"""Bytes and latencies of everything that crosses ranks outside stages: P2P sends and data-parallel collectives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.graph.operator import Phase
from semu.hardware.device import DeviceProfile
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup, collective_cost, wire_factor
from semu.schedule.problem import PipelineProblem
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.units import TIME_GRID_PER_S, quantize_time


def collective_time(profile: DeviceProfile, kind: OpKind, group: CommGroup, buffer_bytes: int) -> tuple[float, int]:
    """Latency [s] on the time grid, and wire bytes per rank, of one collective over a buffer (nccl-tests' sense)."""
    wire = int(wire_factor(kind, group.num_ranks) * buffer_bytes)
    return quantize_time(collective_cost(profile, kind, group).time_s(wire)), wire


def edge_bytes(layout: Layout, evaluation: Evaluation, source: int, target: int, phase: Phase) -> NDArray[np.int64]:
    """Bytes that chunk ``source`` sends to chunk ``target`` for every shape: the carry, or the gradients of the carry.

    Returns:
        int64[num_shapes].
    """
    if phase is Phase.FORWARD:
        arrivals, sizes = layout.chunks[target].arrivals, evaluation.chunks[target].arriving
        other = source
    else:
        arrivals, sizes = layout.chunks[source].arrivals, evaluation.chunks[source].gradient_leaving
        other = target
    rows = [k for k, chunk in enumerate(arrivals) if chunk == other and k < len(sizes)]
    total: NDArray[np.int64] = sizes[rows].sum(axis=0)
    return total


def transfer_bytes(layout: Layout, evaluation: Evaluation, problem: PipelineProblem) -> NDArray[np.int64]:
    """Bytes of every transfer of the problem for every shape: int64[num_transfers, num_shapes]."""
    known: dict[tuple[int, int, Phase], NDArray[np.int64]] = {}
    rows = []
    for transfer in problem.transfers:
        key = (transfer.stage.chunk, transfer.consumer.chunk, transfer.stage.phase)
        if key not in known:
            known[key] = edge_bytes(layout, evaluation, *key)
        rows.append(known[key])
    num_shapes = evaluation.latency.shape[0]
    return np.stack(rows) if rows else np.zeros((0, num_shapes), dtype=np.int64)


def p2p_latency(profile: DeviceProfile, group: CommGroup, size_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Latency [s], on the time grid, of sends of many sizes; nothing to send takes no time."""
    cost = collective_cost(profile, OpKind.P2P, group)
    transfer = size_bytes / cost.bytes_per_s
    latency = cost.latency_s + transfer + np.sqrt(cost.c_s * transfer)
    on_grid: NDArray[np.float64] = np.where(size_bytes > 0, np.rint(latency * TIME_GRID_PER_S) / TIME_GRID_PER_S, 0.0)
    return on_grid
