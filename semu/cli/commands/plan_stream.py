"""``semu plan RUN --iterations N``, ``--stream FILE``: a simulated training loop, planned iteration by iteration."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.cli.console import INTERRUPTED, Progress, emit, emit_json, say, say_written, write_html
from semu.cli.option_checks import check_place, given_flags
from semu.cli.resolved import dump_run, read_job
from semu.errors import MALFORMED, ConfigError, SemuError
from semu.files import make_folder, write_text
from semu.job import TrainingJob
from semu.runfile.config import RunConfig
from semu.workload import AbstractBatch, read_stream, write_stream

if TYPE_CHECKING:
    from semu.searcher.assignment.assignment import Assignment
    from semu.searcher.planner.training_loop import IterationRow
    from semu.searcher.planner.training_report import TrainingReport
    from semu.searcher.planner.warm import Priorities

DEFAULT_ITERATIONS = 100
"""Iterations of a loop for which neither ``--iterations`` nor a stream sets an end."""
KEEP_EVERY_S = 1.0
"""A loop that is killed loses what it trained since [s]."""
STATE = "state.json"
"""File of ``--out`` behind whose iterations ``--resume`` goes on."""


def stream_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run or a stream that cannot be read, options that are none.
        MemoryLimitError: no strategy fits the batch of the run.
    """
    _check(arguments)
    with Progress() as progress:
        run, job = read_job(arguments, progress, assigns=True)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        with run.places.located():
            stream = _stream(run, job, arguments)
        count = arguments.iterations
        if count is None:
            count = DEFAULT_ITERATIONS if arguments.stream is None else (1 << 31)
        if arguments.write_stream is not None:
            progress("writing the stream")
            return _write(job, itertools.islice(stream, count), arguments)
        if arguments.out is not None:
            make_folder(Path(arguments.out))
        with run.places.located():
            return _train(run, job, stream, count, arguments, progress)


def _train(
    run: RunConfig,
    job: TrainingJob,
    stream: Iterator[AbstractBatch | Assignment],
    count: int,
    arguments: argparse.Namespace,
    progress: Progress,
) -> int:
    """The loop, and what is said of it however it ends."""
    from semu.searcher.planner.planner import Planner
    from semu.searcher.planner.shown_iterations import ShownIterations
    from semu.searcher.planner.training_loop import train
    from semu.searcher.planner.training_report import TrainingReport, measured_json, row_json

    path = None if arguments.out is None else Path(arguments.out) / STATE
    key = _key(run, arguments)
    speed = 1.0 if arguments.speed is None else arguments.speed
    rows: list[IterationRow] = []
    shown = ShownIterations()
    kept, priorities = _state(path, key) if arguments.resume and path is not None else (None, None)
    error: SemuError | None = None
    ended_by = "iterations"
    workers, is_reproducible = 1, False
    try:
        if kept is not None:
            rows = kept[:count]
            say(f"going on behind {len(rows)} iteration{'s' * (len(rows) != 1)}")
            next(itertools.islice(stream, len(rows), len(rows)), None)
        with Planner(
            job,
            stream,
            rollouts=arguments.rollouts,
            time_s=arguments.time,
            workers=arguments.workers,
            deadline_s=arguments.deadline,
            seed=arguments.seed or 0,
            first=len(rows),
            progress=progress,
        ) as planner:
            workers, is_reproducible = planner.num_workers, planner.is_reproducible
            if priorities is not None:
                planner.batches.priorities = priorities

            told, known, before = 0.0, planner.batches.priorities, len(rows)

            def _keep() -> None:
                table = {
                    "key": key,
                    "rows": [{**row_json(own), **measured_json(own)} for own in rows],
                    "priorities": None if known is None else known.to_json(),
                }
                if path is not None:
                    write_text(path, json.dumps(table) + "\n")

            def _tell(row: IterationRow) -> None:
                nonlocal told, known
                rows.append(row)
                known = planner.batches.priorities  # of this iteration: the next one is not planned yet
                progress(_line(row, count))
                if time.monotonic() - told >= KEEP_EVERY_S or len(rows) == count:
                    _keep()
                    told = time.monotonic()

            try:
                train(
                    planner,
                    count - len(rows),
                    speed=speed,
                    sleeps=arguments.sleep,
                    has_deadline=not is_reproducible,
                    tell=_tell,
                    keep=shown.add,
                )
            finally:
                if len(rows) > before:  # a shorter loop keeps what a longer one left
                    _keep()
        if len(rows) < count and arguments.iterations is not None:
            ended_by = "stream"
            say(f"the stream ended after {len(rows)} of {count} iterations")
        elif len(rows) < count:
            ended_by, count = "stream", len(rows)
    except KeyboardInterrupt:
        ended_by = "interrupt"
    except SemuError as caught:
        if not rows:
            raise
        ended_by, error = "error", caught
    has_page = arguments.out is not None or arguments.html is not None
    timelines = shown.found() if has_page and ended_by != "interrupt" else ()
    report = TrainingReport(job.model.name, rows, count, ended_by, is_reproducible, workers, speed, timelines)
    return _print(report, run, arguments, error)


def _print(report: TrainingReport, run: RunConfig, arguments: argparse.Namespace, error: SemuError | None) -> int:
    """Print a loop and write its files; returns the exit code, that of the error where one ended it."""
    if arguments.out is not None:
        say_written(*report.save(arguments.out))
    write_html(arguments.html, report)
    if arguments.json:
        said = {} if error is None else {"error": error.to_json()}
        emit_json({"run": arguments.run, "warnings": list(run.notes), **report.to_json(), **said})
    else:
        emit(repr(report))
    if error is not None:
        say(f"error: {error}")
        return error.exit_code
    if report.ended_by == "interrupt":
        say("interrupted: these are the iterations so far")
        return INTERRUPTED
    return 0


def _line(row: Any, count: int) -> str:
    """What progress says of an iteration."""
    gain = "" if row.gain is None else f", {row.gain:.2f} x Megatron-LM's speed"
    of = f" of {count}" if count < 1 << 31 else ""
    return f"iteration {row.index + 1}{of}: {row.outcome.value} in {row.latency_s:.2f} s{gain}"


def _stream(run: RunConfig, job: TrainingJob, arguments: argparse.Namespace) -> Iterator[AbstractBatch | Assignment]:
    """The batches to train; with ``--assign`` the samples of a metadata file, assigned as ``[assignment]`` has it."""
    from semu.door.assigning import make_assigner
    from semu.searcher.assignment.assigner import SampleSource
    from semu.searcher.assignment.options import AssignmentOptions
    from semu.searcher.planner.own_stream import assigned_batches, own_batches

    path = arguments.stream
    if arguments.assign is not None:
        if path is None:
            raise ConfigError("nothing to assign", where="--assign", expected="--stream FILE, a metadata file")
        table = run.config.get("assignment", {})
        asked = AssignmentOptions.of(table, method=arguments.assign, window=arguments.window)
        if asked.speeds is not None:
            raise ConfigError(
                "planned iterations are of replicas that are equally fast",
                where="assignment.speeds",
                expected="none beside --assign",
                got=list(asked.speeds),
            )
        source = SampleSource.read(job, path, asked.count)
        assigner = make_assigner(job, source, asked.method, seed=asked.seed, costs=asked.costs)
        return assigned_batches(assigner, source, asked.window)
    if path is None:
        return own_batches(job)
    count, training = job.num_microbatches * job.parallel.replicas, job.training
    return read_stream(path, job.batch, count=count, micro_batch=training.micro_batch, seq_len=training.seq_len)


def _write(job: TrainingJob, stream: Iterator[AbstractBatch | Assignment], arguments: argparse.Namespace) -> int:
    from semu.searcher.assignment.assignment import Assignment

    batches = (item.undeferred if isinstance(item, Assignment) else item for item in stream)  # it holds no deferral
    count, training = job.num_microbatches * job.parallel.replicas, job.training
    written = write_stream(
        arguments.write_stream, batches, count=count, micro_batch=training.micro_batch, seq_len=training.seq_len
    )
    say(f"wrote {arguments.write_stream}")
    if arguments.json:
        emit_json({"stream": arguments.write_stream, "iterations": written})
    else:
        emit(f"{written} iterations of {count} microbatches")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that are none.

    Raises:
        ConfigError: the first of them.
    """
    from semu.checks import check_integer, check_number

    if arguments.iterations is not None:
        check_integer(arguments.iterations, "--iterations", "a number")
    if arguments.window is not None:
        check_integer(arguments.window, "--window", "a number of iterations")
        if arguments.assign is None:
            raise ConfigError("nothing to exchange", where="--window", expected="with --stream FILE --assign METHOD")
    for flag, value in (("--speed", arguments.speed), ("--deadline", arguments.deadline)):
        if value is not None:
            check_number(value, flag, "a number", is_above=True)
    check_place("--html", arguments.html)
    if arguments.write_stream is not None:
        check_place("--write-stream", arguments.write_stream)
        for flag in given_flags(arguments, ("out", "html", "resume", "deadline", "speed", "sleep")):
            raise ConfigError("nothing is trained", where=flag, expected="without --write-stream")
    if arguments.resume and arguments.out is None:
        raise ConfigError("nothing to go on behind", where="--resume", expected="--out DIR of the loop before")


def _key(run: RunConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a loop must have in common with the one that it goes on behind."""
    own = {
        name: getattr(arguments, name)
        for name in ("stream", "assign", "window", "rollouts", "time", "seed", "deadline")
    }
    tables: dict[str, Any] = json.loads(
        json.dumps({name: dict(table) for name, table in run.config.items()}, default=str)
    )
    return {**own, "config": tables}


def _state(path: Path, key: dict[str, Any]) -> tuple[list[IterationRow] | None, Priorities | None]:
    """Iterations that ``--out`` holds of a loop, and what was learned from them; None: nothing.

    Raises:
        ConfigError: of another run, or not readable.
    """
    if not path.exists():
        return None, None
    from semu.searcher.planner.training_report import row_of_json
    from semu.searcher.planner.warm import Priorities

    try:
        table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rows = [row_of_json(row) for row in table["rows"]]
        if [row.index for row in rows] != list(range(len(rows))):
            raise ValueError("rows out of order")
        priorities = None if table["priorities"] is None else Priorities.from_json(table["priorities"])
        found = dict(table["key"])
    except (*MALFORMED, OSError, RecursionError) as error:
        raise ConfigError("not the state of a loop", where=str(path), expected="what semu plan --out wrote") from error
    if found != key:
        different = next((name for name in key if found.get(name) != key[name]), "config")
        raise ConfigError(
            "the loop of another run",
            where=str(path),
            expected=f"the same run and options ({different} differs), or another --out",
        )
    return rows, priorities
