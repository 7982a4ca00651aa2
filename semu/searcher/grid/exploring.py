"""``with_best_layouts``: a space with rules, on the layouts that a rule could make the best (``semu grid --explore``).

Rules, placements and virtual stages multiply a grid by some hundred, and an order has to be made to know its time. So
all layouts (the other axes) are timed under 1F1B first, and rules are tried on the fastest layout of every number of
pipeline ranks. What 1F1B would take without its bubbles is the least that any order of a layout takes; layouts that
would be slower even so are left out, and those that do not fit under 1F1B.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.searcher.grid.framework import Framework
from semu.searcher.grid.grid_search import grid
from semu.searcher.grid.rows import Row
from semu.searcher.grid.space import Axis, RankBy, Space, layout_of


def with_best_layouts(
    job: TrainingJob,
    space: Space,
    *,
    rank_by: RankBy | str = RankBy.TIME,
    price: float | None = None,
    framework: Framework | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Space:
    """A space of which only those layouts are legal that may be the best under some rule.

    Args:
        job, rank_by, price, framework, progress: as ``grid``. space: with rules. By ``headroom`` no time tells which
            may be the best: all that fit are.
    Raises:
        ConfigError: no legal configuration.
    """
    tell = progress or (lambda _: None)
    plain = {**space.values, Axis.VPP: (1,), Axis.SCHEDULE: ("1f1b",), Axis.PLACEMENT: ("circular",)}
    by_time = {"framework": framework, "progress": progress}
    found = grid(job, replace(space, values=plain), exhaustive=True, **by_time)  # type: ignore[arg-type]
    rows = [row for row in found.rows if row.fits] or list(found.rows)
    first: dict[int, Row] = {}
    for row in rows:
        first.setdefault(row.point.pp, row)
    fastest = {layout_of(row.point) for row in first.values()}
    kept = {layout_of(row.point) for row in rows}
    if rank_by != RankBy.HEADROOM and len(kept) > len(fastest):
        tell(f"trying rules on the fastest of {len(kept):,} layouts for each of {len(fastest)} numbers of ranks")
        best_s = _best_time(job, replace(space, layouts=frozenset(fastest)), **by_time)
        kept = fastest | {layout_of(row.point) for row in rows if _least_s(row) < best_s}
    tell(
        f"trying rules on {len(kept):,} layouts; {len(rows) - len(kept):,} would be slower even without bubbles, "
        f"{found.num_legal - len(rows):,} do not fit under 1F1B"
    )
    return replace(space, layouts=frozenset(kept))


def _best_time(job: TrainingJob, space: Space, **asked: object) -> float:
    """The shortest iteration of a space [s]; infinite where nothing is legal or fits."""
    try:
        rows = grid(job, space, top=1, **asked).rows  # type: ignore[arg-type]
    except ConfigError:
        return inf
    return min((row.figures.iteration_time_s for row in rows if row.fits), default=inf)


def _least_s(row: Row) -> float:
    """What a row's iteration takes without bubbles, at least [s]."""
    return row.figures.iteration_time_s * (1.0 - row.figures.bubble_ratio)
