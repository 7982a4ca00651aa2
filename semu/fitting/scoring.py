"""``score_profile``: measurements against a profile as it is, rows that were not fitted on included."""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import ConfigError
from semu.files import read_toml
from semu.fitting.calibration import forward_times, has_arithmetic
from semu.fitting.coefficients import coefficients_of
from semu.fitting.door import admit
from semu.fitting.fit import times
from semu.fitting.forms import peaks_of
from semu.fitting.readers import Measurements
from semu.fitting.samples import HELD_OUT_RULE, Family, Refusal, by_section, family_of
from semu.fitting.scores import KindScore, score
from semu.fitting.site import load_sites, profile_path
from semu.hardware.profile import load_profile

UNSCORED = frozenset(("simai",))
"""Sources that give the shape of a curve and are no measurements to score against."""


def score_profile(
    measured: Measurements, name_or_path: str, *, held_out_only: bool = False
) -> tuple[tuple[KindScore, ...], tuple[Refusal, ...]]:
    """Errors per kind, and the rows left out.

    Args:
        measured: rows of the profile's device. name_or_path: of the profile; its ``[site]`` tables are the factors.
        held_out_only: only rows whose shape the rule holds out of fits.
    Raises:
        ConfigError: no row of the device; a profile that was fitted under another rule.
    """
    profile, sites = load_profile(name_or_path), load_sites(name_or_path)
    if held_out_only:
        _check_rule(name_or_path)
    rows, refusals = [], list(measured.refusals)
    for section, samples in by_section(item for item in measured.samples if item.source not in UNSCORED).items():
        if not has_arithmetic(profile, section):
            refusals.append(Refusal(samples.where[0], f"{len(samples)} rows of {section}: no such arithmetic"))
            continue
        samples, above = admit(samples, profile, is_strict=False)
        refusals += above
        if held_out_only:
            samples = samples.take(samples.held_out)
        if len(samples) == 0:
            continue
        values, peaks = coefficients_of(profile, section), peaks_of(profile, section)
        extra = 0.0 if family_of(section) is not Family.ATTENTION else forward_times(samples, profile)
        predicted = times(samples, values, peaks, sites.get(section, {}), extra)
        rows.append((samples, predicted, times(samples, values, peaks, None, extra)))
    if not rows:
        others = ", ".join(f"{device} ({count})" for device, count in measured.others.items())
        raise ConfigError(
            f"no row of {profile.name} to score",
            where="--score",
            expected=f"rows of {profile.name}",
            got=others or "none",
        )
    return score(rows), tuple(refusals)


def _check_rule(name_or_path: str) -> None:
    """Refuse a profile that was fitted under another rule: other rows were held out of its fit."""
    table = read_toml(profile_path(name_or_path), name_or_path, "a device profile").get("calibration")
    rule = table.get("held_out") if isinstance(table, dict) else None
    if rule not in (None, HELD_OUT_RULE):
        where = f"{name_or_path} calibration.held_out"
        raise ConfigError("another rule for held-out shapes", where=where, expected=HELD_OUT_RULE, got=rule)


def others_lines(others: dict[str, int]) -> Sequence[str]:
    """A line per other device, whose rows are listed and not scored."""
    return [f"{device}: {count:,} rows of another device, not scored" for device, count in others.items()]
