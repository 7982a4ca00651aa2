"""``semu validate``: published runs against predictions, or (``validate_run``) a run against its log or trace."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from semu.checks import check_integer, check_number, check_word
from semu.cli import console
from semu.cli.commands.validate_run import is_own_run, say_beyond, validate_run_command
from semu.cli.console import Progress, emit, emit_json, printed_anyway, say, say_written
from semu.cli.option_checks import check_place, given_flags
from semu.errors import ConfigError

if TYPE_CHECKING:
    from semu.validation import BadRow, Row, ValidationResult


_MANY = 48
"""So many rows are worth more than one process."""


def validate_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a runs file that cannot be read, an unknown group or profile, results that cannot be written.
    """
    if arguments.tolerance is not None:
        check_number(arguments.tolerance, "--tolerance", "a tolerance in percent")
    for flag in ("csv", "picture", "html"):
        check_place(f"--{flag}", getattr(arguments, flag))
    if is_own_run(arguments):
        return validate_run_command(arguments)
    with Progress() as progress:
        progress("reading the runs")
        from semu.validation import Status, published_rows, read_rows

        rows = published_rows() if arguments.runs is None else read_rows(arguments.runs)
        rows = _of_groups(rows, arguments.group)
        if arguments.pass_times:
            rows = _with_pass_times(rows, arguments)
        workers = _workers(arguments, len(rows))
        under_profile = partial(_validator(rows, arguments.profile, "--profile"), workers=workers)
        under_other = partial(_validator(rows, arguments.compare, "--compare"), workers=workers)
        if arguments.site is not None:
            from semu.validation.site import calibrate_sites

            check_integer(arguments.site, "--site", "a number of rows")
        progress(f"simulating {len(rows)} rows")
        result = under_profile(rows, pass_times=arguments.pass_times)
        comparison = site = None
        if arguments.compare is not None:
            from semu.validation.profiles import ProfileComparison

            progress(f"simulating them under {arguments.compare}")
            names = arguments.profile or "their profiles", arguments.compare
            comparison = ProfileComparison(result, under_other(rows), names)
        if arguments.site is not None:
            site = calibrate_sites(result.rows, arguments.site)
    for row in result.rows:
        if row.status is Status.ERROR:
            say(f"{row.id if row.id.startswith('row ') else f'row {row.id}'}: {row.reason}")
    table = "\n\n".join(repr(item).rstrip("\n") for item in (result, comparison, site) if item is not None)
    with printed_anyway(lambda: table, is_json=arguments.json):
        _write_files(arguments, result)
    if arguments.json:
        more = {name: item.to_json() for name, item in (("compare", comparison), ("site", site)) if item is not None}
        emit_json({"runs": arguments.runs, "tolerance_percent": arguments.tolerance, **result.to_json(), **more})
    else:
        emit(table)
    beyond = say_beyond(result, arguments.tolerance)
    bad = result.count(Status.ERROR)
    if bad:
        say(f"error: {bad} of {len(result.rows)} rows cannot be read or simulated")
    return ConfigError.exit_code if bad else beyond


def _workers(arguments: argparse.Namespace, rows: int) -> int:
    """Processes: as asked for, else every core where there are rows enough to be worth it.

    Raises:
        ConfigError: no number of processes.
    """
    if arguments.workers is not None:
        return check_integer(arguments.workers, "--workers", "a number of processes")
    from semu.searcher.engines import make_engine

    return make_engine("local").workers if rows >= _MANY else 1


def _write_files(arguments: argparse.Namespace, result: ValidationResult) -> None:
    """The files that were asked for."""
    title = f"semu validate: {arguments.runs or 'published runs'}"
    if arguments.csv is not None:
        from semu.files import write_text

        say_written(write_text(arguments.csv, result.to_csv()))
    if arguments.picture is not None:
        from semu.validation.files import save_picture

        say_written(save_picture(result, arguments.picture, title=title))
    if arguments.html is not None:
        say_written(result.page(title).save(arguments.html))
    if arguments.out is not None:
        from semu.validation.files import save

        say_written(*save(result, arguments.out, title=title))


class _RowCounter:
    """Says every few seconds how many rows are done."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said >= console.PATIENCE_S and done < total:
            self._said = now
            say(f"{done} of {total} rows done")


def _of_groups(rows: Sequence[Row | BadRow], groups: Sequence[str]) -> tuple[Row | BadRow, ...]:
    """The rows of the groups asked for; all, where none is.

    Raises:
        ConfigError: a group that no row has.
    """
    known = dict.fromkeys(row.group for row in rows)
    for group in groups:
        check_word(group, known, "group", "--group")
    return tuple(row for row in rows if not groups or row.group in groups)


def _with_pass_times(rows: Sequence[Row | BadRow], arguments: argparse.Namespace) -> tuple[Row | BadRow, ...]:
    """The rows that say what their passes take.

    Raises:
        ConfigError: none does, or options that compare times which are then given.
    """
    from semu.validation import Row

    for flag in given_flags(arguments, ("compare", "site")):
        expected = "--pass-times without it: no profile decides times that the rows give"
        raise ConfigError(f"--pass-times and {flag} together", where=flag, expected=expected)
    found = tuple(row for row in rows if isinstance(row, Row) and row.pass_times is not None)
    if not found:
        raise ConfigError(
            "no row says what its passes take",
            where="--pass-times",
            expected="a row with measured_values.profiled_ms_per_microbatch (T_F, T_B, T_W)",
            got=f"{len(rows)} rows",
        )
    return found


def _validator(rows: Sequence[Row | BadRow], profile: str | None, flag: str) -> Callable[..., ValidationResult]:
    """``validate`` under the profile that an option names; None: on the device of every row.

    Raises:
        ConfigError: as ``devices_of``.
    """
    from semu.hardware.data_sheets import SPEC
    from semu.runfile import make_job
    from semu.validation import validate
    from semu.validation.profiles import on_data_sheet

    shared = partial(make_job, shares_model=True)
    maker = on_data_sheet(shared) if profile == SPEC else shared
    devices = None if profile is None or profile == SPEC else devices_of(rows, profile, flag)
    return partial(validate, make_job=maker, devices=devices, progress=_RowCounter())


def devices_of(rows: Sequence[Row | BadRow], profile: str, flag: str) -> Callable[[Row], str]:
    """The device of each row: the profile for rows on the device that it is named after, and for all rows where no row
    is on that device; else the row's device.

    Raises:
        ConfigError: an unknown device, a profile file that cannot be read.
    """
    from semu.hardware.profile import load_profile
    from semu.validation import Row

    try:
        name = load_profile(profile).name
    except ConfigError as error:
        error.where = f"{flag} {error.where}" if error.where is not None else flag
        raise
    is_named = any(isinstance(row, Row) and row.profile == name for row in rows)
    return lambda row: profile if not is_named or row.profile == name else row.profile
