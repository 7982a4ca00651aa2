"""Notes of a report on masks and on what context ranks wait for one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from semu.costs.evaluation import CostedJob
from semu.job import TrainingJob
from semu.job.context import context_plan
from semu.nn.masked_kernel import masked_in
from semu.parallel.context import Balance
from semu.simulation.contexts.loads import Loads, imbalance
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
    if not costed.evaluation.shapes.ranks:
        return notes
    loads = Loads.of(costed)
    replicas = max(len(costed.evaluation.shapes.index), 1)
    share = loads.lost_s / replicas / job.parallel.pp / iteration_time_s
    if share < _WORTH:
        return notes
    now = imbalance(loads.tiles, loads.uses)
    other = _imbalance_under(costed, Balance.LPT) if plan.balance is not Balance.LPT else now
    won = share * (now - other) / (now - 1.0) if now > other else 0.0
    policy = plan.balance.value
    note = f"this batch loses {100 * share:.1f} % to context-parallel imbalance (parallel.cp_balance = {policy})"
    return [*notes, f"{note}; policy lpt wins back up to {100 * won:.1f} %" if won >= _WORTH / 5 else note]


def _items(job: TrainingJob) -> list[Microbatch]:
    """The microbatches of all replicas."""
    count = job.num_microbatches * job.parallel.replicas
    return job.batch.microbatches(count, job.training.micro_batch, job.training.seq_len)


def _imbalance_under(costed: CostedJob, policy: Balance) -> float:
    """The batch's imbalance under another policy, by tiles; infinite where the policy cannot deal it."""
    job = costed.job
    items = _items(job)
    kernels = [kernel for kernel in masked_in(costed.layout.library.symbols) if kernel.stream == "text"]
    plan = replace(context_plan(job), balance=policy, machines=0)
    ranks = rank_columns(items, kernels, plan)
    tiles = np.sum([table for name, table in ranks.items() if ".tiles#" in name], axis=0)
    return imbalance(np.asarray(tiles), np.ones(len(items), np.int64))
