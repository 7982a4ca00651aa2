"""``context``: policies of context ranks on the batch of a job or of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from semu.checks import check_integer
from semu.door.runs import RunName, job_of
from semu.errors import ConfigError
from semu.files import make_folder, write_file, write_text
from semu.job import TrainingJob
from semu.nn.trace.sharding import ContextKind
from semu.parallel.axes import FOLLOWING
from semu.parallel.context import Balance
from semu.simulation.contexts.permutations import write_permutations
from semu.simulation.contexts.policies import study
from semu.simulation.contexts.result import ContextStudy

if TYPE_CHECKING:
    from semu.runfile.overrides import Changes, SaidCluster, SaidParallel

__all__ = ["context", "save_study", "with_context", "write_permutations"]


def context(
    job: TrainingJob | RunName,
    overrides: Changes = (),
    *,
    cluster: SaidCluster | None = None,
    parallel: SaidParallel | None = None,
    mask: str | None = None,
    cp: int | None = None,
    policies: Sequence[Balance | str] | None = None,
    kinds: Sequence[ContextKind | str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ContextStudy:
    """Which policy of context ranks suits a batch: balance, wire bytes, memory and time of each, and a bound.

    Args:
        job: what to train, on what, how; or a run as ``semu.load_run`` reads it.
        overrides, cluster, parallel: of a run, as ``semu.simulate`` has them.
        mask: in place of ``training.attention_mask``. cp: context ranks in place of the job's; there are as many
            replicas as the cluster then holds.
        policies: words of ``parallel.cp_balance``; None: all. kinds: words of ``parallel.cp_kind``, each under every
            policy; None: the job's. progress: called with what is done.
    Returns:
        The study; ``repr`` is its table.
    Raises:
        ConfigError: as ``semu.simulate``; one context rank; a policy that is none.
    """
    found, _ = job_of(job, overrides, cluster, parallel)
    return study(with_context(found, mask, cp), policies=policies, kinds=kinds, progress=progress)


def with_context(job: TrainingJob, mask: str | None, cp: int | None) -> TrainingJob:
    """The job under another mask, on other context ranks."""
    if mask is not None:
        job = replace(job, training=replace(job.training, attention_mask=mask))
    if cp is None or cp == job.parallel.cp:
        return job
    check_integer(cp, "--cp", "context ranks")
    others = job.parallel.num_gpus // (job.parallel.dp * job.parallel.cp)
    if job.cluster.num_gpus % (others * cp):
        raise ConfigError(
            f"{cp} context ranks do not divide the cluster",
            where="--cp",
            expected=f"a divisor of {job.cluster.num_gpus // others}",
            got=cp,
            nearest=max(n for n in range(1, cp + 1) if job.cluster.num_gpus // others % n == 0),
        )
    return replace(job, parallel=replace(job.parallel, cp=cp, dp=FOLLOWING).on(job.cluster.num_gpus))


def save_study(found: ContextStudy, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``context.json``, ``mask.png`` and ``report.html``; the files.

    Raises:
        ConfigError: a folder or a file that cannot be written.
    """
    from semu.present.plots.mask import draw_mask
    from semu.simulation.contexts.picture import mask_picture

    path = Path(folder)
    make_folder(path)
    table = path / "context.json"
    write_text(table, json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n")
    picture = mask_picture(found)
    drawn = write_file(path / "mask.png", lambda file: draw_mask(file, picture))
    return [table, drawn, found.page().save(path / "report.html")]
