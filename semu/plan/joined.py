"""``join_plans``: plans of pipelines that share a batch as one plan: copies of the model on ranks of their own.

Pipelines may have any cuts and numbers of microbatches. Their ranks, chunks, pairs, messages and microbatches follow
one another; each is a copy of the model (``PlanChunk.flow``), like those of bidirectional pipelines. Behind all stages
the gradients of every layer are summed among its holders (Oobleck §2.6.1), weighted by samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import Any

import numpy as np

from semu.errors import ConfigError
from semu.plan.action import KINDS
from semu.plan.plan import (
    ExecutionPlan,
    PlanEstimates,
    PlanMemory,
    PlanMessages,
    PlanPairs,
    PlanReduction,
    RankActions,
    model_hash_of,
)
from semu.plan.verification.reductions import holders_of

_OF_MESSAGES = np.array([not (kind.is_stage or kind.is_exchange) for kind in KINDS])


def join_plans(
    plans: Sequence[ExecutionPlan], *, shards: Sequence[Sequence[int]] = (), iteration_time_s: float | None = None
) -> ExecutionPlan:
    """One plan for pipelines that share a batch.

    Args:
        plans: of each pipeline, of one replica, of the same model. shards: parts into which each rank of each
            cuts its layers; empty: one. iteration_time_s: of all together [s]; None: the slowest's.
    Raises:
        ConfigError: several replicas, another model, layers that several ranks hold together.
    """
    for number, plan in enumerate(plans):
        _check(plan, plans[0], f"plans[{number}]")
    ranks, chunks, pairs, messages, microbatches = (
        [0, *accumulate(column)]
        for column in zip(
            *((p.num_ranks, len(p.chunks), len(p.pairs), len(p.messages), p.num_microbatches) for p in plans),
            strict=True,
        )
    )
    parts = list(zip(plans, ranks, chunks, pairs, messages, microbatches, strict=False))
    joined_chunks = tuple(
        replace(
            own,
            rank=own.rank + rank,
            flow=flow,
            sources=None if own.sources is None else tuple(source + chunk for source in own.sources),
        )
        for flow, (plan, rank, chunk, *_) in enumerate(parts)
        for own in plan.chunks
    )
    by_pair: dict[str, Any] = {
        "chunk": [plan.pairs.chunk + chunk for plan, _, chunk, *_ in parts],
        "microbatch": [plan.pairs.microbatch + first for plan, *_, first in parts],
        "part": [plan.pairs.part for plan in plans],
        "variant": [plan.pairs.variant for plan in plans],
    }
    by_message: dict[str, Any] = {
        "source": [plan.messages.source + 2 * pair for plan, _, _, pair, *_ in parts],
        "target": [plan.messages.target + 2 * pair for plan, _, _, pair, *_ in parts],
        "source_rank": [plan.messages.source_rank.astype(np.int64) + rank for plan, rank, *_ in parts],
        "target_rank": [plan.messages.target_rank.astype(np.int64) + rank for plan, rank, *_ in parts],
        "tag": [plan.messages.tag for plan in plans],
    }
    total = microbatches[-1]
    found = ExecutionPlan(
        name=plans[0].name,
        model_hash=model_hash_of(joined_chunks, ranks[-1]),
        num_ranks=ranks[-1],
        num_replicas=1,
        num_microbatches=total,
        chunks=joined_chunks,
        pairs=PlanPairs(
            **{name: np.concatenate(own) for name, own in by_pair.items()},
            items=np.concatenate([plan.pairs.items for plan in plans], axis=1),
        ),
        messages=PlanMessages(
            **{name: np.concatenate(own) for name, own in by_message.items()},
            num_bytes=np.concatenate([plan.messages.num_bytes for plan in plans], axis=1),
            items=np.concatenate([plan.messages.items for plan in plans], axis=1),
        ),
        actions=tuple(
            RankActions(own.kind, own.target + np.where(_OF_MESSAGES[own.kind], message, pair), own.batch)
            for plan, _, _, pair, message, _ in parts
            for own in plan.actions
        ),
        limit_bytes=np.concatenate([plan.limit_bytes for plan in plans]),
        problem={"pipelines": [dict(plan.problem) if plan.problem is not None else None for plan in plans]},
        estimates=_estimates([plan.estimates for plan in plans], iteration_time_s),
        weights=tuple(plan.num_microbatches / total for plan in plans),
    )
    parts_of = shards or [[1] * plan.num_ranks for plan in plans]
    cuts = [own[chunk.rank] for plan, own in zip(plans, parts_of, strict=True) for chunk in plan.chunks]
    return replace(
        found,
        reductions=tuple(
            PlanReduction(module, layer, holders, tuple(cuts[chunk] for chunk in holders))
            for (module, layer), holders in holders_of(found).items()
        ),
    )


def _check(plan: ExecutionPlan, first: ExecutionPlan, where: str) -> None:
    """Refuse what cannot be a pipeline beside others."""
    for is_wrong, message, expected in (
        (plan.num_replicas > 1, "a plan of several replicas", "a pipeline each"),
        (any(chunk.flow or chunk.repeats or chunk.gang >= 0 for chunk in plan.chunks), "shared or copied layers", None),
        (bool(plan.reads), "samples that are deferred", None),
        (_layers(plan) != _layers(first), "a plan of another model", str(_layers(first))),
    ):
        if is_wrong:
            expected = expected or "one copy of every layer, on one pipeline rank"
            raise ConfigError(f"{message} beside other pipelines", where=where, expected=expected)


def _layers(plan: ExecutionPlan) -> dict[str, int]:
    """Module -> its number of layers."""
    found: dict[str, int] = {}
    for chunk in plan.chunks:
        found[chunk.module] = found.get(chunk.module, 0) + chunk.num_layers
    return found


def _estimates(own: Sequence[PlanEstimates | None], iteration_time_s: float | None) -> PlanEstimates | None:
    """Those of all pipelines, which begin together."""
    known = [one for one in own if one is not None]
    if len(known) < len(own):
        return None
    memories = [one.memory for one in known if one.memory is not None]

    def _joined(name: str) -> Any:
        return np.concatenate([getattr(one, name) for one in known])

    return PlanEstimates(
        inputs_hash=hashlib.sha256(" ".join(one.inputs_hash for one in known).encode()).hexdigest(),
        iteration_time_s=max(one.iteration_time_s for one in known) if iteration_time_s is None else iteration_time_s,
        makespan_s=max(one.makespan_s for one in known),
        peak_memory_bytes=_joined("peak_memory_bytes"),
        start_s=tuple(row for one in known for row in one.start_s),
        end_s=tuple(row for one in known for row in one.end_s),
        transfer_start_s=_joined("transfer_start_s"),
        transfer_end_s=_joined("transfer_end_s"),
        buffer_bytes=_joined("buffer_bytes"),
        memory=None
        if len(memories) < len(known)
        else PlanMemory(
            **{
                item.name: np.concatenate([getattr(memory, item.name) for memory in memories])
                for item in fields(PlanMemory)
            }
        ),
    )
