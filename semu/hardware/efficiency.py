"""How much of a device's peak an operator kind reaches, as plain numbers with a provenance.

Objects: ``Efficiency`` (compute kinds), ``CollectiveEfficiency`` (one communication kind on one port),
``LinkEfficiency`` (all communication kinds on one port).

The paper's factors are the inverses: alpha = 1 / efficiency >= 1 (DIP §6.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from functools import partial
from typing import TypeVar

from semu.checks import check_efficiency, check_number, check_word
from semu.errors import ConfigError
from semu.hardware.kinds import OpKind, Provenance
from semu.hardware.network.algorithms import COEFFICIENTS
from semu.hardware.number import worst_provenance
from semu.hardware.shape_terms import p_norm
from semu.records import dataclass

NEUTRAL_SOURCE = "the paper's default: alpha = 1"


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Cost coefficients of one compute kind on one device.

    t = t0 + ((W' / (flop F))^p + (Q' / (mem B))^p)^(1/p), with W' [FLOP], Q' [bytes], peaks F and B; p = infinity is
    the paper's maximum. W' and Q' are an operator's FLOP and bytes with the terms of its shape: products cost
    ``tiled_flop``, fused attention its FLOP times ``attention_factor``, row-wise kernels their bytes times
    ``row_bytes_factor`` and ``cache_factor`` (``semu.hardware.shape_terms``). Under the sustained load of a training
    run the compute rate is flop F / (1 + power). An isolated kernel of time t1 takes t1 (1 + power t1 / (t1 + t')), as
    the clock falls within t': 2 ms of products, 10 ms of attention.

    Attributes:
        flop: reached fraction of the peak FLOP/s, in (0, 1].
        mem: reached fraction of the peak memory bandwidth, in (0, 1].
        t0_s: fixed device time of the kernel [s].
        p: softness of the roofline's corner, >= 1, infinity allowed.
        s0_tokens: short-sequence term of attention kernels [tokens]; 0: none.
        tiles_at_once: tiles of products and of attention that run at once, the number of multiprocessors; 0: no tiles.
        tile_k0, tile_rest, tile_128: of the tiles, see ``tiled_flop`` and ``attention_factor``.
        row0: width of a row at which a row-wise kernel's rate is half of ``mem`` [elements]; 0: none.
        cached: rate of a row-wise kernel whose bytes lie in the cache, over ``mem``, >= 1; 1: no difference.
        cache_bytes: size of the cache; a kernel of twice as many bytes finds none of them there; 0: no cache.
        power: share of time that sustained load adds, >= 0.
        weight_gradient: rate of the product for a weight gradient over that of other products, in (0, 1].
        partial_tile: time of a tile of attention in which a mask hides some pairs, over that of another tile, >= 1;
            see ``masked_factor``. Profiles leave it at 1, and kernels under masks are of provenance ``default``;
            FlexAttention on an H100 takes 1.17 to 1.27 (``calibration/measurements``).
        provenance, source: of all the numbers together.
        relative_error: mean absolute relative error of the fit on its data; None without a comparison.
    Raises:
        ConfigError: a number out of its range.
    Source:
        DIP §6.1 for the roofline; DESIGN §3.2 and the formulas of the microbenchmark data for the other terms.
    """

    flop: float = 1.0
    mem: float = 1.0
    t0_s: float = 0.0
    p: float = math.inf
    provenance: Provenance = Provenance.DEFAULT
    source: str = NEUTRAL_SOURCE
    relative_error: float | None = None
    s0_tokens: float = 0.0
    tiles_at_once: float = 0.0
    tile_k0: float = 0.0
    tile_rest: float = 0.0
    tile_128: float = 1.0
    row0: float = 0.0
    power: float = 0.0
    weight_gradient: float = 1.0
    cached: float = 1.0
    cache_bytes: float = 0.0
    partial_tile: float = 1.0

    def __post_init__(self) -> None:
        for name in coefficient_names(Efficiency):
            object.__setattr__(self, name, _CHECKS.get(name, check_number)(getattr(self, name), name))
        if self.relative_error is not None:
            object.__setattr__(self, "relative_error", check_number(self.relative_error, "relative_error"))

    @property
    def alpha_flop(self) -> float:
        """The paper's alpha_fop = 1 / flop."""
        return 1.0 / self.flop

    @property
    def alpha_mem(self) -> float:
        """The paper's alpha_mem = 1 / mem."""
        return 1.0 / self.mem

    def flop_rate(self, flop_per_s: float, *, is_weight_gradient: bool = False) -> float:
        """Rate of computing under sustained load [FLOP/s], for the peak ``flop_per_s``."""
        rate = self.flop * flop_per_s / (1.0 + self.power)
        return rate * self.weight_gradient if is_weight_gradient else rate

    def latency_s(
        self,
        flop: float,
        mem_bytes: float,
        flop_per_s: float,
        mem_bytes_per_s: float,
        *,
        is_weight_gradient: bool = False,
    ) -> float:
        """Latency [s] of one operator under sustained load: the scalar reference of the formula above.

        Args:
            flop: W', floating-point operations with the terms of the shape, >= 0.
            mem_bytes: Q', bytes read and written with the terms of the shape, >= 0.
            flop_per_s: peak of the operator's precision.
            mem_bytes_per_s: peak memory bandwidth.
            is_weight_gradient: whether the operator is the product for a weight gradient.
        Returns:
            0 for an operator without any cost, else the latency [s], not rounded.
        """
        if flop == 0 and mem_bytes == 0:
            return 0.0
        compute_s = flop / self.flop_rate(flop_per_s, is_weight_gradient=is_weight_gradient)
        return self.t0_s + float(p_norm(compute_s, mem_bytes / (self.mem * mem_bytes_per_s), self.p))


_CHECKS: Mapping[str, Callable[[object, str], float]] = {
    **dict.fromkeys(("flop", "mem", "weight_gradient"), check_efficiency),
    "tile_128": partial(check_number, is_above=True),
    **dict.fromkeys(("cached", "partial_tile"), partial(check_number, least=1.0)),
    "p": partial(check_number, least=1.0, is_infinite_ok=True),
}
"""Checks of coefficients; of the others a number >= 0 will do."""


@dataclass(frozen=True, slots=True, init=False)
class CollectiveEfficiency:
    """Cost coefficients of one communication kind on one port; ``semu.hardware.network.COEFFICIENTS`` declares them.

    Attributes:
        numbers: coefficient -> value, all of them; each is an attribute as well (``link.net``). The constructor takes
            them by name; one that is left out is neutral.
        provenance, source, relative_error: as in ``Efficiency``.
    Raises:
        ConfigError: an unknown coefficient, or a number out of its range.
    """

    numbers: Mapping[str, float]
    provenance: Provenance
    source: str
    relative_error: float | None

    def __init__(
        self,
        *,
        provenance: Provenance = Provenance.DEFAULT,
        source: str = NEUTRAL_SOURCE,
        relative_error: float | None = None,
        **numbers: float,
    ) -> None:
        for name in numbers:
            check_word(name, COEFFICIENTS, "coefficient", name)
        checked = {name: item.check(numbers.get(name, item.neutral), name) for name, item in COEFFICIENTS.items()}
        object.__setattr__(self, "numbers", checked)
        object.__setattr__(self, "provenance", provenance)
        object.__setattr__(self, "source", source)
        error = None if relative_error is None else check_number(relative_error, "relative_error")
        object.__setattr__(self, "relative_error", error)

    def __getattr__(self, name: str) -> float:
        if name not in COEFFICIENTS:
            raise AttributeError(name)
        return self.numbers[name]

    @property
    def alpha_net(self) -> float:
        """The paper's alpha_net = 1 / net."""
        return 1.0 / self.net


@dataclass(frozen=True)
class LinkEfficiency:
    """The communication kinds on one port.

    Attributes:
        kinds: one entry per communication kind.
    Raises:
        ConfigError: a kind that is no communication, or a missing kind.
    """

    kinds: Mapping[OpKind, CollectiveEfficiency] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = {kind for kind in OpKind if kind.is_communication}
        if set(self.kinds) != wanted:
            names = sorted(kind.value for kind in wanted)
            got = sorted(kind.value for kind in self.kinds)
            raise ConfigError("not the communication kinds", where="link", expected=", ".join(names), got=got)
        object.__setattr__(self, "kinds", dict(self.kinds))

    def of(self, kind: OpKind) -> CollectiveEfficiency:
        """Coefficients of one communication kind.

        Raises:
            ConfigError: ``kind`` is no communication.
        """
        if not kind.is_communication:
            raise ConfigError(
                f"{kind.value} does not run on a link", where="link", expected="a communication kind", got=kind.value
            )
        return self.kinds[kind]


Section = TypeVar("Section", Efficiency, CollectiveEfficiency)

_LABELS = frozenset(("provenance", "source", "relative_error"))


def coefficient_names(section: type[Efficiency] | type[CollectiveEfficiency]) -> tuple[str, ...]:
    """Names of the numbers in an efficiency section, without its provenance, source and error."""
    if section is CollectiveEfficiency:
        return tuple(COEFFICIENTS)
    return tuple(item.name for item in fields(section) if item.name not in _LABELS)


def with_coefficient(
    section: Efficiency | CollectiveEfficiency, name: str, value: float
) -> Efficiency | CollectiveEfficiency:
    """A copy with one number overridden; its provenance is at best ``spec``, its error is dropped.

    Args:
        section: the coefficients. name: one of ``coefficient_names``. value: the new number.
    Raises:
        ConfigError: the number is out of its range.
    """
    values = {key: getattr(section, key) for key in coefficient_names(type(section))}
    values[name] = value
    return type(section)(
        **values,
        provenance=worst_provenance(section.provenance, Provenance.SPEC),
        source=f"override of {name}; otherwise: {section.source}",
        relative_error=None,
    )
