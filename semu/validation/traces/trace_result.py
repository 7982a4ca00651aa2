"""``TraceComparison``: measured and simulated kernels family by family, for people, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from semu.fitting.kernel_names import FAMILY_OF_KIND, Family
from semu.frames import Tabular, scalars
from semu.records import dataclass
from semu.units import fit_columns, fit_lines, format_time
from semu.validation.traces.gpu_trace import NamedKernels
from semu.validation.traces.gpu_work import BusyTimes, FamilyTime

if TYPE_CHECKING:
    from semu.present.page import Page

SCHEMA_VERSION = 1
"""Version of the JSON document; raised when a key changes its meaning."""
LEAST_SHARE = 0.05
"""A tolerance applies to families with at least this share of the measured busy time, and to the iteration."""
_SHOWN_UNMATCHED = 12
_NONE = "-"


@dataclass(frozen=True)
class TimePair:
    """A measured and a simulated time [s]; None: there is none."""

    measured: float | None
    simulated: float | None

    @property
    def ratio(self) -> float | None:
        """Simulated / measured."""
        if self.measured is None or self.simulated is None or self.measured <= 0:
            return None
        return self.simulated / self.measured

    def to_json(self) -> dict[str, object]:
        """Both times and their ratio, in a row of ``kinds`` or ``totals``."""
        return {
            "measured_s": self.measured,
            "simulated_s": self.simulated,
            "simulated_over_measured": self.ratio,
        }


@dataclass(frozen=True)
class FamilyRow:
    """One line of the table: busy time, count and exposed time of both sides."""

    family: Family
    busy: TimePair
    measured_count: int
    simulated_count: int
    exposed: TimePair

    def to_json(self) -> dict[str, object]:
        """One of ``kinds``."""
        return {
            "kind": self.family.value,
            "operator_kinds": [kind.value for kind, family in FAMILY_OF_KIND.items() if family is self.family],
            **self.busy.to_json(),
            "measured_count": self.measured_count,
            "simulated_count": self.simulated_count,
            "measured_exposed_s": self.exposed.measured,
            "simulated_exposed_s": self.exposed.simulated,
        }


@dataclass(frozen=True)
class TraceComparison(Tabular):
    """A trace against a simulation.

    Attributes:
        title: of the simulation. rank, num_ranks: the pipeline rank (None: the mean of all), of how many.
        iteration: what was measured.
        measured, simulated: both sides. unmatched: kernels that match no pattern. warnings: what to know.
    """

    title: str
    rank: int | None
    num_ranks: int
    iteration: str
    measured: BusyTimes
    simulated: BusyTimes
    unmatched: tuple[NamedKernels, ...]
    warnings: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """What is compared: the pipeline rank, and what was measured of it."""
        ranks = f"mean of all {self.num_ranks} pipeline ranks"
        where = ranks if self.rank is None else f"pipeline rank {self.rank} of {self.num_ranks}"
        return f"{where}; {self.iteration}"

    @property
    def rows(self) -> tuple[FamilyRow, ...]:
        """Families that either side has: computation, then communication."""
        found = [*self.measured.families, *self.simulated.families]
        return tuple(self._row(family) for family in Family if family in found)

    def _row(self, family: Family) -> FamilyRow:
        none = FamilyTime(exposed_s=0.0 if family.is_communication else None)
        ours, theirs = self.simulated.families.get(family, none), self.measured.families.get(family, none)
        return FamilyRow(
            family,
            TimePair(theirs.busy_s, ours.busy_s),
            theirs.count,
            ours.count,
            TimePair(theirs.exposed_s, ours.exposed_s),
        )

    @property
    def totals(self) -> dict[str, TimePair]:
        """The iteration, and what it is made of: the last three and ``compute`` sum to it but for rounding."""
        names = {
            "iteration": "iteration_s",
            "compute": "compute_s",
            "communication, exposed": "exposed_s",
            "communication, overlapped": "overlapped_s",
            "idle": "idle_s",
        }
        sides = self.measured, self.simulated
        return {name: TimePair(*(getattr(side, field) for side in sides)) for name, field in names.items()}

    def __repr__(self) -> str:
        return fit_lines("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        yield self.title
        yield self.subject
        yield ""
        heads = (
            "busy time by kind",
            "measured",
            "simulated",
            "sim/meas",
            "calls",
            "sim calls",
            "exposed",
            "sim exposed",
        )
        yield from fit_columns([heads, *(self._cells(row) for row in self.rows)], (False, *[True] * 7))
        yield ""
        totals = [
            (name, _time(both.measured), _time(both.simulated), _ratio(both)) for name, both in self.totals.items()
        ]
        yield from fit_columns([("iteration", "measured", "simulated", "sim/meas"), *totals], (False, True, True, True))
        yield ""
        yield from self._notes()

    @staticmethod
    def _cells(row: FamilyRow) -> tuple[str, ...]:
        return (
            row.family.value,
            _time(row.busy.measured if row.measured_count else None),
            _time(row.busy.simulated if row.simulated_count else None),
            _ratio(row.busy),
            str(row.measured_count),
            str(row.simulated_count),
            _exposed(row.family, row.exposed.measured, row.measured_count),
            _exposed(row.family, row.exposed.simulated, row.simulated_count),
        )

    def _notes(self) -> Iterator[str]:
        if self.unmatched:
            total = sum(family.busy_s for family in self.measured.families.values())
            share = sum(row.busy_s for row in self.unmatched) / total if total else 0.0
            yield f"kernels that no pattern knows, {share:.1%} of the measured busy time"
            shown = self.unmatched[:_SHOWN_UNMATCHED]
            rows = [(_time(row.busy_s), str(row.count), row.name) for row in shown]
            yield from fit_columns([("time", "calls", "name"), *rows], (True, True, False))
            if len(self.unmatched) > len(shown):
                rest = sum(row.busy_s for row in self.unmatched[len(shown) :])
                yield f"and {len(self.unmatched) - len(shown)} more names, {format_time(rest)}"
        notes = [f"note: {warning}" for warning in self.warnings]
        if any(family.is_communication for family in self.measured.families):
            notes.append(
                "measured communication includes waiting for the other ranks inside its kernels, simulated does not; "
                "p2p is counted at the sender in the simulation, at both ends by NCCL"
            )
        yield from notes

    def beyond(self, tolerance_percent: float) -> list[str]:
        """The iteration and large families whose error is beyond a tolerance, a sentence each."""
        total = sum(one.busy_s for one in self.measured.families.values())
        large = {
            f"{row.family.value}, busy time": row.busy
            for row in self.rows
            if row.family is not Family.UNMATCHED and (row.busy.measured or 0.0) >= LEAST_SHARE * total
        }
        return [
            f"{name}: simulated / measured {both.ratio:.3f}"
            for name, both in {"iteration": self.totals["iteration"], **large}.items()
            if both.ratio is not None and abs(both.ratio - 1) * 100 > tolerance_percent
        ]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each kind of operators."""
        return [scalars(row.to_json()) for row in self.rows]

    def to_json(self) -> dict[str, object]:
        """The document of ``validate --trace --json``: seconds per iteration."""
        return {
            "schema_version": SCHEMA_VERSION,
            "title": self.title,
            "pipeline_rank": self.rank,
            "iteration": self.iteration,
            "kinds": [row.to_json() for row in self.rows],
            "totals": [{"name": name, **both.to_json()} for name, both in self.totals.items()],
            "unmatched": [{"name": row.name, "count": row.count, "measured_s": row.busy_s} for row in self.unmatched],
            "warnings": list(self.warnings),
        }

    def page(self) -> Page:
        """Both sides as bars and a table, as one HTML file."""
        from semu.validation.pages.own_run import own_run_page  # circle: a page is of a whole result

        return own_run_page(self)

    def to_csv(self) -> str:
        """A line per kind, then a line per total, in seconds."""
        text = io.StringIO()
        columns = [name for name in self._row(Family.MATMUL).to_json() if name != "operator_kinds"]
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.to_json() for row in self.rows)
        writer.writerows({"kind": f"total: {name}", **both.to_json()} for name, both in self.totals.items())
        return text.getvalue()


def _time(time_s: float | None) -> str:
    return _NONE if time_s is None else format_time(time_s)


def _exposed(family: Family, time_s: float | None, count: int) -> str:
    """Empty for computation."""
    return _time(time_s if count else None) if family.is_communication else ""


def _ratio(both: TimePair) -> str:
    return _NONE if both.ratio is None else f"{both.ratio:.3f}"
