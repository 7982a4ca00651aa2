"""``goodput``: how much of a long run is useful work, of a job or a run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.door.runs import RunName, job_of
from semu.files import make_folder, write_file, write_text
from semu.job import TrainingJob
from semu.resilience.long_run import simulate_long_run
from semu.resilience.options import CheckpointOptions, FailureOptions, PriceOptions, Resilience
from semu.resilience.report import GoodputReport

if TYPE_CHECKING:
    from semu.runfile.overrides import Changes, SaidCluster, SaidParallel

_TIME = re.compile(r"\s*\d+(\.\d*)?\s*[a-z]*\s*")


def failures_of(given: object) -> dict[str, object]:
    """The key of ``[resilience.failures]`` that says the same: a rate like ``419/54d``, the mean time between failures
    as a number of seconds or a text like ``3h``, or the path of a file of events."""
    if isinstance(given, str) and re.fullmatch(r"[^/]*/\s*\d[^/]*", given) and not os.path.exists(given):
        return {"rate": given}
    if (isinstance(given, str) and _TIME.fullmatch(given)) or not isinstance(given, str | os.PathLike):
        return {"mtbf": given}
    return {"trace": os.fspath(given)}


def goodput(
    job: TrainingJob | RunName,
    overrides: Changes = (),
    *,
    cluster: SaidCluster | None = None,
    parallel: SaidParallel | None = None,
    failures: FailureOptions | str | float | os.PathLike[str] | None = None,
    strategies: str | Sequence[str] | None = None,
    days: float | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    checkpoint: CheckpointOptions | None = None,
    spares: int | None = None,
    faults: int | None = None,
    tokens: float | None = None,
    gpu_hour_usd: float | None = None,
    against_mtbf: bool = False,
    progress: Callable[[str], None] | None = None,
) -> GoodputReport:
    """How much of a long run under failures is useful work, by strategy.

    Args:
        job: what to train, on what, how; or a run as ``semu.load_run`` reads it, whose ``[resilience]`` counts where
            an option is left out. overrides, cluster, parallel: of a run, as ``semu.simulate`` has them.
        failures: the mean time between failures of the job's nodes together, [s] or a text like ``3h``; a rate like
            ``419/54d``; a file of events; or all of ``[resilience.failures]``. None: as often per GPU as in Llama 3's
            training.
        strategies: names of ``semu.resilience.strategies.registry.STRATEGIES``; ``all``.
        days: of each run [d]. seeds: runs that are drawn. seed: of the first.
        checkpoint: ``[resilience.checkpoint]``: the interval between saves, what saves and restarts take.
        spares: spare nodes. faults: failures at once that Oobleck's templates survive.
        tokens: days until so many. gpu_hour_usd: price of a GPU for an hour [USD].
        against_mtbf: goodput where failures are up to 16 times as rare and as frequent, too.
        progress: called with what is done.
    Returns:
        The report; ``repr`` is its table.
    Raises:
        ConfigError: as ``semu.simulate``; a value that is not legal, a trace that cannot be read.
    """
    found, run = job_of(job, overrides, cluster, parallel)
    options = Resilience() if run is None else options_of(run.config)
    changes: dict[str, Any] = {"days": days, "seeds": seeds, "seed": seed, "spares": spares, "faults": faults}
    if strategies is not None:
        changes["strategies"] = (strategies,) if isinstance(strategies, str) else tuple(strategies)
    if failures is not None:
        changes["failures"] = (
            failures if isinstance(failures, FailureOptions) else FailureOptions(**failures_of(failures))  # type: ignore[arg-type]
        )
    if gpu_hour_usd is not None:
        changes["price"] = PriceOptions(gpu_hour_usd)
    changes["checkpoint"] = checkpoint
    return simulate_long_run(
        found, options.changed(**changes), tokens=tokens, against_mtbf=against_mtbf, progress=progress
    )


def options_of(config: Mapping[str, Mapping[str, Any]]) -> Resilience:
    """``[resilience]`` of a run; the price of ``[cost]`` counts where ``[resilience.price]`` has none.

    Raises:
        ConfigError: a value that is not legal.
    """
    options = Resilience.of(config.get("resilience", {}))
    price = config.get("cost", {}).get("gpu_hour_usd")
    if price is None or options.price.gpu_hour_usd is not None:
        return options
    return options.changed(price=PriceOptions(price))


def save_goodput(report: GoodputReport, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``goodput.json``, ``goodput.png``, ``report.html`` and, of a report that has it, ``goodput_mtbf.png``; the
    files.

    Raises:
        ConfigError: a folder or a file that cannot be written.
    """
    from semu.present.plots.goodput import draw_against_mtbf, draw_goodput
    from semu.resilience.pictures import goodput_picture

    path = make_folder(Path(folder))
    table = path / "goodput.json"
    write_text(table, json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n")
    files = [table, write_file(path / "goodput.png", lambda file: draw_goodput(file, goodput_picture(report)))]
    if report.against_mtbf:
        about = f"{report.days:g} days; a point is the mean of its runs, the dashed line the asked for time"
        files.append(
            write_file(
                path / "goodput_mtbf.png",
                lambda file: draw_against_mtbf(file, report.title, about, report.against_mtbf, report.mtbf_s),
            )
        )
    return [*files, report.page().save(path / "report.html")]
