"""``plain_job``: a job without the options that a searched schedule decides itself."""

from __future__ import annotations

from collections.abc import Mapping

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.baselines.costs_of_layers import NO_RECOMPUTE
from semu.job import Recompute, TrainingJob


def plain_job(job: TrainingJob) -> tuple[TrainingJob, Mapping[str, object]]:
    """The job under a plain pipeline, and what was changed (key of the run file -> value; None: the key goes).

    Its layout, virtual stages and schedule go, and which layers are recomputed; which parts of a layer
    (``training.recompute``) stays: it is what ``selective`` means.
    """
    options = {name: value for name, value in NO_RECOMPUTE.items() if name != "recompute_modules"}
    if job.training.recompute_policy is not None:
        options["recompute"] = Recompute.NONE  # type: ignore[assignment]
    offload = {"offload_layers": None, "offload_fraction": None}
    made = Baseline.of(
        "plain",
        "DIP §4",
        job,
        parallel={**NO_LAYOUT, "vpp": 1},
        training={**NO_SCHEDULE, **options, **offload, "schedule": "1f1b"},
    )
    return made.job, made.changes
