"""``steady_samples``: of a log's iterations those that count, by a rule that is the same for every log.

The rule: the first fifth of the iterations is warm-up, but no more than ``MOST_WARM_UP`` of them and, of two or
more, no fewer than one: the first compiles kernels and opens communicators. Of the rest the median counts. An
iteration further from it than ``OUTLIER_DEVIATIONS`` standard deviations (estimated as 1.4826 x the median absolute
deviation; Rousseeuw and Croux, 1993) and than ``OUTLIER_SHARE`` of it is an outlier: it is named, and kept, since it
hardly moves a median.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.records import dataclass

MOST_WARM_UP = 10
WARM_UP_SHARE = 0.2
OUTLIER_DEVIATIONS = 5.0
OUTLIER_SHARE = 0.05
_NORMAL_MAD = 1.4826


@dataclass(frozen=True)
class Samples:
    """Iterations after the warm-up.

    Attributes:
        numbers: of the iterations, as the log has them. values: float64[n].
        dropped: how many came before.
    """

    numbers: tuple[int, ...]
    values: NDArray[np.float64]
    dropped: int

    @property
    def median(self) -> float:
        """The middle value, or the mean of the two in the middle."""
        return float(np.median(self.values))

    @property
    def p5(self) -> float:
        """The smallest value that at least 5 % do not exceed."""
        return float(np.quantile(self.values, 0.05, method="inverted_cdf"))

    @property
    def p95(self) -> float:
        """The smallest value that at least 95 % do not exceed."""
        return float(np.quantile(self.values, 0.95, method="inverted_cdf"))

    @property
    def outliers(self) -> tuple[tuple[int, float], ...]:
        """(iteration, value) of the iterations far from the median."""
        distance = np.abs(self.values - self.median)
        deviation = OUTLIER_DEVIATIONS * _NORMAL_MAD * float(np.median(distance))
        bound = max(deviation, OUTLIER_SHARE * abs(self.median))
        return tuple(
            (number, float(value))
            for number, value, far in zip(self.numbers, self.values, distance > bound, strict=True)
            if far
        )


def warm_up_count(count: int) -> int:
    """How many of ``count`` iterations are warm-up by default."""
    return min(MOST_WARM_UP, max(int(WARM_UP_SHARE * count), 1 if count > 1 else 0))


def steady_samples(
    numbers: Sequence[int], values: Sequence[float], warm_up: int | None = None, *, where: str | None = None
) -> Samples:
    """Leave out the warm-up.

    Args:
        numbers, values: iterations in the order of the log. warm_up: how many to leave out; None: ``warm_up_count``.
        where: the log, for messages.
    Raises:
        ConfigError: nothing would be left, or a negative number.
    """
    dropped = warm_up_count(len(values)) if warm_up is None else warm_up
    if not 0 <= dropped < len(values):
        raise ConfigError(
            "no iteration is left after the warm-up" if dropped >= 0 else "not a number of iterations",
            where=f"--warm-up, {where}" if where else "--warm-up",
            expected=f"0 to {len(values) - 1}",
            got=dropped,
            nearest=max(0, len(values) - 1) if dropped >= 0 else 0,
        )
    return Samples(tuple(numbers[dropped:]), np.array(values[dropped:], dtype=np.float64), dropped)
