"""``GridResult``: the configurations of a grid as a small table, the best first."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from semu.errors import ConfigError
from semu.files import make_folder, write_file, write_text
from semu.job import TrainingJob
from semu.present.report import FittingChange, Report
from semu.searcher.grid.bounds import Floor
from semu.searcher.grid.legal import SENTENCES, Cut
from semu.searcher.grid.space import Axis, Point, RankBy, Value, job_at
from semu.simulation.results.figures import Figures
from semu.units import GIB

SHOWN_MISFITS = 3
"""Faster configurations that do not fit which the table shows."""


@dataclass(frozen=True)
class Row:
    """One configuration.

    Attributes:
        point: its values on all axes. figures: as ``semu.evaluate`` says. tokens_per_s_per_gpu: of the whole batch.
        usd_per_million_tokens: at the price that was given; None: none was.
        headroom_bytes: what the fullest rank leaves of its memory, negative where it does not fit.
        change: values on other axes with which it would fit, the fewest; None: it fits, or nobody looked.
    """

    point: Point
    figures: Figures
    tokens_per_s_per_gpu: float
    usd_per_million_tokens: float | None
    headroom_bytes: int
    change: Mapping[str, Value] | None = None

    @property
    def fits(self) -> bool:
        """Whether every rank's peak is within the device's memory."""
        return self.headroom_bytes >= 0

    def to_dict(self) -> dict[str, Any]:
        """One flat record."""
        return {
            **self.point._asdict(),
            **self.figures._asdict(),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "headroom_bytes": self.headroom_bytes,
            "fits": self.fits,
            "change": None if self.change is None else " ".join(f"{k}={v}" for k, v in self.change.items()),
        }


@dataclass(frozen=True, eq=False)
class GridResult:
    """Result of ``semu.grid``; ``len``, iteration and indices go over ``rows``.

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
            fastest first; empty: none was found. None: something fits, or nobody looked.
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
    floors: Mapping[Point, Floor]
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

    @cached_property
    def best_job(self) -> TrainingJob:
        """The job in the best configuration; where nothing fits, in the smallest."""
        return job_at(self.job, (self.best or self.smallest).point)

    @cached_property
    def report(self) -> Report:
        """Full simulation of ``best_job``, with ``nearest_fit``."""
        from semu.simulation import simulate

        return replace(simulate(self.best_job), nearest_fit=self.nearest_fit)

    # -- tables --------------------------------------------------------------------------------------------------
    def to_dicts(self) -> list[dict[str, Any]]:
        """A flat record for each row, in order."""
        return [row.to_dict() for row in self.rows]

    def to_csv(self) -> str:
        """The same as CSV with a head."""
        buffer = io.StringIO()
        records = self.to_dicts()
        names = list(records[0]) if records else [*Point._fields, *Figures._fields]
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return buffer.getvalue()

    def to_pandas(self) -> Any:
        """The same as a ``pandas.DataFrame``.

        Raises:
            ConfigError: pandas is not installed.
        """
        return _library("pandas").DataFrame(self.to_dicts())

    def to_polars(self) -> Any:
        """The same as a ``polars.DataFrame``.

        Raises:
            ConfigError: polars is not installed.
        """
        return _library("polars").DataFrame(self.to_dicts(), infer_schema_length=None)

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
            "refused": {" ".join(map(str, point)): why for point, why in self.refused.items()},
            "is_exhaustive": self.is_exhaustive,
            "ended_by": self.ended_by,
            "capacity_bytes": self.capacity_bytes,
            **({"nearest_fit": [c.to_json() for c in self.nearest_fit]} if self.nearest_fit is not None else {}),
            "rows": self.to_dicts(),
        }

    def __repr__(self) -> str:
        fitting = [row for row in self.rows if row.fits]
        misfits = [row for row in self.rows if not row.fits]
        shown = [*fitting[: self.top], *misfits[: SHOWN_MISFITS if fitting else self.top]]
        lines = _table([_head(self), *(_cells(self, number, row) for number, row in enumerate(shown, 1))])
        return "\n".join([*lines, *self._sentences()])

    def _sentences(self) -> list[str]:
        """How many configurations there were, and what became of them."""
        words = [f"{self.num_legal:,} legal configurations of {self.total:,} combinations"]
        words += [f"  {cut.count:,} cut: {SENTENCES[cut.rule]}" + _example(cut) for cut in self.cuts]
        if self.refused:
            point, why = next(iter(self.refused.items()))
            words.append(f"  {len(self.refused):,} refused when they were to run, such as {self._label(point)}: {why}")
        if self.is_exhaustive:
            words.append(self._too_large())
            words.append(f"  {len(self.rows):,} simulated, all others")
            return [*words, *self._nearest()]
        words.append(self._too_large())
        words.append(f"  {self.cut_by_bound:,} cannot be among the best {self.top}: their bound is worse")
        words.append(f"  {len(self.rows):,} simulated")
        return [*words, *self._nearest()]

    def _nearest(self) -> Iterator[str]:
        """What would make the smallest configuration fit, where none does."""
        if self.nearest_fit is None:
            return
        label = self._label(self.smallest.point)
        if not self.nearest_fit:
            yield f"nothing fits, and no change that was tried makes the smallest, {label}, fit"
            return
        change = self.nearest_fit[0]
        peak, seconds = change.peak_memory_bytes / GIB, change.iteration_time_s
        yield f"nothing fits; the smallest, {label}, would with {change.label()}: {peak:.2f} GiB, {seconds:.4f} s"

    def _too_large(self) -> str:
        return f"  {self.cut_by_memory:,} cannot fit: parameters, optimizer state and first activations are too much"

    def _label(self, point: Point) -> str:
        return point.label(self.varied)

    # -- files ---------------------------------------------------------------------------------------------------
    def save(self, directory: str | Path, axes: tuple[Axis, Axis] | None = None) -> list[Path]:
        """Write ``grid.csv``, ``grid.json``, ``pareto.png`` (time against memory), ``heatmap.png`` over two axes, and
        in ``best/`` the full report of the best configuration.

        Args:
            directory: made where it is not there. axes: of the heat map; None: tp and pp, or the first two that vary.
        Raises:
            ConfigError: the folder cannot be written.
        """
        import json

        from semu.present.plots.grid import draw_heat_map, draw_pareto
        from semu.searcher.grid.pictures import heat_map, pareto

        folder = make_folder(Path(directory))
        document = json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"
        files = [write_text(folder / "grid.csv", self.to_csv()), write_text(folder / "grid.json", document)]
        cloud, cells = pareto(self), heat_map(self, axes)
        files.append(write_file(folder / "pareto.png", lambda path: draw_pareto(path, cloud)))
        if cells is not None:
            files.append(write_file(folder / "heatmap.png", lambda path: draw_heat_map(path, cells)))
        self.report.save(folder / "best")
        return [*files, *sorted((folder / "best").iterdir())]


def smallest_of(rows: Sequence[Row]) -> Row:
    """The row that needs the least memory."""
    return min(rows, key=lambda row: (row.figures.peak_memory_bytes, row.point))


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name} is not installed",
            where=f"to_{name}",
            expected=f"pip install {name}, or to_dicts() and to_csv(), which need nothing",
        ) from error


def _example(cut: Cut) -> str:
    return f" (such as {cut.example})" if cut.example else ""


def _head(result: GridResult) -> tuple[str, ...]:
    cost = ("USD/Mtoken",) if any(row.usd_per_million_tokens is not None for row in result.rows) else ()
    axes = tuple(axis.value.replace("_", " ") for axis in result.varied)
    return ("", *axes, "iteration", "tokens/s/GPU", "MFU", "bubble", "peak memory", "left", *cost, "")


def _cells(result: GridResult, number: int, row: Row) -> tuple[str, ...]:
    found = row.figures
    cost = () if row.usd_per_million_tokens is None else (f"{row.usd_per_million_tokens:.4f}",)
    note = ""
    if not row.fits:
        said = " ".join(f"{k}={v}" for k, v in (row.change or {}).items())
        note = "does not fit" + (f"; would with {said}" if said else "")
    return (
        str(number) if row.fits else "-",
        *(str(getattr(row.point, axis.value)) for axis in result.varied),
        f"{found.iteration_time_s:.4f} s",
        f"{row.tokens_per_s_per_gpu:,.0f}",
        f"{100 * found.mfu:.1f} %",
        f"{100 * found.bubble_ratio:.1f} %",
        f"{found.peak_memory_bytes / GIB:.2f} GiB",
        f"{row.headroom_bytes / GIB:.2f} GiB",
        *cost,
        note,
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = ["  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)) for row in rows]
    return [f"{cells}  {row[-1]}".rstrip() for cells, row in zip(left, rows, strict=True)]
