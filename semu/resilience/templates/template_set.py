"""``TemplateSet``: pipeline templates of consecutive sizes; ``TemplateSet.compose``: the pipelines of some nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from semu.checks import check_integer
from semu.errors import ConfigError
from semu.frames import Tabular
from semu.hardware.kinds import OpKind
from semu.hardware.network.cost import collective_latency
from semu.hardware.network.group import CommGroup
from semu.job import TrainingJob
from semu.records import dataclass
from semu.resilience.templates.composing import Speed, compose_counts, distribute, slowest_times
from semu.resilience.templates.planner import Stage
from semu.units import align_columns, fit_columns, fit_lines, format_time

_NEARBY = 0.1
_WORTH_ANOTHER_BATCH = 0.005


@dataclass(frozen=True)
class PipelineTemplate:
    """A pipeline for a number of nodes.

    Attributes:
        speed: its size, and how long microbatches take it, of the engine. stages: in order; every GPU of its nodes is
            in one. planned_s: the planner's time.
    """

    speed: Speed
    stages: tuple[Stage, ...]
    planned_s: float

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
            "is_timed": True,
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
        left_out: GPUs that no stage has because some layer of the model cannot be split among so many -> why.
    """

    title: str
    job: TrainingJob = field(compare=False)
    faults: int
    nodes: int
    templates: tuple[PipelineTemplate, ...]
    layer_bytes: np.ndarray[Any, np.dtype[np.float64]] = field(compare=False)
    gradient_bytes: float
    module_of: np.ndarray[Any, np.dtype[np.int64]] = field(compare=False, default_factory=lambda: np.zeros(0, np.int64))
    left_out: Mapping[int, str] = field(default_factory=dict)

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
        if nodes > self.nodes:
            raise ConfigError(
                "more nodes than the job has",
                where="nodes",
                expected=f"at most {self.nodes}",
                got=nodes,
                nearest=self.nodes,
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
            "left_out": {str(gpus): why for gpus, why in self.left_out.items()},
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
            *([""] if self.left_out else []),
            *(f"no stages of {gpus} GPUs: {why}" for gpus, why in self.left_out.items()),
        ]
        return fit_lines("\n".join(lines))
