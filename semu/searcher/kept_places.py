"""Searches that keep a job's placement: modules on ranks or GPUs of their own, encoders that share ranks or are on
every rank; and towers under a loss that reads other replicas.

Such a placement is what was asked for, and other cuts have other ranks: the chunks stay, and what is searched is the
order of their stages, and how layers are recomputed where all modules have the job's sizes and losses stay within a
replica. The fastest named schedule of the same chunks is among the starts, so that no search is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from semu.baselines.baseline import NO_SCHEDULE, Baseline, differences
from semu.baselines.modules_in_parallel import PLACEMENTS
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.schedule.stage_plan import StagePlan
from semu.searcher.candidates import candidate_variants
from semu.searcher.memory import check_limits
from semu.searcher.partitioning import ModulePartition, Partition
from semu.searcher.plain_jobs import refuse_unsearched, without_strategies
from semu.searcher.problem.build import JobProblem, build_problem
from semu.simulation import JobCheckpoint, prepare

if TYPE_CHECKING:
    from semu.searcher.assignment.assignment import Assignment


def keeps_places(job: TrainingJob) -> bool:
    """Whether a search keeps the chunks of a job where they are."""
    return job.model.reads_replicas or keeps_ranks(job)


def keeps_ranks(job: TrainingJob) -> bool:
    """Whether a job says which ranks its modules have."""
    parallel = job.parallel
    return parallel.gathers_towers or (parallel.segments in PLACEMENTS and len(job.model.modules) > 1)


def placed(job: TrainingJob) -> Baseline:
    """The job as it is placed and recomputed, under 1F1B; virtual stages apart, which 1F1B does not order, greedily."""
    parallel = job.parallel
    has_stages_apart = parallel.segments == "apart" and parallel.vpp > 1 and not parallel.gathers_towers
    training = {**NO_SCHEDULE, "schedule": "greedy" if has_stages_apart else "1f1b"}
    return Baseline.of("placed", "Cornstarch (a dissertation's chapter 3), §3.3", job, parallel={}, training=training)


def kept_job(job: TrainingJob) -> tuple[TrainingJob, Mapping[str, object]]:
    """The job as ``placed`` has it, and what was changed; layers are neither recomputed nor offloaded where a plan can
    say which are.

    Raises:
        ConfigError: as ``refuse_unsearched``.
    """
    refuse_unsearched(job)
    made = placed(job if job.parallel.modules else without_strategies(job)).job
    return made, dict(differences(job, made))


def kept_problem(
    job: TrainingJob,
    *,
    sub_batch: Mapping[str, int] | None,
    segments: Mapping[str, int] | None,
    strategies: Sequence[str],
    candidates: int,
    memory_limit_bytes: int | None,
    progress: Callable[[str], None],
    assigned: Assignment | None = None,
) -> tuple[Partition, JobProblem]:
    """What a search looks at.

    Args:
        job: of ``kept_job``. sub_batch, segments: nothing. assigned: of whom samples are deferred.
            Others: as ``search``.
    Raises:
        ConfigError: another cut was asked for.
    """
    asked = [name for name, value in (("sub_batch", sub_batch), ("segments", segments)) if value]
    if asked:
        raise ConfigError(
            f"a search keeps the chunks of a placement where they are: {', '.join(asked)} would cut them anew",
            where=asked[0],
            expected="nothing, or parallel.segments = mixed",
            got=asked[0],
        )
    progress("simulating the candidates of every chunk")
    plan = StagePlan() if assigned is None else assigned.cut()
    if not (job.parallel.modules or job.parallel.gathers_towers or job.model.reads_replicas):
        plan = candidate_variants(job, plan, strategies=strategies, most=candidates)
    built = build_problem(prepare(job, plan=plan), memory_limit_bytes=memory_limit_bytes)
    check_limits(built.problem)
    return kept_partition(built.checkpoint).deferring(plan, job.parallel.replicas)[0], built


def kept_partition(checkpoint: JobCheckpoint) -> Partition:
    """The chunks of a job as they are."""
    job, chunks = checkpoint.job, checkpoint.layout.chunks
    whole = tuple((1,) * job.parallel.replicas for _ in range(job.num_microbatches))
    found = []
    for module in job.model.modules:
        mine = [chunk for chunk in chunks if chunk.module == module.name]
        seconds = sum(_mean_seconds(checkpoint, chunk.chunk.index) for chunk in mine if not chunk.chunk.repeats)
        layers = tuple(sum(block.is_layer for block in chunk.blocks) for chunk in mine)
        found.append(ModulePartition(module.name, None, (), seconds, 1, layers, whole))
    return Partition(tuple(found), job.parallel.pp)


def _mean_seconds(checkpoint: JobCheckpoint, chunk: int) -> float:
    """Forward and backward of a chunk on the mean microbatch, without recomputation [s]."""
    own = checkpoint.evaluation.chunks[chunk]
    return float(sum(stage.latency.mean() for stage in (own.forward, own.backward) if stage is not None))
