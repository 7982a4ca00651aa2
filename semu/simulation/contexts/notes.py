"""Notes of a report on masks and on what context ranks wait for one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from semu.costs.evaluation import CostedJob
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.job.context import context_plan
from semu.nn.masked_kernel import GATE, GATHERED, WIDTH, masked_in
from semu.nn.trace.sharding import EXCHANGES, ContextKind
from semu.parallel.context import Balance
from semu.simulation.contexts.loads import Loads, imbalance, keys_needed, waited_s
from semu.simulation.contexts.result import blind_note
from semu.workload.batch import Microbatch
from semu.workload.masked import rank_columns

_WORTH = 0.005
"""Share of the iteration below which nobody is told."""


def context_notes(costed: CostedJob, iteration_time_s: float) -> list[str]:
    """What context ranks lose, and what another policy would win back of it; tokens that see nothing."""
    job = costed.job
    notes = []
    kernels = masked_in(costed.layout.library.symbols)
    if kernels and any(kernel.mask != "causal" for kernel in kernels):
        notes.append(
            "attention under a mask: a tile in which it hides some pairs is taken to last as long as another (default)"
        )
    plan = context_plan(job)
    blind = sum(plan.blind(item.spans()) for item in _items(job)) if kernels and plan.label == "file" else 0
    if blind:
        notes.append(blind_note(blind))
    recipe = costed.layout.recipe.plan
    if not costed.evaluation.shapes.ranks or (recipe is not None and recipe.parts):
        return notes
    loads = Loads.of(costed)
    alone_s = max(len(costed.evaluation.shapes.index), 1) * job.parallel.pp * iteration_time_s
    share = loads.lost_s / alone_s
    notes += _exchange_notes(costed, (waited_s(costed) - loads.lost_s) / alone_s)
    if share < _WORTH:
        return notes
    now = imbalance(loads.tiles, loads.uses)
    other = _imbalance_under(costed, Balance.LPT) if plan.balance is not Balance.LPT else now
    won = share * (now - other) / (now - 1.0) if now > other else 0.0
    policy = plan.balance.value
    note = f"this batch loses {100 * share:.1f} % to context-parallel imbalance (parallel.cp_balance = {policy})"
    return [*notes, f"{note}; policy lpt wins back up to {100 * won:.1f} %" if won >= _WORTH / 5 else note]


def _exchange_notes(costed: CostedJob, waits: float) -> list[str]:
    """Which exchange ran, where there are several; what sending needed keys alone would save. ``waits``: share of the
    iteration in which context ranks wait for keys."""
    job, shapes = costed.job, costed.evaluation.shapes
    kind = job.parallel.context_kind
    if kind is ContextKind.AUTO:
        uses = np.bincount(shapes.index.ravel(), minlength=costed.evaluation.num_shapes)
        gated = [(name.partition(GATE)[2].partition(WIDTH)[0], tokens) for name, tokens in shapes.ranks.items()]
        counts = {}
        for way in (own.value for own in EXCHANGES):
            runs = [tokens.any(axis=0) for exchange, tokens in gated if exchange == way]
            counts[way] = int(uses[np.any(runs, axis=0)].sum()) if runs else 0
        words = ", ".join(f"{way} for {number:,}" for way, number in counts.items() if number)
        return [f"fastest exchange of keys (parallel.cp_kind = auto): {words} microbatches"] if words else []
    if waits < _WORTH or kind not in EXCHANGES or kind is ContextKind.NEEDED:
        return []
    plan, found = context_plan(job), []
    every = [item.spans() for item in _items(job)]
    others = (plan.cp - 1) * sum(spans.num_tokens for spans in every)
    for balance in dict.fromkeys((plan.balance, Balance.LOCAL)):
        other = replace(plan, balance=balance)
        try:
            found.append((sum(keys_needed(other, own, other.cut(own)) for own in every) / others, balance.value))
        except ConfigError:  # too few blocks to deal
            continue
    needed, policy = min(found)
    if waits * (1 - needed) < _WORTH:
        return []
    note = f"context ranks wait {100 * waits:.1f} % of the iteration for keys, of which a rank's tiles read"
    changes = "" if policy == plan.balance.value else f" and cp_balance = {policy}"
    return [f"{note} {100 * needed:.0f} % with parallel.cp_kind = needed{changes}: it may win back some of that"]


def _items(job: TrainingJob) -> list[Microbatch]:
    """The microbatches of all replicas."""
    count = job.num_microbatches * job.parallel.replicas
    return job.batch.microbatches(count, job.training.micro_batch, job.training.seq_len)


def _imbalance_under(costed: CostedJob, policy: Balance) -> float:
    """The batch's imbalance under another policy, by tiles; infinite where the policy cannot deal it."""
    job = costed.job
    items = _items(job)
    found = [kernel for kernel in masked_in(costed.layout.library.symbols) if kernel.stream == "text"]
    kernels = [*dict.fromkeys(replace(own, scope=GATHERED) if own.width else own for own in found)]
    plan = replace(context_plan(job), balance=policy, machines=0)
    ranks = rank_columns(items, kernels, plan)
    tiles = np.sum([table for name, table in ranks.items() if ".tiles#" in name], axis=0)
    return imbalance(np.asarray(tiles), np.ones(len(items), np.int64))
