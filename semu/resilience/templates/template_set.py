"""``pipeline_templates``: templates for every number of nodes that failures may leave; ``TemplateSet.compose``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from semu.baselines.costs_of_layers import layer_costs
from semu.checks import check_integer
from semu.errors import ConfigError, MemoryLimitError, SemuError
from semu.frames import Tabular
from semu.hardware.kinds import OpKind
from semu.hardware.network.cost import collective_latency
from semu.hardware.network.group import CommGroup
from semu.job import Optimizer, Recompute, TrainingJob
from semu.parallel.layout import PipelineLayout
from semu.resilience.templates.composing import Speed, compose_counts, distribute, slowest_times
from semu.resilience.templates.cover import is_covered, sizes
from semu.resilience.templates.planner import LayerTable, Stage, cut_pipeline
from semu.simulation.estimate import evaluate
from semu.simulation.memory.reserved import device_room
from semu.units import align_columns, fit_columns, fit_lines, format_time

SLACK = 0.05
"""Cuts whose planned time is within this share of the best are timed by the engine."""
MOST_FINALISTS = 4
_NEARBY = 0.1
_WORTH_ANOTHER_BATCH = 0.005


@dataclass(frozen=True)
class PipelineTemplate:
    """A pipeline for a number of nodes.

    Attributes:
        speed: its size, and how long microbatches take it. stages: in order; every GPU of its nodes is in one.
        planned_s: the planner's time. is_timed: ``speed`` is the engine's; else, where stages have different numbers
            of GPUs, the planner's.
    """

    speed: Speed
    stages: tuple[Stage, ...]
    planned_s: float
    is_timed: bool

    @property
    def nodes(self) -> int:
        """Its size."""
        return self.speed.nodes

    def places(self, gpus_per_node: int) -> list[frozenset[int]]:
        """Layers that each of its nodes holds."""
        found: list[set[int]] = [set() for _ in range(self.nodes)]
        gpu = 0
        for stage in self.stages:
            found[gpu // gpus_per_node].update(range(stage.first, stage.last))
            gpu += stage.gpus
        return [frozenset(layers) for layers in found]

    def text(self) -> str:
        """``0-7x1 8-15x1``: layers and GPUs of each stage."""
        return " ".join(f"{one.first}-{one.last - 1}x{one.gpus}" for one in self.stages)

    def to_json(self) -> dict[str, Any]:
        """An entry of ``templates --json``."""
        return {
            "nodes": self.nodes,
            "stages": [[one.first, one.last, one.gpus] for one in self.stages],
            "fill_s": self.speed.fill_s,
            "period_s": self.speed.period_s,
            "planned_s": self.planned_s,
            "is_timed": self.is_timed,
        }


@dataclass(frozen=True, repr=False)
class PipelineSet:
    """Pipelines that use all of some nodes.

    Attributes:
        pipelines: a template for each, the largest first. microbatches: of each. times_s: of each [s].
        reduction_s: gradients of the largest stage, reduced among as many holders as there are pipelines, none of it
            hidden: an estimate, which ``simulate_pipelines`` times layer by layer [s].
        micro_batch: samples of a microbatch.
    """

    pipelines: tuple[PipelineTemplate, ...]
    microbatches: tuple[int, ...]
    reduction_s: float
    micro_batch: int = 1

    @property
    def nodes(self) -> int:
        """Nodes of all pipelines."""
        return sum(one.nodes for one in self.pipelines)

    @property
    def is_timed(self) -> bool:
        """Whether the engine can time all of them, see ``PipelineTemplate``."""
        return all(one.is_timed for one in self.pipelines)

    @property
    def times_s(self) -> list[float]:
        """Time of each pipeline [s]."""
        return [one.speed.time_s(m) for one, m in zip(self.pipelines, self.microbatches, strict=True)]

    @property
    def iteration_s(self) -> float:
        """The slowest pipeline, then the reduction [s]."""
        return max(self.times_s) + self.reduction_s

    @property
    def nearby_batch(self) -> tuple[int, float]:
        """The global batch within 10 % whose samples take least time each, and by which share they take less.

        Pipelines of unequal speed wait for the slowest where the batch does not divide by their speeds; another batch
        may. The batch itself and 0: none is better by more than 0.5 %.
        """
        speeds, total = [one.speed for one in self.pipelines], sum(self.microbatches)
        now = self.iteration_s / total
        best, least = total, now * (1.0 - _WORTH_ANOTHER_BATCH)
        for count, slowest in enumerate(slowest_times(speeds, int((1.0 + _NEARBY) * total)), len(speeds)):
            each = (slowest + self.reduction_s) / count
            if count >= (1.0 - _NEARBY) * total and each < least:
                best, least = count, each
        return best * self.micro_batch, 0.0 if best == total else 1.0 - least / now

    def places(self, gpus_per_node: int) -> list[frozenset[int]]:
        """Layers of each node, pipeline after pipeline."""
        return [layers for one in self.pipelines for layers in one.places(gpus_per_node)]

    def __repr__(self) -> str:
        rows = [["pipelines", "nodes", "microbatches", "time"]]
        alike = Counter(zip((one.nodes for one in self.pipelines), self.microbatches, self.times_s, strict=True))
        for (nodes, microbatches, time), count in alike.items():
            rows.append([str(count), str(nodes), str(microbatches), f"{time:.3f} s"])
        lines = [
            f"{self.nodes} nodes as {len(self.pipelines)} pipelines: an iteration takes {self.iteration_s:.3f} s, "
            f"{self.reduction_s:.3f} s of it for gradients",
            "",
            *align_columns(rows, [True] * 4),
        ]
        batch, share = self.nearby_batch
        if share:
            lines += ["", f"a global batch of {batch:,} would take {share:.1%} less time for each sample"]
        return fit_lines("\n".join(lines))

    def to_json(self) -> dict[str, Any]:
        """As ``composition`` of ``templates --json``."""
        return {
            "nodes": self.nodes,
            "pipelines": [
                {"nodes": one.nodes, "microbatches": m, "time_s": time}
                for one, m, time in zip(self.pipelines, self.microbatches, self.times_s, strict=True)
            ],
            "reduction_s": self.reduction_s,
            "iteration_s": self.iteration_s,
            "nearby_batch": dict(zip(("global_batch", "less_time_per_sample"), self.nearby_batch, strict=True)),
        }


@dataclass(frozen=True, eq=False, repr=False)
class TemplateSet(Tabular):
    """Templates of consecutive sizes; ``repr`` is their table.

    Attributes:
        title: of the job. job: as it was asked for. faults: f. nodes: N. templates: the smallest first.
        layer_bytes: state of each layer that a reconfiguration copies: parameters and optimizer state.
        gradient_bytes: of the whole model. module_of: int64[L], number of the modality module of each layer.
    """

    title: str
    job: TrainingJob = field(compare=False)
    faults: int
    nodes: int
    templates: tuple[PipelineTemplate, ...]
    layer_bytes: np.ndarray[Any, np.dtype[np.float64]] = field(compare=False)
    gradient_bytes: float
    module_of: np.ndarray[Any, np.dtype[np.int64]] = field(compare=False, default_factory=lambda: np.zeros(0, np.int64))

    @property
    def fewest_nodes(self) -> int:
        """(f + 1) n0."""
        return (self.faults + 1) * self.templates[0].nodes

    def compose(self, nodes: int) -> PipelineSet:
        """The fastest pipelines that use exactly so many nodes, at least f + 1 of them.

        Args:
            nodes: N'.
        Raises:
            ConfigError: fewer than (f + 1) n0 nodes, more than N, fewer microbatches than pipelines.
        """
        check_integer(nodes, "nodes", "a number of nodes", least=1)
        smallest = self.templates[0].nodes
        if nodes < self.fewest_nodes:
            raise ConfigError(
                f"{nodes} nodes hold {nodes // smallest} pipelines of {smallest}, not {self.faults + 1}",
                where="nodes",
                expected=f"at least (faults + 1) x {smallest} = {self.fewest_nodes}"
                + (f", or faults = {nodes // smallest - 1}" if nodes >= smallest else ""),
                got=nodes,
                nearest=self.fewest_nodes,
            )
        counts = compose_counts([one.speed for one in self.templates], nodes, self.num_microbatches, self.faults + 1)
        return self._dealt([one for one, count in zip(self.templates, counts, strict=True) for _ in range(count)][::-1])

    def of_sizes(self, sizes: Sequence[int]) -> PipelineSet:
        """Pipelines of given numbers of nodes, in that order.

        Raises:
            ConfigError: a size that no template has; fewer microbatches than pipelines.
        """
        by_size = {one.nodes: one for one in self.templates}
        for size in sizes:
            if size not in by_size:
                first, last = self.templates[0].nodes, self.templates[-1].nodes
                nearest = min(max(size, first), last)
                raise ConfigError(
                    "no template is so large",
                    where="sizes",
                    expected=f"{first} to {last} nodes",
                    got=size,
                    nearest=nearest,
                )
        return self._dealt([by_size[size] for size in sizes])

    @property
    def num_microbatches(self) -> int:
        """Of an iteration."""
        return self.job.training.global_batch // self.job.training.micro_batch

    def _dealt(self, chosen: Sequence[PipelineTemplate]) -> PipelineSet:
        dealt = distribute([one.speed for one in chosen], self.num_microbatches)
        return PipelineSet(tuple(chosen), tuple(dealt), self._reduction_s(chosen), self.job.training.micro_batch)

    def _reduction_s(self, pipelines: Sequence[PipelineTemplate]) -> float:
        """All-reduce of the stage with most bytes among as many holders as there are pipelines."""
        count = len(pipelines)
        if count == 1:
            return 0.0
        total = float(self.layer_bytes.sum())
        largest = max(
            float(self.layer_bytes[stage.first : stage.last].sum()) / stage.gpus
            for one in pipelines
            for stage in one.stages
        )
        wire = 2.0 * (count - 1) / count * largest / total * self.gradient_bytes
        profile = self.job.cluster.profile
        return collective_latency(profile, OpKind.ALL_REDUCE, CommGroup("dp", count, count), wire)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each template."""
        return [{"nodes": one.nodes, "stages": len(one.stages), **vars(one.speed)} for one in self.templates]

    def to_json(self) -> dict[str, Any]:
        """As ``templates --json``."""
        return {
            "title": self.title,
            "faults": self.faults,
            "nodes": self.nodes,
            "fewest_nodes": self.fewest_nodes,
            "templates": [one.to_json() for one in self.templates],
        }

    def __repr__(self) -> str:
        first, last, fewest = self.templates[0].nodes, self.templates[-1].nodes, self.fewest_nodes
        rows = [["nodes", "stages", "a microbatch", "fill", "layers x GPUs of each stage"]]
        for one in self.templates:
            period, fill = format_time(one.speed.period_s), format_time(one.speed.fill_s)
            rows.append([str(one.nodes), str(len(one.stages)), period, fill, one.text()])
        lines = [
            f"{self.title}: pipeline templates of {first} to {last} nodes",
            f"{self.faults} failures at once of {self.nodes} nodes; any number from {fewest} nodes on is used",
            "",
            *fit_columns(rows, [True, True, True, True, False]),
        ]
        return fit_lines("\n".join(lines))


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
    table, modules, per_layer, gradient = _layer_table(job)
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
    return TemplateSet(title, job, faults, nodes, tuple(found), per_layer, gradient, modules)


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


def _layer_table(job: TrainingJob) -> tuple[LayerTable, np.ndarray[Any, Any], Any, float]:
    """Costs of all layers by GPUs of a stage; the module of each layer; bytes that each layer's copy takes; bytes of
    all gradients."""
    per_node = job.cluster.gpus_per_node
    cluster = replace(job.cluster, nodes=1)
    times, states, helds, degrees = [], [], [], []
    again = int(job.training.recompute is Recompute.FULL)
    refused: SemuError | None = None
    costs = None
    for degree in range(1, per_node + 1):
        if per_node % degree:
            continue
        parallel = replace(job.parallel, dp=per_node // degree, tp=degree, pp=1, vpp=1, layout=None)
        training = replace(job.training, global_batch=parallel.dp * job.training.micro_batch)
        try:
            found = layer_costs(replace(job, cluster=cluster, parallel=parallel, training=training), job.batch, 1)
        except SemuError as error:  # heads that so many ranks do not divide
            refused = error
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
    return table, costs.module, one * (1.0 - gradient / element), float(one.sum() * gradient / element)


def _template(
    job: TrainingJob, table: LayerTable, modules: np.ndarray[Any, Any], nodes: int, microbatches: int
) -> PipelineTemplate | None:
    """The fastest pipeline of so many nodes; None: none fits."""
    per_node = job.cluster.gpus_per_node
    enough = max(microbatches, 4 * min(table.num_layers, nodes * per_node))  # T is of many more than there are stages
    cuts = cut_pipeline(table, nodes, per_node, enough, SLACK)[:MOST_FINALISTS]
    best: PipelineTemplate | None = None
    for planned, stages in cuts:
        speed, is_timed = _time(job, modules, nodes, stages, microbatches)
        if speed is None:
            if is_timed:
                continue  # the engine says that it does not fit
            speed = _planned_speed(table, nodes, stages)
        one = PipelineTemplate(speed, stages, planned, is_timed)
        if best is None or speed.time_s(microbatches) < best.speed.time_s(microbatches):
            best = one
    return best


def _planned_speed(table: LayerTable, nodes: int, stages: Sequence[Stage]) -> Speed:
    """Of stages of different sizes, by the planner's costs: the slowest stage sets the pace."""
    time_of = dict(zip(table.degrees.tolist(), table.time_s, strict=True))
    times = [float(time_of[one.gpus][one.first : one.last].sum()) for one in stages]
    return Speed(nodes, sum(times) - max(times), max(times))


def _time(
    job: TrainingJob, modules: np.ndarray[Any, Any], nodes: int, stages: tuple[Stage, ...], microbatches: int
) -> tuple[Speed | None, bool]:
    """How fast a pipeline is by the engine, and whether the engine can say: stages of equal size."""
    if len({one.gpus for one in stages}) > 1:
        return None, False
    few, many = max(2, min(len(stages), microbatches)), max(microbatches, len(stages)) + 4
    times = []
    for m in (few, many):
        try:
            found = evaluate(pipeline_job(job, modules, nodes, stages, m))
        except SemuError:
            return None, True
        if not found.fits:
            return None, True
        times.append(found.iteration_time_s)
    period = (times[1] - times[0]) / (many - few)
    return Speed(nodes, times[0] - few * period, period), True


def pipeline_job(
    job: TrainingJob,
    module_of: np.ndarray[Any, np.dtype[np.int64]],
    nodes: int,
    stages: Sequence[Stage],
    microbatches: int,
) -> TrainingJob:
    """A pipeline as a job of one replica under 1F1B.

    Args:
        job: what is trained. module_of: int64[L], number of the modality module of each layer. nodes: that it has.
        stages: on as many GPUs each. microbatches: that it runs.
    """
    names = [module.name for module in job.model.modules]
    lists = {
        name: tuple(int((module_of[one.first : one.last] == k).sum()) for one in stages) for k, name in enumerate(names)
    }
    layout = PipelineLayout(layers=lists[names[0]]) if len(names) == 1 else PipelineLayout(modules=lists)
    count = len(stages)
    return replace(
        job,
        cluster=replace(job.cluster, nodes=nodes),
        parallel=replace(job.parallel, dp=1, tp=stages[0].gpus, pp=count, vpp=1, layout=layout if count > 1 else None),
        training=replace(job.training, global_batch=microbatches * job.training.micro_batch, schedule="1f1b"),
    )
