"""``simulate_pipelines``: unequal pipelines as one job; the gradients of a layer are reduced among all that hold it.

Every pipeline is a job of one replica, timed by the engine. A layer's gradients are ready where it ends its last
backward; their all-reduce starts when all pipelines have them and the ranks that hold them reduce no other layer
(Oobleck §2.6.1, Fig. 2.9), hidden behind backwards where ``overlap.grad_reduce`` says so. The layer that can start
first goes first: in the order of the layers unequal pipelines would wait for one another from end to end. Where the
stages that hold a layer have different numbers of GPUs, it is reduced in as many shards as their least common multiple,
each among the ranks that hold it. Then all ranks step together. Gradients are weighted by samples, which is no work of
its own: every microbatch's loss is divided by those of the whole batch.

Equal pipelines are the job with so many replicas, bit for bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from semu.engine.timeline import IterationTimeline, OuterSlice, RankTimeline
from semu.frames import Tabular
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.present.report import Report
from semu.records import dataclass
from semu.resilience.templates.template_set import PipelineSet, PipelineTemplate, TemplateSet
from semu.resilience.templates.timed import TimedPipeline, pipeline_job, time_pipeline
from semu.simulation import simulate
from semu.simulation.context import TimedJob
from semu.simulation.data_parallel.collectives import ReductionPlan
from semu.simulation.data_parallel.gradient_times import pipeline_gradients
from semu.simulation.data_parallel.reduce import Reductions, tied_reductions
from semu.simulation.estimate import evaluate
from semu.simulation.iteration import Iteration
from semu.simulation.transfers import collective, timed_operator
from semu.units import align_columns, fit_lines, format_bytes


@dataclass(frozen=True, eq=False)
class PipelineResult:
    """Pipelines of one template with as many microbatches each.

    Attributes:
        template, microbatches: what each is. count: how many there are. report: of one.
    """

    template: PipelineTemplate
    microbatches: int
    count: int
    report: Report


@dataclass(frozen=True, eq=False, repr=False)
class JointReport(Tabular):
    """An iteration of unequal pipelines; ``repr`` is its table.

    Attributes:
        title: of the job. pipelines: each kind. iteration_time_s: until all ranks have stepped [s].
        gpus: of all pipelines. mfu: of all of them. reduction_s: what the slowest pipeline waits for gradients behind
            its stages [s].
    """

    title: str
    pipelines: tuple[PipelineResult, ...]
    iteration_time_s: float
    gpus: int
    mfu: float
    reduction_s: float

    @property
    def fits(self) -> bool:
        """Whether every rank fits in memory."""
        return all(one.report.fits for one in self.pipelines)

    def timeline(self, most: int = 16) -> IterationTimeline:
        """All pipelines on one time axis, kind after kind, each with ranks and microbatches of its own.

        Args:
            most: pipelines of each kind, equal to one another, that are in it.
        """
        ranks: list[RankTimeline] = []
        first = gpu = 0
        for one in self.pipelines:
            gpus = list(accumulate((stage.gpus for stage in one.template.stages), initial=0))
            for _ in range(min(one.count, most)):
                shift = len(ranks)
                for rank in one.report.timeline.ranks:
                    number = shift + rank.rank
                    stages = tuple(
                        replace(stage, rank=number, microbatch=first + stage.microbatch) for stage in rank.stages
                    )
                    ranks.append(replace(rank, rank=number, gpu=gpu + gpus[rank.rank], replica=0, stages=stages))
                first += one.microbatches
                gpu += gpus[-1]
        makespan_s = max(one.report.makespan_s for one in self.pipelines)
        return IterationTimeline(tuple(ranks), self.iteration_time_s, makespan_s)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each kind of pipeline."""
        return [
            {
                "pipelines": one.count,
                "nodes": one.template.nodes,
                "stages": len(one.template.stages),
                "microbatches": one.microbatches,
                "makespan_s": one.report.makespan_s,
                "bubble_ratio": one.report.bubble_ratio,
                "peak_memory_bytes": max(one.report.peak_memory_bytes),
                "fits": one.report.fits,
            }
            for one in self.pipelines
        ]

    def to_json(self) -> dict[str, Any]:
        """As ``simulated`` of ``templates --json``."""
        return {
            "iteration_time_s": self.iteration_time_s,
            "mfu": self.mfu,
            "gpus": self.gpus,
            "reduction_s": self.reduction_s,
            "fits": self.fits,
            "pipelines": self.to_dicts(),
        }

    def __repr__(self) -> str:
        rows = [["pipelines", "nodes", "stages", "microbatches", "last stage ends", "bubble", "peak memory"]]
        for one in self.to_dicts():
            counts = [str(one[key]) for key in ("pipelines", "nodes", "stages", "microbatches")]
            peak = format_bytes(one["peak_memory_bytes"]) + ("" if one["fits"] else ", does not fit")
            rows.append([*counts, f"{one['makespan_s']:.3f} s", f"{one['bubble_ratio']:.1%}", peak])
        lines = [
            f"simulated together: {self.iteration_time_s:.3f} s on {self.gpus} GPUs, MFU {self.mfu:.1%}, "
            f"{self.reduction_s:.3f} s of it wait for gradients",
            "",
            *align_columns(rows, [True] * 7),
        ]
        return fit_lines("\n".join(lines))


def simulate_pipelines(
    templates: TemplateSet, pipelines: PipelineSet, *, progress: Callable[[str], None] | None = None
) -> JointReport:
    """An iteration of the pipelines of a set.

    Args:
        templates: where the pipelines come from. pipelines: what ``compose`` or ``of_sizes`` returned.
        progress: called with what is done.
    Raises:
        ConfigError: as ``semu.simulate``.
    """
    tell = progress or (lambda _text: None)
    kinds = Counter(zip(pipelines.pipelines, pipelines.microbatches, strict=True))
    title, gpus = templates.title, pipelines.nodes * templates.job.cluster.gpus_per_node
    job = _replicas(templates, pipelines, kinds)
    if job is not None:
        tell("simulating equal pipelines")
        ((template, microbatches), count) = next(iter(kinds.items()))
        report = simulate(job)
        waits = report.iteration_time_s - report.makespan_s
        found = (PipelineResult(template, microbatches, count, report),)
        return JointReport(title, found, report.iteration_time_s, gpus, report.mfu, waits)
    timed = []
    for template, microbatches in kinds:
        tell(f"a pipeline of {template.nodes} nodes, {microbatches} microbatches")
        timed.append(time_pipeline(templates.job, templates.module_of, template.nodes, template.stages, microbatches))
    iterations = _iterations(templates, timed, list(kinds.values()))
    time_s = _time_s(iterations)
    results, work = [], 0.0
    for ((template, microbatches), count), one, own in zip(kinds.items(), timed, iterations, strict=True):
        report = one.report(own)
        results.append(PipelineResult(template, microbatches, count, report))
        work += count * report.mfu * report.iteration_time_s * one.gpus
    slowest = max(results, key=lambda one: one.report.makespan_s).report
    return JointReport(title, tuple(results), time_s, gpus, work / (gpus * time_s), time_s - slowest.makespan_s)


def iteration_s(templates: TemplateSet, pipelines: PipelineSet) -> float:
    """``iteration_time_s`` of ``simulate_pipelines``, without the reports [s].

    Raises:
        ConfigError: as ``semu.simulate``.
    """
    kinds = Counter(zip(pipelines.pipelines, pipelines.microbatches, strict=True))
    job = _replicas(templates, pipelines, kinds)
    if job is not None:
        return evaluate(job).iteration_time_s
    timed = [
        time_pipeline(templates.job, templates.module_of, template.nodes, template.stages, microbatches)
        for template, microbatches in kinds
    ]
    return _time_s(_iterations(templates, timed, list(kinds.values())))


def _replicas(
    templates: TemplateSet, pipelines: PipelineSet, kinds: Mapping[tuple[PipelineTemplate, int], int]
) -> TrainingJob | None:
    """Equal pipelines of equal stages as a job with so many replicas; None: they are not."""
    ((template, microbatches), count), *others = kinds.items()
    if others or len({one.gpus for one in template.stages}) > 1:
        return None
    job = pipeline_job(templates.job, templates.module_of, template.nodes, template.stages, microbatches)
    return replace(
        job,
        cluster=replace(job.cluster, nodes=pipelines.nodes),
        parallel=replace(job.parallel, dp=count, rank_order="tp-cp-pp-dp"),
        training=replace(job.training, global_batch=count * job.training.global_batch),
    )


def _iterations(
    templates: TemplateSet, timed: Sequence[TimedPipeline], counts: Sequence[int]
) -> list[dict[int, Iteration]]:
    """Views of every kind with what follows its stages."""
    reductions = reduce_together(timed, counts, templates.job.cluster)
    return [one.iterations(own) for one, own in zip(timed, reductions, strict=True)]


def _time_s(iterations: Sequence[Mapping[int, Iteration]]) -> float:
    """Until all ranks have stepped [s]."""
    return max(view.time_s for one in iterations for view in one.values())


@dataclass(frozen=True, eq=False)
class _LayerOf:
    """A layer's gradients on one kind of pipeline.

    Attributes:
        rank: that holds it. ready_s: when they are complete there [s]. elements: local. gpus: of the rank.
    """

    rank: int
    ready_s: float
    elements: int
    gpus: int


def reduce_together(timed: Sequence[TimedPipeline], counts: Sequence[int], cluster: Cluster) -> list[Reductions]:
    """All-reduces of the gradients of every layer among all pipelines, and when they run on each kind of pipeline.

    Args:
        timed: a pipeline of each kind, of the same model. counts: how many there are. cluster: of the job.
    Returns:
        The reductions of each kind, those of tied parameters within it behind them.
    """
    layers = [_layers_of(one) for one in timed]
    starts = [0, *accumulate(one.nodes for one, count in zip(timed, counts, strict=True) for _ in range(count))]
    kind_of = [k for k, count in enumerate(counts) for _ in range(count)]
    per_node, together = cluster.gpus_per_node, replace(cluster, nodes=starts[-1])
    ready = {path: max(own[path].ready_s for own in layers) for path in layers[0]}
    places = {path: [(k, own[path].rank) for k, own in enumerate(layers)] for path in ready}
    free: dict[tuple[int, int], float] = {}
    pieces: list[list[list[tuple[OuterSlice, CommGroup, float]]]] = [[[] for _ in one.stages] for one in timed]
    base, left = timed[0].base, set(ready)
    while left:
        begins = {path: max(ready[path], *(free.get(place, 0.0) for place in places[path])) for path in left}
        path = min(left, key=lambda path: (begins[path], ready[path], path))
        left.remove(path)
        mine = [own[path] for own in layers]
        members = [
            first * per_node + timed[kind].first_gpu[mine[kind].rank]
            for first, kind in zip(starts, kind_of, strict=False)
        ]
        group = together.place_group("dp", members)
        shards = math.lcm(*(one.gpus for one in mine))
        size = max(-(-one.elements * one.gpus // shards) for one in mine) * base.job.training.grad_dtype.size_bytes
        one = collective(base.cost_model, f"gradients {path}", OpKind.ALL_REDUCE, group, size, 0.0)
        lasts = max(shards // held.gpus for held in mine) * (one.end_s - one.start_s)
        end = begins[path] + lasts
        for k, rank in places[path]:
            free[k, rank] = end
            pieces[k][rank].append((timed_operator(one, begins[path], end), group, lasts))
    return [_reductions(own.base, of_ranks) for own, of_ranks in zip(timed, pieces, strict=True)]


def _layers_of(timed: TimedPipeline) -> dict[str, _LayerOf]:
    """Path of a layer -> its gradients, of the ranks' own views."""
    found: dict[str, _LayerOf] = {}
    for gpus, view in timed.views.items():
        ranks = [rank for rank, stage in enumerate(timed.stages) if stage.gpus == gpus]
        found |= _layers_of_ranks(view, gpus, ranks)
    return found


def _layers_of_ranks(timed: TimedJob, gpus: int, ranks: Sequence[int]) -> dict[str, _LayerOf]:
    """Path of a layer on some ranks -> its gradients; where nothing overlaps they are complete with the rank's last
    stage."""
    gradients, layout = pipeline_gradients(timed), timed.layout
    trained = gradients.trained
    ready = np.empty(len(trained.keys))
    ready[gradients.order] = gradients.ready_s
    if not timed.job.training.overlap.grad_reduce:
        ready[:] = np.array(timed.run.rank_ends)[trained.rank]
    number = {(int(rank), key): k for k, (rank, key) in enumerate(zip(trained.rank, trained.keys, strict=True))}
    found: dict[str, _LayerOf] = {}
    for rank in ranks:
        for chunk, block, held in layout.held_by(rank):
            k = number.get((rank, held.parameter))
            if k is None:
                continue
            path = layout.chunks[chunk].blocks[block].path
            before = found.get(path, _LayerOf(rank, 0.0, 0, gpus))
            elements = before.elements + trained.elements[k]
            found[path] = _LayerOf(rank, max(before.ready_s, float(ready[k])), elements, gpus)
    return found


def _reductions(timed: TimedJob, of_ranks: Sequence[Sequence[tuple[OuterSlice, CommGroup, float]]]) -> Reductions:
    """Timed collectives of every rank of a pipeline as its reductions."""
    every = [item for items in of_ranks for item in items]
    plan = ReductionPlan(
        pieces=tuple(piece for piece, _, _ in every),
        groups=tuple(group for _, group, _ in every),
        members=(None,) * len(every),
        ptr=np.array([0, *accumulate(map(len, of_ranks))], dtype=np.int64),
        length=[length for _, _, length in every],
        gate=np.zeros(len(every), dtype=np.int64),
    )
    start_s, end_s = [piece.start_s for piece, _, _ in every], [piece.end_s for piece, _, _ in every]
    return Reductions(timed.run, plan, None, start_s, end_s, tied_reductions(timed, plan, end_s))
