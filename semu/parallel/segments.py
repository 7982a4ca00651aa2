"""Modality modules over pipeline ranks: mixed, in separate segments, or on separate ranks.

A pipeline segment is one stage on every pipeline rank, one behind the other (DIP §3.1). Mixed, all modules' blocks are
one row that is cut into pp x vpp groups wherever the balance wants it, so that a segment holds several modules (DIP
Fig. 5a). Separated, every module fills whole segments: each rank holds a chunk of every module, and all stages of a
segment do the same (Fig. 5b). Apart, the ranks themselves are divided: each holds one module only.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from semu.checks import check_integer, check_word
from semu.errors import ConfigError
from semu.parallel.pipeline import Chunk, deal_chunks, partition, place_chunks

SEGMENTS = ("mixed", "separated", "apart")
"""How modality modules lie over the pipeline ranks; the first is the default."""


def check_segments(kind: object, shares: object, *, vpp: int, has_layout: bool, partition_by: str) -> dict[str, int]:
    """Check what does not depend on the model; returns the shares.

    Args:
        kind: one of ``SEGMENTS``. shares: module -> segments or ranks. vpp: virtual stages per rank.
        has_layout: the job has a ``PipelineLayout``. partition_by: what is balanced.
    Raises:
        ConfigError: an unknown kind, shares without meaning, settings that contradict one another.
    """
    check_word(kind, SEGMENTS, "way to place modality modules", "parallel.segments")
    if not isinstance(shares, Mapping):
        raise ConfigError(
            "not a table of modules", where="parallel.shares", expected="module -> a count", got=repr(shares)
        )
    for name, count in shares.items():
        check_integer(count, f"parallel.shares.{name}", "a share")
    if kind == "mixed":
        if shares:
            raise ConfigError(
                "shares of modules that are mixed",
                where="parallel.shares",
                expected='no shares, or parallel.segments = "separated" or "apart"',
                got=dict(shares),
                nearest="separated",
            )
        return {}
    if has_layout or partition_by == "layers":
        raise ConfigError(
            f"modules that are {kind} are cut by weight, and the layers are laid out already",
            where="parallel.layout" if has_layout else "parallel.partition",
            expected="no layout, or segments = mixed" if has_layout else "parameters, latency or forward",
            got="a layout" if has_layout else partition_by,
            nearest=None if has_layout else "parameters",
        )
    if kind == "apart" and vpp > 1:
        raise ConfigError(
            "virtual stages of modules on ranks of their own are not modelled by this version",
            where="parallel.vpp",
            expected="1",
            got=vpp,
            nearest=1,
        )
    return dict(shares)


def place_modules(
    kind: str,
    names: Sequence[str],
    blocks_per_module: Sequence[int],
    weights: Sequence[float],
    pp: int,
    vpp: int,
    placement: str = "circular",
    shares: Mapping[str, int] | None = None,
) -> list[Chunk]:
    """Cut a model's modules over the pipeline ranks.

    Args:
        kind: one of ``SEGMENTS``. names, blocks_per_module: of the modality modules, in order of data flow.
        weights: weight of every block, module by module. pp, vpp: ranks, virtual stages per rank.
        placement: as ``Parallel``.
        shares: module -> segments (separated) or ranks (apart); None or empty: so many that the heaviest stage is as
            light as can be, of equals the first module has more.
    Returns:
        Chunks in the order of data flow.
    Raises:
        ConfigError: fewer segments or ranks than modules, shares that do not add up, a module of too few blocks.
    """
    if kind == "mixed":
        return place_chunks(blocks_per_module, weights, pp, vpp, placement)
    ends = [0, *itertools.accumulate(blocks_per_module)]
    modules = [list(weights[first:last]) for first, last in itertools.pairwise(ends)]
    total, each, most = check_places(kind, names, blocks_per_module, pp, vpp, shares or {})
    counts = [shares[name] for name in names] if shares else _balanced(modules, total, each, most)
    boundaries = [0]
    for blocks, first, count in zip(modules, ends, counts, strict=False):
        boundaries += [first + end for end in partition(blocks, count * each)[1:]]
    if kind == "separated":
        return deal_chunks(blocks_per_module, boundaries, pp, placement)
    return deal_chunks(blocks_per_module, boundaries, pp)


def check_places(
    kind: str, names: Sequence[str], blocks_per_module: Sequence[int], pp: int, vpp: int, shares: Mapping[str, int]
) -> tuple[int, int, list[int]]:
    """Whether every module has room by itself.

    Args:
        as ``place_modules``, where modules are not mixed.
    Returns:
        Segments or ranks to share, groups of layers in one of them, and how many each module can fill at most.
    Raises:
        ConfigError: as ``place_modules``.
    """
    key, what = ("vpp", "segments") if kind == "separated" else ("pp", "ranks")
    total, each = (vpp, pp) if kind == "separated" else (pp, 1)
    if total < len(names):
        raise ConfigError(
            f"{len(names)} modality modules ({', '.join(names)}) need as many {what} at least",
            where=f"parallel.{key}",
            expected=f">= {len(names)}, or parallel.segments = mixed",
            got=total,
            nearest=len(names),
        )
    most = [count // each for count in blocks_per_module]
    for name, blocks, room in zip(names, blocks_per_module, most, strict=True):
        if not room:
            raise ConfigError(
                f"module {name} has {blocks} blocks, fewer than the {each} stages of a segment",
                where="parallel.pp",
                expected=f"<= {blocks}, or parallel.segments = mixed",
                got=each,
                nearest=blocks,
            )
    if total > sum(most):
        raise ConfigError(
            f"the modules have too few blocks for {total} {what}",
            where=f"parallel.{key}",
            expected=f"<= {sum(most)}",
            got=total,
            nearest=sum(most),
        )
    for name, count in shares.items():
        check_word(name, names, "modality module", f"parallel.shares.{name}")
        room = most[list(names).index(name)]
        if count > room:
            raise ConfigError(
                f"module {name} has too few blocks for {count} {what}",
                where=f"parallel.shares.{name}",
                expected=f"<= {room}",
                got=count,
                nearest=room,
            )
    missing = [name for name in names if name not in shares]
    if shares and (missing or sum(shares.values()) != total):
        raise ConfigError(
            f"the shares do not make {total} {what} of all modules",
            where="parallel.shares",
            expected=f"{total} {what} together, of {', '.join(names)}",
            got=" + ".join(f"{name} {count}" for name, count in shares.items()),
            nearest=f"{key} = {sum(shares.values())}" if not missing else None,
        )
    return total, each, most


def _balanced(modules: Sequence[Sequence[float]], total: int, each: int, most: Sequence[int]) -> list[int]:
    """One each, and every further one to the module whose heaviest group is heaviest: no other shares have a lighter
    heaviest group, because a group never gets heavier with more of them."""
    counts = [1] * len(modules)
    for _ in range(total - len(modules)):
        heaviest = [
            heaviest_group(blocks, count * each) if count < limit else -1.0
            for blocks, count, limit in zip(modules, counts, most, strict=True)
        ]
        counts[heaviest.index(max(heaviest))] += 1
    return counts


def heaviest_group(weights: Sequence[float], parts: int) -> float:
    """Weight of the heaviest group where a row of blocks is cut best."""
    return max(sum(weights[first:last]) for first, last in itertools.pairwise(partition(weights, parts)))
