"""``calibrate``: measurements of one device -> fitted sections, their errors, and the sections that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, unknown_name
from semu.fitting.coefficients import coefficients_of
from semu.fitting.door import admit, check_units
from semu.fitting.fit import FittedSection, fit_section, times
from semu.fitting.forms import QUANTISE, Peaks, peaks_of, predict
from semu.fitting.models import FEWEST_ROWS, TIME, Model, fitted_rows, model_of
from semu.fitting.readers import Measurements, SourceFile
from semu.fitting.readers.rows import SEVERAL_KERNELS, WINDOW
from semu.fitting.samples import Family, Refusal, Samples, by_section, family_of
from semu.fitting.scores import Errors, bands, errors_of
from semu.frames import Tabular
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType
from semu.records import dataclass

FEWEST_HELD_OUT = 6
"""With fewer held-out rows a section's error is taken over all its rows."""
CAST = "efficiency.cast.fp8_block"
"""Fitted as a part of products that quantise their input."""
NO_BASE = frozenset(("vidur/rmsnorm",))
"""Sources that get factors but do not make the base: a kernel that moves more than it must, or is plainly slow
(pitfall 5 of the microbenchmark data); likewise attention in a window."""


@dataclass(frozen=True)
class CalibratedSection:
    """A fitted section and how well it does.

    Attributes:
        fit: the coefficients. samples: the rows, held-out ones included.
        predicted: times with the sources' factors, float64[n] [s]. base: times without the factors, float64[n] [s].
        held_out, all_rows: errors on held-out rows, None without any, and on all rows.
        bands: (name, errors on held-out rows, errors on all rows) by size.
        spread: mean error of the base on rows of trusted sources: the held-out rows where they are enough.
        num_spread: number of the rows behind ``spread``. is_spread_held_out: whether they were held out.
    """

    fit: FittedSection
    samples: Samples
    predicted: NDArray[np.float64]
    base: NDArray[np.float64]
    held_out: Errors | None
    all_rows: Errors
    bands: tuple[tuple[str, Errors | None, Errors], ...]
    spread: float
    num_spread: int
    is_spread_held_out: bool

    @property
    def error(self) -> Errors:
        """The errors that the profile states: on the held-out rows where they are enough, else on all rows."""
        if self.held_out is None or self.held_out.n < FEWEST_HELD_OUT:
            return self.all_rows
        return self.held_out


@dataclass(frozen=True)
class Calibration(Tabular):
    """The fits of a device from a set of files.

    Attributes:
        profile: the device before the calibration. sections: name -> fit. refusals: rows left out.
        others: other device -> number of its rows. files: that were read.
        kept: section that is not fitted -> its provenance.
    """

    profile: DeviceProfile
    sections: Mapping[str, CalibratedSection]
    refusals: tuple[Refusal, ...]
    others: Mapping[str, int]
    files: tuple[SourceFile, ...]
    kept: Mapping[str, str]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each section: its errors in percent, on held-out rows where they are enough."""
        return [{"section": name, **section.error.to_json()} for name, section in self.sections.items()]


def calibrate(
    measured: Measurements,
    profile: DeviceProfile,
    *,
    without: Sequence[str] = (),
    beside: Sequence[str] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> Calibration:
    """Fit every section that has measurements.

    Args:
        measured: rows of the device. profile: its peaks, and the sections that are not fitted.
        without: sources to leave out; ``aic`` names all of ``aic/...``.
        beside: sources that get factors but do not make the base; likewise.
        progress: called with each section's name.
    Raises:
        ConfigError: no row of the device or of a named source; no row that can be fitted; scipy is not installed.
    """
    if not measured.samples:
        others = ", ".join(f"{device} ({count})" for device, count in measured.others.items())
        raise ConfigError(
            f"the files do not name the device {profile.name}" if others else "no measurements",
            where="--device",
            expected=f"rows of {profile.name}",
            got=others or _left_out(measured.refusals) or "no rows",
        )
    for source in (*without, *beside):
        names = {name for sample in measured.samples for name in (sample.source, sample.source.split("/")[0])}
        if source not in names:
            flag = "--without" if source in without else "--beside"
            raise unknown_name("source", source, names, where=flag)
    removed = [sample for sample in measured.samples if _names(without, sample.source)]
    chosen = [sample for sample in measured.samples if not _names(without, sample.source)]
    refusals = [*measured.refusals, *(Refusal(s.where, f"source {s.source}: left out on request") for s in removed)]
    sections: dict[str, CalibratedSection] = {}
    for section, samples in _forward_first(by_section(chosen)):
        if not has_arithmetic(profile, section):
            refusals.append(Refusal(samples.where[0], f"{len(samples)} rows of {section}: no such arithmetic"))
            continue
        samples, above = admit(samples, profile)
        refusals += above
        progress(section)
        done = _section(samples, profile, sections, _trust(samples, beside))
        if done is None:
            refusals.append(
                Refusal(
                    samples.where[0] if len(samples) else section,
                    f"{section}: {len(samples)} rows, too few to fit (at least {FEWEST_ROWS} that are not small)",
                )
            )
        else:
            check_units(done.samples, done.base, profile)
            sections[section] = done
    if not sections:
        raise ConfigError(
            "nothing can be fitted",
            where=", ".join(file.name for file in measured.files),
            expected=f"a kind with {FEWEST_ROWS} rows or more",
            got=_left_out(refusals) or "no rows",
        )
    fitted = {section for section, done in sections.items() if done.fit.fitted}
    if any(QUANTISE in done.fit.fitted for done in sections.values()):
        fitted.add(CAST)
    kept = {name: profile.provenance_of(name).value for name in sorted(profile.sections()) if name not in fitted}
    return Calibration(profile, dict(sorted(sections.items())), tuple(refusals), measured.others, measured.files, kept)


def _left_out(refusals: Sequence[Refusal]) -> str:
    """The three commonest reasons for which rows are left out."""
    reasons = Counter(refusal.reason for refusal in refusals).most_common(3)
    return "; ".join(f"{count} rows left out: {reason}" for reason, count in reasons)


def _trust(samples: Samples, beside: Sequence[str]) -> Callable[[str], bool]:
    """Which sources make the base; sources that call several kernels only where no source measured a fused kernel."""
    several = tuple(f"/{word}" for word in SEVERAL_KERNELS)
    has_fused = any(not str(source).endswith(several) for source in samples.sources)

    def _is_trusted(source: str) -> bool:
        if source in NO_BASE or source.endswith(WINDOW) or _names(beside, source):
            return False
        return not (has_fused and source.endswith(several))

    return _is_trusted


def _names(sources: Sequence[str], source: str) -> bool:
    return source in sources or source.split("/")[0] in sources


def has_arithmetic(profile: DeviceProfile, section: str) -> bool:
    """Whether a device can compute what a section is about: fp8 sections need fp8 products."""
    return ".fp8" not in section or DType.FP8 in profile.flop_per_s


def _forward_first(sections: Mapping[str, Samples]) -> list[tuple[str, Samples]]:
    """Forward attention before backward, whose rows may hold both; products before grouped products."""
    return sorted(
        sections.items(), key=lambda item: ("attention_backward" in item[0] or "grouped_" in item[0], item[0])
    )


def _section(
    samples: Samples,
    profile: DeviceProfile,
    sections: Mapping[str, CalibratedSection],
    is_trusted: Callable[[str], bool],
) -> CalibratedSection | None:
    samples = samples.take(fitted_rows(samples))
    if len(samples) == 0:
        return None
    peaks = peaks_of(profile, samples.section)
    forward = sections.get(samples.section.replace("backward", "forward"))
    extra = forward_times(samples, profile, None if forward is None else forward.fit.values)
    plausible = extra < 0.8 * samples.time_s
    samples, extra = samples.take(plausible), extra[plausible]
    trained = ~samples.held_out
    if trained.sum() < max(FEWEST_ROWS, len(samples) / 4):  # so few that the rule may have held all of them out
        trained = np.ones(len(samples), dtype=np.bool_)
    training = samples.take(trained)
    current = coefficients_of(profile, samples.section)
    making = training.take(np.array([is_trusted(str(source)) for source in training.sources], dtype=np.bool_))
    model = model_of(making if len(making) else training, current, profile.name) if len(training) else None
    if model is None:
        return None
    if len(making) == 0:
        model = replace(model, fixed=current)
    products = sections.get("efficiency.matmul")
    if samples.section == "efficiency.grouped_matmul" and products is not None:
        fit = _fit_groups(training, model, peaks, products.fit, is_trusted)
    else:
        fit = fit_section(training, model, peaks, extra=extra[trained], is_trusted=is_trusted)
    predicted = times(samples, fit.values, peaks, fit.sites, extra)
    base = times(samples, fit.values, peaks, None, extra)
    held = samples.held_out & ~trained
    counts = np.array([is_trusted(str(source)) for source in samples.sources], dtype=np.bool_)
    is_held_out = int((held & counts).sum()) >= FEWEST_HELD_OUT
    judged = held & counts if is_held_out else counts
    judged = judged if judged.any() else np.ones(len(samples), dtype=np.bool_)
    return CalibratedSection(
        fit,
        samples,
        predicted,
        base,
        errors_of(samples.time_s[held], predicted[held], base[held]) if held.any() else None,
        errors_of(samples.time_s, predicted, base),
        bands(samples, predicted, base, held),
        float(np.abs(base[judged] / samples.time_s[judged] - 1.0).mean()),
        int(judged.sum()),
        is_held_out,
    )


def _fit_groups(
    samples: Samples, model: Model, peaks: Peaks, products: FittedSection, is_trusted: Callable[[str], bool]
) -> FittedSection:
    """Fit grouped products with the tiles and the sources' factors of single products."""
    free = tuple(item for item in model.free if item.name in ("flop", "mem", "weight_gradient"))
    fixed = {**model.fixed, **{name: value for name, value in products.values.items() if name not in ("flop", "mem")}}
    factor = np.array([products.sites.get(str(source), {}).get(TIME, 1.0) for source in samples.sources])
    level = replace(samples, time_s=samples.time_s / factor)
    fit = fit_section(level, replace(model, free=free, fixed=fixed), peaks, is_trusted=is_trusted)
    sites = {
        source: {TIME: fit.sites.get(source, {}).get(TIME, 1.0) * products.sites.get(source, {}).get(TIME, 1.0)}
        for source in fit.num_rows
    }
    return replace(fit, sites=sites)


def forward_times(
    samples: Samples, profile: DeviceProfile, forward: Mapping[str, float] | None = None
) -> NDArray[np.float64]:
    """Time of the forward in rows that hold forward and backward together: float64[n] [s], 0 in other rows.

    Args:
        forward: coefficients of the forward section; None: the profile's.
    """
    result = np.zeros(len(samples))
    if family_of(samples.section) is not Family.ATTENTION or not (samples.column("with_forward") > 0).any():
        return result
    section = samples.section.replace("backward", "forward")
    both = samples.column("with_forward") > 0
    values = coefficients_of(profile, section) if forward is None else forward
    result[both] = predict(section, values, samples.shape[:, both], peaks_of(profile, section))
    return result
