"""Execution plans for people: a summary, and a table of every rank's actions.

rank 1: 12 stages, 9 messages sent, 9 received
     at  action        what            peer       MiB  batch     start [s]       end [s]
      0  irecv         0F0 -> 1F0      from 0   16.00      0        0.0000        0.0000
      1  wait_irecv    0F0 -> 1F0      from 0   16.00               0.0000        0.0120
      2  forward       1F0 full x 6                                 0.0120        0.0310
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from semu.errors import ConfigError
from semu.plan.action import KINDS, ActionKind
from semu.plan.plan_data import PlanData
from semu.units import GIB, MIB, fit_columns, fit_lines

_HEADS: tuple[str, ...] = ("at", "action", "what", "peer", "MiB", "batch", "start [s]", "end [s]")


def stage_words(plan: PlanData) -> list[str]:
    """Chunk, and number of its (sub-)microbatch, of every pair, as a schedule has them: ``2{}0`` for ``2F0``."""
    pairs = plan.pairs
    split: dict[tuple[str, int], int] = {}
    chunks = pairs.chunk.tolist()
    for chunk, part in zip(chunks, pairs.part.tolist(), strict=True):
        key = plan.chunks[chunk].module, plan.chunks[chunk].flow
        split[key] = max(split.get(key, 1), part + 1)
    return [
        f"{chunk}{{}}{split[plan.chunks[chunk].module, plan.chunks[chunk].flow] * microbatch + part}"
        for chunk, microbatch, part in zip(chunks, pairs.microbatch.tolist(), pairs.part.tolist(), strict=True)
    ]


def message_words(plan: PlanData) -> list[str]:
    """``0F0 -> 1F0`` of every message; a gradient goes from backward to backward, from I where that is split."""
    words = stage_words(plan)
    is_input = ActionKind.INPUT_BACKWARD_STAGE.code
    split = {pair for own in plan.actions for pair in own.target[own.kind == is_input].tolist()}

    def _name(stage: int) -> str:
        pair, way = divmod(stage, 2)
        return words[pair].format(("I" if pair in split else "B") if way else "F")

    columns = plan.messages.source.tolist(), plan.messages.target.tolist()
    return [f"{_name(source)} -> {_name(target)}" for source, target in zip(*columns, strict=True)]


def plan_summary(plan: PlanData) -> str:
    """What there is, in some lines."""
    messages, estimates = plan.messages, plan.estimates
    total = int(messages.num_bytes.sum()) / GIB / plan.num_replicas
    replicas = "replica" if plan.num_replicas == 1 else "replicas"
    lines = [
        f"plan {plan.name}: {plan.num_ranks} ranks, {plan.num_replicas} {replicas}, "
        f"{plan.num_microbatches} microbatches, {len(plan.chunks)} chunks, {plan.num_stages} stages",
        f"{plan.num_actions} actions; {len(messages)} messages of {total:.2f} GiB a replica, {_batching(plan)}",
        f"model {plan.model_hash[:16]}",
    ]
    if plan.limit_bytes.any():
        limits = sorted({size / GIB for size in plan.limit_bytes.tolist()})
        lines.append("memory of a rank: " + ", ".join(f"{size:.2f} GiB" for size in limits))
    if estimates is not None:
        peak = int(estimates.peak_memory_bytes.max(initial=0))
        more = int(estimates.buffer_bytes.max(initial=0))
        lines.append(
            f"expected: iteration {estimates.iteration_time_s:.4f} s, pipeline {estimates.makespan_s:.4f} s, peak "
            f"{peak / GIB:.2f} GiB, and at most {more / MIB:.2f} MiB of buffers held longer than simulated"
        )
    return fit_lines("\n".join(lines))


def _batching(plan: PlanData) -> str:
    sizes: Counter[tuple[int, int]] = Counter()
    alone = 0
    for rank, own in enumerate(plan.actions):
        sizes.update((rank, batch) for batch in own.batch[own.batch >= 0].tolist())
        alone += int((own.is_launch & (own.batch < 0)).sum())
    launches = sum(sizes.values()) + alone
    return f"{launches} launches in {len(sizes) + alone} batches"


def plan_text(plan: PlanData, rank: int | None = None) -> str:
    """The summary, the chunks, and a table of actions.

    Args:
        plan: to show. rank: only the actions of this one; None: of all.
    Raises:
        ConfigError: there is no such rank.
    """
    check_rank(plan, rank)
    lines = [plan_summary(plan), *_chunk_lines(plan)]
    words, messages = stage_words(plan), message_words(plan)
    for number in range(plan.num_ranks) if rank is None else (rank,):
        lines += ["", *_rank_lines(plan, number, words, messages)]
    return fit_lines("\n".join(lines))


def check_rank(plan: PlanData, rank: int | None) -> None:
    """Refuse a rank that a plan does not have; None: none is asked for.

    Raises:
        ConfigError: there is no such rank.
    """
    if rank is not None and (isinstance(rank, bool) or not 0 <= rank < plan.num_ranks):
        raise ConfigError("no such rank", where="rank", expected=f"0 to {plan.num_ranks - 1}", got=rank)


def strategy_words(words: tuple[str, ...]) -> str:
    """``full x 4, none x 2`` of strategies layer by layer."""
    return ", ".join(f"{word} x {count}" for word, count in Counter(words).items()) or "no layers"


def _chunk_lines(plan: PlanData) -> list[str]:
    lines = []
    for number, chunk in enumerate(plan.chunks):
        last = chunk.first_layer + chunk.num_layers - 1
        layers = f"layers {chunk.first_layer} to {last}" if chunk.num_layers else "no layers"
        notes = [] if chunk.has_backward else ["no backward"]
        notes += [f"copy {chunk.flow}"] if chunk.flow else []
        notes += [f"gang {chunk.gang}"] if chunk.gang >= 0 else []
        notes += ["read by nobody"] if chunk.repeats else []
        notes += [f"{len(chunk.variants)} variants" if len(chunk.variants) > 1 else strategy_words(chunk.variants[0])]
        lines.append(f"chunk {number}: {chunk.module}, {layers}, on rank {chunk.rank}; {'; '.join(notes)}")
    return lines


def _rank_lines(plan: PlanData, rank: int, words: list[str], messages: list[str]) -> list[str]:
    own, its = plan.actions[rank], plan.messages
    size = its.num_bytes.max(axis=0, initial=0).tolist()
    ends = its.source_rank.tolist(), its.target_rank.tolist()
    spans: list[tuple[str, str]] = [("", "")] * len(own)
    heads = _HEADS
    if plan.estimates is not None:
        times = zip(plan.estimates.start_s[rank].tolist(), plan.estimates.end_s[rank].tolist(), strict=True)
        spans = [(f"{begin:.6f}", f"{end:.6f}") for begin, end in times]
    else:
        heads = heads[:-2]
    rows = [heads]
    columns = own.kind.tolist(), own.target.tolist(), own.batch.tolist(), spans
    for at, (code, target, batch, span) in enumerate(zip(*columns, strict=True)):
        kind = KINDS[code]
        if kind.is_stage:
            variants = plan.chunks[int(plan.pairs.chunk[target])].variants
            strategies = strategy_words(variants[int(plan.pairs.variant[target])])
            cells = (kind.value, f"{words[target].format(kind.phase.value)} {strategies}", "", "", "")
        elif kind.is_exchange:
            letter = "F" if kind is ActionKind.EXCHANGE else "B"
            cells = (kind.value, f"before {words[target].format(letter)}", "all", "", "")
        else:
            is_sent = kind in (ActionKind.ISEND, ActionKind.WAIT_ISEND)
            peer = f"to {ends[1][target]}" if is_sent else f"from {ends[0][target]}"
            number = str(batch) if batch >= 0 else ""
            cells = (kind.value, messages[target], peer, f"{size[target] / MIB:.2f}", number)
        rows.append((str(at), *cells, *span)[: len(heads)])
    counts = np.bincount(own.kind, minlength=len(KINDS))
    stages = sum(int(count) for kind, count in zip(KINDS, counts, strict=True) if kind.is_stage)
    sent, received = counts[ActionKind.ISEND.code], counts[ActionKind.IRECV.code]
    lines = fit_columns(rows, [head not in ("action", "what", "peer") for head in heads])
    return [
        f"rank {rank}: {stages} stages, {sent} messages sent, {received} received",
        *lines,
    ]
