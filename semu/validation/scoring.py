"""How far predictions are from measurements: ``Scores``, and the null model that semu has to beat.

The null model knows only the model's FLOP: t = FLOP / (GPUs x peak x u), with one MFU u per device and precision. Of
all u it is the one with the least sum of |log t - log(measured)| over the scored rows. With u_i the MFU at which row
i's measured time follows, that sum is that of |log u_i - log u|, so log u is the median of log u_i; between the two
middle ones of an even number, where every u is equally good, their mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from semu.records import dataclass
from semu.validation.row_result import Quantity, RowResult, Status

LEAST_ROWS = 4
"""Groups of fewer rows have no mean worth holding against a tolerance."""


@dataclass(frozen=True)
class NullMfu:
    """The null model of one device and precision.

    Attributes:
        device, precision: of its rows. n: how many. mfu: fitted.
    """

    device: str
    precision: str
    n: int
    mfu: float


@dataclass(frozen=True)
class Errors:
    """Relative errors of some rows, in percent.

    Attributes:
        n: how many. mape: mean of the absolute errors. median: of the absolute errors. bias: median of the signed
            errors; positive: predicted too much. worst, worst_id: the signed error that is largest, and its row.
        null_mape, null_median: those of the null model for the same rows (times only).
        inside: share of the rows whose time lies in the 90 % interval (times only).
    """

    n: int
    mape: float
    median: float
    bias: float
    worst: float
    worst_id: str
    null_mape: float | None = None
    null_median: float | None = None
    inside: float | None = None

    @classmethod
    def of(cls, errors: Mapping[str, float], null: Sequence[float] = (), inside: Sequence[bool] = ()) -> Errors:
        """Summarise errors.

        Args:
            errors: row -> predicted / measured - 1, at least one. null: the null model's errors of the same rows.
            inside: whether each row lies in its interval.
        """
        percent = {name: 100 * error for name, error in errors.items()}
        sizes = [abs(error) for error in percent.values()]
        worst_id = max(percent, key=lambda name: abs(percent[name]))
        null_sizes = [100 * abs(error) for error in null]
        return cls(
            n=len(sizes),
            mape=fmean(sizes),
            median=median(sizes),
            bias=median(percent.values()),
            worst=percent[worst_id],
            worst_id=worst_id,
            null_mape=fmean(null_sizes) if null_sizes else None,
            null_median=median(null_sizes) if null_sizes else None,
            inside=100 * sum(inside) / len(inside) if inside else None,
        )


@dataclass(frozen=True)
class GroupScore:
    """A group of rows.

    Attributes:
        name: of the group. counts: how many rows have each status. scores: quantity -> errors; only with scored rows.
    """

    name: str
    counts: Mapping[Status, int]
    scores: Mapping[Quantity, Errors]

    @property
    def rows(self) -> int:
        """All rows of the group, whatever became of them."""
        return sum(self.counts.values())

    def to_json(self) -> dict[str, object]:
        """One of ``groups`` (DESIGN §6)."""
        scores = {quantity.value: vars(errors).copy() for quantity, errors in self.scores.items()}
        return {
            "group": self.name,
            "rows": self.rows,
            **{status.value: count for status, count in self.counts.items()},
            **{quantity.value: scores.get(quantity.value) for quantity in Quantity},
        }


@dataclass(frozen=True)
class Scores:
    """Rows and their scores.

    Attributes:
        rows: in the order of the file. groups: in order of first appearance. overall: all of them together.
        null_model: the MFU of each device and precision that explains the scored times best.
    """

    rows: tuple[RowResult, ...]
    groups: tuple[GroupScore, ...]
    overall: GroupScore
    null_model: tuple[NullMfu, ...]

    def count(self, status: Status) -> int:
        """How many rows have a status."""
        return sum(row.status is status for row in self.rows)


def fit_null_model(rows: Sequence[RowResult]) -> dict[tuple[str, str], NullMfu]:
    """The null model of every device and precision with scored times (formula: top of this file)."""
    logs: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if _counts(row, Quantity.TIME) and row.measured_mfu is not None:
            logs.setdefault((str(row.device), str(row.precision)), []).append(math.log(row.measured_mfu))
    return {key: NullMfu(*key, n=len(own), mfu=math.exp(median(own))) for key, own in sorted(logs.items())}


def _counts(row: RowResult, quantity: Quantity) -> bool:
    return row.is_scored and row.error(quantity) is not None


def score_group(name: str, rows: Sequence[RowResult], null: Mapping[tuple[str, str], NullMfu]) -> GroupScore:
    """Count and summarise the rows of a group; null: what ``fit_null_model`` gives."""
    scores: dict[Quantity, Errors] = {}
    timed = [row for row in rows if _counts(row, Quantity.TIME)]
    for quantity in Quantity:
        errors = {row.id: error for row in rows if row.is_scored and (error := row.error(quantity)) is not None}
        if errors and quantity is Quantity.TIME:
            inside = [row.is_inside for row in timed if row.is_inside is not None]
            scores[quantity] = Errors.of(errors, _null_errors(timed, null), inside)
        elif errors:
            scores[quantity] = Errors.of(errors)
    counts = {status: sum(row.status is status for row in rows) for status in Status}
    return GroupScore(name, counts, scores)


def _null_errors(rows: Sequence[RowResult], null: Mapping[tuple[str, str], NullMfu]) -> list[float]:
    """Predicted / measured - 1 of the null model: u_i / u - 1."""
    return [
        row.measured_mfu / null[str(row.device), str(row.precision)].mfu - 1
        for row in rows
        if row.measured_mfu is not None
    ]
