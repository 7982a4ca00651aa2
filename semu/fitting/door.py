"""``admit``: leaves out rows above a device's peak; ``check_units``: refuses rows whose times are in another unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.fitting.forms import flop_of, peaks_of
from semu.fitting.models import SMALL_BYTES
from semu.fitting.samples import Family, Refusal, Samples, places
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import OpKind
from semu.hardware.network import wire_factor

_SLACK = 1.01
"""Peaks are rounded."""
_HELPED = 1.5
_SLOW, _SLOW_S = 30.0, 1e-3
"""A row is in another unit if it takes 30 times the fitted time and longer than any latency [s]; in the public tables
no row is off by more than a factor of 3.2."""
_SWITCH = 2.0
"""An all-reduce in the switch sends half of what a ring does."""


def admit(samples: Samples, profile: DeviceProfile, *, is_strict: bool = True) -> tuple[Samples, list[Refusal]]:
    """Leave out rows above the device's peak.

    A memory-bound call that fits in the cache may be above the memory's peak; it stays, and counts as small.

    Args:
        samples: of one section. profile: the device. is_strict: whether a section with more than half of its rows
            above the peak is an error. Memory-bound calls and collectives count from 1.5 times the peak, as caches and
            switches help them.
    Returns:
        The admitted rows, and the refused rows.
    Raises:
        ConfigError: more than half of the rows are above the peak: another device, or another unit.
    """
    rate, peak, unit = _rates(samples, profile)
    is_above = rate > peak * _SLACK
    if samples.family is Family.MEMORY:
        is_above &= samples.column("bytes") >= SMALL_BYTES
    if not is_above.any():
        return samples, []
    refusals = [
        Refusal(
            samples.where[i], f"{rate[i] / unit[0]:.4g} {unit[1]}, above the peak of {peak[i] / unit[0]:.4g} {unit[1]}"
        )
        for i in np.flatnonzero(is_above)
    ]
    beyond = rate > peak * (_SLACK if samples.family in (Family.PRODUCT, Family.ATTENTION) else _HELPED)
    if is_strict and (beyond & is_above).sum() > len(samples) / 2:
        raise ConfigError(
            f"{is_above.sum()} of {len(samples)} rows of {samples.section} are above the peak of {profile.name}: "
            "another device, or another unit?",
            where=refusals[0].where,
            expected=f"rates up to {peak.max() / unit[0]:.4g} {unit[1]}",
            got=f"{rate.max() / unit[0]:.4g} {unit[1]} ({places([refusal.where for refusal in refusals])})",
        )
    return samples.take(~is_above), refusals


def _rates(
    samples: Samples, profile: DeviceProfile
) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[float, str]]:
    """Rate and peak of each row, and the unit to name them in."""
    peaks = peaks_of(profile, samples.section)
    full = np.ones(len(samples))
    if samples.family is Family.MEMORY:
        return samples.column("bytes") / samples.time_s, full * peaks.mem_bytes_per_s, (1e9, "GB/s")
    if samples.family is Family.LINK:
        per_node = (
            np.maximum(samples.column("ranks") / samples.column("nodes"), 1.0) if ".nic." in samples.section else 1
        )
        kind = OpKind(samples.section.split(".")[2])
        share = np.array([float(wire_factor(kind, int(ranks))) for ranks in samples.column("ranks")])
        gain = np.where(samples.column("whole") > 0, _SWITCH, 1.0)
        return (
            samples.column("bytes") * share / samples.time_s,
            full * peaks.port_bytes_per_s * per_node * gain,
            (1e9, "GB/s"),
        )
    flop = flop_of(samples.family, samples.shape, is_forward="forward" in samples.section)
    if samples.family is Family.ATTENTION and (samples.column("with_forward") > 0).any():
        flop = flop + np.where(samples.column("with_forward") > 0, flop_of(samples.family, samples.shape), 0.0)
    return flop / samples.time_s, full * peaks.flop_per_s, (1e12, "TFLOP/s")


def check_units(samples: Samples, base: NDArray[np.float64], profile: DeviceProfile) -> None:
    """Refuse rows that are far slower than the fit: fits are bounded, so that a time in another unit stands out.

    Args:
        samples: of one section. base: their times by the fit, without factors of sources: float64[n] [s].
        profile: the device.
    Raises:
        ConfigError: rows far slower than the fit.
    """
    is_slow = (samples.time_s > _SLOW * base) & (samples.time_s > _SLOW_S)
    if not is_slow.any():
        return
    rows = np.flatnonzero(is_slow)
    first = rows[0]
    raise ConfigError(
        f"{len(rows)} of {len(samples)} rows of {samples.section} are far slower than "
        + ("the others: mixed units?" if 2 * len(rows) <= len(samples) else f"{profile.name}: another unit or device?"),
        where=samples.where[first],
        expected=f"about {1e6 * base[first]:.4g} us",
        got=f"{1e6 * samples.time_s[first]:.4g} us ({places([samples.where[i] for i in rows])})",
    )
