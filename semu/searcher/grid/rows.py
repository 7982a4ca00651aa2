"""``GridRows``: the configurations of a grid, the best first, and what became of the others; as plain data."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from semu.frames import Tabular
from semu.job import TrainingJob
from semu.present.report import FittingChange
from semu.records import dataclass
from semu.searcher.grid.bounds import Floors
from semu.searcher.grid.legal import Cut
from semu.searcher.grid.space import SPLIT, Axis, Point, RankBy, Value
from semu.simulation.results.estimated import Metrics


@dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes:
        point: its values on all axes. figures: as ``semu.evaluate`` says. tokens_per_s_per_gpu: of the whole batch.
        usd_per_million_tokens: at the price that was given; None: none was.
        usable_memory_bytes: what of a device the allocator may hold.
        reserved_memory_bytes: what it holds of the fullest device, or of the first, by falling allocation, that is too
            small; None: nothing had to be replayed, see ``judged_by``.
        change: values on other axes with which it would fit, the fewest; None: it fits, or no changes were tried.
    """

    point: Point
    figures: Metrics
    tokens_per_s_per_gpu: float
    usd_per_million_tokens: float | None
    usable_memory_bytes: int
    reserved_memory_bytes: int | None = None
    change: Mapping[str, Value] | None = None

    @property
    def headroom_bytes(self) -> int:
        """What the fullest rank leaves of what its allocator may hold, negative where it does not fit."""
        held = self.reserved_memory_bytes or self.figures.peak_memory_bytes
        return self.usable_memory_bytes - held

    @property
    def fits(self) -> bool:
        """Whether every rank's device holds what the allocator reserves, context and communicators, and the margin."""
        return self.headroom_bytes >= 0

    @property
    def is_counted(self) -> bool:
        """Whether ``headroom_bytes`` is what the allocator leaves, as in a report; else it leaves that at most."""
        return self.judged_by == "reserved" and self.fits

    @property
    def judged_by(self) -> str:
        """How it is known whether it fits: ``"reserved"``, the allocator was replayed; ``"bound"``, there is room for
        more than any allocator keeps (``DeviceRoom.is_tight``); ``"allocated"``, the tensors alone are too much."""
        if self.reserved_memory_bytes is not None:
            return "reserved"
        return "bound" if self.fits else "allocated"

    def to_dict(self, split: Sequence[str] = SPLIT) -> dict[str, Any]:
        """One flat record. ``split``: axes of ``SPLIT`` that it has."""
        left_out = {*SPLIT} - {*split}
        return {
            **{name: value for name, value in self.point._asdict().items() if name not in left_out},
            **self.figures._asdict(),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "reserved_memory_bytes": self.reserved_memory_bytes,
            "headroom_bytes": self.headroom_bytes,
            "fits": self.fits,
            "judged_by": self.judged_by,
            "change": None if self.change is None else " ".join(f"{k}={v}" for k, v in self.change.items()),
        }


@dataclass(frozen=True, eq=False)
class GridRows(Tabular):
    """All that a grid says; ``len``, iteration and indices go over ``rows``.

    Attributes:
        job: the base. rank_by: what decides the order. top: how many rows are surely the best ones.
        varied: axes that vary. rows: what fits, the best first, then what does not, in the same order. They are all
            that were not cut by memory where ``is_exhaustive``; else all whose bound is not worse than row ``top``.
        total: combinations. cuts: what each rule cut. num_legal: legal configurations.
        cut_by_memory, cut_by_bound: of these, how many need no evaluation, because their static memory and first
            activations are too much, or because they are slower than the best ``top`` at best.
        refused: configurations that turned out not to run, and why.
        floors: bounds of all legal configurations.
        capacity_bytes: memory of a device. ended_by: "end" or "interrupt".
        nearest_fit: where nothing fits, changes of other settings after which the smallest configuration does, the
            fastest first; empty: no change helps. None: something fits, or no changes were tried.
        evaluated, reused, time_s: simulated in this call, taken from the results file, and how long it took [s]; not
            the same every time, and so in no file.
    """

    job: TrainingJob
    rank_by: RankBy
    top: int
    varied: tuple[Axis, ...]
    rows: tuple[Row, ...]
    total: int
    cuts: tuple[Cut, ...]
    num_legal: int
    cut_by_memory: int
    cut_by_bound: int
    refused: Mapping[Point, str]
    floors: Floors
    capacity_bytes: int
    is_exhaustive: bool
    ended_by: str = "end"
    nearest_fit: tuple[FittingChange, ...] | None = None
    evaluated: int = field(default=0, compare=False)
    reused: int = field(default=0, compare=False)
    time_s: float = field(default=0.0, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, number: int) -> Row:
        return self.rows[number]

    @property
    def best(self) -> Row | None:
        """The first row that fits; None: none does."""
        return self.rows[0] if self.rows and self.rows[0].fits else None

    @property
    def smallest(self) -> Row:
        """The row that needs the least memory."""
        return smallest_of(self.rows)

    # -- tables --------------------------------------------------------------------------------------------------
    def to_dicts(self) -> list[dict[str, Any]]:
        """A flat record for each row, in order."""
        split = [axis for axis in SPLIT if any(getattr(row.point, axis) for row in self.rows)]
        return [row.to_dict(split) for row in self.rows]

    def to_csv(self) -> str:
        """The same as CSV with a head."""
        buffer = io.StringIO()
        records = self.to_dicts()
        names = list(records[0]) if records else [*(own for own in Point._fields if own not in SPLIT), *Metrics._fields]
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return buffer.getvalue()

    def to_json(self) -> dict[str, object]:
        """Plain data; the same bytes for the same grid, whoever evaluated it."""
        return {
            "model": self.job.model.name,
            "cluster": self.job.cluster.label(),
            "rank_by": self.rank_by.value,
            "top": self.top,
            "axes": [axis.value for axis in self.varied],
            "combinations": self.total,
            "cuts": [cut.to_json() for cut in self.cuts],
            "legal": self.num_legal,
            "cut_by_memory": self.cut_by_memory,
            "cut_by_bound": self.cut_by_bound,
            "refused": {" ".join(map(str, point)).rstrip(): why for point, why in self.refused.items()},
            "is_exhaustive": self.is_exhaustive,
            "ended_by": self.ended_by,
            "capacity_bytes": self.capacity_bytes,
            **({"nearest_fit": [c.to_json() for c in self.nearest_fit]} if self.nearest_fit is not None else {}),
            "rows": self.to_dicts(),
        }


def smallest_of(rows: Sequence[Row]) -> Row:
    """The row that needs the least memory."""
    return min(rows, key=lambda row: (row.figures.peak_memory_bytes, row.point))
