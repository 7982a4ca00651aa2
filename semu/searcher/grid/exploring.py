"""``with_best_layouts``: a space with rules, on the layouts that are fast without them (``semu grid --explore``).

Rules, placements and virtual stages multiply a grid by some hundred, and no bound cuts them: an order has to be made to
know its time. So the layouts (all axes but these) are compared under 1F1B first, for every number of pipeline ranks on
its own, as the best schedule may want more ranks than 1F1B does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.searcher.grid.framework import Framework
from semu.searcher.grid.grid_search import grid
from semu.searcher.grid.space import Axis, RankBy, Space, layout_of

LAYOUTS = 2
"""Layouts that are kept of every number of pipeline ranks."""


def with_best_layouts(
    job: TrainingJob,
    space: Space,
    *,
    rank_by: RankBy | str = RankBy.TIME,
    price: float | None = None,
    framework: Framework | str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Space:
    """A space of which only the best layouts under 1F1B are legal.

    Args:
        job, rank_by, price, framework, progress: as ``grid``. space: with rules.
    Raises:
        ConfigError: no number of pipeline ranks has a legal configuration.
    """
    plain = {**space.values, Axis.VPP: (1,), Axis.SCHEDULE: ("1f1b",), Axis.PLACEMENT: ("circular",)}
    kept, refused = set(), list[ConfigError]()
    for pp in space.values[Axis.PP]:
        try:
            own = replace(space, values={**plain, Axis.PP: (pp,)})
            found = grid(job, own, top=LAYOUTS, rank_by=rank_by, price=price, framework=framework, progress=progress)
        except ConfigError as error:
            refused.append(error)
            continue
        kept |= {layout_of(row.point) for row in found.rows[:LAYOUTS]}
    if not kept:
        raise refused[0]
    return replace(space, layouts=frozenset(kept))
