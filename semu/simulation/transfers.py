"""Bytes of everything that crosses ranks outside stages: P2P sends and data-parallel collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.costs.evaluation import CostedJob
from semu.costs.roofline import CostModel
from semu.engine.timeline import OuterSlice
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup, wire_factor
from semu.schedule.problem import PipelineProblem
from semu.simulation.module_transfers import card_loads, port_load
from semu.simulation.unit_programs import programs_of


def collective(
    model: CostModel, name: str, kind: OpKind, group: CommGroup, buffer_bytes: int, begin_s: float
) -> OuterSlice:
    """One collective over a buffer (nccl-tests' sense) that begins at a given time."""
    return moved(collectives(model, [name], kind, group, [buffer_bytes])[0], begin_s)


def collectives(
    model: CostModel, names: Sequence[str], kind: OpKind, group: CommGroup, buffer_bytes: Sequence[int]
) -> list[OuterSlice]:
    """Collectives of one kind over several buffers, each as if it began at time 0 (see ``moved``)."""

    def _find() -> list[OuterSlice]:
        factor = wire_factor(kind, group.num_ranks)
        wire = [factor.numerator * size // factor.denominator for size in buffer_bytes]
        if kind in model.rules:  # a custom rule may ask for the name
            each = zip(names, wire, strict=True)
            latency = [float(model.outer_latency(kind, name, group=group, net_bytes=size)[0]) for name, size in each]
        else:
            latency = model.outer_latency(kind, "", group=group, net_bytes=np.array(wire, dtype=np.int64)).tolist()
        provenance = model.outer_provenance(kind, group)
        return [
            OuterSlice(name, kind, group.name, 0.0, seconds, size, group.num_ranks, provenance, group.port)
            for name, seconds, size in zip(names, latency, wire, strict=True)
        ]

    if kind in model.rules:
        return _find()
    return _COLLECTIVES.get(model.outside, (tuple(names), kind, group, tuple(buffer_bytes)), _find)


def collectives_among(
    model: CostModel, names: Sequence[str], kind: OpKind, groups: Sequence[CommGroup], buffer_bytes: Sequence[int]
) -> list[OuterSlice]:
    """As ``collectives``, each in a group of its own; those in one group are costed in one go."""
    pieces: dict[int, OuterSlice] = {}
    for group in dict.fromkeys(groups):
        mine = [number for number, other in enumerate(groups) if other is group or other == group]
        own = [names[number] for number in mine], kind, group, [buffer_bytes[number] for number in mine]
        pieces.update(zip(mine, collectives(model, *own), strict=True))
    return [pieces[number] for number in range(len(groups))]


_COLLECTIVES = memo.ScopedTable[list[OuterSlice]](
    "collectives outside stages on a device, by names, kind, group and buffers", 4096
)
_KERNELS = memo.ScopedTable[float]("latencies of kernels outside stages on a device, by kind and bytes", 4096)
_EDGES = memo.ScopedTable["NDArray[np.int64]"](
    "bytes between costed chunks, by the costs of the chunk that tells them, direction and tensors", 4096, is_large=True
)
_SENT = memo.ScopedTable["tuple[ChunkTransfers, ...]"](
    "transfers between costed chunks, by lowered schedule", 256, is_large=True
)


def on_device(model: CostModel, name: str, kind: OpKind, mem_bytes: int, begin_s: float) -> OuterSlice:
    """One memory-bound kernel of the compute stream outside stages that begins at a given time."""

    def _make() -> float:
        return float(model.outer_latency(kind, name, mem_bytes=mem_bytes)[0])

    latency = _make() if kind in model.rules else _KERNELS.get(model.outside, (kind, mem_bytes), _make)
    return OuterSlice(name, kind, "compute", begin_s, begin_s + latency, 0, 1, model.outer_provenance(kind, None))


def moved(piece: OuterSlice, begin_s: float) -> OuterSlice:
    """The same operator, beginning at another time."""
    return timed_operator(piece, begin_s, begin_s + (piece.end_s - piece.start_s))


def timed_operator(piece: OuterSlice, start_s: float, end_s: float) -> OuterSlice:
    """The same operator between two times; ``dataclasses.replace`` takes several times as long."""
    rest = (piece.net_bytes, piece.group_ranks, piece.provenance, piece.port)
    return OuterSlice(piece.name, piece.kind, piece.stream, start_s, end_s, *rest)


def leaving_positions(layout: Layout, source: int, target: int, phase: Phase) -> list[int]:
    """Positions, in the carry between two chunks, of the tensors (or gradients) that ``source`` hands to ``target``."""
    ends = (source, target) if phase is Phase.FORWARD else (target, source)
    return layout.cut.handed.get(ends, [])


def edge_bytes(
    costed: CostedJob, source: int, target: int, phase: Phase, *, is_received: bool = False
) -> NDArray[np.int64]:
    """Bytes that chunk ``source`` sends to chunk ``target`` for every shape: the carry, or the gradients of the carry.

    Args:
        is_received: what one GPU of the target gets; else, between modules on GPUs of their own, what passes the
            busiest port.
    Returns:
        int64[num_shapes].
    """
    is_forward = phase is Phase.FORWARD
    costs = costed.evaluation.chunks[target if is_forward else source]  # most chunks share theirs
    positions = leaving_positions(costed.layout, source, target, phase)
    load = port_load(costed.layout, source, target, is_gradient=not is_forward)
    share = load.received if is_received else load.busiest

    def _make() -> NDArray[np.int64]:
        total: NDArray[np.int64] = (costs.arriving if is_forward else costs.gradient_leaving)[positions].sum(axis=0)
        return total if share == 1 else -(-total * share.numerator // share.denominator)

    key = costs, is_forward, share.numerator, share.denominator, *positions  # a fraction's own hash takes long
    return _EDGES.get(costed.evaluation.by_shape, key, _make)


def edge_link(layout: Layout, source: int, target: int, phase: Phase, link: CommGroup) -> CommGroup:
    """The link of a transfer between two chunks: that of their ranks, slower or faster where its messages share network
    cards."""
    loads = card_loads(layout, source, target, is_gradient=phase is not Phase.FORWARD) if link.num_nodes > 1 else None
    return link if loads is None else replace(link, nic_slowdown=link.nic_slowdown * loads.slower)


def splitting_group(layout: Layout) -> CommGroup | None:
    """The tensor-parallel ranks of which each sends its share of what all of them hold; None: each sends all of it."""
    return layout.mesh.worst_tp_group if layout.job.splits_transfers else None


class ChunkTransfers(NamedTuple):
    """All transfers of one phase from one chunk to another.

    Attributes:
        source, consumer: chunk that sends, chunk that receives. phase: of both stages.
        transfers: int64[num_microbatches], numbers of the transfers. microbatch: int64[num_microbatches], whose: the
            sender's (sub-)microbatch.
        size: int64[num_shapes] [bytes], what each transfer moves. received: what the consumer's rank has of it.
        column: int64[num_microbatches], columns of the table of shapes of what they move.
    """

    source: int
    consumer: int
    phase: Phase
    transfers: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    size: NDArray[np.int64]
    column: NDArray[np.int64]
    received: NDArray[np.int64]


def chunk_transfers(costed: CostedJob, problem: PipelineProblem) -> tuple[ChunkTransfers, ...]:
    """All transfers of the problem, in the order of the first between each two chunks."""
    return _SENT.get(costed.evaluation.by_shape, problem, lambda: _find_transfers(costed, problem))


def _find_transfers(costed: CostedJob, problem: PipelineProblem) -> tuple[ChunkTransfers, ...]:
    programs = programs_of(costed.layout.recipe, problem.units)
    column = programs.column[problem.unit_of_nodes[problem.num_stages :]]
    differs = costed.job.parallel.has_own_gpus
    found = []
    for key, (transfers, microbatch) in zip(problem.transfer_edges[0], problem.edge_transfers, strict=True):
        size = edge_bytes(costed, *key)
        received = edge_bytes(costed, *key, is_received=True) if differs else size
        found.append(ChunkTransfers(*key, transfers, microbatch, size, column[transfers], received))
    return tuple(found)
