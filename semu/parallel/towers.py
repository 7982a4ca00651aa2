"""``parallel.loss = "towers"``: the last ranks of all towers gather one another's features and compute the loss.

Towers are modules side by side that read nothing; the module behind them, a contrastive loss, reads them all. Its
copies on the towers' last ranks are a *gang*: their stages begin together, gather the features of all towers, and
compute the same loss, each for the gradient of its own tower (DistMM-Pipe, FlexPipe §2.2 and Fig. 3). Under
``"towers-async"`` they do not begin together: features are messages between their ranks (FlexPipe §7.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from semu.errors import ConfigError
from semu.nn.model import Model
from semu.parallel.config import Parallel
from semu.parallel.pipeline import Chunk, deal_chunks
from semu.parallel.segments import check_places, place_modules

_WHERE = "parallel.loss"


def check_towers(model: Model, parallel: Parallel) -> None:
    """Refuse models without towers, and what is not modelled beside them.

    Raises:
        ConfigError: another model than towers that one module reads; more towers than pipeline ranks; settings that
            this version does not model beside it.
    """
    if not parallel.gathers_towers:
        return
    head, towers = model.modules[-1], model.modules[:-1]
    blocks = len(list(head.blocks()))
    if len(towers) < 2 or set(head.sources) != {t.name for t in towers} or any(t.sources for t in towers) or blocks > 1:
        raise ConfigError(
            "only towers side by side that meet in one module gather one another's features",
            where=_WHERE,
            expected='"head", or a dual encoder such as clip-vit-l-14',
            got=model.name,
            nearest="head",
        )
    for name, expected, fits, nearest in (
        ("pp", f">= {len(towers)}, a rank for every tower", parallel.pp >= len(towers), len(towers)),
        ("placement", "circular or v-shape", parallel.copies == 1, "circular"),
        ("segments", "mixed or apart", parallel.segments in ("mixed", "apart"), "apart"),
        ("zero", "0 or 1", parallel.zero <= 1, 1),
    ):
        if not fits:
            raise ConfigError(
                f"{name} = {getattr(parallel, name)} beside a loss on the towers' last ranks is not modelled by this "
                "version",
                where=f"parallel.{name}",
                expected=f'{expected}, or parallel.loss = "head"',
                got=getattr(parallel, name),
                nearest=nearest,
            )


def check_modules_apart(model: Model, parallel: Parallel) -> None:
    """Whether every module has room by itself; what towers' last ranks run together needs none.

    Raises:
        ConfigError: as ``check_places``.
    """
    modules = model.modules[:-1] if parallel.gathers_towers else model.modules
    counts = [len(module.blocks()) for module in modules]
    names = [module.name for module in modules]
    check_places(parallel.segments, names, counts, parallel.pp, parallel.vpp, parallel.shares, model.encoders)


def refuse_towers(parallel: Parallel, what: str) -> None:
    """Refuse what orders every chunk by itself. ``what``: it does.

    Raises:
        ConfigError: towers run their loss together.
    """
    if parallel.gathers_towers:
        raise ConfigError(
            f"{what} of a loss on the towers' last ranks is not modelled by this version",
            where=_WHERE,
            expected='"head", or a named schedule',
            got=parallel.loss,
            nearest="head",
        )


def deal_towers(
    parallel: Parallel,
    names: Sequence[str],
    blocks_per_module: Sequence[int],
    weights: Sequence[float],
    boundaries: Sequence[int] | None = None,
) -> list[Chunk]:
    """Chunks of the towers, and of the module that joins them one on the last rank of every tower, a gang.

    Args:
        parallel: sizes and placement. names, blocks_per_module: of the modules, the towers first. weights: of every
            block. boundaries: of the stages among all blocks, where they are given; that of the last module is unread.
    Returns:
        Chunks in order of data flow.
    Raises:
        ConfigError: as ``place_modules``; towers that end on the same rank.
    """
    counts = list(blocks_per_module[:-1])
    if boundaries is None:
        towers = place_modules(
            parallel.segments,
            names[:-1],
            counts,
            weights[: sum(counts)],
            parallel.pp,
            parallel.vpp,
            parallel.placement,
            parallel.shares,
        )
    else:
        ranks = parallel.layout.ranks if parallel.layout is not None else None
        inner = [min(boundary, list(accumulate(counts))[-1]) for boundary in boundaries]
        towers = deal_chunks(counts, inner, parallel.pp, parallel.placement, ranks)
    ends = [max((c for c in towers if c.module == number), key=lambda c: c.last) for number in range(len(counts))]
    if len({chunk.rank for chunk in ends}) < len(ends):
        raise ConfigError(
            "towers that end on the same pipeline rank gather nothing from one another",
            where=_WHERE,
            expected='"head", or parallel.segments = "apart"',
            got=", ".join(f"{names[chunk.module]} on rank {chunk.rank}" for chunk in ends),
            nearest="head",
        )
    last = len(counts)
    members = [
        replace(chunk, index=len(towers) + n, module=last, first=0, last=blocks_per_module[last], gang=0)
        for n, chunk in enumerate(sorted(ends, key=lambda chunk: chunk.rank))
    ]
    return [*towers, *members]
