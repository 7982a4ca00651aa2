"""``ContextStudy``: policies of context ranks on a batch, and its table."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.job import TrainingJob
from semu.masks.spans import Spans
from semu.records import dataclass
from semu.units import GIB, fit_columns
from semu.workload.masked import ContextPlan

if TYPE_CHECKING:
    from semu.present.page import Page


@dataclass(frozen=True)
class PolicyRow:
    """One policy with one exchange on the batch.

    Attributes:
        policy, kind: words of ``cp_balance`` and ``cp_kind``.
        refused: why it cannot deal the batch; empty: it can, else all numbers are 0.
        tiles: largest over mean of the ranks' tiles (rows of queries; forward). columns: the same by the most rows that
            read a tile of keys, over the mean (dK and dV). tokens: largest over mean of the ranks' tokens.
        padding: share of the gathered buffers that is no token. partial: share of the tiles that the mask cuts.
        needed: share of other ranks' keys that are in a tile that a rank computes; all ranks together.
        widths: ranks of a group -> share of the tokens that lie on groups of so many (``hybrid``); else empty.
        wire_bytes: that a rank sends to context ranks in an iteration.
        attention_s: time in attention of the busiest rank, all microbatches of the busiest replica [s].
        iteration_s: the iteration [s]. memory_bytes: its peak.
    """

    policy: str
    kind: str = ""
    refused: str = ""
    tiles: float = 0.0
    columns: float = 0.0
    tokens: float = 0.0
    padding: float = 0.0
    partial: float = 0.0
    needed: float = 0.0
    widths: dict[int, float] = field(default_factory=dict)
    wire_bytes: float = 0.0
    attention_s: float = 0.0
    iteration_s: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, eq=False)
class ContextStudy:
    """Policies on a job's batch.

    Attributes:
        job: as it is. rows: per policy. bound: tiles of the busiest rank over the mean that no policy of whole blocks
            can go below: one block binds, or 1. tokens, sequences, documents: of the batch.
        empty: tokens that see nothing.
        plan: of the job. spans: of its largest microbatch. owners: policy -> rank of every token of that.
    """

    job: TrainingJob
    rows: tuple[PolicyRow, ...]
    bound: float
    tokens: int
    sequences: int
    documents: int
    empty: int
    plan: ContextPlan
    spans: Spans
    owners: dict[str, NDArray[np.int32]]

    @property
    def best(self) -> PolicyRow:
        """The policy with the shortest iteration."""
        able = [row for row in self.rows if not row.refused]
        return min(able, key=lambda row: row.iteration_s)

    @property
    def own(self) -> PolicyRow | None:
        """The job's own policy and exchange, where they were asked for."""
        kind = self.job.parallel.context_kind.value
        mine = [row for row in self.rows if row.policy == self.plan.balance.value]
        return next((row for row in mine if row.refused or row.kind == kind), None)

    def to_json(self) -> dict[str, object]:
        """Plain numbers, for ``context.json``."""
        return {
            "mask": self.plan.mask,
            "cp": self.plan.cp,
            "cp_kind": self.job.parallel.context_kind.value,
            "cp_block": self.plan.block,
            "policy": self.plan.balance.value,
            "best": self.best.policy,
            "best_kind": self.best.kind,
            "lower_bound": self.bound,
            "batch": {
                "tokens": self.tokens,
                "sequences": self.sequences,
                "documents": self.documents,
                "tokens_that_see_nothing": self.empty,
            },
            "policies": [vars(row) for row in self.rows],
            "largest_microbatch": {
                "tokens": self.spans.num_tokens,
                "tiles_of_ranks": {policy: work.tolist() for policy, work in self.work_of_ranks.items()},
            },
        }

    @cached_property
    def work_of_ranks(self) -> dict[str, NDArray[np.float64]]:
        """Policy -> tiles of every rank in the largest microbatch, a row of tiles shared by its tokens."""
        from semu.simulation.contexts.picture import work_of_ranks  # circle: pictures are of a whole study

        return work_of_ranks(self)

    def page(self) -> Page:
        """Policies, the work of their ranks and whose the tiles are, as one HTML file."""
        from semu.simulation.contexts.page import context_page  # circle: a page is of a whole study

        return context_page(self)

    def __repr__(self) -> str:
        return _text(self)


_HEADS = (
    "policy",
    "exchange",
    "tiles max/mean",
    "dK,dV",
    "tokens",
    "padding",
    "partial",
    "needed",
    "attention s",
    "wire GB",
    "memory GiB",
    "iteration s",
)


def _text(found: ContextStudy) -> str:
    """The study for a terminal."""
    plan, job = found.plan, found.job
    head = (
        f"{found.tokens:,} tokens in {found.sequences:,} sequences, {found.documents:,} documents; mask {plan.mask}, "
        f"cp = {plan.cp} ({job.parallel.context_kind.value}), blocks of {plan.block}"
    )
    able = sorted((row for row in found.rows if not row.refused), key=lambda row: row.iteration_s)
    cells = [_HEADS, *(_cells(row) for row in able)]
    lines = [head, "", *fit_columns(cells, [number > 1 for number in range(len(_HEADS))]), ""]
    lines += [f"{row.policy}: {row.refused}" for row in found.rows if row.refused]
    lines.append(f"no policy of whole blocks can do better than {found.bound:.4f} (tiles max/mean)")
    own, best = found.own, found.best
    if own is not None and not own.refused and best is not own:
        won = 100 * (1 - best.iteration_s / own.iteration_s)
        words = [f"{row.policy} ({row.kind})" if row.kind != own.kind else row.policy for row in (best, own)]
        lines.append(f"{words[0]} is {won:.1f} % faster than {words[1]}, the run's policy")
    for row in {row.policy: row for row in able if row.widths}.values():
        parts = ", ".join(f"{100 * share:.1f} % on {ranks}" for ranks, share in row.widths.items())
        lines.append(f"{row.policy}: tokens by ranks that share a stretch: {parts}")
    if found.empty:
        lines.append(blind_note(found.empty))
    if plan.mask == "causal" and any(row.policy == "zigzag" and row.kind in ("ring", "all_gather") for row in able):
        lines.append("zigzag under a causal mask is costed by formula, the others by counted tiles")
    lines.append(
        "max/mean over ranks, microbatch by microbatch; needed: of other ranks' keys, those in a tile that a rank "
        "computes; attention: of the busiest rank, both ways"
    )
    return "\n".join(lines)


def blind_note(tokens: int) -> str:
    """What it means that so many tokens see nothing."""
    return f"{tokens:,} tokens see nothing: their outputs are 0, and no gradient flows through them"


def _cells(row: PolicyRow) -> tuple[str, ...]:
    return (
        row.policy,
        row.kind,
        f"{row.tiles:.4f}",
        f"{row.columns:.3f}",
        f"{row.tokens:.3f}",
        f"{100 * row.padding:.1f} %",
        f"{100 * row.partial:.1f} %",
        f"{100 * row.needed:.1f} %",
        f"{row.attention_s:.4g}",
        f"{row.wire_bytes / 1e9:.3g}",
        f"{row.memory_bytes / GIB:.2f}",
        f"{row.iteration_s:.4f}",
    )
