"""``semu calibrate``: a profile from measurements or from training runs; with ``--score`` measurements against one."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from semu.cli.console import Progress, emit, emit_json, emit_result, printed_anyway, say, say_written
from semu.cli.option_checks import check_place, given_flags
from semu.errors import ConfigError
from semu.files import read_toml

if TYPE_CHECKING:
    from semu.hardware.capabilities import DeviceProfile

_KERNELS_ONLY = ("update", "picture", "without", "beside")
_FIT_ONLY = ("device", "output", "date", *_KERNELS_ONLY)


def calibrate_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: options that do not go together, an unknown device, files that cannot be read or fitted.
    """
    if arguments.nodes < 1:
        raise ConfigError("out of range", where="--nodes", expected="1 or more", got=arguments.nodes, nearest=1)
    if arguments.score:
        return _score(arguments)
    for flag in given_flags(arguments, ("profile", "held_out")):
        raise ConfigError(f"{flag} without --score", where=flag, expected="--score FILES --profile PROFILE.toml")
    if arguments.device is None:
        raise ConfigError("no device", where="--device", expected="a profile's name, another name of it, or a profile")
    from semu.validation.own_site import is_runs_file

    if any(is_runs_file(file) for file in arguments.files):
        return _runs(arguments)
    from semu.files import write_text
    from semu.fitting.calibration import calibrate
    from semu.fitting.readers import read_measurements
    from semu.fitting.text import calibration_json, report_text
    from semu.fitting.write import Provenances, profile_text, update_profile

    date = _date(arguments.date)
    _check_places(arguments)
    profile, base = _device(arguments.device, arguments.output)
    old = None if arguments.update is None else _profile_file(Path(arguments.update))
    origin = Provenances(_command(arguments), date)
    with Progress() as progress:
        progress("reading the measurements")
        measured = read_measurements(arguments.files, profile.name, nodes=arguments.nodes)
        calibration = calibrate(
            measured,
            profile,
            without=arguments.without,
            beside=arguments.beside,
            progress=lambda section: progress(f"fitting {section}"),
        )
    with printed_anyway(lambda: report_text(calibration), is_json=arguments.json):
        if arguments.output is not None:
            say_written(write_text(arguments.output, profile_text(calibration, profile.name, base, origin)))
        if old is not None:
            say_written(write_text(arguments.update, update_profile(old, calibration, origin)))
        if arguments.picture is not None:
            from semu.fitting.pictures import save_pictures

            say_written(*save_pictures(calibration, arguments.picture))
    if arguments.json:
        emit_json(calibration_json(calibration))
    else:
        emit(report_text(calibration))
    return 0


def _runs(arguments: argparse.Namespace) -> int:
    """Factors of a site from training runs there."""
    for flag in given_flags(arguments, _KERNELS_ONLY):
        raise ConfigError(f"training runs and {flag} together", where=flag, expected="RUNS.json --device NAME")
    if len(arguments.files) > 1:
        raise ConfigError(
            "training runs and other files together", where="FILES", expected="one runs file", got=len(arguments.files)
        )
    from semu.cli.commands.validate import devices_of
    from semu.files import write_text
    from semu.runfile import make_job
    from semu.validation import Row, read_rows, validate
    from semu.validation.own_site import calibrate_runs, site_profile_text

    date = _date(arguments.date)
    check_place("-o", arguments.output)
    profile, base = _device(arguments.device, arguments.output)
    device = arguments.device if Path(arguments.device).suffix == ".toml" else base
    rows = read_rows(arguments.files[0])
    is_named = any(isinstance(row, Row) and row.profile == profile.name for row in rows)
    own = [row for row in rows if not isinstance(row, Row) or not is_named or row.profile == profile.name]
    with Progress() as progress:
        progress(f"simulating {len(own)} runs")
        result = validate(own, make_job, devices=devices_of(own, device, "--device"))
    site = calibrate_runs(result.rows, profile.name)
    if arguments.output is not None:
        origin = f"{_command(arguments)}, {date}"
        text = site_profile_text(site, profile, Path(arguments.output).stem, base, origin)
        say_written(write_text(arguments.output, text))
    emit_result(site, is_json=arguments.json)
    return 0


def _score(arguments: argparse.Namespace) -> int:
    for flag in given_flags(arguments, _FIT_ONLY):
        raise ConfigError(f"--score and {flag} together", where=flag, expected="--score FILES --profile PROFILE")
    if arguments.profile is None:
        raise ConfigError("no profile to score", where="--profile", expected="a profile TOML or a shipped name")
    from semu.fitting.readers import read_measurements
    from semu.fitting.scoring import others_lines, score_profile
    from semu.fitting.text import refusal_lines, score_text
    from semu.hardware.profile import load_profile

    name = load_profile(arguments.profile).name
    measured = read_measurements(arguments.files, name, nodes=arguments.nodes)
    scores, refusals = score_profile(measured, arguments.profile, held_out_only=arguments.held_out)
    for line in (*refusal_lines(refusals), *others_lines(measured.others)):
        say(line)
    if arguments.json:
        emit_json({"kinds": [item.to_json() for item in scores]})
    else:
        emit(score_text(scores))
    return 0


def _device(text: str, output: str | None) -> tuple[DeviceProfile, str]:
    """The device that was measured, and how a profile on top of it names it."""
    from semu.hardware.known_devices import profile_name
    from semu.hardware.profile import load_profile

    if Path(text).suffix == ".toml":
        profile = load_profile(text)
        folder = Path(output).absolute().parent if output is not None else Path.cwd()
        return profile, os.path.relpath(Path(text).absolute(), folder)
    name = profile_name(text)
    return load_profile(name), name


def _check_places(arguments: argparse.Namespace) -> None:
    """Refuse places at which results cannot be written.

    Raises:
        ConfigError: a folder that is not there, a folder in place of a file or the reverse, a profile that would be
            its own base, or could not be found again.
    """
    check_place("-o", arguments.output)
    check_place("--update", arguments.update)
    if arguments.picture is not None and Path(arguments.picture).exists() and not Path(arguments.picture).is_dir():
        where = f"--picture {arguments.picture}"
        raise ConfigError("a file, not a folder", where=where, expected="a folder, made where it is not there")
    if arguments.output is None:
        return
    output = Path(arguments.output)
    if output.suffix != ".toml" and (output.is_file() or not output.exists()):
        raise ConfigError(
            "not a profile's name",
            where=f"-o {output}",
            expected="a name that ends in .toml",
            nearest=f"{output}.toml",
        )
    if output.is_file() and output.resolve() in _bases(arguments.device):
        raise ConfigError(
            "the profile would be its own base",
            where=f"-o {output}",
            expected=f"another file, or --update {output} to put the fit into this one",
        )


def _bases(device: str) -> list[Path]:
    """The profile file of a device and those below it."""
    from semu.hardware.known_devices import profile_names
    from semu.hardware.profile import PROFILE_DIR

    names = profile_names(device) if Path(device).suffix != ".toml" else ()
    path = PROFILE_DIR / f"{names[-1] if device not in names else device}.toml" if names else Path(device)
    found: list[Path] = []
    while path.is_file() and path.resolve() not in found:
        found.append(path.resolve())
        try:
            base = read_toml(path, str(path), "a device profile").get("base")
        except ConfigError:
            break
        if not isinstance(base, str):
            break
        path = path.parent / base if base.endswith(".toml") else PROFILE_DIR / f"{base}.toml"
    return found


def _profile_file(place: Path) -> str:
    """The text of a profile that is to be updated.

    Raises:
        ConfigError: it is not there, or is no profile.
    """
    from semu.hardware.profile import load_profile

    if not place.is_file():
        raise ConfigError("no such profile file", where=f"--update {place}", expected="a profile TOML that is there")
    load_profile(str(place.absolute()))
    return place.read_text(encoding="utf-8")


def _date(text: str | None) -> str:
    """The day that a profile is dated with: given, else of SOURCE_DATE_EPOCH, else today in UTC."""
    if text is not None:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) is None:
            raise ConfigError("not a date", where="--date", expected="YYYY-MM-DD", got=text)
        return text
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        when = None if epoch is None else datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError("not a time", where="SOURCE_DATE_EPOCH", expected="seconds since 1970", got=epoch) from error
    return (when or datetime.datetime.now(datetime.UTC)).strftime("%Y-%m-%d")


def _command(arguments: argparse.Namespace) -> str:
    words = ["semu", "calibrate", *(Path(file).name for file in arguments.files), "--device", arguments.device]
    for flag, sources in (("--without", arguments.without), ("--beside", arguments.beside)):
        words += [word for source in sources for word in (flag, source)]
    if arguments.nodes != 1:
        words += ["--nodes", str(arguments.nodes)]
    return shlex.join(words)
