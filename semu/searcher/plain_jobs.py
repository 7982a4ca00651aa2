"""``plain_job``: a job without the options that a searched schedule decides itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE, Baseline
from semu.baselines.costs_of_layers import NO_RECOMPUTE
from semu.errors import ConfigError
from semu.job import Recompute, TrainingJob


def plain_job(job: TrainingJob) -> tuple[TrainingJob, Mapping[str, object]]:
    """The job under a plain pipeline, and what was changed (key of the run file -> value; None: the key goes).

    Its layout, virtual stages and schedule go, and which layers are recomputed; which parts of a layer
    (``training.recompute``) stays: it is what ``selective`` means.

    Raises:
        ConfigError: as ``refuse_unsearched``.
    """
    refuse_unsearched(job)
    made = Baseline.of(
        "plain",
        "DIP §4",
        job,
        parallel={**NO_LAYOUT, "vpp": 1},
        training={**NO_SCHEDULE, **_no_strategies(job), "schedule": "1f1b"},
    )
    return made.job, made.changes


def refuse_unsearched(job: TrainingJob) -> None:
    """Refuse what no searched schedule runs.

    Raises:
        ConfigError: embedding and head are split over the pipeline.
    """
    if job.parallel.spreads_vocabulary:
        raise ConfigError(
            "a search for schedules of a vocabulary that is split over the pipeline is not modelled by this version",
            where="parallel.vocabulary",
            expected="ends; or semu simulate, or semu schedules, with a named schedule",
            got=job.parallel.vocabulary,
            nearest="ends",
        )


def without_strategies(job: TrainingJob) -> TrainingJob:
    """The job as it is cut and scheduled, without recomputed or offloaded layers."""
    return replace(job, training=replace(job.training, **_no_strategies(job)))


def _no_strategies(job: TrainingJob) -> dict[str, Any]:
    options = {name: value for name, value in NO_RECOMPUTE.items() if name != "recompute_modules"}
    if job.training.recompute_policy is not None:
        options["recompute"] = Recompute.NONE  # type: ignore[assignment]
    return {**options, "offload_layers": None, "offload_fraction": None}
