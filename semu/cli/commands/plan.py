"""``semu plan``: schedules compiled into execution plans, and plans shown; training loops: ``plan_stream``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from semu.cli.commands.simulate import refuse_defaults
from semu.cli.console import INTERRUPTED, Progress, emit, emit_json, say, say_written
from semu.cli.option_checks import check_place, given_flags
from semu.cli.resolved import dump_run, read_job
from semu.errors import ConfigError, MemoryLimitError, PlanError, unknown_name
from semu.units import fit_lines

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.plan.plan import ExecutionPlan
    from semu.plan.verification.rules import Verified
    from semu.present.report import Report
    from semu.searcher.report import SearchReport
    from semu.simulation import JobCheckpoint

_OF_RUNS = (
    *("schedule", "search", "time", "rollouts", "seed", "workers", "cluster", "parallel", "profile", "output"),
    *("strict", "dump_config", "assignments"),
)
_OF_PLANS = ("schedule", "show", "verify", "output", "rank", "picture", "torch_csv", "strict")
_OF_LOOPS = ("assign", "window", "deadline", "speed", "sleep", "resume", "write_stream")
_FILES = (".json", ".csv", ".txt")


def plan_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run or a file that cannot be read, options that do not go together.
        ScheduleError: a schedule for another run, an illegal plan.
        MemoryLimitError: no strategy of a search fits.
        MissingCoefficientError: a default coefficient under ``--strict``.
    """
    if _is_loop(arguments):
        from semu.cli.commands.plan_stream import stream_command

        return stream_command(arguments)
    if arguments.show is not None or arguments.verify is not None:
        return _show(arguments)
    if arguments.run is None:
        raise ConfigError("nothing to plan", where="semu plan", expected="RUN, --show FILE or --verify FILE")
    searched = arguments.search or arguments.time is not None or arguments.rollouts is not None
    if searched and arguments.schedule is not None:
        raise ConfigError("a schedule and a search", where="--schedule", expected="one of them", got=arguments.schedule)
    if arguments.workers is not None and not searched:
        raise ConfigError("threads of no search", where="--workers", expected="with --search, --time or --rollouts")
    return _compile(arguments, searched=searched)


def _is_loop(arguments: argparse.Namespace) -> bool:
    """Whether a training loop is asked for.

    Raises:
        ConfigError: with options of one plan, or options of a loop without one.
    """
    is_loop = arguments.stream is not None or arguments.iterations is not None
    for flag in given_flags(arguments, _OF_PLANS if is_loop else _OF_LOOPS):
        expected = "a RUN without --iterations and --stream" if is_loop else "--iterations N or --stream FILE"
        what = "one plan" if is_loop else "a training loop"
        raise ConfigError(f"{flag} is an option of {what}", where=flag, expected=expected)
    if is_loop and arguments.run is None:
        raise ConfigError("nothing to plan", where="semu plan", expected="RUN beside --iterations or --stream")
    return is_loop


def _show(arguments: argparse.Namespace) -> int:
    """Print, check or draw a plan that is there."""
    from semu.plan.plan import ExecutionPlan
    from semu.plan.text import check_rank
    from semu.plan.verification.rules import verify

    flag = "--show" if arguments.verify is None else "--verify"
    refused = _OF_RUNS if arguments.verify is None else (*_OF_RUNS, "show", "rank", "picture", "out", "html")
    given = given_flags(arguments, refused)
    if arguments.run is not None or given:
        got = arguments.run if arguments.run is not None else given[0]
        raise ConfigError("a run beside a plan that is there", where=flag, expected=f"{flag} FILE alone", got=got)
    for option in ("picture", "torch_csv", "html"):
        check_place(f"--{option.replace('_', '-')}", getattr(arguments, option))
    if arguments.verify is not None:
        plan = ExecutionPlan.read(arguments.verify)
        verified = verify(plan)
        _write_torch_csv(arguments, plan)
        if arguments.json:
            emit_json({"name": plan.name, "model_hash": plan.model_hash, "verified": verified.to_json()})
        else:
            emit(f"{plan.name} can run\n{verified.to_text()}")
        return 0
    plan = ExecutionPlan.read(arguments.show)
    check_rank(plan, arguments.rank)
    if not arguments.json:  # people see a plan that cannot run, too
        drawn = arguments.picture is not None and arguments.rank is None  # the picture shows what each rank does
        emit(repr(plan) if drawn else plan.to_text(arguments.rank))
        emit(verify(plan).to_text())
    else:
        verify(plan)
        emit_json(json.loads(plan.to_json()))
    _write_torch_csv(arguments, plan)
    _draw(arguments, plan)
    _write_shown(arguments, plan)
    return 0


def _write_shown(arguments: argparse.Namespace, plan: ExecutionPlan) -> None:
    """What ``--html`` and ``--out`` ask for of a plan that is there."""
    if arguments.html is None and arguments.out is None:
        return
    from semu.files import make_folder
    from semu.plan.page import shown_plan_page

    page = shown_plan_page(plan)
    if arguments.html is not None:
        say_written(page.save(arguments.html))
    if arguments.out is not None:
        say_written(page.save(make_folder(Path(arguments.out)) / "report.html"))


def _compile(arguments: argparse.Namespace, *, searched: bool) -> int:
    from semu.door.assigning import assigned_run
    from semu.plan.compile import compile_plan
    from semu.plan.text import check_rank

    check_place("--output", arguments.output)
    for flag in ("picture", "torch_csv", "html"):
        check_place(f"--{flag.replace('_', '-')}", getattr(arguments, flag))
    with Progress() as progress:
        run, job = read_job(arguments, progress, assigns=True)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        run, assigned = assigned_run(run, job, progress)
        if assigned is not None:
            say(run.notes[-1])
            if arguments.schedule is not None:
                expected = "a run without assignment.samples, or --search"
                raise ConfigError("a schedule of assigned samples", where="--schedule", expected=expected)
        found = None
        with run.places.located():
            if searched:
                from semu.searcher.job_search import search

                found = search(
                    job,
                    assigned=assigned,
                    rollouts=arguments.rollouts,
                    time_s=arguments.time,
                    seed=arguments.seed or 0,
                    workers=arguments.workers,
                    progress=progress,
                )
                report = found.report
                progress("compiling the plan")
                plan = compile_plan(found)
            else:
                if assigned is not None:
                    checkpoint, order = assigned.checkpoint, None
                else:
                    checkpoint, order = _prepared(job, arguments.schedule, progress)
                progress("simulating the schedule")
                report = checkpoint.report(order)
                progress("compiling the plan")
                plan = compile_plan(checkpoint, order, estimate=report)
        if arguments.strict:
            refuse_defaults(report)
        check_rank(plan, arguments.rank)
        progress("verifying the plan")
        verified = _verified(plan)
        if arguments.output is not None:
            plan.write(arguments.output)
            say(f"wrote {arguments.output}")
        _write_torch_csv(arguments, plan)
        _draw(arguments, plan)
        document = {**_document(plan, report, verified), **({} if found is None else _searched(found))}
        _write_pages(arguments, plan, report, document, found)
    if arguments.json:
        emit_json({"run": arguments.run, "warnings": list(run.notes), **document})
    else:
        emit(repr(plan) if arguments.rank is None else plan.to_text(arguments.rank))
        if found is not None and (gain_text := found.gain_text()):
            emit(fit_lines(gain_text))
        if verified is not None:
            emit(verified.to_text())
    if found is not None and found.result.ended_by == "interrupt":
        say("interrupted: this is the best schedule found so far")
        return INTERRUPTED
    if verified is not None and report.fits:
        return 0
    say("it does not fit in memory" if not report.fits else "it fits in memory, but not with the buffers of messages")
    return MemoryLimitError.exit_code


def _verified(plan: ExecutionPlan) -> Verified | None:
    """What a plan needs; None: more memory than there is.

    Raises:
        PlanError: it cannot run for another reason.
    """
    from semu.plan.verification.fault import Fault
    from semu.plan.verification.rules import verify

    try:
        return verify(plan)
    except PlanError as error:
        if error.fault is not Fault.MEMORY:
            raise
        say(str(error))
        return None


def _prepared(job: TrainingJob, told: str | None, progress: Progress) -> tuple[JobCheckpoint, str | None]:
    """A job under what ``--schedule`` says, and the name of a generator where it is one.

    Raises:
        ConfigError: neither a file nor a name.
    """
    from dataclasses import replace

    from semu.schedule.registry import ALL_SCHEDULES
    from semu.schedule.stage_plan import StagePlan
    from semu.searcher.plain_jobs import plain_job
    from semu.simulation import prepare

    if told is None or told in ALL_SCHEDULES:
        return prepare(job, progress=progress), told
    if Path(told).suffix not in _FILES and not Path(told).exists():
        raise unknown_name("schedule", told, ALL_SCHEDULES, where="--schedule")
    if Path(told).suffix != ".json":
        training = replace(job.training, schedule_file=told)
        return prepare(replace(job, training=training), progress=progress), None
    plan = StagePlan.read(told)
    if plan.layers is not None:  # chunks of a search, in place of the run's layout
        job = plain_job(job)[0]
    return prepare(job, plan=plan, progress=progress), None


def _document(plan: ExecutionPlan, report: Report, verified: Verified | None) -> dict[str, object]:
    estimates = plan.estimates
    assert estimates is not None
    return {
        "name": plan.name,
        "model_hash": plan.model_hash,
        "inputs_hash": estimates.inputs_hash,
        "num_ranks": plan.num_ranks,
        "num_replicas": plan.num_replicas,
        "num_microbatches": plan.num_microbatches,
        "num_chunks": len(plan.chunks),
        "num_stages": plan.num_stages,
        "num_messages": len(plan.messages),
        "num_actions": plan.num_actions,
        "num_bytes": plan.messages.num_bytes.sum(axis=1).tolist(),
        "iteration_time_s": estimates.iteration_time_s,
        "makespan_s": estimates.makespan_s,
        "peak_memory_bytes": estimates.peak_memory_bytes.tolist(),
        "buffer_bytes": estimates.buffer_bytes.tolist(),
        "limit_bytes": plan.limit_bytes.tolist(),
        "fits": report.fits,
        "verified": None if verified is None else verified.to_json(),
    }


def _searched(found: SearchReport) -> dict[str, object]:
    """What the document of a searched plan has beside."""
    document = found.to_json()
    kept = ("lower_bound_s", "gap", "rollouts", "moves", "prepare_s", "search_s")
    gains = {"gain_over_megatron": found.gain, "gain_over_megatron_alike": found.gain_alike}
    return {**gains, **{key: document[key] for key in kept}}


def _write_pages(
    arguments: argparse.Namespace,
    plan: ExecutionPlan,
    report: Report,
    document: dict[str, object],
    found: SearchReport | None,
) -> None:
    """What ``--html`` and ``--out`` ask for of one plan."""
    if arguments.html is None and arguments.out is None:
        return
    from semu.files import make_folder, write_text
    from semu.plan.page import plan_page

    page = plan_page(plan, report, document, found)
    if arguments.html is not None:
        say_written(page.save(arguments.html))
    if arguments.out is not None:
        folder = make_folder(Path(arguments.out))
        plan.write(folder / "plan.json")
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        written = write_text(folder / "result.json", text)
        say_written(folder / "plan.json", written, page.save(folder / "report.html"))


def _write_torch_csv(arguments: argparse.Namespace, plan: ExecutionPlan) -> None:
    """Write the plan's order as torch.distributed.pipelining reads it, where ``--torch-csv`` asks for it.

    Raises:
        ScheduleError: it breaks a rule of torch's, which is named. ConfigError: the file cannot be written.
    """
    if arguments.torch_csv is None:
        return
    from semu.files import write_text
    from semu.plan.torch_schedule import plan_to_torch_csv

    write_text(arguments.torch_csv, plan_to_torch_csv(plan))
    say(f"wrote {arguments.torch_csv}")


def _draw(arguments: argparse.Namespace, plan: ExecutionPlan) -> None:
    if arguments.picture is None:
        return
    from semu.files import write_file
    from semu.plan.picture import draw

    write_file(Path(arguments.picture), lambda path: draw(path, plan))
    say(f"wrote {arguments.picture}")
