"""``report_text`` and ``score_text``: calibrations and scores for people; ``calibration_json``: for programs."""

from __future__ import annotations

from collections.abc import Sequence

from semu.fitting.calibration import Calibration
from semu.fitting.models import FLOOR, kept_for_want_of_rows
from semu.fitting.samples import Refusal, places
from semu.fitting.scores import Errors, KindScore

FAR_OFF = 0.3
"""A mean error beyond which the report says that the formula does not describe the rows."""


def _row(cells: Sequence[str]) -> str:
    name, *numbers = cells
    return f"  {name:<33}" + "".join(f"{number:>9}" for number in numbers)


def _percents(errors: Errors | None) -> list[str]:
    if errors is None:
        return ["-"] * 5
    values = (errors.mape, errors.p95, errors.time_weighted, errors.base_mape)
    return [f"{errors.n:,}", *(f"{100 * value:.1f}" for value in values)]


_COLUMNS = ("n", "MAPE", "p95", "weighted", "base")


def report_text(calibration: Calibration) -> str:
    """Errors per section and size band, what was left out, and what stays as it was."""
    lines = [
        f"calibration of {calibration.profile.name}",
        "errors in percent: mean, 95th percentile and time-weighted with the sources' factors, and the mean without",
        "",
        _row(("held-out rows", *_COLUMNS)),
    ]
    for name, section in calibration.sections.items():
        lines.append(_row((name, *_percents(section.held_out))))
        lines += [_row((f"  {label}", *_percents(held))) for label, held, _ in section.bands if held is not None]
    lines += ["", _row(("all rows", *_COLUMNS))]
    lines += [_row((name, *_percents(section.all_rows))) for name, section in calibration.sections.items()]
    lines += ["", "coefficients"]
    for name, section in calibration.sections.items():
        lines.append(f"  {name}: " + ", ".join(f"{key} {section.fit.values[key]:.4g}" for key in section.fit.fitted))
        if kept := kept_for_want_of_rows(name, section.fit.fitted):
            rows = f"{len(section.samples)} row{'s' * (len(section.samples) != 1)}"
            lines.append(f"    {rows}, too few sizes or ranks for {', '.join(kept)}: the profile's values stay")
        for source, factors in section.fit.sites.items():
            listed = ", ".join(
                f"{key} {value:.3g}" if key == FLOOR else f"{key} x {value:.3f}" for key, value in factors.items()
            )
            lines.append(f"    {source} ({section.fit.num_rows[source]} rows): {listed}")
    odd = [name for name, section in calibration.sections.items() if section.error.mape > FAR_OFF]
    if odd:
        lines += ["", f"far off, more than {FAR_OFF:.0%} on average (another device, unit or peak?): {', '.join(odd)}"]
    lines += ["", *refusal_lines(calibration.refusals)]
    if calibration.others:
        listed = ", ".join(f"{device} {count:,}" for device, count in calibration.others.items())
        lines.append(f"rows of other devices: {listed}")
    by_provenance: dict[str, list[str]] = {}
    for section_name, provenance in calibration.kept.items():
        by_provenance.setdefault(provenance, []).append(section_name)
    for provenance, names in sorted(by_provenance.items()):
        lines.append(f"not measured, stays {provenance}: {', '.join(names)}")
    return "\n".join(lines)


def refusal_lines(refusals: Sequence[Refusal]) -> list[str]:
    """Rows left out, by reason, the first few of each named."""
    grouped: dict[str, list[str]] = {}
    for refusal in refusals:
        reason = refusal.reason
        if "above the peak" in reason:
            reason = "above the peak" + reason.partition("above the peak")[2]
        grouped.setdefault(reason, []).append(refusal.where)
    lines = ["rows left out"] if grouped else []
    lines += [f"  {len(where):>5}  {reason}: {places(where)}" for reason, where in grouped.items()]
    return lines


def calibration_json(calibration: Calibration) -> dict[str, object]:
    """A calibration as JSON, without its rows."""
    return {
        "device": calibration.profile.name,
        "sections": [
            {
                "section": name,
                "coefficients": {key: section.fit.values[key] for key in section.fit.fitted},
                "sites": {source: dict(factors) for source, factors in section.fit.sites.items()},
                "rows": dict(section.fit.num_rows),
                "held_out": None if section.held_out is None else section.held_out.to_json(),
                "all": section.all_rows.to_json(),
                "bands": [
                    {"band": label, "held_out": None if held is None else held.to_json(), "all": errors.to_json()}
                    for label, held, errors in section.bands
                ],
            }
            for name, section in calibration.sections.items()
        ],
        "left_out": [{"where": item.where, "reason": item.reason} for item in calibration.refusals],
        "other_devices": dict(calibration.others),
        "files": [
            {"name": file.name, "sha256": file.sha256, "rows": file.rows, "software": file.software}
            for file in calibration.files
        ],
        "kept": dict(calibration.kept),
    }


def score_text(scores: Sequence[KindScore]) -> str:
    """A line per kind, in percent."""
    head = _row(("kind", *_COLUMNS))
    return "\n".join([head, *(_row((item.kind, *_percents(item.errors))) for item in scores)])
