"""``save_pictures``: a PNG per section: measured over predicted, and the residuals over size."""

from __future__ import annotations

from pathlib import Path

from semu.files import make_folder, write_file
from semu.fitting.calibration import CalibratedSection, Calibration
from semu.fitting.forms import flop_of
from semu.fitting.samples import Family
from semu.present.plots import FitPoints, draw_fit


def save_pictures(calibration: Calibration, folder: str) -> list[Path]:
    """Draw every section that has eight rows or more; returns the files.

    Raises:
        ConfigError: a file cannot be written.
    """
    place = make_folder(Path(folder))
    written = []
    for name, section in calibration.sections.items():
        if len(section.samples) >= 8:
            written.append(_save(place / f"{name}.png", name, section, calibration.profile.name))
    return written


def _save(path: Path, name: str, section: CalibratedSection, device: str) -> Path:
    samples = section.samples
    is_flop = samples.family in (Family.PRODUCT, Family.ATTENTION)
    size = (
        flop_of(samples.family, samples.shape, is_forward="backward" not in name)
        if is_flop
        else samples.column("bytes")
    )
    points = []
    for source in sorted({str(source) for source in samples.sources}):
        for is_held in (False, True):
            rows = (samples.sources == source) & (samples.held_out == is_held)
            if rows.any():
                points.append(FitPoints(source, is_held, size[rows], samples.time_s[rows], section.predicted[rows]))
    errors = section.error
    factors = ", with the sources' factors" if section.fit.sites else ""
    subtitle = (
        f"{len(samples):,} rows; {errors.n:,} judged: mean error {errors.mape:.1%}, p95 {errors.p95:.1%}{factors}"
    )
    return write_file(
        path,
        lambda file: draw_fit(
            file,
            points,
            title=f"{device}: {name}",
            subtitle=subtitle,
            size="work of a call [FLOP]" if is_flop else "size of a call [bytes]",
        ),
    )
