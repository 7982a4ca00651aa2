"""``Uncertainty``: how far the errors of a profile's coefficients move an iteration time.

Errors within a section of coefficients are taken as fully correlated (a kind that is too slow is too slow everywhere),
those of different sections as independent. With s_k the seconds by which the iteration grows when kind k takes twice
its time, to first order, and r_k the relative standard deviation of its times,

    sigma^2 = sum over k (s_k r_k)^2.

The interval is that of a log-normal time of the relative standard deviation sigma / t: t exp(-+ z sigma / t), with z
the normal quantile. Kinds of runs that semu predicts worse than its coefficients say add a spread of the whole time
(``semu.simulation.effects.structural``), independent of the others, as a kind ``structure.NAME`` whose s_k is t; so
does what a run has and semu does not model, as ``left_out.NAME``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from semu.hardware.kinds import Port, Provenance
from semu.records import dataclass

LEVEL = 0.9
"""Probability of the interval that reports print."""

MAPE_TO_SIGMA = math.sqrt(math.pi / 2)
"""Standard deviation of a normal error over the mean of its absolute value, 1.2533."""

SPREADS: Mapping[Provenance, float] = {
    Provenance.MEASURED: 0.05,
    Provenance.FITTED: 0.10,
    Provenance.TRANSFERRED: 0.20,
    Provenance.SPEC: 0.30,
    Provenance.DEFAULT: 0.50,
}
"""Relative standard deviation of times whose coefficients have no error of their own. Assumed, not measured: a
measurement repeats within some percent, fits that tell their error are around 0.1, a number of a sister device is off
by twice that, a data sheet's peak is reached to about 0.6 to 0.9, and a guess may be off by half."""

FACTOR_SPREADS: Mapping[Provenance, float] = {
    Provenance.MEASURED: 0.025,
    Provenance.FITTED: 0.05,
    Provenance.TRANSFERRED: 0.10,
    Provenance.SPEC: 0.15,
    Provenance.DEFAULT: 0.10,
}
"""The same for software factors: half as much, since they are near 1 everywhere; one that a profile does not give is 1
with the spread of a transferred one."""

STRUCTURE = "structure"
"""First word of the kinds that no coefficient stands for."""
LEFT_OUT = "left_out"
"""First word of what a run has and semu does not model (``[training] left_out``)."""

_WIDEST = 20.0
"""An interval goes no further than e^20 either way: it stays a number."""

_PORTS = frozenset(port.value for port in Port)


def spread_of(
    provenance: Provenance, relative_error: float | None, spreads: Mapping[Provenance, float] = SPREADS
) -> float:
    """Relative standard deviation of times with some coefficients.

    Args:
        provenance: of the coefficients. relative_error: mean absolute relative error of their fit; None: not known,
            then ``spreads`` says.
    """
    return spreads[provenance] if relative_error is None else MAPE_TO_SIGMA * relative_error


@dataclass(frozen=True)
class UncertainKind:
    """What one kind of coefficients contributes.

    Attributes:
        kind: section of the profile: ``matmul``, ``nvlink.all_reduce``, ``software.matmul``, ``host.launch_s``;
            ``software.runs``: kernels with their factors, as runs left out of the fit judge them; or a kind of run,
            ``structure.experts``. Software factors and kinds of runs apply to seconds that other kinds
            count too.
        time_s: seconds by which the iteration grows when everything of the kind takes twice its time, to first order.
        spread: relative standard deviation of those times.
    """

    kind: str
    time_s: float
    spread: float

    @property
    def is_communication(self) -> bool:
        """Whether it is about links, or what the host adds to a transfer."""
        return self.kind.partition(".")[0] in _PORTS or self.kind == "software.transfer_s"

    @property
    def sigma_s(self) -> float:
        """Standard deviation that it alone gives the iteration time [s]."""
        return self.time_s * self.spread


@dataclass(frozen=True)
class Uncertainty:
    """Spread of an iteration time.

    Attributes:
        iteration_time_s: what was predicted [s]. kinds: what contributes, the most first.
    """

    iteration_time_s: float
    kinds: tuple[UncertainKind, ...]

    @classmethod
    def of(cls, iteration_time_s: float, kinds: Sequence[UncertainKind]) -> Uncertainty:
        """From contributions in any order; those without time are left out."""
        ranked = sorted((item for item in kinds if item.time_s > 0), key=lambda item: (-item.sigma_s, item.kind))
        return cls(iteration_time_s, tuple(ranked))

    @property
    def communication_s(self) -> float:
        """Seconds by which the iteration grows when all communication takes twice its time, to first order."""
        return math.fsum(item.time_s for item in self.kinds if item.is_communication)

    @property
    def sigma_s(self) -> float:
        """Standard deviation of the iteration time [s]: the formula at the top of this file."""
        return math.sqrt(math.fsum(item.sigma_s**2 for item in self.kinds))

    def interval_s(self, level: float = LEVEL) -> tuple[float, float]:
        """The interval that holds the iteration time with some probability [s].

        Args:
            level: the probability, in (0, 1); what is cut off above is as likely as what is cut off below.
        """
        if self.iteration_time_s <= 0:
            return self.iteration_time_s, self.iteration_time_s
        quantile = NormalDist().inv_cdf((1 + level) / 2)
        factor = math.exp(min(quantile * self.sigma_s / self.iteration_time_s, _WIDEST))
        return self.iteration_time_s / factor, self.iteration_time_s * factor

    def to_json(self) -> dict[str, object]:
        """As ``uncertainty`` of ``simulate --json``."""
        return {
            "level": LEVEL,
            "interval_s": list(self.interval_s()),
            "sigma_s": self.sigma_s,
            "kinds": [{**vars(item), "sigma_s": item.sigma_s} for item in self.kinds],
        }


def coverage(provenance: Mapping[str, float]) -> dict[str, float]:
    """Share of the computing and communicating time that rests on each provenance, best first, none left out.

    Args:
        provenance: provenance -> share, as ``Report.provenance``.
    """
    return {item.value: provenance.get(item.value, 0.0) for item in Provenance}
