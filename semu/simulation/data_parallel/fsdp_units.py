"""Units of ZeRO-3 that stay gathered through an iteration (``TrainingJob.gathers_once``), and what they move.

A unit is a block, its routed experts apart where they are spread otherwise than all else. Its parameters are gathered
once, before the first forward of its chunk, and its gradients are reduced once, in the chunk's last backward: outside
the stages, like ZeRO-1's buckets (``gathers_before_forwards``, ``reduce``), whose order and waiting they share.
"""

from __future__ import annotations

from semu import memo
from semu.compile.layout import Layout
from semu.compile.parameter_pools import ParameterPool
from semu.compile.tracer import HeldParameter
from semu.costs.evaluation import CostedJob
from semu.engine.timeline import OuterSlice
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.nn.module import Parameter
from semu.records import dataclass
from semu.simulation.context import ParameterGather
from semu.simulation.data_parallel.buckets import RankBucket
from semu.simulation.transfers import collective, moved


@dataclass(frozen=True)
class FsdpUnit:
    """Parameters that are gathered together and whose gradients are reduced together.

    Attributes:
        chunk, block: the first that uses them. members: the parameters. pool: what they are of.
        parameter_bytes: gathered [bytes], 0 where no two ranks share them out.
    """

    chunk: int
    block: int
    members: tuple[HeldParameter, ...]
    pool: ParameterPool
    parameter_bytes: int


def units_of_rank(layout: Layout, rank: int) -> tuple[FsdpUnit, ...]:
    """The units of a pipeline rank in forward order; what several blocks use belongs to the first of them."""
    return _UNITS.get(layout.place, rank, lambda: _find_units(layout, rank))


_UNITS = memo.ScopedTable[tuple[FsdpUnit, ...]]("units that ranks gather in a place, by pipeline rank", 1024)


def _find_units(layout: Layout, rank: int) -> tuple[FsdpUnit, ...]:
    pools = {pool.is_expert: pool for pool in layout.pools(rank)}
    members: dict[tuple[int, int, bool], list[HeldParameter]] = {}
    for chunk, block, held in layout.held_by(rank):
        if pools[held.is_expert].ranks > 1:
            members.setdefault((chunk, block, held.is_expert), []).append(held)
    return tuple(
        FsdpUnit(
            chunk,
            block,
            tuple(of_unit),
            pools[is_expert],
            sum(layout.weight_bytes(held) for held in of_unit) if pools[is_expert].shards > 1 else 0,
        )
        for (chunk, block, is_expert), of_unit in sorted(members.items(), key=lambda item: item[0])
    )


def unit_name(number: int) -> str:
    """Name of the collectives over a unit's gradients."""
    return f"gradients {number}"


def unit_buckets(layout: Layout, rank: int, keys: list[Parameter], reached: list[bool]) -> list[tuple[int, RankBucket]]:
    """Units with gradients, as buckets, in the order in which their last gradients are complete.

    Args:
        keys: the trained parameters, in order of readiness. reached: whether it gets a gradient.
    Returns:
        (number of the unit, bucket).
    """
    place = {key: number for number, key in enumerate(keys) if reached[number]}
    buckets = []
    for number, unit in enumerate(units_of_rank(layout, rank)):
        with_gradient = [held for held in unit.members if held.parameter in place]
        if with_gradient:
            members = tuple(sorted(place[held.parameter] for held in with_gradient))
            elements, group = sum(held.elements for held in with_gradient), unit.pool.shard_group(rank)
            buckets.append((number, RankBucket(elements, members, unit.pool, group)))
    return sorted(buckets, key=lambda item: item[1].members[-1])


def unit_collectives(
    costed: CostedJob, rank: int, buckets: list[tuple[int, RankBucket]]
) -> list[tuple[tuple[OuterSlice, CommGroup], ...]]:
    """What reduces each unit's gradients: a reduce-scatter, with HSDP an all-reduce of the shard across the groups."""
    layout, model = costed.layout, costed.cost_model
    size = layout.job.training.grad_dtype.size_bytes
    result = []
    for number, bucket in buckets:
        name, group, of_unit = unit_name(number), bucket.group, []
        if group.num_ranks > 1:
            scatter = collective(model, name, OpKind.REDUCE_SCATTER, group, bucket.elements * size, 0.0)
            of_unit.append((scatter, group))
        if layout.job.parallel.is_sharded_in_groups:
            across, share = layout.mesh.replica_group(rank), -(-bucket.elements * size // group.num_ranks)
            of_unit.append((collective(model, name, OpKind.ALL_REDUCE, across, share, 0.0), across))
        result.append(tuple(of_unit))
    return result


def unit_gathers(costed: CostedJob, rank: int) -> ParameterGather:
    """The gathers of a rank's units; without ``overlap.param_gather`` every block waits for the last one."""
    layout, model = costed.layout, costed.cost_model
    slices: list[OuterSlice] = []
    groups: list[CommGroup] = []
    last: dict[tuple[int, int], int] = {}
    for number, unit in enumerate(units_of_rank(layout, rank)):
        if unit.parameter_bytes:
            group = unit.pool.shard_group(rank)
            piece = collective(model, f"parameters {number}", OpKind.ALL_GATHER, group, unit.parameter_bytes, 0.0)
            slices.append(moved(piece, slices[-1].end_s if slices else 0.0))
            groups.append(group)
            last[unit.chunk, unit.block] = len(slices) - 1
    if slices and not layout.job.training.overlap.param_gather:
        blocks = [(c.chunk.index, number) for c in layout.chunks_of(rank) for number in range(len(c.blocks))]
        last = dict.fromkeys(blocks, len(slices) - 1)
    return ParameterGather(tuple(slices), tuple(groups), last)
