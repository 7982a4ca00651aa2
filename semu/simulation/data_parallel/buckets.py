"""Buckets of a rank's parameters, pool by pool: the group that shares an expert is smaller than the group that shares a
dense parameter. When their reductions start, as soon as the last gradient of each is there: ``reduce``; how a bucket is
filled: ``semu.parallel.data.gradient_buckets``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from semu import memo
from semu.compile.layout import Layout
from semu.compile.parameter_pools import ParameterPool
from semu.hardware.network import CommGroup
from semu.nn.module import Parameter
from semu.parallel.data import Bucket, gradient_buckets
from semu.records import dataclass


@dataclass(frozen=True)
class RankBucket:
    """Parameters whose gradients are reduced, or which are gathered, together.

    Attributes:
        elements: local elements. members: numbers of the parameters in it, ascending. pool: what they are of.
        group: the ranks that ZeRO shards the pool over.
    """

    elements: int
    members: tuple[int, ...]
    pool: ParameterPool
    group: CommGroup


def rank_buckets(
    layout: Layout,
    rank: int,
    parameters: Sequence[Parameter],
    elements: Sequence[int],
    slots: Sequence[int],
    *,
    overlapped: bool,
) -> list[RankBucket]:
    """Buckets of a rank; those that no other rank shares are left out.

    Args:
        rank: pipeline rank.
        parameters, elements, slots: parameter, local elements and virtual stage of each, in order of readiness.
        overlapped: as ``gradient_buckets``.
    Source:
        Megatron-LM's DistributedDataParallel: expert-parallel parameters have separate buffers and the same bucket
        size. There both kinds of buckets share the links; here they take turns, in the order in which they are full.
    """
    result: list[RankBucket] = []
    pools = layout.pools(rank)
    for pool in pools:
        of_pool = {held.parameter for held in pool.held} if len(pools) > 1 else None
        chosen = [number for number, key in enumerate(parameters) if of_pool is None or key in of_pool]
        if not chosen or pool.ranks == 1:
            continue
        sizes = tuple([elements[number] for number in chosen])
        chosen_slots = tuple([slots[number] for number in chosen])
        dp = pool.mesh.parallel.gradient_ranks
        limit, group = layout.job.bucket_elements, pool.shard_group(rank)
        find = partial(gradient_buckets, sizes, dp, overlapped=overlapped, slots=chosen_slots, limit=limit)
        buckets = _BUCKETS.get((sizes, chosen_slots, dp, overlapped, limit), find)
        result += [
            RankBucket(
                bucket.elements,
                bucket.members if of_pool is None else tuple([chosen[member] for member in bucket.members]),
                pool,
                group,
            )
            for bucket in buckets
        ]
    return sorted(result, key=lambda bucket: bucket.members[-1])


_BUCKETS = memo.Table[list[Bucket]]("buckets of gradients, by elements in the order in which they become ready", 1024)


def shares_parameters(layout: Layout) -> bool:
    """Whether some parameters are on several ranks, so that gradients must be reduced."""
    ranks = range(layout.job.parallel.pp)
    return _SHARES.get(layout.place, (), lambda: any(pool.ranks > 1 for rank in ranks for pool in layout.pools(rank)))


_SHARES = memo.ScopedTable[bool]("whether several ranks of a place hold the same parameters", 1)
