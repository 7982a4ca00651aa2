"""``semu schedules``: pipeline schedules beside one another, on a run or on plain numbers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from semu.cli.commands.simulate import refuse_defaults, result_cache
from semu.cli.console import (
    Progress,
    emit,
    emit_json,
    emit_result,
    printed_anyway,
    say,
    say_options,
    say_written,
    write_html,
)
from semu.cli.option_checks import check_place, given_flags
from semu.cli.resolved import dump_run, read_job
from semu.errors import ConfigError, MemoryLimitError, ScheduleError, unknown_name

if TYPE_CHECKING:
    from semu.simulation.schedules.comparison import ComparedSchedule, ScheduleComparison

_OF_RUNS = (
    "cluster",
    "parallel",
    "profile",
    "seed",
    "assignments",
    "cache",
    "csv",
    "picture",
    "out",
    "html",
    "strict",
    "dump_config",
)

MOST_PLAIN = 1_000_000
"""Ranks times microbatches that are studied without a run."""


def schedules_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read or does not fit together, an unknown schedule.
        ScheduleError: the schedule of the run cannot order its pipeline.
        MissingCoefficientError: a default coefficient under ``--strict``.
    """
    _check_exploring(arguments)
    if arguments.rule_of is not None:
        from semu.cli.commands.exploring import rule_of_file

        return rule_of_file(arguments)
    names = _names(arguments.compare)
    if arguments.program is not None:
        from semu.cli.commands.exploring import program_names

        names = [*(names or []), *program_names(arguments.program)]
    if arguments.run is None:
        return _plain_numbers(arguments, names)
    for flag in given_flags(arguments, ("ranks", "microbatches")):
        raise ConfigError(f"{flag} with a run", where=flag, expected="the run's own, changed with --parallel or --set")
    check_place("--csv", arguments.csv)
    check_place("--picture", arguments.picture)
    check_place("--html", arguments.html)
    with Progress() as progress:
        run, job = read_job(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.simulation import simulate
        from semu.simulation.schedules.comparing import compare_schedules

        cache = result_cache(arguments.cache)
        with run.places.located():
            if arguments.strict:
                refuse_defaults(simulate(job, cache=cache, progress=progress))
            if arguments.explore:
                from semu.cli.commands.exploring import explore_run

                return explore_run(arguments, job, cache, progress, list(run.notes))
            result = compare_schedules(job, names, progress=progress, cache=cache)
        result = replace(result, warnings=tuple(run.notes))
        with printed_anyway(lambda: repr(result), is_json=arguments.json):
            _write(arguments, result, progress)
    told = list[str]()
    if arguments.explain and result.best is not None:
        from semu.cli.commands.exploring import explained

        told = [f"why {result.best.name} idles, on its stages' mean times:", *explained(result.best, cache).lines()]
    emit_result(result, is_json=arguments.json, run=arguments.run, **({"explained": told} if told else {}))
    if told and not arguments.json:
        emit("\n".join(["", *told]))
    return _exit_code(result)


def _check_exploring(arguments: argparse.Namespace) -> None:
    """Refuse options of an exploration without one.

    Raises:
        ConfigError: the option, what it needs.
    """
    if arguments.top is not None and arguments.top < 1:
        raise ConfigError("not a count", where="--top", expected="an integer >= 1", got=arguments.top, nearest=1)
    for flag in given_flags(arguments, ("top", "split")) if not arguments.explore else []:
        raise ConfigError(f"{flag} without --explore", where=flag, expected="--explore beside it")
    for flag in given_flags(arguments, ("compare", "csv", "picture", "html")) if arguments.explore else []:
        raise ConfigError(f"{flag} with --explore", where=flag, expected="--explore alone, or --compare NAMES")
    arguments.top = 10 if arguments.top is None else arguments.top


def _names(text: str | None) -> list[str] | None:
    """What ``--compare`` names.

    Raises:
        ConfigError: an unknown schedule, no name.
    """
    if text is None:
        return None
    from semu.schedule.registry import ALL_SCHEDULES
    from semu.simulation.schedules.comparing import EVERY

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ALL_SCHEDULES and name != EVERY:
            raise unknown_name("schedule", name, [*ALL_SCHEDULES, EVERY], where="--compare")
    return names


def _write(arguments: argparse.Namespace, result: ScheduleComparison, progress: Progress) -> None:
    """The files that were asked for."""
    if arguments.csv is not None and result.chosen:
        from semu.files import write_text

        progress("writing the stages")
        say_written(write_text(arguments.csv, result.to_csv()))
        if len(result.chosen) == 1:
            settings = {"training.schedule_file": arguments.csv, **result.chosen[0].settings}
            say_options("it runs again with", [f"--set {key}={_word(value)}" for key, value in settings.items()])
    if arguments.picture is not None:
        progress("drawing the schedules")
        say_written(result.draw(arguments.picture))
    if arguments.out is not None:
        progress("drawing the schedules")
        say_written(*result.save(arguments.out))
    if arguments.html is not None:
        progress("writing the page")
        write_html(arguments.html, result)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _exit_code(result: ScheduleComparison) -> int:
    """0, or why not, which is said: memory, or that nothing of what was asked for can run."""
    if not result.chosen:
        say(f"error: none of the schedules asked for can run: {result.refused[0].name}: {result.refused[0].rule}")
        return result.refused[0].error.exit_code
    tight = [row for row in result.chosen if not row.estimate.fits]
    if result.own.estimate.fits and len(tight) < len(result.chosen):
        return 0
    for row in tight if result.own.estimate.fits else [result.own]:
        say(_misfit(row))
    return MemoryLimitError.exit_code


def _misfit(row: ComparedSchedule) -> str:
    from semu.units import GIB

    have = row.estimate.capacity_bytes
    over = f"{(row.peak_bytes - have) / GIB:.2f} GiB more than the device's {have / GIB:.2f} GiB"
    return f"{row.name} does not fit: rank {row.peak_rank} needs {row.peak_bytes / GIB:.2f} GiB, {over}"


def _plain_numbers(arguments: argparse.Namespace, names: list[str] | None) -> int:
    """Schedules on equal stages of a second for each of F, I and W."""
    sizes = {"--ranks": arguments.ranks, "--microbatches": arguments.microbatches}
    for flag, value in sizes.items():
        if value is None:
            raise ConfigError(
                "no run" if not any(sizes.values()) else f"no {flag}",
                where="semu schedules",
                expected="RUN, or --ranks P --microbatches M without one",
            )
        if value < 1:
            raise ConfigError("not a size", where=flag, expected="an integer >= 1", got=value, nearest=1)
    if arguments.ranks * arguments.microbatches > MOST_PLAIN:
        raise ConfigError(
            f"more than {MOST_PLAIN} stages of a microbatch on a rank",
            where="--ranks, --microbatches",
            expected=f"ranks x microbatches <= {MOST_PLAIN}",
            got=f"{arguments.ranks} x {arguments.microbatches}",
        )
    for flag in given_flags(arguments, _OF_RUNS):
        raise ConfigError(f"{flag} without a run", where=flag, expected="RUN beside it")
    if arguments.explore:
        from semu.cli.commands.exploring import explore_plain

        return explore_plain(arguments)
    from semu.schedule.compare import compare_schedules, comparison_table
    from semu.schedule.registry import ALL_SCHEDULES

    held = 1 << 20
    chosen = (
        None if names is None or "all" in names else sorted(dict.fromkeys(names), key=[*ALL_SCHEDULES, *names].index)
    )
    found, refused = compare_schedules(arguments.ranks, arguments.microbatches, names=chosen, held_bytes=held)
    if not arguments.json:
        sizes_text = f"{arguments.ranks} ranks, {arguments.microbatches} microbatches"
        head = f"{sizes_text}; F, I and W of a p-th of the model take 1 s each"
        emit("\n".join([head, "", comparison_table(found, held), *(f"not run: {k}: {v}" for k, v in refused.items())]))
        return _plain_exit_code(found, refused)
    rows = [
        {
            "name": row.family.name,
            "vpp": row.num_slots,
            "placement": row.family.placement.value,
            "makespan_s": row.evaluation.makespan_s,
            "bubble_ratio": row.evaluation.bubble_ratio,
            "peak_microbatches": int(row.evaluation.peak_bytes.max(initial=0)) / held,
            "source": row.family.source,
        }
        for row in found
    ]
    emit_json({"schedules": rows, "refused": [{"name": name, "rule": rule} for name, rule in refused.items()]})
    return _plain_exit_code(found, refused)


def _plain_exit_code(found: Sequence[object], refused: Mapping[str, str]) -> int:
    """0, or 4 where nothing of what was asked for can run, which is said."""
    if found:
        return 0
    name, rule = next(iter(refused.items()))
    say(f"error: none of the schedules asked for can run: {name}: {rule}")
    return ScheduleError.exit_code
