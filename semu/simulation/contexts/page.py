"""``context_page``: policies of context ranks on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semu.present.page import Column, Page
from semu.simulation.contexts.picture import owned_squares
from semu.units import GIB, format_time

if TYPE_CHECKING:
    from semu.simulation.contexts.result import ContextStudy

_COLUMNS = (
    Column("policy", "policy"),
    Column("kind", "exchange"),
    Column("iteration_s", "iteration [s]", 4, is_bar=True),
    Column("tiles", "tiles max/mean", 4),
    Column("columns", "dK, dV max/mean", 3),
    Column("tokens", "tokens max/mean", 3),
    Column("padding", "padding [%]", 1, 0.01),
    Column("partial", "partial tiles [%]", 1, 0.01),
    Column("needed", "keys needed [%]", 1, 0.01),
    Column("attention_s", "attention [s]", 4),
    Column("wire_bytes", "wire [GB]", 3, 1e9),
    Column("memory_bytes", "memory [GiB]", 2, GIB),
)


def context_page(found: ContextStudy) -> Page:
    """Policies as bars and a table, tiles of every rank, and a picture of whose each tile is."""
    plan, document = found.plan, found.to_json()
    able = sorted((row for row in found.rows if not row.refused), key=lambda row: row.iteration_s)
    page = Page(
        f"Context ranks: {found.job.model.name} on {found.job.cluster.label()}",
        [
            f"{found.tokens:,} tokens in {found.sequences:,} sequences, {found.documents:,} documents",
            f"mask {plan.mask}, cp = {plan.cp}, blocks of {plan.block}",
            f"no policy of whole blocks can do better than {found.bound:.4f} (tiles max/mean)",
        ],
    )
    several = len({row.kind for row in able}) > 1
    page.add_bars(
        "Iteration by policy",
        [
            (f"{row.policy} ({row.kind})" if several else row.policy, row.iteration_s, format_time(row.iteration_s))
            for row in able
        ],
    )
    page.add_table("Policies", [vars(row) for row in able], _COLUMNS)
    _add_tiles(page, found)
    rows = [
        {"policy": policy, "rank": rank, "tiles": tiles, "over": tiles / (float(work.mean()) or 1.0)}
        for policy, work in found.work_of_ranks.items()
        for rank, tiles in enumerate(work.tolist())
    ]
    columns = Column("policy", "policy"), Column("rank", "context rank", 0), Column("tiles", "tiles", 1, is_bar=True)
    page.add_table("Work of every rank in the largest microbatch", rows, (*columns, Column("over", "over the mean", 3)))
    page.add_list("Cannot deal this batch", [f"{row.policy}: {row.refused}" for row in found.rows if row.refused])
    assert isinstance(document["batch"], dict)
    page.add_facts("The batch", [(key.replace("_", " "), f"{value:,}") for key, value in document["batch"].items()])
    return page


def _add_tiles(page: Page, found: ContextStudy) -> None:
    state, owners, step = owned_squares(found)
    panels = []
    for policy, owner in owners.items():
        whose = 2 * owner[:, None] + state
        panels.append({"name": policy, "of": page.arrays.add(np.where(state > 0, whose, 0), "u2")})
    square = (
        "a square is a tile of 128 x 128 scores" if step == 1 else f"a square is {step} x {step} tiles of 128 x 128"
    )
    data = {
        "what": "tiles under",
        "owners": found.plan.cp,
        "owner": "rank",
        "panels": panels,
        "rows": {"name": "queries", "count": len(state)},
        "columns": {"name": "keys", "count": len(state)},
        "note": "lighter: the mask cuts the tile",
    }
    said = (
        f"mask {found.plan.mask} of a microbatch of {found.spans.num_tokens:,} tokens on {found.plan.cp} context ranks"
    )
    page.add_chart("Whose the tiles are", "matrix", data, said, f"{said}; {square}")
