"""``with_fewer_layers``: a plan of the same stages on a model of fewer layers."""

from __future__ import annotations

from dataclasses import replace

from semu.plan.plan import ExecutionPlan, PlanChunk, model_hash_of


def with_fewer_layers(plan: ExecutionPlan, divisor: int) -> ExecutionPlan:
    """Chunks of one layer for every ``divisor`` of theirs, at least one where they have any.

    Every ``divisor``-th layer stands for its neighbours, with its memory strategy; estimates are dropped.
    """
    begun: dict[tuple[str, int], int] = {}
    chunks: list[PlanChunk] = []
    for chunk in plan.chunks:
        key = chunk.module, chunk.flow
        first = 0 if chunk.repeats else begun.get(key, 0)
        variants = tuple(words[::divisor] for words in chunk.variants)
        count = -(-chunk.num_layers // divisor)
        chunks.append(replace(chunk, first_layer=first, num_layers=count, variants=variants))
        if not chunk.repeats:
            begun[key] = first + count
    return replace(plan, chunks=tuple(chunks), model_hash=model_hash_of(chunks, plan.num_ranks), estimates=None)
