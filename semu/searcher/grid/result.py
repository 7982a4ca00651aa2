"""``GridResult``: the configurations of a grid as a small table, the best first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from semu.files import make_folder, write_file, write_text
from semu.job import TrainingJob
from semu.present.report import Report
from semu.records import dataclass
from semu.searcher.grid.legal import Cut
from semu.searcher.grid.pictures import heat_map, pareto
from semu.searcher.grid.rows import GridRows, Row
from semu.searcher.grid.space import Axis, RankBy, job_at
from semu.units import GIB, fit_columns, fit_lines, fit_options

if TYPE_CHECKING:
    from semu.present.page import Page

NOISE = 0.005
"""Configurations whose times differ by less, relative to the faster one, are one line of the table."""
_SHORT: Mapping[Axis, str] = {Axis.MICRO_BATCH: "mb"}
"""Heads of the table that are not the axis's name."""
SHOWN_MISFITS = 3
"""Faster configurations that do not fit which the table shows."""
AT_MOST = "<: at most, from allocated memory or the first rank that is too full"


@dataclass(frozen=True, eq=False, repr=False)
class GridResult(GridRows):
    """Result of ``semu.grid``; its attributes are those of ``GridRows``."""

    @cached_property
    def best_job(self) -> TrainingJob:
        """The job in the best configuration; where nothing fits, in the smallest."""
        return job_at(self.job, (self.best or self.smallest).point)

    @cached_property
    def report(self) -> Report:
        """Full simulation of ``best_job``, with ``nearest_fit``."""
        from semu.simulation import simulate

        return replace(simulate(self.best_job), nearest_fit=self.nearest_fit)

    def __repr__(self) -> str:
        fitting = [row for row in self.rows if row.fits]
        misfits = [row for row in self.rows if not row.fits]
        shown = [*self._alike(fitting[: self.top])]
        shown += [(row, 0) for row in misfits[: SHOWN_MISFITS if fitting else self.top]]
        places = accumulate((alike + 1 for _, alike in shown), initial=1)
        rows = [_head(self), *(_cells(self, place, row) for place, (row, _) in zip(places, shown, strict=False))]
        lines = fit_columns(rows, [True] * len(rows[0]))
        text = [lines[0]]
        for line, (row, alike) in zip(lines[1:], shown, strict=False):
            text += [line, *(f"   {note}" for note in _notes(row, alike))]
        notes = lines[1 + len(shown) :] + [AT_MOST] * any(not row.is_counted for row, _ in shown)
        return fit_lines("\n".join([*text, *notes, *self.sentences()]))

    def _alike(self, rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
        """Rows whose times are no nearer than ``NOISE``, each with how many behind it are."""
        first, count = None, 0
        for row in rows:
            is_alike = first is not None and self.rank_by is not RankBy.HEADROOM and _seconds(row) <= _limit_s(first)
            if first is not None and not is_alike:
                yield first, count
            first, count = (first, count + 1) if is_alike else (row, 0)
        if first is not None:
            yield first, count

    def sentences(self) -> list[str]:
        """How many configurations there were, and what became of them."""
        words = [f"{self.num_legal:,} legal configurations of {self.total:,} combinations"]
        words += [f"  {cut.count:,} cut: {cut.says}" + _example(cut) for cut in self.cuts]
        if self.refused:
            point, why = next(iter(self.refused.items()))
            words.append(
                f"  {len(self.refused):,} refused when they were to run, such as {point.label(self.varied)}: {why}"
            )
        words.append(
            f"  {self.cut_by_memory:,} cannot fit: parameters, optimizer state and first activations are too much"
        )
        if not self.is_exhaustive:
            words.append(f"  {self.cut_by_bound:,} cannot be among the best {self.top}: their bound is worse")
        words.append(f"  {len(self.rows):,} simulated" + (", all others" if self.is_exhaustive else ""))
        return [*words, *self._nearest()]

    def _nearest(self) -> Iterator[str]:
        """What would make the smallest configuration fit, where none does."""
        if self.nearest_fit is None:
            return
        label = self.smallest.point.label(self.varied)
        if not self.nearest_fit:
            yield f"nothing fits, and no change that was tried makes the smallest, {label}, fit"
            return
        change = self.nearest_fit[0]
        peak, seconds = change.peak_memory_bytes / GIB, change.iteration_time_s
        yield f"nothing fits; the smallest, {label}, would ({peak:.2f} GiB, {seconds:.4f} s) with"
        yield from fit_options(change.options(), first="  ")

    # -- files ---------------------------------------------------------------------------------------------------
    def save(self, directory: str | Path, axes: tuple[Axis, Axis] | None = None) -> list[Path]:
        """Write ``grid.csv``, ``grid.json``, ``pareto.png`` (time against memory), ``heatmap.png`` over two axes,
        ``report.html``, and in ``best/`` the full report of the best configuration.

        Args:
            directory: made where it is not there. axes: of the heat map; None: tp and pp, or the first two that vary.
        Raises:
            ConfigError: the folder cannot be written.
        """
        from semu.present.plots.grid import draw_heat_map, draw_pareto

        folder = make_folder(Path(directory))
        document = json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"
        files = [write_text(folder / "grid.csv", self.to_csv()), write_text(folder / "grid.json", document)]
        cloud, cells = pareto(self), heat_map(self, axes)
        files.append(write_file(folder / "pareto.png", lambda path: draw_pareto(path, cloud)))
        if cells is not None:
            files.append(write_file(folder / "heatmap.png", lambda path: draw_heat_map(path, cells)))
        files.append(self.page().save(folder / "report.html"))
        self.report.save(folder / "best")
        return [*files, *sorted((folder / "best").iterdir())]

    def page(self) -> Page:
        """The page that ``save`` writes as ``report.html``."""
        from semu.searcher.pages import grid_page

        return grid_page(self, self.sentences(), lambda: self.report)


def _notes(row: Row, alike: int) -> Iterator[str]:
    """What stands below a line of the table."""
    if alike:
        yield f"and {alike} like it"
    if not row.fits:
        said = " ".join(f"{k}={v}" for k, v in (row.change or {}).items())
        yield "does not fit" + (f"; would with {said}" if said else "")


def _seconds(row: Row) -> float:
    return row.figures.iteration_time_s


def _limit_s(row: Row) -> float:
    return (1 + NOISE) * _seconds(row)


def _example(cut: Cut) -> str:
    return f" (such as {cut.example})" if cut.example else ""


def _head(result: GridResult) -> tuple[str, ...]:
    cost = ("USD/Mtoken",) if any(row.usd_per_million_tokens is not None for row in result.rows) else ()
    axes = tuple(_SHORT.get(axis, axis.value) for axis in result.varied)
    return ("", *axes, "time s", "MFU %", "peak GiB", "left", *cost, "bubble %", "tok/s/GPU")


def _cells(result: GridResult, number: int, row: Row) -> tuple[str, ...]:
    found = row.figures
    cost = () if row.usd_per_million_tokens is None else (f"{row.usd_per_million_tokens:.4f}",)
    return (
        str(number) if row.fits else "-",
        *(str(getattr(row.point, axis.value)) for axis in result.varied),
        f"{found.iteration_time_s:.4f}",
        f"{100 * found.mfu:.1f}",
        f"{found.peak_memory_bytes / GIB:.2f}",
        f"{'' if row.is_counted else '<'}{row.headroom_bytes / GIB:.2f}",
        *cost,
        f"{100 * found.bubble_ratio:.1f}",
        f"{row.tokens_per_s_per_gpu:,.0f}",
    )
