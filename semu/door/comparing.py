"""``compare``: runs, results and logs side by side."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.door.simulating import simulate
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.present.comparison import Comparison, Side, compared
from semu.present.report import Report
from semu.runfile import Overrides, resolve_run
from semu.runfile.overrides import Changes, SaidCluster, SaidParallel

if TYPE_CHECKING:
    from semu.validation.logs.training_log import TrainingLog


def compare(
    *sides: str | os.PathLike[str] | TrainingJob | Report,
    overrides: Changes = (),
    cluster: SaidCluster | None = None,
    parallel: SaidParallel | None = None,
    changes: Overrides | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare two or more of: a run as ``semu.load_run`` reads it, which is simulated; a ``result.json``; a training
    log that ``semu validate --log`` reads; a job; a report.

    Args:
        sides: the first is what the others are beside. overrides, cluster, parallel: of all runs among them, as
            ``semu.load_run`` has them. changes: the same and more, in place of these three.
    Returns:
        Settings that differ, times, where they go, and the memory of every pipeline rank.
    Raises:
        ConfigError: fewer than two sides; a file that is none of these; as ``semu.simulate``.
        ScheduleError: a schedule that cannot order a run's pipeline.
    """
    changes = changes if changes is not None else Overrides(overrides, cluster, parallel)
    say = progress if progress is not None else lambda _: None
    found = []
    for number, side in enumerate(sides):
        if isinstance(side, TrainingJob):
            side = simulate(side)
        if isinstance(side, Report):
            found.append(Side.of_document(side.to_json(), side.title or f"side {number}", "simulated"))
            continue
        name = os.fspath(side)
        say(f"reading {name}")
        found.append(_side(name, changes))
    return compared(found)


def _side(name: str, changes: Overrides) -> Side:
    document = _result(name)
    if document is not None:
        return Side.of_document(document, name, "result")
    log = _log(name)
    if log is not None:
        return log
    run = resolve_run(name, changes)
    with run.places.located():
        report = simulate(run.job())
    document = {**report.to_json(), "settings": run.settings()}
    return Side.of_document(document, name, "simulated")


def _result(name: str) -> dict[str, Any] | None:
    """A file's document, where it is a result of semu; a folder's ``result.json``; None: it is neither."""
    path = Path(name) / "result.json" if Path(name).is_dir() else Path(name)
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the result: {error}", where=name, expected="a JSON document") from error
    return document if isinstance(document, dict) and "iteration_time_s" in document else None


def _finite(text: str) -> float:
    """A number of a document; results have neither NaN nor infinity."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def _log(name: str) -> Side | None:
    """A training log; None: a file that holds none."""
    path = Path(name)
    if not path.is_file() or path.suffix in (".toml", ".py"):
        return None
    from semu.validation.logs.log_reader import read_log
    from semu.validation.logs.samples import steady_samples

    try:
        log = read_log(name)
    except ConfigError:
        return None
    settings, gpus = log.settings, log.settings.get("gpus")
    batch, length = settings.get("global_batch"), settings.get("seq_len")
    batches = [one.global_batch for one in log.iterations if one.global_batch is not None]
    batch = batches[-1] if batches else batch
    tokens = batch * length if batch and length else None
    timed: list[tuple[int, float]] = []
    for one in log.iterations:
        if one.time_s is not None:
            timed.append((one.number, one.time_s))
        elif one.tokens_per_s and tokens and gpus:
            timed.append((one.number, tokens / (one.tokens_per_s * gpus)))
    if not timed:
        expected = "a log that tells times, or GPUs, batch and length beside tokens per second"
        raise ConfigError("no times in the log", where=name, expected=expected)
    median = steady_samples([number for number, _ in timed], [time for _, time in timed], where=name).median
    return Side(
        name,
        f"log of {log.format.value}",
        median,
        tokens_per_s=tokens / median / gpus if tokens and gpus else None,
        memory=_memory(log),
        settings={_KEYS[key]: value for key, value in settings.items() if key in _KEYS},
    )


def _memory(log: TrainingLog) -> dict[int, float]:
    """Most allocated memory of every pipeline rank; a log that does not say how many ranks a stage has tells nothing of
    it."""
    from semu.validation.logs.training_log import LoggedMemory

    gpus, pp = log.settings.get("gpus"), log.settings.get("pp")
    found: dict[int, float] = {}
    for (rank, kind), size in log.memory.items():
        if kind is LoggedMemory.MAX_ALLOCATED and rank is not None and gpus and pp:
            stage = rank // (gpus // pp)
            found[stage] = max(found.get(stage, 0.0), size)
    return found


_KEYS = {
    "global_batch": "training.global_batch",
    "micro_batch": "training.micro_batch",
    "seq_len": "training.seq_len",
    **{axis: f"parallel.{axis}" for axis in ("dp", "tp", "pp", "cp", "ep")},
}
"""What logs tell -> key of a run file."""
