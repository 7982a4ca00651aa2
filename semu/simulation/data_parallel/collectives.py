"""The gradient collectives of all pipeline ranks, whenever they begin: what they move, how long they last, what each
waits for. They depend on the order in which gradients are complete, and on nothing else of a schedule or a batch."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.costs.evaluation import CostedJob
from semu.engine.timeline import OuterSlice
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.job import Optimizer
from semu.parallel.mesh import Mesh
from semu.records import dataclass
from semu.simulation.data_parallel.buckets import RankBucket, rank_buckets, shares_parameters
from semu.simulation.data_parallel.fsdp_units import unit_buckets, unit_collectives
from semu.simulation.data_parallel.gradient_times import Trained
from semu.simulation.data_parallel.timed_operators import distinct_streams
from semu.simulation.transfers import collective, collectives, collectives_among


@dataclass(frozen=True, eq=False)
class ReductionPlan:
    """Gradient collectives, rank after rank, each rank's in order; those of tied parameters follow elsewhere.

    Attributes:
        pieces: as if each began at time 0. groups: their communicators.
        members: numbers of the gradients in each, among the rank's in the order in which they are complete; None: it
            waits for the rank's last stage.
        ptr: int64[num_ranks + 1], where each rank's begin. length: how long each lasts [s].
        gate: int64[num_pieces], what each waits for beside the one before it: a gradient, by its turn; after them a
            rank's last stage; after these nothing.
    """

    pieces: tuple[OuterSlice, ...]
    groups: tuple[CommGroup, ...]
    members: tuple[tuple[int, ...] | None, ...]
    ptr: NDArray[np.int64]
    length: list[float]
    gate: NDArray[np.int64]

    @cached_property
    def by_rank(self) -> list[tuple[tuple[OuterSlice, ...], int, int, tuple[str, ...]]]:
        """Per rank its collectives, where they begin and end among all, and their distinct streams."""
        ranges = [(self.pieces[first:stop], first, stop) for first, stop in pairwise(self.ptr.tolist())]
        return [(pieces, first, stop, distinct_streams(pieces)) for pieces, first, stop in ranges]


def has_reductions(layout: Layout) -> bool:
    """Whether gradients are reduced behind the stages."""
    return (layout.job.parallel.zero <= 1 or layout.job.gathers_once) and shares_parameters(layout)


def reduction_plan(costed: CostedJob, trained: Trained | None, order: NDArray[np.int64] | None) -> ReductionPlan:
    """The collectives for gradients that are complete in some order; remembered.

    Args:
        trained, order: as in ``Gradients``; None: nothing is reduced behind the stages (``has_reductions``).
    """
    layout, model = costed.layout, costed.cost_model
    if model.rules:
        return _find_plan(costed, trained, order)
    key = model, None if order is None else order.tobytes()
    return _PLANS.get(layout.place, key, lambda: _find_plan(costed, trained, order))


_PLANS = memo.ScopedTable[ReductionPlan]("gradient collectives in a place, by cost model and order of gradients", 256)


class _OfRank(NamedTuple):
    """What reduces a rank's gradients, in order; ranks that hold as much in the same groups share it.

    Attributes:
        pieces, groups: as in ``ReductionPlan``. members: of each, in the rank's own numbers.
        gate: int64[num_pieces], the last of the members, -1: it waits for the one before it alone.
    """

    pieces: list[OuterSlice]
    groups: list[CommGroup]
    members: list[tuple[int, ...]]
    gate: NDArray[np.int64]


def _find_plan(costed: CostedJob, trained: Trained | None, order: NDArray[np.int64] | None) -> ReductionPlan:
    layout, job = costed.layout, costed.job
    overlapped = job.training.overlap.grad_reduce
    size, num_ranks = job.training.grad_dtype.size_bytes, job.parallel.pp
    num_gradients = 0 if order is None else len(order)
    nothing = num_gradients + num_ranks
    pieces: list[OuterSlice] = []
    groups: list[CommGroup] = []
    members: list[tuple[int, ...] | None] = []
    gates = [np.zeros(0, dtype=np.int64)]
    ptr = [0]
    alike: dict[Hashable, _OfRank] = {}
    for rank in range(num_ranks):
        last = num_gradients + rank
        if trained is not None and order is not None and layout.cut.trainable[rank]:
            first, stop = trained.ptr[rank : rank + 2]
            turn = order[first:stop]
            key = _likeness(layout, rank), (turn - first).tobytes()
            if key not in alike:
                alike[key] = _of_rank(costed, rank, trained, turn.tolist())
            own = alike[key]
            pieces += own.pieces
            groups += own.groups
            members += own.members if overlapped else [None] * len(own.members)
            gates.append(np.where(own.gate < 0, nothing, own.gate + first if overlapped else last))
        for mesh, count in _replicated(layout, rank):
            if job.parallel.zero >= 2:
                count = -(-count // job.parallel.shard_ranks)
            group = mesh.worst_tp_group
            pieces.append(
                collective(costed.cost_model, "replicated gradients", OpKind.ALL_REDUCE, group, count * size, 0.0)
            )
            groups.append(group)
            members.append(None)
            gates.append(np.array([last]))
        ptr.append(len(pieces))
    return ReductionPlan(
        pieces=tuple(pieces),
        groups=tuple(groups),
        members=tuple(members),
        ptr=np.array(ptr, dtype=np.int64),
        length=[piece.end_s - piece.start_s for piece in pieces],
        gate=np.concatenate(gates),
    )


def _of_rank(costed: CostedJob, rank: int, trained: Trained, turn: list[int]) -> _OfRank:
    """``turn``: numbers of the rank's gradients in the order in which they are complete."""
    layout, job = costed.layout, costed.job
    keys = [trained.keys[i] for i in turn]
    if job.gathers_once:
        unreached = set(trained.unreached.tolist())
        units = unit_buckets(layout, rank, keys, [i not in unreached for i in turn])
        inside, reducing_each = [bucket.members for _, bucket in units], unit_collectives(costed, rank, units)
    else:
        elements = [trained.elements[i] for i in turn]
        slots = [trained.slots[i] for i in turn]
        overlapped = job.training.overlap.grad_reduce
        buckets = rank_buckets(layout, rank, keys, elements, slots, overlapped=overlapped)
        inside, reducing_each = [bucket.members for bucket in buckets], _bucket_collectives(costed, rank, buckets)
    every = [
        (piece, group, members, -1 if number else members[-1])
        for members, reducing in zip(inside, reducing_each, strict=True)
        for number, (piece, group) in enumerate(reducing)
    ]
    return _OfRank(
        [own[0] for own in every],
        [own[1] for own in every],
        [own[2] for own in every],
        np.array([own[3] for own in every], dtype=np.int64),
    )


def _likeness(layout: Layout, rank: int) -> Hashable:
    """What the collectives of a rank's buckets depend on beside the order of its gradients, which ranks alike share."""
    mesh = layout.mesh
    if layout.job.gathers_once or any(pool.mesh is not mesh for pool in layout.pools(rank)):
        return rank
    groups = [mesh.dp_group(rank)]
    if layout.job.parallel.is_sharded_in_groups:
        groups.append(mesh.replica_group(rank))
    return layout.likeness(rank), *groups


def _replicated(layout: Layout, rank: int) -> list[tuple[Mesh, int]]:
    """Trainable elements that all tensor-parallel ranks hold and see part of the tokens for, by their group."""
    parallel = layout.job.parallel
    if not parallel.modules:
        is_split = parallel.tp > 1 and parallel.sequence_parallel
        total = layout.cut.replicated[rank] if is_split else 0
        return [(layout.mesh, total)] if total else []
    result: dict[int, tuple[Mesh, int]] = {}
    for chunk, _, held in layout.held_by(rank):
        mesh = layout.mesh_of(chunk)
        is_split = mesh.parallel.tp > 1 and mesh.parallel.sequence_parallel
        if is_split and held.parameter.requires_grad and not held.is_sharded:
            tp = mesh.parallel.tp
            result[tp] = (mesh, result.get(tp, (mesh, 0))[1] + held.elements)
    return [replicated for _, replicated in sorted(result.items(), reverse=True)]


def _bucket_collectives(
    costed: CostedJob, rank: int, buckets: list[RankBucket]
) -> list[tuple[tuple[OuterSlice, CommGroup], ...]]:
    """What reduces each bucket of gradients, and over which communicator: an all-reduce; with ZeRO-1 a reduce-scatter,
    in groups followed by an all-reduce of the shard across them (Megatron-LM's
    ``--num-distributed-optimizer-instances``). Muon's ranks own whole parameters, so that it is an all-reduce too."""
    if not buckets:  # the job's groups are none of modules on GPUs of their own
        return []
    model, mesh, parallel = costed.cost_model, costed.layout.mesh, costed.job.parallel
    size = costed.job.training.grad_dtype.size_bytes
    sizes = [bucket.elements * size for bucket in buckets]
    is_scattered = parallel.zero >= 1 and costed.job.training.optimizer is not Optimizer.MUON
    names = [f"gradients {number}" for number in range(len(sizes))]
    if any(bucket.pool.is_expert or bucket.pool.mesh is not mesh for bucket in buckets):
        kind = OpKind.REDUCE_SCATTER if is_scattered else OpKind.ALL_REDUCE
        groups = [bucket.group for bucket in buckets]
        found = [*zip(collectives_among(model, names, kind, groups, sizes), groups, strict=True)]
        if not (is_scattered and parallel.is_sharded_in_groups):
            return [(piece,) for piece in found]
        across = mesh.replica_group(rank)  # as many groups for experts as for all else
        shares = [-(-size // bucket.pool.shards) for size, bucket in zip(sizes, buckets, strict=True)]
        summed = collectives(model, names, OpKind.ALL_REDUCE, across, shares)
        return [(first, (second, across)) for first, second in zip(found, summed, strict=True)]
    if not is_scattered:
        group = mesh.dp_group(rank)
        return [((piece, group),) for piece in collectives(model, names, OpKind.ALL_REDUCE, group, sizes)]
    group = mesh.shard_group(rank)
    scattered = collectives(model, names, OpKind.REDUCE_SCATTER, group, sizes)
    if not parallel.is_sharded_in_groups:
        return [((piece, group),) for piece in scattered]
    shares, across = [-(-size // parallel.shard_ranks) for size in sizes], mesh.replica_group(rank)
    summed = collectives(model, names, OpKind.ALL_REDUCE, across, shares)
    return [((first, group), (second, across)) for first, second in zip(scattered, summed, strict=True)]
