"""Site calibration of published runs: ``calibrate_sites``.

The first rows of each group stand for runs that somebody has at a site; one or two factors on top of the profile come
from them (``semu.fitting.site``), and the group's other rows show what the factors are worth. A factor on computation
or on communication changes an iteration by what that takes on the critical path, to first order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from semu.errors import ConfigError
from semu.fitting.site import RunTimes, SiteFactors, site_factors
from semu.report_text import align_columns
from semu.validation.result import Quantity, RowResult


@dataclass(frozen=True)
class SiteScore:
    """A group before and after.

    Attributes:
        group: its name. factors: from its first rows. calibrated: their names. n: rows that are scored, the others.
        before, after: mean absolute error of those in percent, without and with the factors.
    """

    group: str
    factors: SiteFactors
    calibrated: tuple[str, ...]
    n: int
    before: float
    after: float

    def to_json(self) -> dict[str, object]:
        """One of ``site.groups``; percent."""
        return {
            "group": self.group,
            "calibrated": list(self.calibrated),
            "compute": self.factors.compute,
            "communication": self.factors.communication,
            "n": self.n,
            "mape_before": self.before,
            "mape_after": self.after,
        }


@dataclass(frozen=True)
class SiteCalibration:
    """All groups that have more rows than are calibrated on.

    Attributes:
        rows: of each group to calibrate on. groups: in the order of the file.
        before, after: over all scored rows of those groups, percent; None: there are none.
    """

    rows: int
    groups: tuple[SiteScore, ...]
    before: float | None
    after: float | None

    def to_json(self) -> dict[str, object]:
        """As ``site`` of ``validate --json``."""
        return {
            "rows": self.rows,
            "groups": [group.to_json() for group in self.groups],
            "overall": {
                "n": sum(group.n for group in self.groups),
                "mape_before": self.before,
                "mape_after": self.after,
            },
        }

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"site calibration on the first {self.rows} rows of each group, error of the others in %"
        heads = ("group", "n", "MAPE before", "after", "compute", "communication")
        rows = [
            (
                group.group,
                str(group.n),
                f"{group.before:.2f}",
                f"{group.after:.2f}",
                f"x {group.factors.compute:.3f}",
                f"x {group.factors.communication:.3f}",
            )
            for group in self.groups
        ]
        if self.before is not None and self.after is not None:
            rows.append(("all", str(sum(g.n for g in self.groups)), f"{self.before:.2f}", f"{self.after:.2f}", "", ""))
        yield from align_columns([heads, *rows], (False, *[True] * 5))


def calibrate_sites(rows: Sequence[RowResult], count: int) -> SiteCalibration:
    """Calibrate each group on its first scored rows with times, and score its others.

    Args:
        rows: results in the order of the file. count: rows of each group to calibrate on; groups that have no more are
            left out.
    Raises:
        ConfigError: a count below one.
    """
    check_count(count)
    members: dict[str, list[tuple[str, RunTimes]]] = {}
    for row in rows:
        run = run_times(row)
        if run is not None and row.is_scored:
            members.setdefault(row.group, []).append((row.id, run))
    groups: list[SiteScore] = []
    before: list[float] = []
    after: list[float] = []
    for name, runs in members.items():
        known, others = runs[:count], [run for _, run in runs[count:]]
        if not others:
            continue
        factors = site_factors([run for _, run in known])
        plain = [abs(run.compute_s + run.communication_s + run.other_s - run.measured_s) for run in others]
        errors = [100 * error / run.measured_s for error, run in zip(plain, others, strict=True)]
        scaled = [100 * abs(factors.time_s(run) / run.measured_s - 1) for run in others]
        calibrated = tuple(row_id for row_id, _ in known)
        groups.append(SiteScore(name, factors, calibrated, len(others), fmean(errors), fmean(scaled)))
        before += errors
        after += scaled
    return SiteCalibration(count, tuple(groups), fmean(before) if before else None, fmean(after) if after else None)


def check_count(count: int) -> None:
    """Refuse what is no number of rows.

    Raises:
        ConfigError: a count below one.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError("not a number of rows", where="--site", expected="an integer >= 1", got=count, nearest=1)


def run_times(row: RowResult) -> RunTimes | None:
    """A row's measured time beside what its simulated iteration is made of; None: it has no such times."""
    time = row.compared.get(Quantity.TIME)
    if time is None or time.measured is None or time.predicted is None or row.communication_s is None:
        return None
    return RunTimes(time.measured, time.predicted - row.communication_s, row.communication_s)
