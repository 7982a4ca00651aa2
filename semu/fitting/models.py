"""``model_of``: which coefficients of a section are fitted, between which bounds, and in which a source may differ.

Bounds keep every coefficient finite and every time monotone in the shape. A coefficient that is not fitted keeps its
value in the profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.fitting.forms import QUANTISE
from semu.fitting.samples import Family, Samples, family_of
from semu.hardware.efficiency import Efficiency, coefficient_names
from semu.hardware.kinds import OpKind, Port
from semu.hardware.known_devices import KNOWN_DEVICES
from semu.hardware.network import COEFFICIENTS
from semu.records import dataclass

SMALL_PRODUCT = 256
"""Products with a smaller m, n or k are small: no training job waits for them, and they are not fitted."""
SMALL_BYTES = 20e6
"""Memory-bound calls of fewer bytes run partly from the cache: not fitted [bytes]."""
TIME = "time"
"""A source's factor on the whole time; its other factors are on coefficients."""
FLOOR = "floor_s"
"""A source's least time [s], no factor: its measurements include a wait for the last rank, always about as long."""
FEWEST_ROWS = 2
PACKETS = 0.9
"""Most of NVLink that collectives can reach: a packet carries up to 16 flits of data in 17 or 18."""
RATES = ("link.pcie.p2p", "efficiency.copy", "efficiency.optimizer")
"""Sections that a single long copy determines."""
_MANY = 24
"""With fewer rows only the rates are fitted, and the curve keeps its shape."""


@dataclass(frozen=True, slots=True)
class Free:
    """A coefficient to fit: where it starts, and its bounds."""

    name: str
    start: float
    low: float
    high: float


@dataclass(frozen=True)
class Model:
    """How a section is fitted.

    Attributes:
        free: coefficients that are fitted. fixed: name -> value of all other coefficients.
        site: factors of a source while the base is fitted: ``time``, or names of coefficients.
        final: factors of a source once the base is fitted.
    """

    free: tuple[Free, ...]
    fixed: Mapping[str, float]
    site: tuple[str, ...] = (TIME,)
    final: tuple[str, ...] = (TIME,)


_PRODUCT = (
    Free("flop", 0.8, 0.2, 1.0),
    Free("mem", 0.8, 0.1, 1.0),
    Free("t0_s", 3e-6, 0.0, 2e-5),
    Free("tile_k0", 80.0, 0.0, 500.0),
    Free("tile_rest", 0.25, 0.0, 1.0),
    Free("tile_128", 0.95, 0.5, 1.0),
    Free("power", 0.1, 0.0, 0.6),
)
_ATTENTION = (
    Free("flop", 0.6, 0.1, 1.0),
    Free("mem", 0.3, 0.02, 1.0),
    Free("t0_s", 1.5e-5, 0.0, 6e-5),
    Free("s0_tokens", 400.0, 0.0, 4000.0),
    Free("tile_rest", 0.5, 0.0, 1.5),
    Free("p", 1.5, 1.0, 12.0),
    Free("power", 0.1, 0.0, 0.6),
)
_LINK = {
    name: Free(name, item.fit.start, item.fit.low, item.fit.high)
    for name, item in COEFFICIENTS.items()
    if item.fit is not None
}
_OVER_NODES = {"hop_s": 5e-6, "short_net": 0.15}
"""Where fits of rings over nodes start: NCCL's own step (4 us and more in the mean), LL128's rate beside a card's."""
_ROW_WISE = ("norm", "softmax", "cross_entropy")
CACHE = ("cached", "cache_bytes")
"""Factors of a source whose norms read their input twice and whose sizes lie on both sides of the cache's."""
_FEWEST_BESIDE = 6


def fitted_rows(samples: Samples) -> NDArray[np.bool_]:
    """Which rows are large enough to fit on, before any are held out: bool[n]."""
    if samples.family is Family.PRODUCT:
        smallest = np.minimum(np.minimum(samples.column("m"), samples.column("n")), samples.column("k"))
        return np.asarray(smallest >= SMALL_PRODUCT)
    if samples.family is Family.MEMORY:
        return np.asarray(samples.column("bytes") >= SMALL_BYTES)
    return np.ones(len(samples), dtype=np.bool_)


def model_of(samples: Samples, current: Mapping[str, float], profile: str) -> Model | None:
    """How to fit a section; None: the rows are too few.

    Args:
        samples: the rows to fit on. current: the section's coefficients in the profile. profile: name of the profile.
    """
    if len(samples) < FEWEST_ROWS and samples.section not in RATES:
        return None
    is_many = len(samples) >= _MANY
    fixed = dict(current)
    device = KNOWN_DEVICES.get(profile)
    if samples.family is Family.PRODUCT:
        fixed["p"] = 3.0
        if device is not None:
            fixed["tiles_at_once"] = float(device.multiprocessors)
        untiled = tuple(item for item in _PRODUCT if not item.name.startswith("tile_"))
        free = _PRODUCT if fixed["tiles_at_once"] else untiled
        if not is_many:
            free = (Free("flop", min(0.9, current["flop"]), 0.1, 1.0),)
        if is_many and (samples.column("quantised") > 0).any():
            free = (*free, Free(QUANTISE, 0.3, 0.02, 1.0))
        has_both = 0 < (samples.column("weight_gradient") > 0).sum() < len(samples)
        if is_many and has_both:
            free = (*free, Free("weight_gradient", 0.95, 0.3, 1.0))
        return Model(free, fixed, final=(TIME, "t0_s") if is_many else (TIME,))
    if samples.family is Family.ATTENTION:
        if device is not None and (is_many or fixed["tiles_at_once"]):
            fixed["tiles_at_once"] = float(device.multiprocessors)
        if is_many and "forward" in samples.section:
            site = ("flop", "mem", "t0_s", "s0_tokens", "tile_rest")
            return Model(_ATTENTION, fixed, site, site)
        fixed["power"] = 0.0
        free = (Free("flop", 0.5, 0.05, 1.0),)
        lengths = np.unique(samples.column("seq_q"))
        if len(samples) >= 6 and len(lengths) >= 3:
            free = (*free, Free("s0_tokens", 400.0, 0.0, 4000.0))
        return Model(free, fixed)
    if samples.family is Family.MEMORY:
        sizes = np.unique(samples.column("bytes"))
        free = (Free("mem", 0.6, 0.05, 1.0),)
        if len(samples) >= 8 and len(sizes) >= 4:
            free = (*free, Free("t0_s", 1.5e-6, 0.0, 2e-5))
        else:
            fixed["t0_s"] = min(current["t0_s"], 1.5e-6)
        widths = np.unique(samples.column("width"))
        name = samples.section.split(".")[1]
        cache: tuple[str, ...] = ()
        if name == "norm":
            fixed["cached"] = 1.0
            fixed["cache_bytes"] = 0.0 if device is None else device.cache_bytes
            cache = CACHE if fixed["cache_bytes"] else ()
        if name in _ROW_WISE and len(samples) >= _MANY and len(widths) >= 4:
            row_wise = Free("row0", 200.0, 0.0, 8000.0)
            return Model((*free, row_wise), fixed, ("mem", "row0"), ("mem", "row0", *cache))
        if name in _ROW_WISE:
            fixed["row0"] = 0.0
        return Model(free, fixed, final=(TIME, *cache))
    return _link_model(samples, fixed, device is not None and device.has_switch_reduction)


def is_beside_the_cache(samples: Samples, cache_bytes: float) -> bool:
    """Whether a source has rows enough whose bytes fit in the cache, and enough of twice the cache and more."""
    moved = samples.column("bytes")
    below, above = int((moved <= cache_bytes).sum()), int((moved >= 2.0 * cache_bytes).sum())
    return min(below, above) >= _FEWEST_BESIDE


def _link_model(samples: Samples, fixed: dict[str, float], has_switch_reduction: bool) -> Model:
    _, port, kind = samples.section.split(".")
    num_sizes, num_ranks = (len(np.unique(samples.column(name))) for name in ("bytes", "ranks"))
    is_whole = samples.column("whole") > 0
    has_switch = has_switch_reduction and bool(is_whole.any()) and not is_whole.all()
    free = [
        _LINK[name]
        for name, item in COEFFICIENTS.items()
        if item.fit is not None
        and item.is_in(Port(port), OpKind(kind))
        and item.fit.is_determined(num_sizes, num_ranks, len(samples), has_switch=has_switch)
        and not (kind == "p2p" and name == "c_s")
    ]
    site = tuple(item.name for item in free if item.name in ("net", "t0_s", "hop_s")) if num_sizes >= 8 else (TIME,)
    if port == "nic" and num_ranks >= 2:  # many ranks: the latency is that of the steps
        fixed["t0_s"] = 0.0
        is_many = len(samples) >= _MANY
        names = ("net", "hop_s", "short_net", "short_hop", "p") if is_many else ("net", "hop_s", "c_s")
        fixed |= {"c_s": 0.0} if is_many else {}
        free = [replace(_LINK[name], start=_OVER_NODES.get(name, _LINK[name].start)) for name in names]
    if port == "nvlink" and kind != "p2p":
        free = [replace(item, high=PACKETS) if item.name == "net" else item for item in free]
    return Model(tuple(free), fixed, site, (*site, FLOOR) if kind == "all_reduce" else site)


def kept_for_want_of_rows(section: str, fitted: Iterable[str]) -> list[str]:
    """Coefficients that measurements of a section can move, and these were too few to."""
    family = family_of(section)
    if family is Family.LINK:
        _, port, kind = section.split(".")
        names = [name for name in _LINK if COEFFICIENTS[name].is_in(Port(port), OpKind(kind))]
        names = [name for name in names if kind != "p2p" or name != "c_s"]
    else:
        tables = {Family.PRODUCT: _PRODUCT, Family.ATTENTION: _ATTENTION}
        names = [item.name for item in tables.get(family, ()) if not item.name.startswith("tile_")]
    return [name for name in names if name not in fitted]


def defaults_of(section: str) -> dict[str, float]:
    """The neutral coefficients of a section."""
    if family_of(section) is Family.LINK:
        return {name: item.neutral for name, item in COEFFICIENTS.items()}
    neutral = Efficiency()
    return {name: float(getattr(neutral, name)) for name in coefficient_names(Efficiency)}
