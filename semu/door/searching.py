"""``search``, ``grid``, ``what_if`` and comparisons of schedules, of a job or of a run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from semu.door.runs import RunName, job_of, of_runs
from semu.errors import ConfigError, MemoryLimitError
from semu.hardware.cluster import Cluster
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.searcher.grid import grid_search
from semu.searcher.grid.space import on_cluster, usual_axes
from semu.searcher.job_search import search as search_job
from semu.searcher.what_if import sensitivity
from semu.simulation.schedules import comparing, exploring

if TYPE_CHECKING:
    from semu.nn import Model
    from semu.runfile.config import RunConfig
    from semu.runfile.overrides import Changes, Overrides, SaidCluster, SaidParallel


def run_to_vary(name: RunName, changes: Overrides, gpus: int | None) -> tuple[RunConfig, TrainingJob]:
    """A run and its job, whose axes will vary: on another cluster it need not be legal before they do.

    Args:
        name: of the run; where it says no cluster, rules choose its layout and batch on ``gpus``.
        changes: of the run, its cluster among them. gpus: of the grid; None: the cluster's.
    Raises:
        ConfigError: a run that cannot be read, one that is not legal where nothing replaces its cluster.
    """
    from semu.runfile import resolve_run
    from semu.runfile.sources import leaves_cluster_open

    cluster = changes.cluster
    says_gpus = gpus is None or isinstance(cluster, Cluster) or ":" in (cluster or "")
    if not says_gpus and leaves_cluster_open(os.fspath(name), changes.reading):
        changes = replace(changes, cluster=f"{cluster or ''}:{gpus}")
    try:
        run = resolve_run(name, changes)
        return run, run.job()
    except (ConfigError, MemoryLimitError):
        if cluster is None and gpus is None:
            raise
    wanted = Cluster.parse(cluster) if isinstance(cluster, str) else cluster
    run = resolve_run(name, replace(changes, cluster=None))
    if wanted is not None:
        return run, on_cluster(run.job(), wanted)
    own = Cluster(**run.config["cluster"])
    enough = {**run.config["cluster"], "nodes": 1, "gpus_per_node": Parallel(**run.config["parallel"]).num_gpus}
    return run, on_cluster(replace(run, config={**run.config, "cluster": enough}).job(), own)


def said_axes(model: Model, changes: Overrides) -> dict[str, int | str]:
    """Values that changes of a run give to axes which a grid varies where none is named."""
    from semu.runfile.places import Places

    tables: dict[str, Any] = {}
    changes.apply(tables, Places(""))
    found: dict[str, int | str] = {}
    for name in usual_axes(model):
        value = tables.get("training" if name in ("micro_batch", "recompute") else "parallel", {}).get(name)
        if isinstance(value, int | str):
            found[name] = value
    return found


def _job_to_vary(
    job: TrainingJob | RunName,
    overrides: Changes,
    cluster: SaidCluster | None,
    parallel: SaidParallel | None,
    options: dict[str, Any],
) -> TrainingJob:
    """The job; what its changes say of axes that would vary becomes ``fix`` of the options, without ``vary``."""
    if not isinstance(job, str | os.PathLike):
        return job_of(job, overrides, cluster, parallel)[0]
    from semu.runfile import Overrides

    changes = Overrides(overrides, cluster, parallel)
    found = run_to_vary(job, changes, options.get("gpus"))[1]
    if options.get("vary") is None and (said := said_axes(found.model, changes)):
        options["fix"] = {**said, **(options.get("fix") or {})}
    return found


def _job_to_search(
    job: TrainingJob | RunName,
    overrides: Changes,
    cluster: SaidCluster | None,
    parallel: SaidParallel | None,
    options: dict[str, Any],
) -> TrainingJob:
    """The job; samples that a run file names become ``assigned`` of the options, where they are not given."""
    found, run = job_of(job, overrides, cluster, parallel)
    if run is not None and options.get("assigned") is None:
        from semu.door.assigning import assigned_run

        options["assigned"] = assigned_run(run, found, options.get("progress"))[1]
    return found


search = of_runs(search_job, _job_to_search)
grid = of_runs(grid_search.grid, _job_to_vary)
what_if = of_runs(sensitivity.what_if)
compare_schedules = of_runs(comparing.compare_schedules)
explore_schedules = of_runs(exploring.explore_schedules)
