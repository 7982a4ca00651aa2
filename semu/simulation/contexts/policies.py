"""``study``: every policy of context ranks on a job's batch, side by side, with what none can do better than."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.job.context import context_plan
from semu.masks.balance import blocks_of
from semu.masks.spans import Spans
from semu.masks.tiles import count, work_of_blocks
from semu.nn.trace.sharding import ContextKind
from semu.parallel.context import Balance, group_widths
from semu.simulation.contexts.loads import Loads, keys_needed
from semu.simulation.contexts.result import ContextStudy, PolicyRow
from semu.simulation.preparation import prepare
from semu.workload.batch import Microbatch
from semu.workload.masked import ContextPlan


def study(
    job: TrainingJob,
    *,
    policies: Sequence[Balance | str] | None = None,
    kinds: Sequence[ContextKind | str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ContextStudy:
    """Simulate a job under several policies of context ranks.

    Args:
        job: with cp >= 2. policies: None: all. kinds: exchanges of keys, each under every policy; None: the job's.
        progress: called with what is done.
    Raises:
        ConfigError: one context rank, heads instead of tokens per rank, an unknown policy, as ``simulate``.
    """
    say = progress if progress is not None else lambda _: None
    chosen = [Balance(policy) for policy in (policies if policies is not None else Balance)]
    ways = [job.parallel.context_kind] if kinds is None else [ContextKind(kind) for kind in kinds]
    for way in ways:
        _check(job, way)
    plan = context_plan(job)
    items = job.batch.microbatches(
        job.num_microbatches * job.parallel.replicas, job.training.micro_batch, job.training.seq_len
    )
    rows, owners = [], {}
    largest = max(items, key=lambda item: item.tokens("text")).spans()
    for policy in chosen:
        say(f"policy {policy.value}")
        try:
            sums = _sums(replace(plan, balance=policy), items)
            rows += [_row(job, policy, way, items, sums) for way in ways]
            owners[policy.value] = _owner(replace(plan, balance=policy), largest)
        except ConfigError as error:
            if error.where not in ("parallel.cp_block", "parallel.cp_balance"):
                raise
            rows.append(PolicyRow(policy.value, refused=str(error.message)))
    if all(row.refused for row in rows):
        raise ConfigError("no policy can deal this batch", where="--policies", got=rows[0].refused)
    distinct = {id(item): item for item in items}
    spans = {number: item.spans() for number, item in distinct.items()}
    every = [spans[id(item)] for item in items]
    return ContextStudy(
        job,
        tuple(rows),
        _bound(plan, every),
        sum(own.num_tokens for own in every),
        sum(len(own.starts) - 1 for own in every),
        sum(len(own.document_starts) - 1 for own in every),
        sum(map(plan.blind, every)),
        plan,
        largest,
        owners,
    )


def _row(
    job: TrainingJob, policy: Balance, kind: ContextKind, items: Sequence[Microbatch], sums: Mapping[str, Any]
) -> PolicyRow:
    """One policy with one exchange, simulated. ``sums``: see ``_sums``."""
    own = replace(job.parallel, cp_balance=policy, cp_kind=kind)
    if kind is not ContextKind.ALL_GATHER:
        own = replace(own, cp_overlap="none", cp_gather_heads="kv")
    if kind is not ContextKind.RING:
        own = replace(own, cp_inner=1)
    checkpoint = prepare(replace(job, parallel=own))
    estimate = checkpoint.estimate()
    loads, index = Loads.of(checkpoint), checkpoint.evaluation.shapes.index
    attention = float(loads.attention_s.max(axis=0)[index].sum(axis=1).max())
    wire = float(loads.wire_bytes[index].sum(axis=1).max())
    row = PolicyRow(
        policy.value,
        kind.value,
        wire_bytes=wire,
        attention_s=attention,
        iteration_s=estimate.iteration_time_s,
        memory_bytes=max(estimate.peak_memory_bytes),
    )
    return replace(row, **sums)


def _sums(plan: ContextPlan, items: Sequence[Microbatch]) -> dict[str, Any]:
    """Largest over mean of tiles, columns and tokens, padding, shares of partial tiles and of keys that are needed.

    Over all microbatches, of the mask alone, also where the trace asks for no tiles."""
    by_item: dict[bytes, NDArray[np.float64]] = {}
    of_width: dict[bytes, dict[int, int]] = {}
    total = np.zeros(8)
    widths: dict[int, int] = {}
    for item in items:
        spans = item.spans()
        if spans.content not in by_item:
            cut = plan.cut(spans)
            tiles = count(plan.seen(spans, plan.label), spans.starts, cut, by_owner=False)
            per_rank = tiles.sums(tiles.tiles)[:, 0]
            of_keys = tiles.columns.sum(axis=0)
            held = np.bincount(np.repeat(cut.rank, np.diff(cut.bounds)), of_tokens(of_keys, spans), plan.cp)
            tokens = cut.tokens
            partial = float(tiles.partial.sum())
            pairs = [f(x) for x in (per_rank, held, tokens) for f in (np.max, np.mean)]
            by_item[spans.content] = np.array([*pairs, partial, keys_needed(plan, spans, cut)], np.float64)
            of_width[spans.content] = {n: int(cut.tokens_in(n).sum()) for n in group_widths(plan.cp, plan.balance)}
        total += by_item[spans.content]
        for ranks, number in of_width[spans.content].items():
            widths[ranks] = widths.get(ranks, 0) + number
    tile_sum = total[1] * plan.cp
    ratios = [float(total[i] / total[i + 1]) if total[i + 1] else 1.0 for i in (0, 2, 4)]
    padding = 1.0 - total[5] / total[4] if total[4] else 0.0
    others = total[5] * plan.cp * (plan.cp - 1)
    needed = float(total[7] / others) if others else 0.0
    return {
        **dict(zip(("tiles", "columns", "tokens"), ratios, strict=True)),
        "padding": float(padding),
        "partial": float(total[6] / tile_sum) if tile_sum else 0.0,
        "needed": needed,
        "widths": {ranks: number / sum(widths.values()) for ranks, number in widths.items() if number},
    }


def of_tokens(of_keys: NDArray[np.integer], spans: Spans) -> NDArray[np.float64]:
    """Rows that read each token's tile of keys, spread over the tile's tokens: float64[num_tokens]."""
    sizes = np.diff(blocks_of(spans.starts, 128))
    return np.repeat(of_keys / sizes, sizes)


def _owner(plan: ContextPlan, spans: Spans) -> NDArray[np.int32]:
    cut = plan.cut(spans)
    return np.repeat(cut.rank, np.diff(cut.bounds)).astype(np.int32)


def _bound(plan: ContextPlan, every: Sequence[Spans]) -> float:
    """Largest block over the mean rank, microbatch by microbatch, at least 1, weighted by tiles."""
    known: dict[bytes, tuple[float, float]] = {}
    most = mean = 0.0
    for spans in every:
        if spans.content not in known:
            work = work_of_blocks(plan.seen(spans, plan.label), spans.starts, blocks_of(spans.starts, plan.block))
            even = float(work.sum()) / plan.cp
            known[spans.content] = max(float(work.max(initial=0)), float(np.ceil(even))), even
        most, mean = most + known[spans.content][0], mean + known[spans.content][1]
    return most / mean if mean else 1.0


def _check(job: TrainingJob, kind: ContextKind) -> None:
    if job.parallel.cp < 2:
        raise ConfigError(
            "one context rank has nothing to share",
            where="parallel.cp",
            expected="at least 2 (--cp N)",
            got=job.parallel.cp,
            nearest=2,
        )
    if kind is ContextKind.ALL_TO_ALL:
        raise ConfigError(
            "every context rank attends to all tokens with some of the heads: there is nothing to balance",
            where="parallel.cp_kind",
            expected="ring, all_gather, needed or auto",
            got="all_to_all",
            nearest="ring",
        )
