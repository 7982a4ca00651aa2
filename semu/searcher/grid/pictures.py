"""What the pictures of a grid show: ``pareto`` and ``heat_map`` make them of a ``GridResult``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from semu.errors import ConfigError
from semu.present.plots.grid import CellTable, ConfigurationCloud
from semu.searcher.grid.rows import GridRows, Row
from semu.searcher.grid.space import Axis, Point, RankBy

_FIRST = (Axis.TP, Axis.PP)
"""Axes of a heat map by default."""


def _short(axis: Axis) -> str:
    return {"micro_batch": "micro batch ", "recompute": "recompute "}.get(axis.value, axis.value)


def _name(point: Point, axes: tuple[Axis, ...]) -> str:
    return " ".join(
        value
        if isinstance(value := getattr(point, axis), str)
        else f"{'mb' if axis is Axis.MICRO_BATCH else axis}{value}"
        for axis in axes
    )


def _headline(result: GridRows) -> tuple[str, str]:
    job = result.job
    said = f"{result.num_legal:,} legal configurations, {len(result.rows):,} simulated"
    if not result.is_exhaustive:
        said += f", the others cut by bounds; the best {result.top} are certain"
    return f"{job.model.name} on {job.cluster.label()}, global batch {job.training.global_batch:,}", said


def pareto(result: GridRows) -> ConfigurationCloud:
    """Time and memory of all configurations; of those that were not simulated, their bounds."""
    title, said = _headline(result)
    known = {row.point for row in result.rows}
    others = np.array([point not in known for point in result.floors], dtype=np.bool_)
    return ConfigurationCloud(
        title=title,
        subtitle=said,
        time_s=np.array([row.figures.iteration_time_s for row in result.rows]),
        memory_bytes=np.array([result.capacity_bytes - row.headroom_bytes for row in result.rows], dtype=np.float64),
        labels=tuple(_name(row.point, result.varied) for row in result.rows),
        bound_s=result.floors.time_s[others],
        bound_bytes=result.floors.memory_bytes[others].astype(np.float64),
        capacity_bytes=result.capacity_bytes,
    )


def heat_axes(varied: Sequence[Axis], names: str | None) -> tuple[Axis, Axis] | None:
    """Two axes as the command line names them, ``tp,pp``.

    Args:
        varied: axes that vary.
    Raises:
        ConfigError: not two axes that vary.
    """
    if names is None:
        return None
    words = [word.strip() for word in names.split(",")]
    legal = [axis.value for axis in varied]
    if len(words) != 2 or words[0] == words[1] or any(word not in legal for word in words):
        raise ConfigError("not two axes that vary", where="axes", expected="two of " + ", ".join(legal), got=names)
    return Axis(words[0]), Axis(words[1])


def heat_map(result: GridRows, axes: tuple[Axis, Axis] | None = None) -> CellTable | None:
    """The best that fits for each pair of values of two axes, whatever the others are; where none was simulated, how
    fast one could be at best. None: fewer than two axes vary."""
    if axes is None:
        if len(result.varied) < 2:
            return None
        usual = [axis for axis in _FIRST if axis in result.varied]
        others = [axis for axis in result.varied if axis not in usual]
        axes = tuple([*usual, *others][:2])  # type: ignore[assignment]  # two of them
        assert axes is not None
    up, across = axes
    points = result.floors.points
    rows, columns = (sorted({points.values_of(axis)[k] for k in set(points.codes_of(axis).tolist())}) for axis in axes)
    best: dict[tuple[object, object], Row] = {}
    for row in result.rows:  # the best first
        if row.fits:
            best.setdefault((getattr(row.point, up), getattr(row.point, across)), row)
    floors = result.floors
    fitting = np.flatnonzero(floors.memory_bytes <= result.capacity_bytes)
    firsts, place = floors.points.take(fitting).groups(up.value, across.value)
    least = np.full(len(firsts), np.inf)
    np.minimum.at(least, place, floors.time_s[fitting])
    cells = ((getattr(point, up), getattr(point, across)) for point in floors.points.take(fitting[firsts]))
    hopes = dict(zip(cells, least.tolist(), strict=True))
    table = np.full((len(rows), len(columns)), np.nan)
    texts = [[""] * len(columns) for _ in rows]
    for (i, a), (j, b) in product(enumerate(rows), enumerate(columns)):
        if (a, b) in best:
            found = best[a, b]
            table[i, j] = _figure(result.rank_by, found)
            texts[i][j] = f"{found.figures.iteration_time_s:.4g} s, {found.figures.peak_memory_bytes / 2**30:.0f} GiB"
        elif (a, b) in hopes:
            texts[i][j] = f"at least {hopes[a, b]:.4g} s"
    title, said = _headline(result)
    return CellTable(
        title=title,
        subtitle=said,
        across=_short(across).strip(),
        up=_short(up).strip(),
        columns=tuple(map(str, columns)),
        rows=tuple(map(str, rows)),
        best=table,
        texts=tuple(map(tuple, texts)),
        colour_says={
            RankBy.TIME: "iteration time of the best that fits",
            RankBy.TOKENS: "tokens/s per GPU of the best that fits",
            RankBy.COST: "cost per token of the best that fits",
            RankBy.HEADROOM: "memory of the smallest",
        }[result.rank_by],
    )


def _figure(order: RankBy, row: Row) -> float:
    """Less is better."""
    if order is RankBy.HEADROOM:
        return float(row.figures.peak_memory_bytes)
    return row.figures.iteration_time_s if order is RankBy.TIME else 1.0 / row.tokens_per_s_per_gpu
