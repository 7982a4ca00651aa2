"""``search_many``: schedule searches for many jobs (batches, seeds, models), spread over an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import Any

from semu.errors import ConfigError, SemuError
from semu.frames import Tabular
from semu.job import TrainingJob
from semu.records import dataclass
from semu.searcher.engines import Engine
from semu.searcher.engines.engine import SerialEngine
from semu.searcher.job_search import search
from semu.searcher.planner.training_report import seconds_or_refusal
from semu.units import fit_columns


@dataclass(frozen=True)
class SearchRow:
    """Result of a search for one job.

    Attributes:
        name: of the job. iteration_time_s: under the schedule found [s]; None: refused, with ``refused`` as the reason.
        baseline_s: under Megatron-LM's schedule; None: it cannot run it. heuristic_s: under the heuristic's.
        gap: makespan over the lower bound, less one. bubble_ratio: of the schedule found. rollouts: tried.
        exit_code: of a refusal. is_interrupted: Ctrl-C ended the search; this is the best so far.
    """

    name: str
    iteration_time_s: float | None
    baseline_s: float | None = None
    heuristic_s: float | None = None
    gap: float | None = None
    bubble_ratio: float | None = None
    rollouts: int = 0
    refused: str = ""
    exit_code: int = 0
    is_interrupted: bool = False


@dataclass(frozen=True)
class SearchTable(Tabular):
    """Result of ``search_many``.

    Attributes:
        rows: one per job, in the order asked. is_interrupted: Ctrl-C came before all were done.
    """

    rows: tuple[SearchRow, ...]
    is_interrupted: bool = False

    def mean(self, column: str) -> float | None:
        """Mean of a column over rows that have it; None: none has."""
        found = [value for value in (getattr(row, column) for row in self.rows) if value is not None]
        return fmean(found) if found else None

    def to_dicts(self) -> list[dict[str, Any]]:
        """Rows as tables."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("batch", "Megatron-LM", "heuristic", "searched", "above the bound")]
        for row in self.rows:
            if row.iteration_time_s is None:
                rows.append((row.name, "", "", "refused", row.refused))
            else:
                times = (row.baseline_s, row.heuristic_s, row.iteration_time_s)
                rows.append((row.name, *map(seconds_or_refusal, times), f"{100 * (row.gap or 0.0):.2f} %"))
        if len(self.rows) > 1 and self.mean("iteration_time_s") is not None:
            means = [self.mean(name) for name in ("baseline_s", "heuristic_s", "iteration_time_s")]
            rows.append(("mean", *map(seconds_or_refusal, means), f"{100 * (self.mean('gap') or 0.0):.2f} %"))
        return "\n".join(fit_columns(rows, (False, True, True, True, False)))


def search_many(
    jobs: Iterable[tuple[str, TrainingJob]],
    *,
    engine: Engine | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> SearchTable:
    """Search schedules of many jobs.

    Args:
        jobs: (name, job) each; names differ. engine: runs them; None: one after another, here.
        progress: called with a line whenever a search has ended.
        options: as ``search``, the same for every job; ``rollouts`` gives the same table again with any engine, a time
            does not. ``workers`` are threads of one search, by default 1.
    Returns:
        A row per job. A job that cannot be searched has a row with the reason. After Ctrl-C the rows that are done.
    Raises:
        ConfigError: two jobs of one name. ExecutorError: the engine lost its workers.
    """
    options = {"workers": 1, **options}
    names: list[str] = []

    def _stream() -> Iterable[tuple[str, TrainingJob]]:
        for name, job in jobs:
            if name in names:
                raise ConfigError("two jobs of one name", where="jobs", expected="names that differ", got=name)
            names.append(name)
            yield name, job

    found: dict[int, SearchRow] = {}
    is_interrupted = False
    try:
        for number, row in (engine or SerialEngine()).run(partial(_searched, options), _stream()):
            found[number] = row
            if progress is not None:
                time = "refused" if row.iteration_time_s is None else f"{row.iteration_time_s:.4f} s"
                progress(f"{len(found)} searched; {row.name}: {time}")
            if row.is_interrupted:
                is_interrupted = True
                break
    except KeyboardInterrupt:
        is_interrupted = True
    return SearchTable(tuple(found[number] for number in sorted(found)), is_interrupted)


def _searched(options: dict[str, Any], task: tuple[str, TrainingJob]) -> SearchRow:
    name, job = task
    try:
        found = search(job, **options)
    except SemuError as error:
        return SearchRow(name, None, refused=str(error), exit_code=error.exit_code)
    return SearchRow(
        name,
        found.report.iteration_time_s,
        None if found.baseline is None else found.baseline.iteration_time_s,
        found.heuristic.time_s,
        found.gap,
        found.report.bubble_ratio,
        found.result.rollouts,
        is_interrupted=found.result.ended_by == "interrupt",
    )
