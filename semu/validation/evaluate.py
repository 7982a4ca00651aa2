"""``evaluate_row``: run one row and compare; whatever goes wrong stays in the row."""

from __future__ import annotations

from collections.abc import Callable

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.job import TrainingJob
from semu.simulation import prepare
from semu.simulation.effects.pass_times import with_pass_times
from semu.validation.jobs import Settings, Tables, run_tables
from semu.validation.memory import activation_bytes, measured_bytes, peak_bytes, ranks_of, static_bytes
from semu.validation.resolve import Choice, Run, choose
from semu.validation.result import Comparison, Quantity, RowResult, Status
from semu.validation.row import BadRow, Measure, Row, Scope, Trust

JobMaker = Callable[[Tables], TrainingJob]
"""Makes the job of a run file's tables, e.g. ``semu.runfile.make_job``; refuses by ConfigError what semu lacks."""


def evaluate_row(
    row: Row | BadRow, make_job: JobMaker, device: str | None = None, *, pass_times: bool = False
) -> RowResult:
    """Run a row and compare.

    Args:
        row: the run. make_job: see ``JobMaker``. device: profile name or file, None: the device of the row.
        pass_times: passes take what the row says, where it does (``semu.simulation.effects.pass_times``).
    Returns:
        The result: ``refused`` where semu says that it does not model the row, ``error`` where the row is bad or
        something unexpected happened; neither is raised.
    """
    if isinstance(row, BadRow):
        return RowResult(row.id, row.group, row.trust, is_scored=False, status=Status.ERROR, reason=row.reason)
    try:
        return _run(row, make_job, row.profile if device is None else device, pass_times=pass_times)
    except (ConfigError, ScheduleError, MemoryLimitError) as error:
        where = error.where or ""
        is_named = error.message.startswith(where)
        return _stopped(row, Status.REFUSED, error.message if is_named else f"{where}: {error.message}")
    except Exception as error:
        return _stopped(row, Status.ERROR, f"{type(error).__name__}: {error}")


def _stopped(row: Row, status: Status, reason: str) -> RowResult:
    compared = {
        quantity: Comparison(measured=measured) for quantity, measured in _measured(row).items() if measured is not None
    }
    return RowResult(
        row.id, row.group, row.trust.value, is_scored=False, status=status, reason=reason, compared=compared
    )


def _measured(row: Row) -> dict[Quantity, float | None]:
    return {
        Quantity.TIME: row.iteration_time_s,
        Quantity.MEMORY: measured_bytes(row),
        Quantity.ACTIVATION: row.activation_bytes,
        Quantity.STATIC: row.static_bytes,
    }


def _run(row: Row, make_job: JobMaker, device: str, *, pass_times: bool) -> RowResult:
    given = row.pass_times if pass_times else None

    def _simulate(settings: Settings) -> Run:
        checkpoint = prepare(make_job(run_tables(row, settings, device)))
        if given is not None:
            checkpoint = with_pass_times(checkpoint, given)
        return Run(checkpoint, checkpoint.lived())

    choice = choose(row, _simulate)
    report = choice.run.report
    predicted = _predicted(row, choice.run)
    compared = {
        quantity: Comparison(predicted.get(quantity), measured) for quantity, measured in _measured(row).items()
    }
    measured_mfu = None
    if row.iteration_time_s is not None:
        measured_mfu = report.mfu * report.iteration_time_s / row.iteration_time_s
    has_time = compared[Quantity.TIME].error is not None
    uncertainty = choice.run.lived.uncertainty() if has_time and given is None else None
    return RowResult(
        id=row.id,
        group=row.group,
        trust=row.trust.value,
        is_scored=row.trust.is_scored,
        interval_s=None if uncertainty is None else uncertainty.interval_s(),
        communication_s=None if uncertainty is None else uncertainty.communication_s,
        has_experts=row.shape.moe is not None,
        status=Status.OK,
        fits=report.fits,
        device=choice.run.checkpoint.job.cluster.profile.name,
        precision=row.precision,
        scope=None if row.scope is None else row.scope.value,
        measure=None if row.measure is None else row.measure.value,
        resolved=choice.resolved,
        notes=(*_notes(row, choice, predicted), *(["passes take what the row says"] if given is not None else [])),
        compared=compared,
        measured_mfu=measured_mfu,
    )


def _predicted(row: Row, run: Run) -> dict[Quantity, float | None]:
    """What semu says; a closed form is no run: it has no time, and its memory is static and activations."""
    report = run.report
    if row.measure is Measure.ANALYTIC:
        scope = row.scope or Scope.FIRST_STAGE
        ranks = ranks_of(scope, run.checkpoint.job.parallel.pp)
        activation = max(activation_bytes(run.checkpoint, rank, run.lived.parts_of(rank)) for rank in ranks)
        static = static_bytes(report, scope)
        return {
            Quantity.MEMORY: activation + static,
            Quantity.ACTIVATION: activation,
            Quantity.STATIC: static,
        }
    memory = None
    if row.measure is not None:
        memory = peak_bytes(report, row.scope or Scope.MAX, row.measure)
    return {Quantity.TIME: report.iteration_time_s, Quantity.MEMORY: memory}


def _notes(row: Row, choice: Choice, predicted: dict[Quantity, float | None]) -> list[str]:
    notes = list(row.remarks)
    if choice.resolved:
        what = ", ".join(f"{name} {value}" for name, value in choice.resolved.items())
        how = "the fastest that fits" if choice.run.report.fits else "nothing fits, this needs the least memory"
        passed = f", {choice.passed_over} refused" if choice.passed_over else ""
        notes.append(f"not published: {what} ({how}; {choice.tried} tried{passed})")
    if not choice.run.report.fits:
        notes.append("does not fit in memory")
    if row.measure is Measure.RESERVED and predicted[Quantity.MEMORY] is None:
        notes.append("reserved memory is not predicted by this version")
    if row.trust in (Trust.SANITY, Trust.UNUSABLE):
        notes.append(f"trust {row.trust.value}: listed, not scored")
    return notes
