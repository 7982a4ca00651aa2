"""Buckets of a rank's parameters: those of routed experts apart, because other ranks hold the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semu.hardware.network import CommGroup
from semu.parallel.data import gradient_buckets
from semu.simulation.layout import Layout


@dataclass(frozen=True)
class RankBucket:
    """Parameters whose gradients are reduced, or which are gathered, together.

    Attributes:
        elements: local elements. members: numbers of the parameters in it. is_expert: of routed experts.
    """

    elements: int
    members: tuple[int, ...]
    is_expert: bool


def rank_buckets(
    layout: Layout, elements: Sequence[int], slots: Sequence[int], is_expert: Sequence[bool], *, overlapped: bool
) -> list[RankBucket]:
    """Buckets of a rank; those that no other rank shares are left out.

    Args:
        elements, slots, is_expert: local elements, virtual stage and kind of each parameter, in order of readiness.
        overlapped: as ``gradient_buckets``.
    Source:
        Megatron-LM's DistributedDataParallel: buffers of expert-parallel parameters of their own, one bucket size. Its
        two kinds of buckets share the links; here they take turns, as they are full.
    """
    parallel = layout.job.parallel
    found: list[RankBucket] = []
    for kind, ranks in ((False, parallel.gradient_ranks), (True, parallel.expert_data_ranks)):
        chosen = [number for number, expert in enumerate(is_expert) if expert is kind]
        if not chosen or ranks == 1:
            continue
        buckets = gradient_buckets(
            [elements[number] for number in chosen],
            parallel.gradient_ranks,
            overlapped=overlapped,
            slots=[slots[number] for number in chosen],
        )
        found += [
            RankBucket(bucket.elements, tuple(chosen[member] for member in bucket.members), kind) for bucket in buckets
        ]
    return sorted(found, key=lambda bucket: bucket.members[-1])


def shares_parameters(layout: Layout) -> bool:
    """Whether some parameters are on several ranks, so that gradients must be reduced."""
    parallel = layout.job.parallel
    has_experts = any(layout.experts_by(rank) for rank in range(parallel.pp))
    return parallel.gradient_ranks > 1 or (has_experts and parallel.expert_data_ranks > 1)


def shard_group(layout: Layout, rank: int, *, is_expert: bool) -> CommGroup:
    """The ranks that ZeRO shards parameters of a kind over."""
    return layout.mesh.expert_dp_group(rank) if is_expert else layout.mesh.shard_group(rank)
