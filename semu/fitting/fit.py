"""``fit_section``: coefficients of one section, and factors per source, by robust least squares on logarithms of time.

Sources of measurements differ by rig, software and method, beyond what a shape explains. So each source has factors,
whose weighted mean logarithm is zero, and an unknown source gets the base. A source counts by the root of its rows: no
large collection drowns the others, and no source of a few rows moves the base. A factor is drawn to one as if by 3 rows
that agree with the base, so that two rows cannot ruin it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, install_line
from semu.fitting.forms import Peaks, predict
from semu.fitting.models import CACHE, FLOOR, TIME, Model, is_beside_the_cache
from semu.fitting.readers.rows import SKEWED
from semu.fitting.samples import Samples
from semu.records import dataclass

Values = NDArray[np.float64]
SHRINKAGE = 3.0
"""Rows that agree with the base, put beside those of every source."""
_SOFT = 0.05
"""Log errors beyond which a row counts linearly."""
_WIDEST = 1.0
"""Bound on the logarithm of a source's factor."""

Factors = Mapping[str, float]
"""``time`` or a coefficient's name -> factor on it; ``floor_s`` -> the source's least time [s]."""
_FLOOR_START_S = 3e-5


@dataclass(frozen=True)
class FittedSection:
    """A section's fit.

    Attributes:
        section: name. values: all coefficients. fitted: names of the fitted ones.
        sites: source -> its factors. num_rows: source -> rows that were fitted on.
    """

    section: str
    values: Mapping[str, float]
    fitted: tuple[str, ...]
    sites: Mapping[str, Factors]
    num_rows: Mapping[str, int]


def with_factors(values: Mapping[str, float], factors: Factors) -> dict[str, float]:
    """Coefficients of a source; its factor on the time is left to ``times``."""
    return {name: value * factors.get(name, 1.0) for name, value in values.items()}


def times(
    samples: Samples,
    values: Mapping[str, float],
    peaks: Peaks,
    sites: Mapping[str, Factors] | None = None,
    extra: Values | float = 0.0,
) -> Values:
    """Predicted times of all rows [s].

    Args:
        sites: source -> factors; None: the base. extra: added to each row [s].
    """
    if not sites:
        return predict(samples.section, values, samples.shape, peaks) + extra
    result = np.empty(len(samples))
    for source in np.unique(samples.sources):
        chosen = samples.sources == source
        factors = sites.get(str(source), {})
        predicted = predict(samples.section, with_factors(values, factors), samples.shape[:, chosen], peaks)
        result[chosen] = np.maximum(factors.get(TIME, 1.0) * predicted, factors.get(FLOOR, 0.0))
    return result + extra


def fit_section(
    samples: Samples,
    model: Model,
    peaks: Peaks,
    *,
    extra: Values | float = 0.0,
    is_trusted: Callable[[str], bool] = lambda source: True,
) -> FittedSection:
    """Fit one section.

    Args:
        samples: rows to fit on. model: what is free. peaks: of the device.
        extra: time that each row holds besides the section's [s]: float64[n] or a number.
        is_trusted: source -> whether it takes part in the base; other sources get factors only. Without a trusted
            source the base is ``model.fixed``.
    Raises:
        ConfigError: scipy is not installed; no row is left.
    """
    sources = [str(source) for source in np.unique(samples.sources)]
    trusted = [source for source in sources if is_trusted(source)]
    base, extra = np.isin(samples.sources, trusted), np.broadcast_to(extra, len(samples))
    values = dict(model.fixed)
    if trusted:
        values = _fit_base(samples.take(base), model, peaks, extra[base], trusted)
    sites: dict[str, Factors] = {}
    counts = {source: int((samples.sources == source).sum()) for source in sources}
    for source in sources:
        chosen = samples.sources == source
        if len(sources) > 1 or not trusted:
            rows, names = samples.take(chosen), model.final
            if CACHE[0] in names and not is_beside_the_cache(rows, values["cache_bytes"]):
                names = tuple(name for name in names if name not in CACHE)
            if source != SKEWED:
                names = tuple(name for name in names if name != FLOOR)
            sites[source] = _fit_factors(rows, values, names, peaks, extra[chosen])
    fitted = tuple(free.name for free in model.free) if trusted else ()
    return FittedSection(samples.section, values, fitted, dict(sorted(sites.items())), counts)


def _fit_base(samples: Samples, model: Model, peaks: Peaks, extra: Values, sources: list[str]) -> dict[str, float]:
    """Coefficients, fitted together with the factors of each source."""
    if len(samples) == 0:
        raise ConfigError("no rows to fit on", where=samples.section, expected="one row at least", got=0)
    number = np.array([sources.index(str(source)) for source in samples.sources])
    count = np.bincount(number, minlength=len(sources)).astype(np.float64)
    weight = np.sqrt(count)
    weight /= weight.sum()
    per_row = weight / count * len(samples)
    num_free, num_site = len(model.free), len(model.site) if len(sources) > 1 else 0
    scale = np.array([max(abs(free.start), 1e-9) for free in model.free])
    log_time = np.log(samples.time_s)
    root, pull = np.sqrt(per_row[number]), np.sqrt(SHRINKAGE * per_row)
    rows = [np.flatnonzero(number == i) for i in range(len(sources))]

    def _read(x: Values) -> tuple[dict[str, float], Values]:
        values = dict(model.fixed)
        values.update({free.name: float(v) for free, v in zip(model.free, x[:num_free] * scale, strict=True)})
        logs = x[num_free:].reshape(len(sources), num_site) if num_site else np.zeros((len(sources), 0))
        return values, logs - weight @ logs

    def _residuals(x: Values) -> Values:
        values, logs = _read(x)
        predicted = np.empty(len(samples))
        for i, chosen in enumerate(rows):
            factors = dict(zip(model.site, np.exp(logs[i]), strict=False))
            times_s = predict(samples.section, with_factors(values, factors), samples.shape[:, chosen], peaks)
            predicted[chosen] = times_s * factors.get(TIME, 1.0)
        errors = root * (np.log(predicted + extra) - log_time)
        return np.concatenate((errors, (pull[:, None] * logs).ravel()))

    low = np.array([free.low for free in model.free]) / scale
    high = np.array([free.high for free in model.free]) / scale
    start = np.clip(np.array([free.start for free in model.free]) / scale, low, high)
    none = np.zeros(len(sources) * num_site)
    best = _least_squares()(
        _residuals,
        np.concatenate((start, none)),
        bounds=(np.concatenate((low, none - _WIDEST)), np.concatenate((high, none + _WIDEST))),
        loss="soft_l1",
        f_scale=_SOFT,
        x_scale=1.0,
    )
    values, _ = _read(best.x)
    for free in model.free:  # a coefficient at the edge of its range is at the edge
        for edge in (free.low, free.high):
            if abs(values[free.name] - edge) < 1e-6 * free.start:
                values[free.name] = edge
    return values


def _fit_factors(
    samples: Samples, values: Mapping[str, float], names: tuple[str, ...], peaks: Peaks, extra: Values
) -> Factors:
    """Factors of one source on given coefficients."""
    log_time = np.log(samples.time_s)
    unit = np.array([_FLOOR_START_S if name == FLOOR else 1.0 for name in names])

    def _residuals(x: Values) -> Values:
        factors = dict(zip(names, unit * np.exp(x), strict=True))
        predicted = predict(samples.section, with_factors(values, factors), samples.shape, peaks)
        predicted = np.maximum(predicted * factors.get(TIME, 1.0), factors.get(FLOOR, 0.0))
        errors = np.log(predicted + extra) - log_time
        return np.concatenate((errors, np.sqrt(SHRINKAGE) * np.where(unit == 1.0, x, 0.0)))

    start = np.zeros(len(names))
    best = _least_squares()(
        _residuals, start, bounds=(start - 2 * _WIDEST, start + 2 * _WIDEST), loss="soft_l1", f_scale=_SOFT
    )
    return {name: float(factor) for name, factor in zip(names, unit * np.exp(best.x), strict=True)}


def _least_squares() -> Callable[..., Any]:
    """``scipy.optimize.least_squares``, which only fitting needs.

    Raises:
        ConfigError: scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise ConfigError(
            "fitting needs scipy, which is not installed",
            where="semu calibrate",
            expected=install_line("fit", "scipy"),
        ) from error
    function: Callable[..., Any] = least_squares
    return function
