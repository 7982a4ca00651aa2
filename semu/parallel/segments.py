"""Modality modules over pipeline ranks: mixed, in separate segments, on separate ranks, or encoders on every rank.

A pipeline segment is one stage on every pipeline rank, one behind the other (DIP §3.1). Mixed, all modules' blocks are
one row that is cut into pp x vpp groups wherever the balance wants it, so that a segment holds several modules (DIP
Fig. 5a). Separated, every module fills whole segments: each rank holds a chunk of every module, and all stages of a
segment do the same (Fig. 5b). Apart, the ranks themselves are divided: each holds one module only, in one chunk or
several (vpp) that lie in a circle or a V on the module's ranks. Colocated, the
encoders share ranks: each of these holds a chunk of every encoder. Replicated, every rank holds all encoders and a
chunk of another module; what a rank's encoders make is read on that rank, or not at all (Cornstarch §3.3).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from semu.checks import check_integer, check_word
from semu.errors import ConfigError
from semu.parallel.pipeline import Chunk, deal_chunks, partition, place_chunks

OWN_RANKS = ("apart", "colocated")
"""Where modules, or all encoders together, have pipeline ranks for themselves."""
SEGMENTS = ("mixed", "separated", *OWN_RANKS, "replicated")
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
    if kind in ("colocated", "replicated") and vpp > 1:
        raise ConfigError(
            f"virtual stages of modules that are {kind} are not modelled by this version",
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
    sources: Sequence[Collection[str]] = (),
    encoders: Collection[str] = (),
) -> list[Chunk]:
    """Cut a model's modules over the pipeline ranks.

    Args:
        kind: one of ``SEGMENTS``. names, blocks_per_module: of the modality modules, in order of data flow.
        weights: weight of every block, module by module. pp, vpp: ranks, virtual stages per rank.
        placement: as ``Parallel``.
        shares: module -> segments (separated) or ranks; None or empty: so many that the heaviest stage is as light as
            can be, of equals the first module has more.
        sources: per module, those that it reads. encoders: names of those that are encoders.
    Returns:
        Chunks in the order of data flow.
    Raises:
        ConfigError: fewer segments or ranks than modules, shares that do not add up, a module of too few blocks.
    """
    if kind == "mixed":
        return place_chunks(blocks_per_module, weights, pp, vpp, placement)
    ends = [0, *itertools.accumulate(blocks_per_module)]
    modules = [list(weights[first:last]) for first, last in itertools.pairwise(ends)]
    total, each, most = check_places(kind, names, blocks_per_module, pp, vpp, shares or {}, encoders)
    if kind in (*OWN_RANKS, "replicated"):
        places = sharing_ranks(kind, names, encoders)
        rows = [[modules[k] for k in place] for place in places]
        ranks = [shares[names[place[0]]] for place in places] if shares else _balanced(rows, total, each, most)
        chunks = _on_ranks(names, modules, places, ranks, vpp, placement)
        return _with_repeats(chunks, names, modules, sources, encoders) if kind == "replicated" else chunks
    counts = [shares[name] for name in names] if shares else _balanced([[own] for own in modules], total, each, most)
    boundaries = [0]
    for blocks, first, count in zip(modules, ends, counts, strict=False):
        boundaries += [first + end for end in partition(blocks, count * each)[1:]]
    return deal_chunks(blocks_per_module, boundaries, pp, placement)


def sharing_ranks(kind: str, names: Sequence[str], encoders: Collection[str]) -> list[list[int]]:
    """Numbers of the modules that share pipeline ranks, by place, in order of the first of each; of modules that are
    replicated only those that are not encoders."""
    if kind == "replicated":
        return [[k] for k, name in enumerate(names) if name not in encoders]
    together = [k for k, name in enumerate(names) if name in encoders] if kind == "colocated" else []
    return [together if k in together else [k] for k in range(len(names)) if k not in together[1:]]


def _on_ranks(
    names: Sequence[str],
    modules: Sequence[Sequence[float]],
    places: Sequence[Sequence[int]],
    ranks: Sequence[int],
    vpp: int,
    placement: str,
) -> list[Chunk]:
    """Every module over the ranks of its place, module by module: ``vpp`` groups of blocks a rank, dealt out as by
    ``deal_chunks``, fewer where a module has fewer blocks."""
    first = dict(zip(itertools.chain(*places), itertools.count(), strict=False))
    for place, begin in zip(places, itertools.accumulate([0, *ranks]), strict=False):
        first |= dict.fromkeys(place, begin)
    count = {k: own for place, own in zip(places, ranks, strict=True) for k in place}
    chunks: list[Chunk] = []
    for module in sorted(first):
        blocks, width = modules[module], count[module]
        cut = partition(blocks, width * min(vpp, len(blocks) // width))
        for own in deal_chunks([len(blocks)], cut, width, placement):
            chunks.append(replace(own, index=len(chunks), rank=first[module] + own.rank, module=module))
    return chunks


def _with_repeats(
    chunks: Sequence[Chunk],
    names: Sequence[str],
    modules: Sequence[Sequence[float]],
    sources: Sequence[Collection[str]],
    encoders: Collection[str],
) -> list[Chunk]:
    """The chunks with all encoders on every rank before them; one whose result no other module reads repeats it."""
    reading: dict[str, int] = {}
    for module in reversed(range(len(names))):
        own = next((chunk.rank for chunk in chunks if chunk.module == module), reading.get(names[module], -1))
        reading |= dict.fromkeys(sources[module], own)
    found: list[Chunk] = []
    for module, name in enumerate(names):
        if name not in encoders:
            found += [
                replace(own, index=len(found) + n) for n, own in enumerate(c for c in chunks if c.module == module)
            ]
            continue
        for rank in sorted({chunk.rank for chunk in chunks}):
            repeats = rank != reading.get(name, -1)
            found.append(Chunk(len(found), rank, module, 0, len(modules[module]), repeats=repeats))
    return found


def check_places(
    kind: str,
    names: Sequence[str],
    blocks_per_module: Sequence[int],
    pp: int,
    vpp: int,
    shares: Mapping[str, int],
    encoders: Collection[str] = (),
) -> tuple[int, int, list[int]]:
    """Whether every module has room by itself.

    Args:
        as ``place_modules``, where modules are not mixed.
    Returns:
        Segments or ranks to share, groups of layers in one of them, and how many each place (modules that share ranks)
        can fill at most.
    Raises:
        ConfigError: as ``place_modules``.
    """
    key, what = ("vpp", "segments") if kind == "separated" else ("pp", "ranks")
    total, each = (vpp, pp) if kind == "separated" else (pp, 1)
    places = sharing_ranks(kind, names, encoders)
    sharing = [" and ".join(names[k] for k in place) for place in places]
    if total < len(places):
        raise ConfigError(
            f"{len(places)} modality modules ({', '.join(sharing)}) need as many {what} at least",
            where=f"parallel.{key}",
            expected=f">= {len(places)}, or parallel.segments = mixed",
            got=total,
            nearest=len(places),
        )
    room_of = [count // each for count in blocks_per_module]
    for name, blocks, room in zip(names, blocks_per_module, room_of, strict=True):
        if not room:
            raise ConfigError(
                f"module {name} has {blocks} blocks, fewer than the {each} stages of a segment",
                where="parallel.pp",
                expected=f"<= {blocks}, or parallel.segments = mixed",
                got=each,
                nearest=blocks,
            )
    most = [min(room_of[k] for k in place) for place in places]
    if total > sum(most):
        raise ConfigError(
            f"the modules have too few blocks for {total} {what}",
            where=f"parallel.{key}",
            expected=f"<= {sum(most)}",
            got=total,
            nearest=sum(most),
        )
    for name, count in shares.items():
        check_word(name, [names[k] for place in places for k in place], "modality module", f"parallel.shares.{name}")
        room = room_of[list(names).index(name)]
        if count > room:
            raise ConfigError(
                f"module {name} has too few blocks for {count} {what}",
                where=f"parallel.shares.{name}",
                expected=f"<= {room}",
                got=count,
                nearest=room,
            )
    _check_shares(shares, [[names[k] for k in place] for place in places], total, key, what)
    return total, each, most


def _check_shares(shares: Mapping[str, int], places: Sequence[Sequence[str]], total: int, key: str, what: str) -> None:
    """Every module has a share, those that share ranks the same, and all together make the total."""
    if not shares:
        return
    for first, *others in places:
        for name in others:
            if shares.get(name, 0) != shares.get(first, 0):
                raise ConfigError(
                    f"{first} and {name} share their ranks, and have different shares",
                    where=f"parallel.shares.{name}",
                    expected=f"{shares.get(first)}, as {first}",
                    got=shares.get(name),
                    nearest=shares.get(first),
                )
    missing = [name for place in places for name in place if name not in shares]
    found = sum(shares.get(place[0], 0) for place in places)
    if missing or found != total:
        raise ConfigError(
            f"the shares do not make {total} {what} of all modules",
            where="parallel.shares",
            expected=f"{total} {what} together, of {', '.join(name for place in places for name in place)}",
            got=" + ".join(f"{name} {count}" for name, count in shares.items()),
            nearest=f"{key} = {found}" if not missing else None,
        )


def _balanced(places: Sequence[Sequence[Sequence[float]]], total: int, each: int, most: Sequence[int]) -> list[int]:
    """One each, and every further one to the place whose heaviest group is heaviest: no other shares have a lighter
    heaviest group, because a group never gets heavier with more of them. Modules that share ranks are cut one by one,
    and a rank has a group of each."""
    counts = [1] * len(places)
    for _ in range(total - len(places)):
        heaviest = [
            sum(heaviest_group(blocks, count * each) for blocks in modules) if count < limit else -1.0
            for modules, count, limit in zip(places, counts, most, strict=True)
        ]
        counts[heaviest.index(max(heaviest))] += 1
    return counts


def heaviest_group(weights: Sequence[float], parts: int) -> float:
    """Weight of the heaviest group where a row of blocks is cut best."""
    return max(sum(weights[first:last]) for first, last in itertools.pairwise(partition(weights, parts)))
