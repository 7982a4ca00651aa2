"""``simulate_pipelines``: unequal pipelines as one job; the gradients of a layer are reduced among all that hold it.

Every pipeline is a job of one replica, timed by the engine. A layer's gradients are ready where it ends its last
backward; their all-reduce starts when all pipelines have them and the ranks that hold them reduce no other layer
(Oobleck §2.6.1, Fig. 2.9), hidden behind backwards where ``overlap.grad_reduce`` says so. The layer that can start
first goes first: in the order of the layers unequal pipelines would wait for one another from end to end. Where
pipelines have tensor-parallel sizes of their own, a layer is reduced in as many shards as their least common multiple,
each among the ranks that hold it. Then all ranks step together. Gradients are weighted by samples, which is no work of
its own: every microbatch's loss is divided by those of the whole batch.

Equal pipelines are the job with so many replicas, bit for bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from semu.engine.timeline import IterationTimeline, OuterSlice, RankTimeline
from semu.errors import ConfigError
from semu.frames import Tabular
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.present.report import Report
from semu.resilience.templates.making import pipeline_job
from semu.resilience.templates.template_set import PipelineSet, PipelineTemplate, TemplateSet
from semu.simulation import prepare, simulate
from semu.simulation.context import TimedJob
from semu.simulation.data_parallel.collectives import ReductionPlan
from semu.simulation.data_parallel.gradient_times import pipeline_gradients
from semu.simulation.data_parallel.reduce import Reductions, tied_reductions
from semu.simulation.iteration import time_iteration
from semu.simulation.results.assemble import assemble_report
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
        first = 0
        for one in self.pipelines:
            width = one.template.stages[0].gpus
            for _ in range(min(one.count, most)):
                shift = len(ranks)
                for rank in one.report.timeline.ranks:
                    number = shift + rank.rank
                    stages = tuple(
                        replace(stage, rank=number, microbatch=first + stage.microbatch) for stage in rank.stages
                    )
                    ranks.append(replace(rank, rank=number, gpu=number * width, replica=0, stages=stages))
                first += one.microbatches
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
        ConfigError: stages of different numbers of GPUs in one pipeline, which the engine cannot time.
    """
    tell = progress or (lambda _text: None)
    kinds = Counter(zip(pipelines.pipelines, pipelines.microbatches, strict=True))
    for template, _ in kinds:
        sizes = sorted({one.gpus for one in template.stages})
        if len(sizes) > 1:
            raise ConfigError(
                f"the pipeline of {template.nodes} nodes has stages of {' and '.join(map(str, sizes))} GPUs",
                where="nodes",
                expected="templates whose stages have as many GPUs each; this one's time is the planner's",
            )
    jobs = [
        pipeline_job(templates.job, templates.module_of, template.nodes, template.stages, count)
        for template, count in kinds
    ]
    title, gpus = templates.title, pipelines.nodes * templates.job.cluster.gpus_per_node
    if len(kinds) == 1:
        tell("simulating equal pipelines")
        ((template, microbatches), count), (job,) = next(iter(kinds.items())), jobs
        report = simulate(
            replace(
                job,
                cluster=replace(job.cluster, nodes=pipelines.nodes),
                parallel=replace(job.parallel, dp=count, rank_order="tp-cp-pp-dp"),
                training=replace(job.training, global_batch=count * job.training.global_batch),
            )
        )
        waits = report.iteration_time_s - report.makespan_s
        found = (PipelineResult(template, microbatches, count, report),)
        return JointReport(title, found, report.iteration_time_s, gpus, report.mfu, waits)
    timed = []
    for (template, microbatches), job in zip(kinds, jobs, strict=True):
        tell(f"a pipeline of {template.nodes} nodes, {microbatches} microbatches")
        timed.append(prepare(job).timed())
    reductions = reduce_together(timed, list(kinds.values()), templates.job.cluster.gpus_per_node)
    iterations = [time_iteration(one, own) for one, own in zip(timed, reductions, strict=True)]
    time_s = max(one.time_s for one in iterations)
    results, work = [], 0.0
    for ((template, microbatches), count), iteration in zip(kinds.items(), iterations, strict=True):
        report = assemble_report(iteration)
        results.append(PipelineResult(template, microbatches, count, report))
        work += count * report.mfu * report.iteration_time_s * iteration.job.cluster.num_gpus
    slowest = max(results, key=lambda one: one.report.makespan_s).report
    return JointReport(title, tuple(results), time_s, gpus, work / (gpus * time_s), time_s - slowest.makespan_s)


@dataclass(frozen=True, eq=False)
class _LayerOf:
    """A layer's gradients on one kind of pipeline.

    Attributes:
        rank: that holds it. ready_s: when they are complete there [s]. elements: local.
    """

    rank: int
    ready_s: float
    elements: int


def reduce_together(timed: Sequence[TimedJob], counts: Sequence[int], gpus_per_node: int) -> list[Reductions]:
    """All-reduces of the gradients of every layer among all pipelines, and when they run on each kind of pipeline.

    Args:
        timed: a pipeline of each kind, of the same model. counts: how many there are. gpus_per_node: of the cluster.
    Returns:
        The reductions of each kind, those of tied parameters within it behind them.
    """
    layers = [_layers_of(one) for one in timed]
    nodes = [one.job.cluster.nodes for one in timed]
    starts = [0, *accumulate(n for n, count in zip(nodes, counts, strict=True) for _ in range(count))]
    cluster = replace(timed[0].job.cluster, nodes=starts[-1])
    kind_of = [k for k, count in enumerate(counts) for _ in range(count)]
    shards = math.lcm(*(one.job.parallel.tp for one in timed))
    ready = {path: max(own[path].ready_s for own in layers) for path in layers[0]}
    places = {path: [(k, own[path].rank) for k, own in enumerate(layers)] for path in ready}
    turns = max(shards // own.job.parallel.tp for own in timed)
    free: dict[tuple[int, int], float] = {}
    pieces: list[list[list[tuple[OuterSlice, CommGroup, float]]]] = [[[] for _ in one.run.rank_ends] for one in timed]
    left = set(ready)
    while left:
        begins = {path: max(ready[path], *(free.get(place, 0.0) for place in places[path])) for path in left}
        path = min(left, key=lambda path: (begins[path], ready[path], path))
        left.remove(path)
        mine = [own[path] for own in layers]
        members = [
            first * gpus_per_node + timed[kind].layout.mesh.gpu(pp=mine[kind].rank)
            for first, kind in zip(starts, kind_of, strict=False)
        ]
        group = cluster.place_group("dp", members)
        parts = [-(-one.elements * own.job.parallel.tp // shards) for one, own in zip(mine, timed, strict=True)]
        size = max(parts) * timed[0].job.training.grad_dtype.size_bytes
        one = collective(timed[0].cost_model, f"gradients {path}", OpKind.ALL_REDUCE, group, size, 0.0)
        lasts = turns * (one.end_s - one.start_s)
        end = begins[path] + lasts
        for k, rank in places[path]:
            free[k, rank] = end
            pieces[k][rank].append((timed_operator(one, begins[path], end), group, lasts))
    return [_reductions(own, of_ranks) for own, of_ranks in zip(timed, pieces, strict=True)]


def _layers_of(timed: TimedJob) -> dict[str, _LayerOf]:
    """Path of a layer -> its gradients; where nothing overlaps they are complete with the rank's last stage."""
    gradients, layout = pipeline_gradients(timed), timed.layout
    trained = gradients.trained
    ready = np.empty(len(trained.keys))
    ready[gradients.order] = gradients.ready_s
    if not timed.job.training.overlap.grad_reduce:
        ready[:] = np.array(timed.run.rank_ends)[trained.rank]
    number = {(int(rank), key): k for k, (rank, key) in enumerate(zip(trained.rank, trained.keys, strict=True))}
    found: dict[str, _LayerOf] = {}
    for rank in range(layout.cut.num_ranks):
        for chunk, block, held in layout.held_by(rank):
            k = number.get((rank, held.parameter))
            if k is None:
                continue
            path = layout.chunks[chunk].blocks[block].path
            before = found.get(path, _LayerOf(rank, 0.0, 0))
            found[path] = _LayerOf(rank, max(before.ready_s, float(ready[k])), before.elements + trained.elements[k])
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
