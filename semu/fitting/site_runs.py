"""``site_factors``: one or two factors on top of a profile, from a site's training runs.

With C, N and R the computation, the exposed communication and the rest of a simulated iteration,

    log measured = log(C exp(a) + N exp(a + d) + R) + noise:

``a`` is how slow the site is, ``d`` how much slower its links are on top. Two or three runs must do, so a prior is
needed. In the published groups of at least four runs, with software factors fitted on all groups, a group's mean error
is within 0.05, with a deviation of 0.015 beyond chance; with factors fitted on the other groups alone means are up to
0.12 off, without factors up to 0.42. Hence a mixture: most sites match the profile, some do not; most runs match their
site, some are strange (an unknown setting, a first release). Two runs that agree can move the factors, one strange run
moves them little, and a site that matches its profile keeps factors near one. The factors are posterior means of ``a``
and ``d``, by quadrature over a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_number
from semu.errors import ConfigError
from semu.records import dataclass

LIKE_PROFILE = 0.015
"""Standard deviation of ``a`` where the profile knows the site's hardware and software."""
UNLIKE_PROFILE, UNLIKE_SHARE = 0.15, 0.15
"""Standard deviation of ``a`` where the profile does not know them, and the share of such sites."""
LINK_SPREAD = 0.2
"""Standard deviation of ``d``: rigs differ in their networks most."""
ROW_SPREAD = 0.05
"""Standard deviation of a run's log time around its site's factors."""
EXPERT_ROW_SPREAD = 0.5
"""The same for models with experts: published runs of equal settings differ by up to a factor of two."""
STRANGE, STRANGE_SHARE = 3.0, 0.15
"""How many times further strange runs are off (half width at half height of a Cauchy distribution, whose tails forgive
any run), and how many of all runs are strange."""

F64 = NDArray[np.float64]

_A = np.linspace(-1.0, 1.0, 401)[:, None]
_D = np.linspace(-0.6, 0.6, 31)[None, :]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """A measured run and its simulation.

    Attributes:
        measured_s: iteration time [s].
        compute_s, communication_s: time of kernels and exposed communication of the simulated iteration [s].
        other_s: the rest of the simulated iteration, which no factor changes [s].
        spread: standard deviation of the logarithm of such runs' times, ``ROW_SPREAD`` or ``EXPERT_ROW_SPREAD``.
    """

    measured_s: float
    compute_s: float
    communication_s: float
    other_s: float = 0.0
    spread: float = ROW_SPREAD

    @property
    def predicted_s(self) -> float:
        """The simulated iteration time [s]."""
        return self.compute_s + self.communication_s + self.other_s


@dataclass(frozen=True, slots=True)
class SiteFactors:
    """Factors on simulated computation and communication, and the number of rows behind them."""

    compute: float
    communication: float
    rows: int

    def time_s(self, run: RunTimes) -> float:
        """The run's predicted iteration time with the factors [s]."""
        return self.compute * run.compute_s + self.communication * run.communication_s + run.other_s


def site_factors(runs: Sequence[RunTimes]) -> SiteFactors:
    """Factors from runs at a site (formula and prior: top of this file).

    Args:
        runs: at least one.
    Raises:
        ConfigError: no runs; a time that is not positive.
    """
    if not runs:
        raise ConfigError("no runs", where="site calibration", expected="one run at least", got=0)
    for number, run in enumerate(runs):
        for value in (run.measured_s, run.predicted_s):
            check_number(value, f"run {number}", "a time", is_above=True)
    return factors_of([evidence(run) for run in runs])


def evidence(run: RunTimes) -> F64:
    """Logarithm of a run's likelihood, but for a constant, on the grid of ``a`` and ``d``."""
    scale = np.exp(_A)
    predicted = run.compute_s * scale + run.communication_s * (scale * np.exp(_D)) + run.other_s
    error = np.log(run.measured_s / predicted)
    strange = STRANGE * run.spread
    tails = math.sqrt(2 / math.pi) / (strange * (1 + (error / strange) ** 2))
    result: F64 = np.log((1 - STRANGE_SHARE) * _bell(error, run.spread) + STRANGE_SHARE * tails)
    return result


def factors_of(evidences: Sequence[F64]) -> SiteFactors:
    """Posterior means, as factors.

    Args:
        evidences: ``evidence`` of each run.
    """
    log_density = _PRIOR + sum(evidences)
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    a, d = float((density * _A).sum()), float((density * _D).sum())
    return SiteFactors(math.exp(a), math.exp(a + d), len(evidences))


def _bell(x: F64, spread: float) -> F64:
    """A normal density, but for the factor that all have in common."""
    result: F64 = np.exp(-0.5 * (x / spread) ** 2) / spread
    return result


_PRIOR: F64 = (
    np.log((1 - UNLIKE_SHARE) * _bell(_A, LIKE_PROFILE) + UNLIKE_SHARE * _bell(_A, UNLIKE_PROFILE))
    - 0.5 * (_D / LINK_SPREAD) ** 2
)
