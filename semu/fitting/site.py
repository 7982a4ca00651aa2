"""Factors that a profile file holds beside its coefficients, and those of a site's own runs.

``[site.SOURCE]`` in a profile: section -> factors of that source of measurements (``load_sites``). They tell how a rig
differs; a simulation uses the base. ``site_factors`` finds one or two factors, on computation and on communication,
from runs at a site.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semu.errors import ConfigError, unknown_name
from semu.fitting.devices import KNOWN_DEVICES, profile_names
from semu.fitting.models import FLOOR, TIME, defaults_of
from semu.hardware.number import check_positive
from semu.hardware.profile import PROFILE_DIR, list_profiles

PRIOR_SPREAD = 0.1
"""How far sites are from a profile, as a standard deviation of log times; pitfall "rig-to-rig spread" of the data."""
ROW_SPREAD = 0.04
"""How far single runs are from their site's factors."""


def profile_path(name_or_path: str) -> Path:
    """The file of a profile."""
    return PROFILE_DIR / f"{name_or_path}.toml" if name_or_path in list_profiles() else Path(name_or_path)


def _same_device(profile: str) -> tuple[str, ...]:
    """Profiles that share a device, and differ in its network cards alone."""
    return profile_names(KNOWN_DEVICES[profile].aliases[0])


def load_sites(name_or_path: str) -> dict[str, dict[str, dict[str, float]]]:
    """A profile's factors: section -> source -> ``time`` or coefficient -> factor, ``floor_s`` -> least time [s].

    A profile without any takes those of its base, where that is the same device with other network cards.

    Raises:
        ConfigError: a table that is none, an unknown name, a factor that is not positive.
    """
    path = profile_path(name_or_path)
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    table, base = document.get("site"), document.get("base")
    if table is None and isinstance(base, str) and base in KNOWN_DEVICES and path.stem in _same_device(base):
        return load_sites(base)
    table = table or {}
    result: dict[str, dict[str, dict[str, float]]] = {}
    for source, sections in table.items():
        where = f"{path.name} site.{source}"
        if not isinstance(sections, Mapping):
            raise ConfigError("not a table", where=where, expected="section -> factors", got=repr(sections))
        for section, factors in sections.items():
            if not isinstance(factors, Mapping) or section.count(".") < 1:
                raise ConfigError("not a table of factors", where=f"{where}.{section}", expected="{ time = 1.02 }")
            own: dict[str, float] = {}
            for name, value in factors.items():
                legal = [TIME, FLOOR, "rows", *defaults_of(section)]
                if name not in legal:
                    raise unknown_name("factor", name, legal, where=f"{where}.{section}")
                if name != "rows":
                    own[name] = check_positive(value, f"{where}.{section}.{name}")
            result.setdefault(section, {})[source] = own
    return result


@dataclass(frozen=True, slots=True)
class RunTimes:
    """A run of one's own beside its simulation.

    Attributes:
        measured_s: iteration time [s]. compute_s, communication_s: of the simulated iteration, its time in which
            kernels compute and its exposed communication [s]. other_s: the rest, which no factor changes.
    """

    measured_s: float
    compute_s: float
    communication_s: float
    other_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SiteFactors:
    """Factors on simulated times: of computation, and of communication; ``rows`` they come from."""

    compute: float
    communication: float
    rows: int

    def time_s(self, run: RunTimes) -> float:
        """The run's predicted iteration time with the factors [s]."""
        return self.compute * run.compute_s + self.communication * run.communication_s + run.other_s


def site_factors(runs: Sequence[RunTimes], *, with_communication: bool | None = None) -> SiteFactors:
    """One or two factors from runs at a site, drawn to one: what minimises

    sum over runs of ((log predicted - log measured) / 0.04)^2 + (log compute / 0.1)^2 + (log communication / 0.1)^2,

    each run's term bounded (Huber) where it is beyond two standard deviations, so that one strange run cannot rule.

    Args:
        runs: at least one. with_communication: whether communication gets a factor of its own; None: where the runs
            are three or more and their shares of communication differ by 5 points. Without it both are equal.
    Raises:
        ConfigError: no runs; a time that is not positive.
    """
    if not runs:
        raise ConfigError("no runs", where="site calibration", expected="one run at least", got=0)
    for number, run in enumerate(runs):
        total = run.compute_s + run.communication_s + run.other_s
        for value in (run.measured_s, total):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError("not a time", where=f"run {number}", expected="seconds > 0", got=value)
    shares = [run.communication_s / (run.compute_s + run.communication_s + run.other_s) for run in runs]
    if with_communication is None:
        with_communication = len(runs) >= 3 and max(shares) - min(shares) >= 0.05
    compute = communication = 0.0
    for _ in range(100):
        step_a, step_b = _step(runs, compute, communication, with_communication)
        compute, communication = compute + step_a, communication + step_b
        if abs(step_a) + abs(step_b) < 1e-12:
            break
    return SiteFactors(math.exp(compute), math.exp(communication), len(runs))


def _step(runs: Sequence[RunTimes], a: float, b: float, both: bool) -> tuple[float, float]:
    """One Gauss-Newton step on the two logarithms."""
    pull = (ROW_SPREAD / PRIOR_SPREAD) ** 2
    haa, hbb, hab, ga, gb = pull, pull, 0.0, -pull * a, -pull * b
    for run in runs:
        compute, communication = run.compute_s * math.exp(a), run.communication_s * math.exp(b)
        predicted = compute + communication + run.other_s
        error = math.log(run.measured_s / predicted)
        weight = min(1.0, 2.0 * ROW_SPREAD / max(abs(error), 1e-300))
        da, db = compute / predicted, communication / predicted
        haa, hbb, hab = haa + weight * da * da, hbb + weight * db * db, hab + weight * da * db
        ga, gb = ga + weight * da * error, gb + weight * db * error
    if not both:  # one factor for both: the prior counts once
        step = (ga + gb + pull * b) / (haa + hbb + 2.0 * hab - pull)
        return step, step
    determinant = haa * hbb - hab * hab
    return (ga * hbb - gb * hab) / determinant, (gb * haa - ga * hab) / determinant
