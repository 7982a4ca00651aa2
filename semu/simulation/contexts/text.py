"""``study_text``: policies of context ranks as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semu.units import GIB, fit_columns

if TYPE_CHECKING:
    from semu.simulation.contexts.study import ContextStudy, PolicyRow

_HEADS = (
    "policy",
    "tiles max/mean",
    "dK,dV",
    "tokens",
    "padding",
    "partial",
    "attention s",
    "wire GB",
    "memory GiB",
    "iteration s",
)


def study_text(found: ContextStudy) -> str:
    """The study for a terminal."""
    plan, job = found.plan, found.job
    head = (
        f"{found.tokens:,} tokens in {found.sequences:,} sequences, {found.documents:,} documents; mask {plan.mask}, "
        f"cp = {plan.cp} ({job.parallel.context_kind.value}), blocks of {plan.block}"
    )
    able = sorted((row for row in found.rows if not row.refused), key=lambda row: row.iteration_s)
    cells = [_HEADS, *(_cells(row) for row in able)]
    lines = [head, "", *fit_columns(cells, [number > 0 for number in range(len(_HEADS))]), ""]
    lines += [f"{row.policy}: {row.refused}" for row in found.rows if row.refused]
    lines.append(f"no policy of whole blocks can do better than {found.bound:.4f} (tiles max/mean)")
    own, best = found.own, found.best
    if own is not None and not own.refused and best is not own:
        won = 100 * (1 - best.iteration_s / own.iteration_s)
        lines.append(f"{best.policy} is {won:.1f} % faster than {own.policy}, the run's policy")
    if found.empty:
        lines.append(f"{found.empty:,} tokens see nothing: their outputs are 0, and no gradient flows through them")
    if plan.mask == "causal" and any(row.policy == "zigzag" for row in able):
        lines.append("zigzag under a causal mask is costed by formula, the others by counted tiles")
    lines.append("max/mean over ranks, microbatch by microbatch; attention: of the busiest rank, both ways")
    return "\n".join(lines)


def _cells(row: PolicyRow) -> tuple[str, ...]:
    return (
        row.policy,
        f"{row.tiles:.4f}",
        f"{row.columns:.3f}",
        f"{row.tokens:.3f}",
        f"{100 * row.padding:.1f} %",
        f"{100 * row.partial:.1f} %",
        f"{row.attention_s:.4g}",
        f"{row.wire_bytes / 1e9:.3g}",
        f"{row.memory_bytes / GIB:.2f}",
        f"{row.iteration_s:.4f}",
    )
