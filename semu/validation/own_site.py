"""Runs of a site -> factors on top of a profile (``calibrate_runs``), and a profile with the factors applied.

The rows of a runs file (the schema of ``semu validate --runs``) are simulated on the device; their times and the
simulated ones give the factors (``semu.fitting.site_runs``). In the new profile a factor on computation divides the
rates of all compute kinds and multiplies their fixed times, one on communication does so with links; rates stay below
the peak. What the factors are worth for further runs shows when each run is left out in turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from semu.errors import ConfigError
from semu.files import toml_string
from semu.fitting.site_runs import RunTimes, SiteFactors, evidence, factors_of, site_factors
from semu.fitting.write import number_text
from semu.frames import Tabular
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.efficiency import CollectiveEfficiency, Efficiency, coefficient_names
from semu.hardware.kinds import Provenance
from semu.records import dataclass
from semu.units import fit_columns, fit_lines
from semu.validation.result import RowResult, Status
from semu.validation.site import run_times


def is_runs_file(path: str) -> bool:
    """Whether a file is a list of training runs: JSON objects with ``iteration_time_s`` and ``model``."""
    try:
        data = json.loads(Path(path).read_bytes()) if Path(path).suffix == ".json" else None
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, list) and any(
        isinstance(item, Mapping) and {"iteration_time_s", "model"} <= set(item) for item in data
    )


@dataclass(frozen=True)
class OwnSite(Tabular):
    """What a site's runs say.

    Attributes:
        device: the profile's name. factors: of all runs together.
        runs: id -> its times. refused: id -> why it could not be used.
        left_out: id -> error in percent by the factors of the other runs, empty with a single run.
    """

    device: str
    factors: SiteFactors
    runs: Mapping[str, RunTimes]
    refused: Mapping[str, str]
    left_out: Mapping[str, float]

    @property
    def before(self) -> float:
        """Mean absolute error without factors, percent."""
        return fmean(abs(_error(run, run.predicted_s)) for run in self.runs.values())

    @property
    def after(self) -> float:
        """The same with the factors, on the runs that they come from."""
        return fmean(abs(_error(run, self.factors.time_s(run))) for run in self.runs.values())

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each run; errors in percent: under the profile, with the factors, with those of the others."""
        return [
            {
                "run": name,
                "error": _error(run, run.predicted_s),
                "error_with_factors": _error(run, self.factors.time_s(run)),
                "error_left_out": self.left_out.get(name),
            }
            for name, run in self.runs.items()
        ]

    def to_json(self) -> dict[str, object]:
        """As ``calibrate --json`` of a runs file; percent."""
        return {
            "device": self.device,
            "compute": self.factors.compute,
            "communication": self.factors.communication,
            "runs": list(self.runs),
            "refused": dict(self.refused),
            "mape_before": self.before,
            "mape_after": self.after,
            "mape_left_out": fmean(map(abs, self.left_out.values())) if self.left_out else None,
        }

    def __repr__(self) -> str:
        return fit_lines("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        yield f"site factors on top of {self.device}, from {len(self.runs)} runs; error in %"
        yield f"computation x {self.factors.compute:.3f}, communication x {self.factors.communication:.3f}"
        rows = [
            (
                name,
                f"{_error(run, run.predicted_s):+.2f}",
                f"{_error(run, self.factors.time_s(run)):+.2f}",
                f"{self.left_out[name]:+.2f}" if name in self.left_out else "",
            )
            for name, run in self.runs.items()
        ]
        left_out = f"{fmean(map(abs, self.left_out.values())):.2f}" if self.left_out else ""
        rows.append(("mean of absolute errors", f"{self.before:.2f}", f"{self.after:.2f}", left_out))
        heads = ("run", "profile", "with factors", "by the other runs' factors")
        yield from fit_columns([heads, *rows], (False, True, True, True))
        for name, reason in self.refused.items():
            yield f"left out: {name}: {reason}"


def calibrate_runs(rows: Sequence[RowResult], device: str) -> OwnSite:
    """Factors from rows that ran on a device.

    Args:
        rows: results of ``validate``. device: name of the profile.
    Raises:
        ConfigError: no row has a measured and a simulated time.
    """
    runs: dict[str, RunTimes] = {}
    refused: dict[str, str] = {}
    for row in rows:
        run = run_times(row)
        if run is not None:
            runs[row.id] = run
        else:
            refused[row.id] = "no iteration time" if row.status is Status.OK else row.reason or row.status.value
    if not runs:
        raise ConfigError(
            "no run with a measured and a simulated time",
            where="site calibration",
            expected="one at least",
            got="; ".join(f"{name}: {reason}" for name, reason in refused.items()) or "no rows",
        )
    factors = site_factors(list(runs.values()))
    evidences = {name: evidence(run) for name, run in runs.items()}
    left_out = {
        name: _error(run, factors_of([other for key, other in evidences.items() if key != name]).time_s(run))
        for name, run in runs.items()
        if len(runs) > 1
    }
    return OwnSite(device, factors, runs, refused, left_out)


def _error(run: RunTimes, predicted_s: float) -> float:
    return 100 * (predicted_s / run.measured_s - 1)


def site_profile_text(site: OwnSite, profile: DeviceProfile, name: str, base: str, origin: str) -> str:
    """A profile on top of ``base`` with the factors in its coefficients.

    Args:
        site: the factors. profile: what ``base`` names. name: of the new profile. origin: command and date.
    """
    lines = [f"# {origin}", f"name = {toml_string(name)}", f"base = {toml_string(base)}", ""]
    for header, section in profile.sections().items():
        if header.startswith("link."):
            lines += _section(header, section, site.factors.communication, ("net",), ("t0_s", "hop_s", "c_s"))
        else:
            lines += _section(header, section, site.factors.compute, ("flop", "mem"), ("t0_s",))
    return "\n".join(lines).rstrip() + "\n"


def _section(
    header: str, own: Efficiency | CollectiveEfficiency, factor: float, rates: Sequence[str], times: Sequence[str]
) -> Iterator[str]:
    yield f"[{header}]"
    for name in coefficient_names(type(own)):
        value = getattr(own, name)
        if name in rates:
            value = min(1.0, value / factor)
        elif name in times:
            value *= factor
        yield f"{name} = {number_text(value)}"
    provenance = own.provenance if own.provenance is Provenance.DEFAULT else Provenance.FITTED
    yield f"provenance = {toml_string(provenance.value)}"
    yield f"source = {toml_string(f'{factor:.4g} x the time of: {own.source}')}"
    if own.relative_error is not None:
        yield f"relative_error = {number_text(own.relative_error)}"
    yield ""
