"""``LogComparison``: a log beside a simulation, as the table that people read, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from semu.frames import Tabular, scalars
from semu.records import dataclass
from semu.units import fit_columns, fit_lines, format_bytes, format_time
from semu.validation.logs.samples import Samples

if TYPE_CHECKING:
    from semu.present.page import Page

SCHEMA_VERSION = 1
"""Version of the JSON document; raised when a key changes its meaning."""
_SHOWN_OUTLIERS = 8
_NONE = "-"


@dataclass(frozen=True)
class LoggedQuantity:
    """One thing that the log tells and semu predicts.

    Attributes:
        name: for people. unit: ``s`` or ``byte``.
        samples: where the log tells it per iteration. measured: where it tells one number.
        simulated: None: this version does not predict it.
        is_scored: whether a tolerance applies.
    """

    name: str
    unit: str
    samples: Samples | None = None
    measured: float | None = None
    simulated: float | None = None
    is_scored: bool = False

    @property
    def value(self) -> float:
        """The measured number: of samples the median."""
        if self.samples is not None:
            return self.samples.median
        assert self.measured is not None
        return self.measured

    @property
    def ratio(self) -> float | None:
        """Simulated / measured."""
        return None if self.simulated is None else self.simulated / self.value

    def show(self, number: float | None) -> str:
        """A number of this quantity for people."""
        if number is None:
            return _NONE
        return format_time(number) if self.unit == "s" else format_bytes(number)

    def to_json(self) -> dict[str, object]:
        """One of ``quantities``."""
        samples = self.samples
        return {
            "name": self.name,
            "unit": self.unit,
            "n": 1 if samples is None else len(samples.values),
            "measured": self.value,
            "measured_p5": None if samples is None else samples.p5,
            "measured_p95": None if samples is None else samples.p95,
            "simulated": self.simulated,
            "simulated_over_measured": self.ratio,
            "outliers": [] if samples is None else [{"iteration": n, "value": value} for n, value in samples.outliers],
            "warm_up": 0 if samples is None else samples.dropped,
        }


@dataclass(frozen=True)
class LogComparison(Tabular):
    """A log against a simulation.

    Attributes:
        title: of the simulation. format: who wrote the log. quantities: iteration time first.
        settings: what the log tells about the run. warnings: contradictions, and what was left out.
    """

    title: str
    format: str
    quantities: tuple[LoggedQuantity, ...]
    settings: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return fit_lines("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        yield self.title
        yield ""
        heads = ("simulated / measured", "n", "median", "p5", "p95", "simulated", "ratio")
        yield from fit_columns([heads, *(self._cells(one) for one in self.quantities)], (False, *[True] * 6))
        yield ""
        yield from self._notes()

    @staticmethod
    def _cells(one: LoggedQuantity) -> tuple[str, ...]:
        samples = one.samples
        spread = (_NONE, _NONE) if samples is None else (one.show(samples.p5), one.show(samples.p95))
        count = 1 if samples is None else len(samples.values)
        ratio = _NONE if one.ratio is None else f"{one.ratio:.3f}"
        return (one.name, str(count), one.show(one.value), *spread, one.show(one.simulated), ratio)

    def _notes(self) -> Iterator[str]:
        for one in self.quantities:
            if one.samples is None:
                continue
            dropped, rest = one.samples.dropped, len(one.samples.values)
            yield f"{self.format} log: {dropped} of {dropped + rest} iterations left out as warm-up"
            outliers = one.samples.outliers
            if outliers:
                named = ", ".join(f"{number} ({one.show(value)})" for number, value in outliers[:_SHOWN_OUTLIERS])
                more = f" and {len(outliers) - _SHOWN_OUTLIERS} more" if len(outliers) > _SHOWN_OUTLIERS else ""
                yield f"outliers, kept: iteration {named}{more}"
        if any(one.simulated is None for one in self.quantities):
            yield "reserved memory is not predicted by this version"
        for warning in self.warnings:
            yield f"note: {warning}"

    def beyond(self, tolerance_percent: float) -> list[str]:
        """Quantities whose error is beyond a tolerance, a sentence each."""
        return [
            f"{one.name}: simulated / measured {one.ratio:.3f}"
            for one in self.quantities
            if one.is_scored and one.ratio is not None and abs(one.ratio - 1) * 100 > tolerance_percent
        ]

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each quantity."""
        return [scalars(one.to_json()) for one in self.quantities]

    def to_json(self) -> dict[str, object]:
        """The document of ``validate --log --json``: seconds and bytes."""
        return {
            "schema_version": SCHEMA_VERSION,
            "title": self.title,
            "format": self.format,
            "settings": dict(self.settings),
            "quantities": [one.to_json() for one in self.quantities],
            "warnings": list(self.warnings),
        }

    def page(self) -> Page:
        """Both sides as bars and a table, as one HTML file."""
        from semu.validation.pages.own_run import own_run_page  # circle: a page is of a whole result

        return own_run_page(self)

    def to_csv(self) -> str:
        """A line per quantity, in seconds and bytes."""
        text = io.StringIO()
        columns = [name for name in self.quantities[0].to_json() if name not in ("outliers", "warm_up")]
        writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(one.to_json() for one in self.quantities)
        return text.getvalue()
