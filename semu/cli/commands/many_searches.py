"""``semu search RUN --batches N``: one search per batch, on an engine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.cli.console import INTERRUPTED, Progress, emit, emit_json, say
from semu.cli.resolved import read_run
from semu.errors import ConfigError, MemoryLimitError, MissingCoefficientError, ScheduleError, SemuError
from semu.files import make_folder, write_text

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.searcher.many import SearchTable


def search_batches(arguments: argparse.Namespace, progress: Progress, options: dict[str, Any]) -> int:
    """Run the command; returns the exit code: of the first refusal, where no batch could be searched.

    Args:
        options: as ``semu.search``.
    Raises:
        ConfigError: not a number of batches, a run without a seed, an engine that there is not.
        ExecutorError: the engine lost its workers.
    """
    from semu.checks import check_integer
    from semu.searcher.engines import make_engine
    from semu.searcher.many import search_many

    check_integer(arguments.batches, "--batches", "a number of batches")
    if arguments.strict:
        raise ConfigError("--strict is an option of one search", where="--strict", expected="a RUN without --batches")
    engine = make_engine(arguments.engine, workers=arguments.processes, address=arguments.address)
    if arguments.out is not None:
        make_folder(Path(arguments.out))
    first = arguments.seed or 0

    def _jobs() -> Iterator[tuple[str, TrainingJob]]:
        for seed in range(first, first + arguments.batches):
            yield f"seed {seed}", read_run(arguments, progress, seed=seed).job()

    table = search_many(_jobs(), engine=engine, progress=progress, seed=first, **options)
    refusal = _refusal(table)
    document: dict[str, Any] = {
        "run": arguments.run,
        "rows": table.to_dicts(),
        "mean": {name: table.mean(name) for name in ("baseline_s", "heuristic_s", "iteration_time_s", "gap")},
    }
    if refusal is not None:
        document["error"] = refusal.to_json()
    if arguments.out is not None:
        path = Path(arguments.out) / "searches.json"
        write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")
        say(f"wrote {path}")
    if arguments.json:
        emit_json(document)
    else:
        emit(repr(table))
    if table.is_interrupted:
        say(f"interrupted: {len(table.rows)} of {arguments.batches} batches are done")
        return INTERRUPTED
    if refusal is not None:
        say(f"error: {refusal}")
        return refusal.exit_code
    return 0


def _refusal(table: SearchTable) -> SemuError | None:
    """Why no batch could be searched; None: one could."""
    if not table.rows or any(not row.refused for row in table.rows):
        return None
    first = table.rows[0]
    kinds = {kind.exit_code: kind for kind in (ConfigError, MemoryLimitError, ScheduleError, MissingCoefficientError)}
    return kinds.get(first.exit_code, SemuError)(first.refused, where="--batches")
