"""Closed forms of checkpointing under memoryless failures: what a long run is held against, and its best interval.

``M`` is the mean time between failures, ``C`` what training waits for a save, ``R`` what it takes from a failure to
training again, ``W`` the work between two saves; all in seconds.

Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math


def young_interval(save_s: float, mtbf_s: float) -> float:
    """Young's interval: sqrt(2 C M)."""
    return math.sqrt(2.0 * save_s * mtbf_s)


def daly_interval(save_s: float, mtbf_s: float) -> float:
    """Daly's interval, his equation 37: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + C / 18M) - C for C < 2M, else M."""
    if save_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2.0 * mtbf_s)
    return young_interval(save_s, mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - save_s


def expected_time(work_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Expected time of a piece of work and its save, restarts and failures in them included.

    E = e^(R/M) (e^((W + C)/M) - 1) M; infinity where it has no number.
    """
    try:
        return math.exp(restart_s / mtbf_s) * math.expm1((work_s + save_s) / mtbf_s) * mtbf_s
    except OverflowError:
        return math.inf


def expected_goodput(work_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """W / E: the share of time that is work which counts."""
    return work_s / expected_time(work_s, save_s, restart_s, mtbf_s)


def best_interval(save_s: float, mtbf_s: float) -> float:
    """The W with the largest W / E: the root of e^((W + C)/M) (1 - W/M) = 1, by bisection; it does not depend on R.

    With saves far longer than M it is M, as near as numbers are.
    """
    low, high = 0.0, mtbf_s
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle < mtbf_s and (middle + save_s) / mtbf_s + math.log1p(-middle / mtbf_s) > 0.0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def kept_without_saves(iteration_s: float, mtbf_s: float) -> float:
    """x / (e^x - 1), x = T/M: the share of time that counts where a failure loses the iteration in flight and nothing
    else, and takes no time."""
    x = iteration_s / mtbf_s
    return 1.0 if x == 0.0 else x / math.expm1(x) if x < 700.0 else 0.0
