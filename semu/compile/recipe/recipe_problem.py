"""What a ``StagePlan`` is for: a job and its batch in plain numbers, and whether a plan is for this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semu.compile.layout import Layout
from semu.job import TrainingJob
from semu.schedule.stage_plan import StagePlan, first_difference
from semu.workload.batch import Microbatch


def plan_of_file(job: TrainingJob) -> StagePlan | None:
    """What the job's schedule file holds, where it is a plan (``.json``)."""
    path = job.training.schedule_file
    return StagePlan.read(path) if path is not None and path.endswith(".json") else None


def described(job: TrainingJob, layout: Layout | None, microbatches: Sequence[Microbatch]) -> dict[str, Any]:
    """What a plan is made for, in plain numbers (``StagePlan.problem``).

    Args:
        job: as told. layout: of the job; None: without its chunks. microbatches: of all replicas.
    """
    found: dict[str, Any] = {
        "model": job.model.name,
        "device": job.profile.name,
        **{name: getattr(job.parallel, name) for name in ("pp", "dp", "tp", "cp")},
        "microbatches": job.num_microbatches,
        "batch": [{name: [len(own), int(own.sum())] for name, own in item.lengths.items()} for item in microbatches],
    }
    if layout is not None:
        found["chunks"] = [
            {"rank": c.chunk.rank, "slot": c.chunk.slot, "module": c.module, "blocks": [c.chunk.first, c.chunk.last]}
            for c in layout.chunks
        ]
    return found


def check_problem(job: TrainingJob, plan: StagePlan) -> None:
    """Refuse a plan that was made for another job or batch."""
    if plan.problem is None:
        return
    count = job.num_microbatches * job.parallel.replicas
    items = job.batch.microbatches(count, job.training.micro_batch, job.training.seq_len)
    made_for = {key: value for key, value in plan.problem.items() if key != "chunks"}
    first_difference(made_for, described(job, None, items))
