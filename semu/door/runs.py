"""``of_runs``: a function of a job, of whatever ``semu.load_run`` reads too; and ``job_of``, which reads it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.simulation.preparation import check_job

if TYPE_CHECKING:
    from semu.runfile.config import RunConfig
    from semu.runfile.overrides import Changes, SaidCluster, SaidParallel

_Options = ParamSpec("_Options")
_Result_co = TypeVar("_Result_co", covariant=True)
RunName: TypeAlias = str | os.PathLike[str]
"""A name or file that ``semu.load_run`` reads."""

_DOC = """
    The job may be a run as ``semu.load_run`` reads it: the name of a model or setup, a run file, a config.json, a
    script of Megatron-LM. ``overrides``, ``cluster`` and ``parallel`` change a run, as there.
    """


class _OfRuns(Protocol[_Options, _Result_co]):
    """A function that takes either a job or the name of a run, and the same options for both. A run can be changed by
    ``overrides``, ``cluster`` and ``parallel``, a job cannot."""

    @overload
    def __call__(self, job: TrainingJob | RunName, *options: _Options.args, **named: _Options.kwargs) -> _Result_co: ...
    @overload
    def __call__(
        self,
        job: RunName,
        *options: Any,
        overrides: Changes = (),
        cluster: SaidCluster | None = None,
        parallel: SaidParallel | None = None,
        **named: Any,
    ) -> _Result_co: ...


def job_of(
    job: TrainingJob | RunName,
    overrides: Changes = (),
    cluster: SaidCluster | None = None,
    parallel: SaidParallel | None = None,
) -> tuple[TrainingJob, RunConfig | None]:
    """A job, and the run that it was read from.

    Args:
        job: as it is, or a run as ``semu.load_run`` reads it. overrides, cluster, parallel: of a run, as there.
    Raises:
        ConfigError: as ``semu.load_run``; options of a run beside a job.
    """
    if isinstance(job, str | os.PathLike):
        from semu.runfile import Overrides, resolve_run

        run = resolve_run(job, Overrides(overrides, cluster, parallel))
        return run.job(), run
    if overrides or cluster is not None or parallel is not None:
        raise ConfigError(
            "options of a run beside a job",
            where="overrides" if overrides else "cluster" if cluster is not None else "parallel",
            expected="a run's name or file, or a semu.TrainingJob that has its own cluster and parallel",
            got=overrides or cluster or parallel,
        )
    check_job(job)
    return job, None


def of_runs(
    function: Callable[Concatenate[TrainingJob, _Options], _Result_co], read: Callable[..., TrainingJob] | None = None
) -> _OfRuns[_Options, _Result_co]:
    """The function, of runs too.

    Args:
        function: its first argument is ``job``.
        read: (job, overrides, cluster, parallel, its other options) -> job; None: as ``job_of``.
    """

    @wraps(function)
    def _function(
        job: TrainingJob | RunName,
        *options: Any,
        overrides: Changes = (),
        cluster: SaidCluster | None = None,
        parallel: SaidParallel | None = None,
        **named: Any,
    ) -> _Result_co:
        how = (job, overrides, cluster, parallel)
        return function(job_of(*how)[0] if read is None else read(*how, named), *options, **named)

    own, new = inspect.signature(function), inspect.signature(_function, follow_wrapped=False)
    changes = [new.parameters[name] for name in ("overrides", "cluster", "parallel")]
    vars(_function)["__signature__"] = own.replace(parameters=[*own.parameters.values(), *changes])
    _function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n{_DOC}"
    return cast("_OfRuns[_Options, _Result_co]", _function)
