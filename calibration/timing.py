"""How long a kernel takes under sustained load: the policy, free of torch.

A training run keeps a GPU busy for hours, so its clock is the one that power and temperature allow. A call is therefore
repeated without a pause, in rounds of many calls, until two successive windows of rounds agree; only then does counting
begin. Calls rotate over several sets of operands (``num_copies``), so that the L2 cache is as cold as in a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from semu.checks import check_integer
from semu.errors import ConfigError

Call = Callable[[], object]


class Stopwatch(Protocol):
    """Runs calls on a device and says how long they took there."""

    def round_s(self, calls: Sequence[Call], start: int, count: int) -> float:
        """Issue ``count`` calls, the first being ``calls[start % len(calls)]``, in turn, without a pause between them.

        Returns:
            Time from the begin of the first to the end of the last [s].
        """
        ...


@dataclass(frozen=True)
class Policy:
    """How much work goes into one figure.

    Attributes:
        round_s: length of a round that is aimed at [s]. max_calls: most calls of a round.
        warm_s: least load before counting [s]. window: rounds of a window. tolerance: relative difference of the
            medians of two successive windows below which the load counts as settled. max_warm_s: most load before
            counting [s]; then the figure is taken as it is and says so.
        rounds: counted rounds. label: of the load, for the column ``note``.
    Raises:
        ConfigError: a number that cannot be.
    """

    round_s: float = 0.005
    max_calls: int = 200
    warm_s: float = 0.05
    window: int = 5
    tolerance: float = 0.01
    max_warm_s: float = 1.0
    rounds: int = 20
    label: str = "load=sustained"

    def __post_init__(self) -> None:
        for name in ("max_calls", "window", "rounds"):
            check_integer(getattr(self, name), name)
        for name in ("round_s", "warm_s", "tolerance", "max_warm_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError("out of range", where=name, expected="a finite number >= 0", got=value)
        if self.max_warm_s < self.warm_s:
            raise ConfigError(
                "less than the least", where="max_warm_s", expected=f">= {self.warm_s}", got=self.max_warm_s
            )


SUSTAINED = Policy()
BRIEF = Policy(round_s=0.003, warm_s=0.03, max_warm_s=0.3, window=3, rounds=10, label="load=brief")
"""Under ``--budget``: too short for the clock of a run, see SCHEMA.md."""
QUICK = Policy(
    round_s=0.0005, max_calls=3, warm_s=0.0, window=1, tolerance=1.0, max_warm_s=0.001, rounds=3, label="dry run"
)
"""For a dry run: the figures mean nothing."""


@dataclass(frozen=True)
class Timing:
    """One figure, per call.

    Attributes:
        median_s, min_s, max_s: over the counted rounds [s]. calls: of each round. load_s: load before counting [s].
        settled: whether the last windows before counting agreed.
    """

    median_s: float
    min_s: float
    max_s: float
    calls: int
    load_s: float
    settled: bool

    def note(self) -> str:
        """Words for the column ``note`` where something is odd about the figure."""
        return "" if self.settled else "unsettled"


def time_calls(stopwatch: Stopwatch, calls: Sequence[Call], policy: Policy) -> Timing:
    """Time a call under sustained load.

    Args:
        stopwatch: of the device. calls: the same call on different operands. policy: how much work.
    Raises:
        ConfigError: no calls, or a stopwatch that goes backwards.
    """
    if not calls:
        raise ConfigError("nothing to time", where="calls", expected="at least one", got=0)
    issued = 0

    def _one_round(count: int) -> float:
        nonlocal issued
        elapsed = stopwatch.round_s(calls, issued, count)
        if not 0 <= elapsed < math.inf:
            raise ConfigError("no time", where="stopwatch", expected="seconds >= 0", got=elapsed)
        issued += count
        return elapsed

    _one_round(len(calls))  # compiles, tunes, fills caches
    once = _one_round(1)
    count = policy.max_calls if once == 0 else max(1, min(policy.max_calls, math.ceil(policy.round_s / once)))
    if count > 1:  # the first guess has the cost of starting in it
        once = _one_round(count) / count
        count = policy.max_calls if once == 0 else max(1, min(policy.max_calls, math.ceil(policy.round_s / once)))
    load, times, settled = 0.0, [], False
    while not (settled and load >= policy.warm_s):
        if load >= policy.max_warm_s and len(times) >= 2 * policy.window:
            break
        times.append(_one_round(count) / count)
        load += times[-1] * count or policy.round_s
        settled = is_settled(times, policy)
    counted = [_one_round(count) / count for _ in range(policy.rounds)]
    return Timing(median(counted), min(counted), max(counted), count, load, settled)


def is_settled(times: Sequence[float], policy: Policy) -> bool:
    """Whether the medians of the last two windows agree.

    Args:
        times: of the rounds so far [s].
    """
    if len(times) < 2 * policy.window:
        return False
    before, after = times[-2 * policy.window : -policy.window], times[-policy.window :]
    return abs(median(after) - median(before)) <= policy.tolerance * median(before)


def num_copies(set_bytes: int, cache_bytes: int, free_bytes: int, *, most: int = 64) -> int:
    """Sets of operands to rotate over, so that a set has left the cache when its turn comes again.

    Args:
        set_bytes: bytes that one call touches. cache_bytes: of the L2 cache. free_bytes: of device memory that may be
            used. most: limit of their number.
    Returns:
        Number of sets, at least 1: together four times the cache, where ``free_bytes`` and ``most`` allow it.
    """
    if set_bytes <= 0:
        return 1
    return max(1, min(math.ceil(4 * cache_bytes / set_bytes), most, free_bytes // set_bytes))


def is_cache_hot(set_bytes: int, copies: int, cache_bytes: int) -> bool:
    """Whether ``copies`` sets in rotation are too few to leave the cache: less than twice its size together."""
    return set_bytes * copies < 2 * cache_bytes
