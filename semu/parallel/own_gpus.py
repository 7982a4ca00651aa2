"""Modality modules on GPUs of their own (Cornstarch §3.3): ``on_own_gpus`` fills in what was left open.

Every module (``segments = "apart"``) or all encoders together (``"colocated"``) have pipeline ranks of their own; where
a module says ``gpus``, its ranks have as many GPUs as it says, and its tp and cp are its own. Ranks lie on GPUs as in
``semu.parallel.axes.MESH``, one place behind the other: a place is the pipeline ranks of modules that share GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.parallel.axes import Following
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu.parallel.pipeline import nearest_multiple
from semu.parallel.segments import OWN_RANKS, sharing_ranks
from semu.records import dataclass


def on_own_gpus(parallel: Parallel, names: Sequence[str], encoders: Collection[str], num_gpus: int) -> Parallel:
    """The same with the pipeline ranks of every module, and with its GPUs where a module has its own.

    Args:
        parallel: with modules by name. names: of the modality modules, in order of data flow.
        encoders: those that are encoders. num_gpus: of the cluster.
    Returns:
        With ``dp``, and where modules have ranks of their own with ``pp`` and ``shares``, where they have GPUs of their
        own with all modules' ``gpus``, ``tp``, ``cp`` and ``pp``.
    Raises:
        ConfigError: pipeline ranks or GPUs that do not add up, or sizes that do not divide; the nearest that do.
    """
    told = parallel.modules
    if parallel.segments not in OWN_RANKS or not any(m.pp is not None or m.gpus is not None for m in told.values()):
        return parallel.on(num_gpus)
    places = [tuple(names[k] for k in own) for own in sharing_ranks(parallel.segments, names, encoders)]
    ranks = _pipeline_ranks(parallel, places)
    shares = {name: count for place, count in zip(places, ranks, strict=True) for name in place}
    found = replace(parallel, pp=sum(ranks), shares=shares)
    if not parallel.has_own_gpus:
        return found.on(num_gpus)
    sizes = {name: _sizes(parallel, name, shares[name]) for name in names}
    needs = [_Need.of(place, sizes, told) for place in places]
    dp = _replicas(parallel, needs, num_gpus)
    every = [need.gpus if need.gpus is not None else dp * need.each for need in needs]
    if sum(every) != num_gpus:
        raise _wrong_sum(needs, every, dp, num_gpus)
    firsts = accumulate([0, *ranks])
    modules = {
        name: replace(sizes[name], gpus=gpus, first_rank=first)
        for place, gpus, first in zip(places, every, firsts, strict=False)
        for name in place
    }
    return replace(found, dp=dp, modules={name: modules[name] for name in names})


def rank_weights(parallel: Parallel) -> NDArray[np.float64]:
    """How much every pipeline rank counts in a mean over GPUs: its GPUs over those of the mean rank, 1 where all have
    as many: float64[pp]."""
    widths = np.array(parallel.rank_widths, dtype=np.float64)
    weights: NDArray[np.float64] = widths / widths.mean()
    return weights


_Modules = Mapping[str, ModuleParallel]


@dataclass(frozen=True)
class _Need:
    """What a place needs. names: of its modules. gpus: as told. each: GPUs of a replica, a multiple of its modules'
    tp x cp x pp."""

    names: tuple[str, ...]
    gpus: int | None
    each: int

    @classmethod
    def of(cls, names: tuple[str, ...], sizes: _Modules, told: _Modules) -> _Need:
        """Of modules that share pipeline ranks."""
        given = {name: told[name].gpus for name in names if name in told and told[name].gpus is not None}
        _check_same(given, "gpus", "GPUs")
        each = math.lcm(*((own.tp or 1) * (own.cp or 1) * (own.pp or 1) for own in map(sizes.__getitem__, names)))
        return cls(names, next(iter(given.values()), None), each)


def _sizes(parallel: Parallel, name: str, pp: int) -> ModuleParallel:
    """A module's sizes: as told, else the job's."""
    own = parallel.modules.get(name, ModuleParallel())
    return replace(own, tp=own.tp or parallel.tp, cp=own.cp or parallel.cp, pp=pp)


def _check_same(given: Mapping[str, int | None], key: str, what: str) -> None:
    """Modules that share ranks say the same, or only one of them says something."""
    (first, value), *others = [*given.items()] or [("", None)]
    for name, other in others:
        if other != value:
            raise ConfigError(
                f"{first} and {name} share their pipeline ranks, and have different {what}",
                where=f"parallel.modules.{name}.{key}",
                expected=f"{value}, as {first}",
                got=other,
                nearest=value,
            )


def _pipeline_ranks(parallel: Parallel, places: Sequence[tuple[str, ...]]) -> list[int]:
    """Pipeline ranks of every place: as its modules or ``shares`` say, else the rest of pp, else one."""
    found: list[int | None] = []
    for names in places:
        given = {name: own.pp for name in names if (own := parallel.modules.get(name)) and own.pp is not None}
        given |= {name: parallel.shares[name] for name in names if name in parallel.shares and name not in given}
        _check_same(given, "pp", "pipeline ranks")
        found.append(next(iter(given.values()), None))
    known, missing = sum(count or 0 for count in found), found.count(None)
    rest = parallel.pp - known if parallel.pp > 1 else missing
    if (rest != 0 if not missing else rest < missing) and parallel.pp > 1:
        said = ", ".join(f"{' + '.join(place)} {count or 'open'}" for place, count in zip(places, found, strict=True))
        raise ConfigError(
            f"the modules' pipeline ranks do not make pp = {parallel.pp}, the pipeline ranks of all modules: {said}",
            where="parallel.pp",
            expected=f"{known + missing}" if not missing else f">= {known + missing}",
            got=parallel.pp,
            nearest=known + missing,
        )
    if missing > 1 and rest > missing:
        open_names = [name for place, count in zip(places, found, strict=True) if count is None for name in place]
        raise ConfigError(
            f"{rest} pipeline ranks for {missing} modules, and nobody says how many each has",
            where=f"parallel.modules.{open_names[0]}.pp",
            expected=f"pp of {', '.join(open_names)}",
            got="nothing",
            nearest=rest - missing + 1,
        )
    return [count if count is not None else rest - missing + 1 for count in found]


def _replicas(parallel: Parallel, needs: Sequence[_Need], num_gpus: int) -> int:
    """Data-parallel replicas: as told, else as many as the modules' GPUs hold."""
    if not isinstance(parallel.dp, Following):
        return parallel.dp
    told = [(need, need.gpus) for need in needs if need.gpus is not None]
    for need, gpus in told:
        if gpus % need.each:
            raise ConfigError(
                f"{gpus} GPUs do not divide into groups of tp x cp x pp = {need.each}",
                where=f"parallel.modules.{need.names[0]}.gpus",
                expected=f"a multiple of {need.each}",
                got=gpus,
                nearest=nearest_multiple(gpus, need.each),
            )
    most = math.gcd(*(gpus // need.each for need, gpus in told))
    open_gpus = sum(need.each for need in needs if need.gpus is None)
    if not open_gpus:
        return most
    rest = num_gpus - sum(gpus for _, gpus in told)
    return max((n for n in range(1, most + 1) if most % n == 0 and n * open_gpus <= rest), default=1)


def _wrong_sum(needs: Sequence[_Need], every: Sequence[int], dp: int, num_gpus: int) -> ConfigError:
    """The modules have more or fewer GPUs together than the cluster; nearest: one module with other GPUs."""
    total = sum(every)
    nearest = None
    for need, gpus in zip(reversed(needs), reversed(every), strict=True):
        other = gpus + num_gpus - total
        if other > 0 and other % (dp * need.each) == 0:
            nearest = f"parallel.modules.{need.names[0]}.gpus = {other}"
            break
    said = " + ".join(f"{' and '.join(need.names)} {gpus}" for need, gpus in zip(needs, every, strict=True))
    return ConfigError(
        f"the GPUs of the modules are not those of the cluster: {said} = {total}",
        where="parallel.modules",
        expected=f"{num_gpus} GPUs together",
        got=total,
        nearest=nearest if nearest is not None else f"a cluster of {total} GPUs",
    )
