"""``with_fewer_layers``: a plan of the same stages on a model of fewer layers."""

from __future__ import annotations

from dataclasses import replace

from semu.plan.plan import ExecutionPlan, PlanChunk, PlanReduction, model_hash_of
from semu.plan.verification.reductions import holders_of


def with_fewer_layers(plan: ExecutionPlan, divisor: int) -> ExecutionPlan:
    """Chunks of one layer for every ``divisor`` of theirs, at least one where they have any.

    Every ``divisor``-th layer stands for its neighbours, with its memory strategy; estimates are dropped. In pipelines
    that share a batch all have the same layers: as many of each module, and chunks with layers keep one, so that the
    divisor is a smaller one where a chunk has fewer.
    """
    if plan.weights:
        return _joined_with_fewer(plan, min([divisor, *(one.num_layers for one in plan.chunks if one.num_layers)]))
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


def _joined_with_fewer(plan: ExecutionPlan, divisor: int) -> ExecutionPlan:
    """A cut behind layer n is one behind layer n / divisor, rounded up, in every pipeline."""
    chunks = []
    for chunk in plan.chunks:
        first, end = (-(-one // divisor) for one in (chunk.first_layer, chunk.first_layer + chunk.num_layers))
        variants = tuple(words[: end - first] for words in chunk.variants)
        chunks.append(replace(chunk, first_layer=first, num_layers=end - first, variants=variants))
    shards = {chunk: count for one in plan.reductions for chunk, count in zip(one.chunks, one.shards, strict=True)}
    model_hash = model_hash_of(chunks, plan.num_ranks)
    found = replace(plan, chunks=tuple(chunks), model_hash=model_hash, estimates=None, reductions=())
    reductions = []
    for (module, layer), holders in holders_of(found).items():
        parts = tuple(shards[chunk] for chunk in holders)
        reductions.append(PlanReduction(module, layer, holders, parts))
    return replace(found, reductions=tuple(reductions))


def with_whole_layers(plan: ExecutionPlan) -> ExecutionPlan:
    """The same plan for ranks that hold their layers whole, however many GPUs a stage has."""
    reductions = tuple(replace(one, shards=(1,) * len(one.chunks)) for one in plan.reductions)
    return replace(plan, reductions=reductions)
