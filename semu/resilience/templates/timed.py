"""``TimedPipeline``: a pipeline of a template under 1F1B, whose stages may have different numbers of GPUs.

Where they have, the pipeline is costed once for every number g that occurs, as if all its stages had g GPUs
(``views``); a stage takes its time from the view of its own number, and all views run under these times, so that what a
view says of its own ranks is right. A transfer brings every GPU of the next stage what it needs, sent evenly by the
GPUs of this one: it takes as long as the busier side. Gradients go back alike. Before the step all ranks agree on the
norm; each sweeps its own gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from semu.graph.operator import Phase
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.parallel.layout import PipelineLayout
from semu.present.estimate import Estimate
from semu.present.report import Report
from semu.records import dataclass
from semu.resilience.templates.planner import Stage
from semu.simulation import prepare
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.context import TimedJob
from semu.simulation.data_parallel.reduce import Reduction, Reductions, plan_reductions
from semu.simulation.data_parallel.step import rank_tails
from semu.simulation.iteration import Iteration
from semu.simulation.pipeline import run_pipeline
from semu.simulation.results.assemble import assemble_report
from semu.simulation.results.estimated import estimate_iteration
from semu.simulation.transfers import edge_bytes, splitting_group
from semu.simulation.unit_programs import programs_of

T = TypeVar("T")
_PHASES = (Phase.FORWARD, Phase.BACKWARD)


def pipeline_job(
    job: TrainingJob,
    module_of: np.ndarray[Any, np.dtype[np.int64]],
    nodes: int,
    stages: Sequence[Stage],
    microbatches: int,
    cluster: Cluster | None = None,
) -> TrainingJob:
    """A pipeline as a job of one replica under 1F1B.

    Args:
        job: what is trained. module_of: int64[L], number of the modality module of each layer. nodes: that it has.
        stages: on as many GPUs each. microbatches: that it runs. cluster: where; None: nodes of the job's.
    """
    names = [module.name for module in job.model.modules]
    lists = {
        name: tuple(int((module_of[one.first : one.last] == k).sum()) for one in stages) for k, name in enumerate(names)
    }
    layout = PipelineLayout(layers=lists[names[0]]) if len(names) == 1 else PipelineLayout(modules=lists)
    count = len(stages)
    return replace(
        job,
        cluster=cluster or replace(job.cluster, nodes=nodes),
        parallel=replace(job.parallel, dp=1, tp=stages[0].gpus, pp=count, vpp=1, layout=layout if count > 1 else None),
        training=replace(job.training, global_batch=microbatches * job.training.micro_batch, schedule="1f1b"),
    )


@dataclass(frozen=True, eq=False)
class TimedPipeline:
    """A pipeline before its gradients are reduced.

    Attributes:
        stages: of it. nodes: that it has. views: GPUs of a stage -> the pipeline as if all stages had as many, under
            the times of the pipeline; one: stages of equal numbers, the pipeline itself.
    """

    stages: tuple[Stage, ...]
    nodes: int
    views: Mapping[int, TimedJob]

    @property
    def gpus(self) -> int:
        """Of all stages."""
        return sum(one.gpus for one in self.stages)

    @property
    def is_mixed(self) -> bool:
        """Whether stages have different numbers of GPUs."""
        return len(self.views) > 1

    @cached_property
    def first_gpu(self) -> list[int]:
        """Where each stage's GPUs begin, within the pipeline's."""
        return list(accumulate((one.gpus for one in self.stages[:-1]), initial=0))

    @property
    def base(self) -> TimedJob:
        """The view of the smallest stages: what concerns all ranks together is timed in it."""
        return self.views[min(self.views)]

    def of_ranks(self, found: Mapping[int, T]) -> list[T]:
        """Of something that every view has, each rank's own."""
        return [found[one.gpus] for one in self.stages]

    def iterations(self, reductions: Reductions | Sequence[Reduction] | None = None) -> dict[int, Iteration]:
        """Every view with what follows the pipeline.

        Args:
            reductions: of all ranks, of the run of ``base``; None: none but those of tied parameters.
        """
        base = self.base
        tails = rank_tails(base, plan_reductions(base) if reductions is None else reductions, self.of_ranks(self.views))
        return {
            gpus: Iteration(
                view.layout, view.evaluation, view.units, view.replicas, view.nodes, view.gathers, view.run, tails
            )
            for gpus, view in self.views.items()
        }

    def alone_s(self) -> float | None:
        """Time of the pipeline alone [s]; None: it does not fit."""
        found = {gpus: estimate_iteration(one).estimate for gpus, one in self.iterations().items()}
        base = found[min(found)]
        judged = replace(base, **self._memory(found)) if self.is_mixed else base
        return judged.iteration_time_s if judged.fits else None

    def report(self, iterations: Mapping[int, Iteration]) -> Report:
        """What ``simulate`` says of the pipeline. Where stages are unequal, times, memory, FLOP and the timeline are of
        every rank's own view; shares of time, operators and layers are those of the smallest stages' view."""
        found = {gpus: assemble_report(one) for gpus, one in iterations.items()}
        if not self.is_mixed:
            return found[self.stages[0].gpus]
        smallest = min(found)
        base = found[smallest]
        mean = self.gpus / len(self.stages)
        timelines = {gpus: one.timeline.ranks for gpus, one in found.items()}
        ranks = tuple(
            replace(own[rank], gpu=first, weight=stage.gpus / mean)
            for rank, (own, first, stage) in enumerate(
                zip(self.of_ranks(timelines), self.first_gpu, self.stages, strict=True)
            )
        )
        timeline = replace(base.timeline, ranks=ranks)
        share = smallest * len(self.stages) / self.gpus
        rates = ("mfu", "hfu", "mfu_full_attention", "model_tflop_per_s_per_gpu", "tokens_per_s_per_gpu")
        split = {gpus: one.memory for gpus, one in found.items()}
        sizes = "-".join(str(one.gpus) for one in self.stages)
        note = f"stages of {sizes} GPUs: shares of time and operators are as if all had {smallest}"
        return replace(
            base,
            title=f"{base.title}, stages of {sizes} GPUs",
            **{name: getattr(base, name) * share for name in rates},
            mfu_bf16=None if base.mfu_bf16 is None else base.mfu_bf16 * share,
            bubble_ratio=timeline.bubble_ratio,
            ranks=tuple(own[rank] for rank, own in enumerate(self.of_ranks({g: r.ranks for g, r in found.items()}))),
            timeline=timeline,
            job={**base.job, "cluster": self._cluster(base)},
            split_peak=lambda rank: tuple(self.of_ranks(split)[rank][rank][:6]),
            warnings=(*base.warnings, note),
            **self._memory(found),
        )

    def _cluster(self, base: Report) -> dict[str, object]:
        """Of the pipeline, as reports have it."""
        cluster = base.job["cluster"]
        assert isinstance(cluster, dict)
        return {**cluster, "nodes": self.nodes, "gpus_per_node": self.gpus // self.nodes}

    def _memory(self, found: Mapping[int, Estimate] | Mapping[int, Report]) -> dict[str, Any]:
        """Memory of every rank, of its own view."""
        own = [found[one.gpus] for one in self.stages]
        return {
            "peak_memory_bytes": tuple(one.peak_memory_bytes[rank] for rank, one in enumerate(own)),
            "static_memory_bytes": tuple(one.static_memory_bytes[rank] for rank, one in enumerate(own)),
            "reserve": lambda rank: own[rank].held_by(rank),
        }


def time_pipeline(
    job: TrainingJob,
    module_of: np.ndarray[Any, np.dtype[np.int64]],
    nodes: int,
    stages: Sequence[Stage],
    microbatches: int,
) -> TimedPipeline:
    """A pipeline under 1F1B.

    Args:
        job: what is trained. module_of: int64[L], number of the modality module of each layer. nodes: that it has.
        stages: in order; every GPU of its nodes is in one. microbatches: that it runs.
    Raises:
        ConfigError: as ``semu.simulate``.
    """
    sizes = sorted({one.gpus for one in stages})
    if len(sizes) == 1:
        only = prepare(pipeline_job(job, module_of, nodes, stages, microbatches)).timed()
        return TimedPipeline(tuple(stages), nodes, {sizes[0]: only})
    prepared = prepare_views(job, module_of, nodes, stages, microbatches)
    views = {gpus: run_pipeline(own, own.problem(), has_hosts=False) for gpus, own in prepared.items()}
    return TimedPipeline(tuple(stages), nodes, views)


def prepare_views(
    job: TrainingJob,
    module_of: np.ndarray[Any, np.dtype[np.int64]],
    nodes: int,
    stages: Sequence[Stage],
    microbatches: int,
) -> dict[int, JobCheckpoint]:
    """GPUs of a stage -> the pipeline as if all stages had as many, every unit as long as in the pipeline itself, waits
    for launches included; arguments as ``time_pipeline``."""
    prepared = {}
    for gpus in sorted({one.gpus for one in stages}):
        alike = [replace(one, gpus=gpus) for one in stages]
        place = Cluster(job.cluster.profile, len(stages), gpus)  # a node for each stage; transfers are timed apart
        prepared[gpus] = prepare(pipeline_job(job, module_of, nodes, alike, microbatches, place))
    latency = _mixed_latency(stages, prepared, replace(job.cluster, nodes=nodes))
    return {gpus: replace(own, nodes=replace(own.nodes, latency=latency)) for gpus, own in prepared.items()}


def _mixed_latency(
    stages: Sequence[Stage], prepared: Mapping[int, JobCheckpoint], cluster: Cluster
) -> NDArray[np.float64]:
    """How long every unit lasts: stages as in the view of their own number of GPUs, with what they wait for launches
    there; transfers as they go between the stages: float64[1, num_units] [s]."""
    base = prepared[min(prepared)]
    units = base.units
    programs = programs_of(base.layout.recipe, units)
    found = np.zeros((units.repeats, units.size))
    rank_of = units.rank[units.copy]
    for gpus, own in prepared.items():
        latency = own.nodes.latency[0].copy()
        launched = own.timed().run.launched
        if launched is not None:
            problem = own.problem()
            latency[problem.unit_of_nodes[: problem.num_stages]] += launched[0]
        mine = np.isin(rank_of, [rank for rank, one in enumerate(stages) if one.gpus == gpus])
        found[:, : units.num_stages][mine] = latency.reshape(found.shape)[:, : units.num_stages][mine]
    column = programs.column.reshape(found.shape)[:, units.num_stages :]
    edge = programs.edge[units.copy]
    for number, (source, target, back, pair) in enumerate(programs.edges):
        giver, taker = (stages[rank] for rank in units.pairs[pair])
        own = prepared[taker.gpus]
        sizes = edge_bytes(own, source, target, _PHASES[back])
        link = _link(stages, units.pairs[pair], cluster)
        of_shape = _send_s(own, link, sizes, giver.gpus, taker.gpus)
        mine = edge == number
        found[:, units.num_stages :][mine] = of_shape[own.replicas.shape[0, column[mine]]]
    return found.reshape(1, -1)


def _link(stages: Sequence[Stage], pair: tuple[int, int], cluster: Cluster) -> CommGroup:
    """The worst pair of GPUs between two stages; neighbours send to neighbours."""
    first = np.cumsum([0, *(one.gpus for one in stages)])
    ends = [(int(first[rank]), stages[rank].gpus) for rank in pair]
    count = max(gpus for _, gpus in ends)
    pairs = [[begin + number * gpus // count for begin, gpus in ends] for number in range(count)]
    groups = [cluster.place_group("pp", gpus) for gpus in pairs]
    return max(groups, key=lambda group: (group.nic_slowdown, group.num_nodes, group.socket_groups))


def _send_s(
    taker: JobCheckpoint, link: CommGroup, sizes: NDArray[np.int64], givers: int, takers: int
) -> NDArray[np.float64]:
    """How long a transfer lasts for every shape: every GPU that takes gets ``sizes`` bytes, of which the GPUs that give
    send equally much; float64[num_shapes] [s]."""
    peers, model = splitting_group(taker.layout), taker.cost_model
    each = sizes if peers is None else -(-sizes // peers.num_ranks)
    busiest = np.maximum(each, -(-each * takers // givers))
    sent = model.outer_latency(OpKind.P2P, "send", group=link, net_bytes=busiest)
    if peers is None:
        return sent
    gather = model.outer_latency(OpKind.ALL_GATHER, "gather", group=peers, net_bytes=sizes - each)
    return sent + np.where(sizes > 0, gather, 0.0)
