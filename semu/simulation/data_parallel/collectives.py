"""The gradient collectives of all pipeline ranks, whenever they begin: what they move, how long they last, what each
waits for. They depend on the order in which gradients are complete, and on nothing else of a schedule or a batch."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import pairwise

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
from semu.simulation.transfers import collective, collectives


@dataclass(frozen=True, eq=False)
class ReductionPlan:
    """Gradient collectives, rank after rank, each rank's in order; those of tied parameters follow elsewhere.

    Attributes:
        pieces: as if each began at time 0. groups: their communicators.
        members: numbers of the gradients in each, in the order in which they are complete; None: it waits for the
            rank's last stage.
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


def _find_plan(costed: CostedJob, trained: Trained | None, order: NDArray[np.int64] | None) -> ReductionPlan:
    layout, job = costed.layout, costed.job
    overlapped = job.training.overlap.grad_reduce
    size, num_ranks = job.training.grad_dtype.size_bytes, job.parallel.pp
    num_gradients = 0 if order is None else len(order)
    nothing = num_gradients + num_ranks
    pieces: list[OuterSlice] = []
    groups: list[CommGroup] = []
    members: list[tuple[int, ...] | None] = []
    gates: list[int] = []
    ptr = [0]
    alike: dict[Hashable, tuple[list[tuple[int, ...]], list[tuple[tuple[OuterSlice, CommGroup], ...]]]] = {}
    for rank in range(num_ranks):
        last = num_gradients + rank
        if trained is not None and order is not None and layout.cut.trainable[rank]:
            first, turn = trained.ptr[rank], order[trained.ptr[rank] : trained.ptr[rank + 1]].tolist()
            keys = [trained.keys[i] for i in turn]
            elements = [trained.elements[i] for i in turn]
            slots = [trained.slots[i] for i in turn]
            if job.gathers_once:
                unreached = set(trained.unreached.tolist())
                units = unit_buckets(layout, rank, keys, [i not in unreached for i in turn])
                inside, reducing_each = [bucket.members for _, bucket in units], unit_collectives(costed, rank, units)
            else:
                key = _likeness(layout, rank, elements, slots)
                if key is None or key not in alike:
                    buckets = rank_buckets(layout, rank, keys, elements, slots, overlapped=overlapped)
                    alike[key] = [bucket.members for bucket in buckets], _bucket_collectives(costed, rank, buckets)
                inside, reducing_each = alike[key]
            for members_in, reducing in zip(inside, reducing_each, strict=True):
                mine = tuple([first + member for member in members_in]) if overlapped else None
                gates += [mine[-1] if mine is not None else last] + [nothing] * (len(reducing) - 1)
                for piece, group in reducing:
                    pieces.append(piece)
                    groups.append(group)
                    members.append(mine)
        for mesh, count in _replicated(layout, rank):
            if job.parallel.zero >= 2:
                count = -(-count // job.parallel.shard_ranks)
            group = mesh.worst_tp_group
            pieces.append(
                collective(costed.cost_model, "replicated gradients", OpKind.ALL_REDUCE, group, count * size, 0.0)
            )
            groups.append(group)
            members.append(None)
            gates.append(last)
        ptr.append(len(pieces))
    return ReductionPlan(
        pieces=tuple(pieces),
        groups=tuple(groups),
        members=tuple(members),
        ptr=np.array(ptr, dtype=np.int64),
        length=[piece.end_s - piece.start_s for piece in pieces],
        gate=np.array(gates, dtype=np.int64),
    )


def _likeness(layout: Layout, rank: int, elements: Sequence[int], slots: Sequence[int]) -> Hashable:
    """What the collectives of a rank's buckets depend on, which equal ranks share; None: they do not."""
    pools, mesh = layout.pools(rank), layout.mesh
    if len(pools) > 1 or any(pool.is_expert or pool.mesh is not mesh for pool in pools):
        return None
    groups = [mesh.dp_group(rank), mesh.shard_group(rank)]
    if layout.job.parallel.is_sharded_in_groups:
        groups.append(mesh.replica_group(rank))
    return tuple(elements), tuple(slots), tuple(groups)


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
        found = []
        for name, bucket, bucket_bytes in zip(names, buckets, sizes, strict=True):
            group = bucket.pool.shard_group(rank)
            pieces = [(collective(model, name, kind, group, bucket_bytes, 0.0), group)]
            if is_scattered and parallel.is_sharded_in_groups:  # as many groups for experts as for all else
                across, share = mesh.replica_group(rank), -(-bucket_bytes // bucket.pool.shards)
                pieces.append((collective(model, name, OpKind.ALL_REDUCE, across, share, 0.0), across))
            found.append(tuple(pieces))
        return found
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
