"""``pipeline_templates``: templates for every number of nodes that failures may leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from semu.baselines.costs_of_layers import layer_costs
from semu.checks import check_integer
from semu.errors import ConfigError, MemoryLimitError, SemuError
from semu.job import Optimizer, Recompute, TrainingJob
from semu.resilience.templates.composing import Speed
from semu.resilience.templates.cover import is_covered, sizes
from semu.resilience.templates.planner import LayerTable, Stage, cut_pipeline
from semu.resilience.templates.template_set import PipelineTemplate, TemplateSet
from semu.resilience.templates.timed import time_pipeline
from semu.simulation.memory.reserved import device_room

SLACK = 0.05
"""Cuts whose planned time is within this share of the best are timed by the engine."""
MOST_FINALISTS = 4


def pipeline_templates(
    job: TrainingJob, faults: int = 1, *, progress: Callable[[str], None] | None = None
) -> TemplateSet:
    """Pipeline templates of a job: pipelines of consecutive sizes that cover any number of surviving nodes.

    The planner (``semu.resilience.templates.planner``) is exact in its model; cuts within 5 % of its best are timed by
    the engine at the number of microbatches that a pipeline of that size has.

    Args:
        job: what is trained. Its layout counts for nothing; a stage is on some of a node's GPUs.
        faults: f, failures at once that no progress may be lost to. progress: called with what is done.
    Raises:
        ConfigError: ZeRO across pipelines; context or expert parallelism; fewer than (f + 1) n0 nodes.
        MemoryLimitError: no template fits on all nodes.
    """
    check_integer(faults, "resilience.faults", "failures at once", least=0)
    _check(job)
    tell = progress or (lambda _text: None)
    nodes = job.cluster.nodes
    tell("costs of layers")
    table, modules, per_layer, gradient, left_out = _layer_table(job)
    total = job.training.global_batch // job.training.micro_batch
    found: list[PipelineTemplate] = []
    size = 1
    last = nodes
    while size <= last:
        tell(f"templates of {size} nodes")
        one = _template(job, table, modules, size, max(1, round(total * size / nodes)))
        if one is not None:
            if not found:
                last = max([size, *sizes(size, faults, nodes, table.num_layers)])
            found.append(one)
        elif found:
            break
        size += 1
    if not found:
        raise MemoryLimitError(
            f"no pipeline of up to {nodes} nodes fits",
            where="memory",
            expected=f"a stage within {table.room_bytes / 2**30:.1f} GiB",
        )
    smallest, largest = found[0].nodes, found[-1].nodes
    if nodes < (faults + 1) * smallest:
        raise ConfigError(
            f"{nodes} nodes hold {nodes // smallest} pipelines of {smallest}, the fewest that fit",
            where="resilience.faults",
            expected=f"faults <= {nodes // smallest - 1}, or {(faults + 1) * smallest} nodes",
            got=faults,
            nearest=nodes // smallest - 1,
        )
    gaps = [n for n in range((faults + 1) * smallest, nodes + 1) if not is_covered(smallest, largest, faults, n)]
    if gaps:
        raise ConfigError(
            f"templates of {smallest} to {largest} nodes do not cover {gaps[0]} nodes",
            where="resilience.faults",
            expected="a model with more layers, fewer nodes or other faults",
            got=faults,
        )
    title = f"{job.model.name} on {job.cluster.label()}"
    return TemplateSet(title, job, faults, nodes, tuple(found), per_layer, gradient, modules, left_out)


def _check(job: TrainingJob) -> None:
    """Refuse what would destroy the redundancy, or what templates do not have."""
    parallel = job.parallel
    if parallel.zero >= 1:
        raise ConfigError(
            "optimizer state sharded across pipelines is there once: a node that goes takes its part with it",
            where="parallel.zero",
            expected="0 (shards within a stage are fine)",
            got=parallel.zero,
            nearest=0,
        )
    for name in ("cp", "ep"):
        if getattr(parallel, name) > 1:
            raise ConfigError(
                "templates have no such axis",
                where=f"parallel.{name}",
                expected="1",
                got=getattr(parallel, name),
                nearest=1,
            )


def _layer_table(job: TrainingJob) -> tuple[LayerTable, np.ndarray[Any, Any], Any, float, dict[int, str]]:
    """Costs of all layers by GPUs of a stage; the module of each layer; bytes that each layer's copy takes; bytes of
    all gradients; numbers of GPUs that a stage cannot have, and why."""
    per_node = job.cluster.gpus_per_node
    cluster = replace(job.cluster, nodes=1)
    times, states, helds, degrees = [], [], [], []
    again = int(job.training.recompute is Recompute.FULL)
    refused: SemuError | None = None
    left_out: dict[int, str] = {}
    costs = None
    for degree in range(1, per_node + 1):
        if per_node % degree:
            continue
        try:
            parallel = replace(job.parallel, dp=per_node // degree, tp=degree, pp=1, vpp=1, layout=None)
            training = replace(job.training, global_batch=parallel.dp * job.training.micro_batch)
            found = layer_costs(replace(job, cluster=cluster, parallel=parallel, training=training), job.batch, 1)
        except SemuError as error:  # as heads that so many ranks do not divide
            refused = error
            left_out[degree] = str(error)
            continue
        costs = costs or found
        degrees.append(degree)
        times.append(found.latency_s[again])
        states.append(found.state_bytes)
        helds.append(found.held_bytes[again].max(axis=(1, 2)))
    if costs is None:
        assert refused is not None
        raise refused
    room = float(device_room(job).usable_bytes)
    table = LayerTable(np.array(degrees), np.stack(times), np.stack(states), np.stack(helds), room)
    training = job.training
    weight, gradient = training.precision.tensor_dtype.size_bytes, training.grad_dtype.size_bytes
    master = training.master_dtype.size_bytes if training.master_dtype is not training.precision.tensor_dtype else 0
    step = master + (training.optimizer.fewest_moments if training.optimizer is not Optimizer.MUON else 1) * (
        training.optimizer_state_dtype.size_bytes
    )
    element = weight + gradient + step
    one = costs.state_bytes * degrees[0]
    return table, costs.module, one * (1.0 - gradient / element), float(one.sum() * gradient / element), left_out


def _template(
    job: TrainingJob, table: LayerTable, modules: np.ndarray[Any, Any], nodes: int, microbatches: int
) -> PipelineTemplate | None:
    """The fastest pipeline of so many nodes; None: none fits."""
    per_node = job.cluster.gpus_per_node
    enough = max(microbatches, 4 * min(table.num_layers, nodes * per_node))  # T is of many more than there are stages
    cuts = cut_pipeline(table, nodes, per_node, enough, SLACK)[:MOST_FINALISTS]
    best: PipelineTemplate | None = None
    for planned, stages in cuts:
        speed = _time(job, modules, nodes, stages, microbatches)
        if speed is None:  # the engine says that it does not fit
            continue
        one = PipelineTemplate(speed, stages, planned)
        if best is None or speed.time_s(microbatches) < best.speed.time_s(microbatches):
            best = one
    return best


def _time(
    job: TrainingJob, modules: np.ndarray[Any, Any], nodes: int, stages: tuple[Stage, ...], microbatches: int
) -> Speed | None:
    """How fast a pipeline is by the engine; None: it does not fit or is not legal."""
    few, many = max(2, min(len(stages), microbatches)), max(microbatches, len(stages)) + 4
    times = []
    for m in (few, many):
        try:
            time_s = time_pipeline(job, modules, nodes, stages, m).alone_s()
        except SemuError:
            return None
        if time_s is None:
            return None
        times.append(time_s)
    period = (times[1] - times[0]) / (many - few)
    return Speed(nodes, times[0] - few * period, period)
