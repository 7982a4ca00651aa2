"""nnScaler*: one static plan, made on a representative workload before training, run under 1F1B (DIP §7.1).

nnScaler (Lin et al., OSDI 2024) plans for minutes and needs a restart for another plan; DIP rebuilt its chunk partition
and its memory optimisation in Megatron-LM and calls that nnScaler*. Here: a cut of all modules' layers into one stage
per pipeline rank and, for each chunk, whether its layers are recomputed, such that the slowest stage is fastest on the
means of the workload and every stage fits in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.baselines.costs_of_layers import NO_RECOMPUTE, LayerCosts, layer_costs
from semu.baselines.plan import Refuted, StaticPlan, plan_stages
from semu.errors import ConfigError
from semu.job import Recompute, TrainingJob
from semu.nn.model import Model
from semu.parallel.stage_layers import layer_parts
from semu.simulation import prepare
from semu.simulation.memory.reserved import device_room
from semu.units import format_bytes
from semu.workload.batch import AbstractBatch

MICROBATCHES = 64
"""Of the representative workload, at least, where there is one replica (as many as a pipeline of DIP §2.2 runs)."""
ROUNDS = 24
"""Plans that are tried until one fits as simulated."""
EXACT_ROUNDS = 16
"""Of these, so many without caution: what they refute did not fit."""
_SOURCE = "Lin et al., OSDI 2024; DIP §7.1 (nnScaler*)"


def nnscaler(job: TrainingJob, workload: AbstractBatch | None = None, num_microbatches: int | None = None) -> Baseline:
    """nnScaler*: the static plan of a representative workload.

    Where a plan that should fit does not as simulated on the workload, what was not foreseen on a rank (workspaces,
    gradients between operators) is taken off that rank's limit, and the plan is made again.

    Args:
        job: what to train; its parallel sizes stay, stages and recomputation are planned.
        workload: to plan on; None: the job's batch under another seed, or itself where it draws nothing.
        num_microbatches: so many of them a replica; None: ``MICROBATCHES`` or the job's number if that is higher, the
            job's number where it has several replicas or plans on its own batch.
    Raises:
        ConfigError: fewer layers than pipeline ranks.
    """
    drawn = workload if workload is not None else another_draw(job.batch)
    count = num_microbatches
    if count is None:
        is_own = drawn is job.batch or job.parallel.replicas > 1
        count = job.num_microbatches if is_own else max(job.num_microbatches, MICROBATCHES)
    pp = job.parallel.pp
    plain = Baseline.of("nnscaler", _SOURCE, job, parallel=_ONE_STAGE, training=_options(Recompute.NONE)).job
    costs = layer_costs(plain, drawn, count)
    if costs.num_layers < pp:
        raise ConfigError(
            f"nnscaler: {costs.num_layers} layers cannot be cut into {pp} stages",
            where="parallel.pp",
            expected=f"<= {costs.num_layers}",
            got=pp,
            nearest=costs.num_layers,
        )
    in_flight = [min(job.num_microbatches, pp - rank) for rank in range(pp)]
    capacity = float(device_room(job).usable_bytes)
    refuted: list[Refuted] = []
    for turn in range(ROUNDS):
        plan = plan_stages(costs, in_flight, [capacity] * pp, refuted)
        if plan is None:
            break
        made = _baseline(job, costs, plan)
        size = count * job.parallel.replicas * job.training.micro_batch
        trial = replace(made.job, batch=drawn, training=replace(made.job.training, global_batch=size))
        found = prepare(trial).estimate()
        if found.fits:
            return made
        refuted += _refuted(plan, found.deciding_bytes, capacity, 1 << max(turn - EXACT_ROUNDS, 0))
    everything = replace(costs, latency_s=costs.latency_s[[1, 1]], held_bytes=costs.held_bytes[[1, 1]])
    plan = plan_stages(everything, in_flight, [np.inf] * pp)
    assert plan is not None
    plan = replace(plan, recomputed=tuple(frozenset(range(costs.num_modules)) for _ in range(pp)))
    note = f"nnscaler: found no plan that fits in {format_bytes(int(capacity))}; this one recomputes all layers"
    return _baseline(job, costs, plan, (note,))


def _refuted(plan: StaticPlan, needs: Sequence[int], capacity: float, factor: int) -> Iterator[Refuted]:
    """The stages of a plan that do not fit, less the layers that are too many in proportion, times a factor."""
    for rank, ((first, last), again) in enumerate(zip(itertools.pairwise(plan.bounds), plan.recomputed, strict=True)):
        if needs[rank] > capacity:
            less = min(int(factor * (last - first) * (1 - capacity / needs[rank])) + factor - 1, last - first - 1)
            yield Refuted(rank, first + less // 2, last - (less - less // 2), again)


def another_draw(batch: AbstractBatch) -> AbstractBatch:
    """The same distribution under another seed; a batch without a seed is returned as it is."""
    if is_dataclass(batch) and any(item.name == "seed" for item in fields(batch)):
        options: dict[str, Any] = {"seed": batch.seed + 1}  # type: ignore[attr-defined]
        return replace(batch, **options)
    return batch


def _baseline(job: TrainingJob, costs: LayerCosts, plan: StaticPlan, notes: tuple[str, ...] = ()) -> Baseline:
    layout = {"modules": stage_layers_of(job.model, costs, plan.bounds)} if job.parallel.pp > 1 else None
    training = _options(recomputed_paths(job.model, costs, plan))
    slowest = f"nnscaler: the slowest stage takes {plan.slowest_s:.4g} s a microbatch of the representative workload"
    parallel = {**_ONE_STAGE, "layout": layout}
    return Baseline.of("nnscaler", _SOURCE, job, parallel=parallel, training=training, notes=(*notes, slowest))


_ONE_STAGE: Mapping[str, Any] = {**NO_LAYOUT, "vpp": 1}
"""Options of a cut with one stage per rank."""


def _options(recompute: Recompute | Sequence[str]) -> dict[str, Any]:
    return {**NO_SCHEDULE, **NO_RECOMPUTE, "schedule": "1f1b", "recompute": recompute}


def stage_layers_of(model: Model, costs: LayerCosts, bounds: Sequence[int]) -> dict[str, list[int]]:
    """Layers of every stage of each module, 0 where it has none there, as ``[parallel.layout.modules]`` has them."""
    return {
        module.name: [
            int(np.count_nonzero(costs.module[first:last] == number)) for first, last in itertools.pairwise(bounds)
        ]
        for number, module in enumerate(model.modules)
    }


def recomputed_paths(model: Model, costs: LayerCosts, plan: StaticPlan) -> Recompute | list[str]:
    """What ``training.recompute`` says of a plan: full, none, or the paths of the layers."""
    paths = [module.blocks()[part.layer][0] for module in model.modules for part in layer_parts(module)]
    chosen = [
        paths[layer]
        for (first, last), again in zip(itertools.pairwise(plan.bounds), plan.recomputed, strict=True)
        for layer in range(first, last)
        if int(costs.module[layer]) in again
    ]
    if not chosen:
        return Recompute.NONE
    return Recompute.FULL if len(chosen) == len(paths) else chosen
