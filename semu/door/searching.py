"""``search`` and ``grid`` of a job or of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from semu.job import TrainingJob
from semu.searcher.grid import grid_search
from semu.searcher.job_search import search as search_job

_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


def _of_runs(
    function: Callable[Concatenate[TrainingJob, _Options], _Result],
) -> Callable[Concatenate[TrainingJob | str | os.PathLike[str], _Options], _Result]:
    """The function, of what ``semu.load_run`` reads too: a name, a run file, a config.json."""

    @wraps(function)
    def _function(
        job: TrainingJob | str | os.PathLike[str], /, *options: _Options.args, **named: _Options.kwargs
    ) -> _Result:
        if isinstance(job, str | os.PathLike):
            from semu.runfile import load_run

            job = load_run(job)
        return function(job, *options, **named)

    return _function


search = _of_runs(search_job)
grid = _of_runs(grid_search.grid)
