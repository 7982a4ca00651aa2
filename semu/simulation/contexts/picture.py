"""``mask_picture``: tiles of a microbatch's mask by owner, and tiles of every rank, for ``semu.present.plots.mask``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.masks.balance import Cut
from semu.masks.tile_lists import TileLists
from semu.present.plots.mask import MaskPanel, MaskPicture

if TYPE_CHECKING:
    from semu.simulation.contexts.result import ContextStudy

_MOST_TILES = 512
"""Tiles of an edge that are drawn; more are drawn as squares of several."""


def mask_picture(found: ContextStudy) -> MaskPicture:
    """The job's policy beside the best one, or, where that is it, the slowest; largest microbatch."""
    plan, spans = found.plan, found.spans
    able = sorted((row for row in found.rows if not row.refused), key=lambda row: row.iteration_s)
    own = found.own if found.own is not None and not found.own.refused else able[-1]
    chosen = list(dict.fromkeys([own.policy, found.best.policy, able[-1].policy]))[:2]
    lists = _tiles(found)
    step, state = squares(lists)
    panels = []
    for policy in chosen:
        of_row = owners_of_rows(found.owners[policy], step, len(state))
        panels.append(MaskPanel(policy, of_row, found.work_of_ranks[policy]))
    title = f"{found.job.model.name}: mask {plan.mask} of a microbatch of {spans.num_tokens:,} tokens, cp = {plan.cp}"
    square = "a tile is 128 x 128 scores" if step == 1 else f"a square is {step} x {step} tiles of 128 x 128 scores"
    return MaskPicture(title, f"{square}; coloured by the rank that computes it", state, tuple(panels), plan.cp)


def owned_squares(found: ContextStudy) -> tuple[NDArray[np.int8], dict[str, NDArray[np.int64]], int]:
    """Of the largest microbatch's mask: squares of tiles (0 nothing is seen, 1 some, 2 all), policy -> rank of every
    row of squares, and tiles on a square's edge."""
    step, state = squares(_tiles(found))
    return state, {policy: owners_of_rows(owner, step, len(state)) for policy, owner in found.owners.items()}, step


def work_of_ranks(found: ContextStudy) -> dict[str, NDArray[np.float64]]:
    """See ``ContextStudy.work_of_ranks``."""
    lists = _tiles(found)
    return {policy: _work_of_ranks(lists, owner, found.plan.cp) for policy, owner in found.owners.items()}


def _tiles(found: ContextStudy) -> TileLists:
    plan, spans = found.plan, found.spans
    bounds = np.array([0, spans.num_tokens])
    return TileLists.of(plan.seen(spans, plan.label), Cut(bounds, np.zeros(1, np.int32), 1))


def squares(lists: TileLists) -> tuple[int, NDArray[np.int8]]:
    """Tiles on the edge of a square, and what of every square is seen."""
    edge = len(lists.size)
    step = -(-edge // _MOST_TILES)
    state = np.zeros((-(-edge // step),) * 2, np.int8)
    row = np.repeat(np.arange(edge), np.diff(lists.ptr)) // step
    np.maximum.at(state, (row, lists.key // step), 1 + lists.is_full.astype(np.int8))
    return step, state


def owners_of_rows(owner: NDArray[np.int32], step: int, rows: int) -> NDArray[np.int64]:
    """The rank that has most of every row of squares."""
    return np.array([majority(owner[first : first + 128 * step]) for first in range(0, len(owner), 128 * step)][:rows])


def majority(owner: NDArray[np.int32]) -> int:
    """The rank that has most of some tokens."""
    return int(np.bincount(owner).argmax())


def _work_of_ranks(lists: TileLists, owner: NDArray[np.int32], ranks: int) -> NDArray[np.float64]:
    """Tiles of every rank, a row's shared by its tokens: float64[cp]."""
    per_token = np.repeat(np.diff(lists.ptr) / lists.size, lists.size)
    total: NDArray[np.float64] = np.bincount(owner, weights=per_token, minlength=ranks).astype(np.float64)
    return total
