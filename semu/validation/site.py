"""Site calibration of published runs: ``calibrate_sites``.

Some rows of each group stand for runs that somebody has at a site; one or two factors on top of the profile come from
them (``semu.fitting.site_runs``), and the group's other rows show what the factors are worth. A factor on computation
or on communication changes an iteration by what that takes on the critical path, to first order. Which rows are known
is chance: besides the group's first ones every choice of as many is scored, and beside it the null model that takes
its MFU from the same rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from semu.checks import check_integer
from semu.fitting.site_runs import EXPERT_ROW_SPREAD, F64, ROW_SPREAD, RunTimes, SiteFactors, evidence, factors_of
from semu.frames import Tabular, scalars
from semu.records import dataclass
from semu.units import fit_columns, fit_lines
from semu.validation.result import Quantity, RowResult

MOST_CHOICES = 500
"""Where there are more choices of rows than these, as many are drawn (seed 0)."""


@dataclass(frozen=True)
class ChoiceScore:
    """Mean absolute errors of a group's other rows over all choices of the known ones, in percent.

    Attributes:
        choices: how many. before, after: without and with the factors. null: of the null model with the MFU of the
            known rows, None: not known.
    """

    choices: int
    before: float
    after: float
    null: float | None

    def to_json(self) -> dict[str, object]:
        """``choices`` of one of ``site.groups``; percent."""
        return {
            "choices": self.choices,
            "mape_before": self.before,
            "mape_after": self.after,
            "null_mape": self.null,
        }


@dataclass(frozen=True)
class SiteScore:
    """A group before and after.

    Attributes:
        group: its name. factors: from its first rows. calibrated: their names. n: rows that are scored, the others.
        before, after: mean absolute error of those in percent, without and with the factors.
        over_choices: the same over all choices of as many known rows.
    """

    group: str
    factors: SiteFactors
    calibrated: tuple[str, ...]
    n: int
    before: float
    after: float
    over_choices: ChoiceScore

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
            "over_choices": self.over_choices.to_json(),
        }


@dataclass(frozen=True)
class SiteCalibration(Tabular):
    """All groups that have more rows than are calibrated on.

    Attributes:
        rows: of each group to calibrate on. groups: in the order of the file.
        before, after: over all scored rows of those groups, percent; None: there are none.
    """

    rows: int
    groups: tuple[SiteScore, ...]
    before: float | None
    after: float | None

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each group."""
        return [scalars(group.to_json()) for group in self.groups]

    def to_json(self) -> dict[str, object]:
        """As ``site`` of ``validate --json``."""
        return {
            "rows": self.rows,
            "groups": [group.to_json() for group in self.groups],
            "overall": {
                "n": sum(group.n for group in self.groups),
                "mape_before": self.before,
                "mape_after": self.after,
                "over_choices": None if not self.groups else self._over_choices().to_json(),
            },
        }

    def _over_choices(self) -> ChoiceScore:
        """A group counts as its rows."""
        scores = [(group.over_choices, group.n + self.rows) for group in self.groups]
        rows = sum(weight for _, weight in scores)
        known = [(score.null, weight) for score, weight in scores if score.null is not None]
        return ChoiceScore(
            sum(score.choices for score, _ in scores),
            sum(score.before * weight for score, weight in scores) / rows,
            sum(score.after * weight for score, weight in scores) / rows,
            sum(null * weight for null, weight in known) / sum(w for _, w in known) if known else None,
        )

    def __repr__(self) -> str:
        return fit_lines("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        yield f"site calibration on {self.rows} rows of each group, error of the others in %: on the first ones, and on"
        yield "average over all choices, beside the null model that has the MFU of the same rows"
        heads = ("group", "n", "before", "after", "compute", "communication", "choices", "before", "after", "null")
        rows = [
            (
                group.group,
                str(group.n),
                f"{group.before:.2f}",
                f"{group.after:.2f}",
                f"x {group.factors.compute:.3f}",
                f"x {group.factors.communication:.3f}",
                *_cells(group.over_choices),
            )
            for group in self.groups
        ]
        if self.before is not None and self.after is not None:
            n = str(sum(g.n for g in self.groups))
            rows.append(("all", n, f"{self.before:.2f}", f"{self.after:.2f}", "", "", *_cells(self._over_choices())))
        yield from fit_columns([heads, *rows], (False, *[True] * 9))


def _cells(score: ChoiceScore) -> tuple[str, str, str, str]:
    null = "" if score.null is None else f"{score.null:.2f}"
    return str(score.choices), f"{score.before:.2f}", f"{score.after:.2f}", null


@dataclass(frozen=True)
class _TimedRow:
    """A row that can be scored: its name, times, and the MFU at which its measured time follows."""

    id: str
    run: RunTimes
    mfu: float | None


def calibrate_sites(rows: Sequence[RowResult], count: int) -> SiteCalibration:
    """Calibrate each group on some of its scored rows with times, and score its others.

    Args:
        rows: results in the order of the file. count: rows of each group to calibrate on; groups that have no more are
            left out.
    Raises:
        ConfigError: a count below one.
    """
    check_integer(count, "--site", "a number of rows")
    members: dict[str, list[_TimedRow]] = {}
    for row in rows:
        run = run_times(row)
        if run is not None and row.is_scored:
            members.setdefault(row.group, []).append(_TimedRow(row.id, run, row.measured_mfu))
    groups: list[SiteScore] = []
    before: list[float] = []
    after: list[float] = []
    for name, timed in members.items():
        if len(timed) <= count:
            continue
        evidences = [evidence(item.run) for item in timed]
        factors = factors_of(evidences[:count])
        others = timed[count:]
        errors = [_error(item.run, item.run.predicted_s) for item in others]
        scaled = [_error(item.run, factors.time_s(item.run)) for item in others]
        calibrated = tuple(item.id for item in timed[:count])
        choices = _over_choices(timed, evidences, count)
        groups.append(SiteScore(name, factors, calibrated, len(others), fmean(errors), fmean(scaled), choices))
        before += errors
        after += scaled
    return SiteCalibration(count, tuple(groups), fmean(before) if before else None, fmean(after) if after else None)


def _error(run: RunTimes, predicted_s: float) -> float:
    return 100 * abs(predicted_s / run.measured_s - 1)


def _over_choices(rows: Sequence[_TimedRow], evidences: Sequence[F64], count: int) -> ChoiceScore:
    before, after, null = [], [], []
    choices = _choices(len(rows), count)
    for chosen in choices:
        others = [item for number, item in enumerate(rows) if number not in chosen]
        factors = factors_of([evidences[number] for number in chosen])
        before.append(fmean(_error(item.run, item.run.predicted_s) for item in others))
        after.append(fmean(_error(item.run, factors.time_s(item.run)) for item in others))
        mfus = [mfu for number in chosen if (mfu := rows[number].mfu) is not None]
        if len(mfus) == count:
            mean = math.exp(fmean(map(math.log, mfus)))
            null.append(fmean(100 * abs(item.mfu / mean - 1) for item in others if item.mfu is not None))
    return ChoiceScore(len(choices), fmean(before), fmean(after), fmean(null) if null else None)


def _choices(n: int, count: int) -> list[tuple[int, ...]]:
    if math.comb(n, count) <= MOST_CHOICES:
        return list(combinations(range(n), count))
    draw = random.Random(0)
    return [tuple(sorted(draw.sample(range(n), count))) for _ in range(MOST_CHOICES)]


def run_times(row: RowResult) -> RunTimes | None:
    """A row's measured time beside what its simulated iteration is made of; None: it has no such times."""
    time = row.compared.get(Quantity.TIME)
    if time is None or time.measured is None or time.predicted is None or row.communication_s is None:
        return None
    spread = EXPERT_ROW_SPREAD if row.has_experts else ROW_SPREAD
    return RunTimes(time.measured, time.predicted - row.communication_s, row.communication_s, spread=spread)
