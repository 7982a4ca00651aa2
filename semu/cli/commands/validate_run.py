"""``semu validate --run RUN`` with ``--log`` or ``--trace``: a run of the user, simulated / measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from semu.cli.console import Progress, emit, emit_json, say, say_written, write_html
from semu.cli.option_checks import check_place, given_flags
from semu.cli.resolved import read_job
from semu.errors import ConfigError, ValidationError

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.present.report import Report
    from semu.validation import ValidationResult
    from semu.validation.logs.log_result import LogComparison
    from semu.validation.traces.trace_result import TraceComparison

    _Compare = Callable[[TrainingJob, Report], LogComparison | TraceComparison]

_COSTS_ONLY = ("samples", "assignment", "replica")
_TRACE_ONLY = ("rank", "step", "iterations", "gpu", "gpus", "costs", *_COSTS_ONLY)
_OWN_RUN_ONLY = ("log", "trace", "cluster", "parallel", "assignments", "warm_up", *_TRACE_ONLY)
_PUBLISHED_ONLY = ("runs", "group", "compare", "site", "pass_times")


def is_own_run(arguments: argparse.Namespace) -> bool:
    """Whether the command is about a run of the user.

    Raises:
        ConfigError: options of the two ways to validate together, or a part of them missing.
    """
    if arguments.run is None:
        for flag in given_flags(arguments, _OWN_RUN_ONLY):
            raise ConfigError(
                f"{flag} without a run", where=flag, expected="--run RUN beside it: a TOML file or a setup"
            )
        return False
    for flag in given_flags(arguments, _PUBLISHED_ONLY):
        raise ConfigError(
            f"--run and {flag} together",
            where=flag,
            expected="published runs (--runs, --group, --compare, --site) or a run of your own",
        )
    if (arguments.log is None) == (arguments.trace is None):
        raise ConfigError(
            "nothing to compare the run with" if arguments.log is None else "a log and a trace together",
            where="--run",
            expected="one of --log FILE and --trace FILE (a file of published runs goes with --runs)",
            got=arguments.run if arguments.log is None else "both",
            nearest="--runs" if arguments.log is None else None,
        )
    other, refused = ("--trace", ("warm_up",)) if arguments.log is None else ("--log", _TRACE_ONLY)
    for flag in given_flags(arguments, refused):
        raise ConfigError(
            f"{flag} does not go with {other}",
            where=flag,
            expected="--warm-up with --log; --rank, --step, --iterations, --gpu, --gpus and --costs with --trace",
        )
    for flag in given_flags(arguments, _COSTS_ONLY) if arguments.costs is None else ():
        raise ConfigError(f"{flag} is an option of --costs", where=flag, expected="--costs OUT beside it")
    return True


def validate_run_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run, log or trace that cannot be read, results that cannot be written.
    """
    if arguments.costs is not None:
        return _refit(arguments)
    with Progress() as progress:
        run, job = read_job(arguments, progress)
        from semu.simulation import simulate

        progress(f"reading {arguments.log or arguments.trace}")
        compare = _log_comparison(arguments) if arguments.log is not None else _trace_comparison(arguments)
        with run.places.located():
            report = simulate(job, progress=progress)
        progress("comparing")
        result = compare(job, report)
        document = {
            "run": arguments.run,
            "log": arguments.log,
            "trace": arguments.trace,
            "tolerance_percent": arguments.tolerance,
            **result.to_json(),
        }
        _write(arguments, result, document)
    if arguments.json:
        emit_json(document)
    else:
        emit(repr(result))
    return say_beyond(result, arguments.tolerance)


def _refit(arguments: argparse.Namespace) -> int:
    """Refit costs of samples to the stages of a trace, and write them; returns the exit code."""
    for flag in ("samples", "assignment"):
        if getattr(arguments, flag) is None:
            raise ConfigError(f"costs without --{flag}", where="--costs", expected=f"--{flag} FILE beside it")
    check_place("--costs", arguments.costs)
    with Progress() as progress:
        run, job = read_job(arguments, progress)
        from semu.door.assigning import refit_costs
        from semu.searcher.assignment.measured import write_costs

        with run.places.located():
            costs = refit_costs(
                job,
                arguments.samples,
                arguments.assignment,
                arguments.trace,
                replica=arguments.replica or 0,
                progress=progress,
            )
        say_written(write_costs(costs, arguments.costs))
    rows = [vars(own) for own in costs.residuals]
    words = costs.provenance_of_rows
    counts = {word: words.count(word) for word in sorted({*words})}
    if arguments.json:
        emit_json({"run": arguments.run, "trace": arguments.trace, "source": costs.source, "residuals": rows, **counts})
    else:
        off = "% rms off on stages left out"
        lines = [f"{own.module} {own.phase}: {100 * own.rms:.2f} {off}" for own in costs.residuals]
        told = ", ".join(f"{count} {word}" for word, count in counts.items())
        emit("\n".join([costs.source, *lines, f"stages and transfers: {told}"]))
    return 0


def say_beyond(result: ValidationResult | LogComparison | TraceComparison, tolerance: float | None) -> int:
    """Write to stderr what is out of tolerance; returns the exit code.

    Args:
        tolerance: [percent]; None: everything is within it.
    """
    beyond = [] if tolerance is None else result.beyond(tolerance)
    for sentence in beyond:
        say(f"out of tolerance ({tolerance:g} %): {sentence}")
    return ValidationError.exit_code if beyond else 0


def _log_comparison(arguments: argparse.Namespace) -> _Compare:
    """Reads the log; the comparison waits for the simulation."""
    from semu.validation.logs.log_comparison import compare_log
    from semu.validation.logs.log_reader import read_log

    log = read_log(arguments.log)
    return lambda job, report: compare_log(log, job, report, warm_up=arguments.warm_up, where=arguments.log)


def _trace_comparison(arguments: argparse.Namespace) -> _Compare:
    """Reads the trace; the comparison waits for the simulation."""
    from semu.validation.traces.gpu_trace import KernelSum
    from semu.validation.traces.trace_reader import read_gpu_trace

    trace, place = read_gpu_trace(arguments.trace), arguments.trace
    is_sum = isinstance(trace, KernelSum)
    for flag in given_flags(arguments, ("step", "gpu") if is_sum else ("gpus",)):
        raise ConfigError(
            f"{flag} does not go with {'a sum of kernels' if is_sum else 'a trace'}",
            where=f"{flag}, {place}",
            expected="--iterations and --gpus with a sum (cuda_gpu_kern_sum); --step, --iterations and --gpu with a "
            "trace",
        )
    if isinstance(trace, KernelSum):
        from semu.validation.traces.sum_comparison import check_told, compare_sum

        iterations, gpus = check_told(trace, arguments.iterations, arguments.gpus, place)
        return lambda job, report: compare_sum(
            trace, job, report, iterations=iterations, gpus=gpus, rank=arguments.rank, where=place
        )
    from semu.validation.traces.trace_comparison import compare_trace

    return lambda job, report: compare_trace(
        trace,
        job,
        report,
        rank=arguments.rank,
        step=arguments.step,
        iterations=arguments.iterations,
        gpu=arguments.gpu,
        where=place,
    )


def _write(arguments: argparse.Namespace, result: LogComparison | TraceComparison, document: dict[str, object]) -> None:
    """The files that were asked for."""
    from semu.files import make_folder, write_text
    from semu.validation.bar_picture import save_bars

    if arguments.csv is not None:
        say_written(write_text(arguments.csv, result.to_csv()))
    if arguments.picture is not None:
        say_written(save_bars(result, arguments.picture))
    write_html(arguments.html, result)
    if arguments.out is not None:
        folder = make_folder(Path(arguments.out))
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        say_written(
            write_text(folder / "validation.json", text),
            write_text(folder / "validation.csv", result.to_csv()),
            save_bars(result, folder / "validation.png"),
            result.page().save(folder / "report.html"),
        )
