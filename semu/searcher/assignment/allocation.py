"""How many GPUs each module of a replica should have, and how many samples tell it (001 §4.4.2, appendix C).

``proportional`` rounds shares of the work to whole GPUs. ``stable_batch`` is algorithm 2: the smallest batch of which
``trials_needed`` random draws, one after the other, all give the allocation of a reference draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

LARGEST_BATCH = 1 << 17
"""Samples of a batch at which the search for a stable one ends."""
_CELLS = 1 << 22
_FACTOR = 8.0


def trials_needed(alpha: float, error: float) -> int:
    """Draws without failure that show, with confidence 1 - alpha, that a failure is at most so likely.

    Args:
        alpha, error: in (0, 1).
    Source:
        001 eq. C.5: k = ceil(ln alpha / ln(1 - p)); 59 at 5 % and 5 %.
    """
    return math.ceil(math.log(alpha) / math.log1p(-error))


def proportional(work: F64, gpus: int) -> I64:
    """Whole GPUs in proportion to work, at least one each: largest remainders, ties to the first module.

    Args:
        work: float64[..., num_modules], >= 0. gpus: of all modules, >= num_modules.
    Returns:
        int64[..., num_modules], sums of ``gpus``.
    """
    total = work.sum(axis=-1, keepdims=True)
    share = np.where(total > 0, work / np.where(total > 0, total, 1.0), 1.0 / work.shape[-1]) * gpus
    floor = np.maximum(np.floor(share + 1e-12), 1.0)
    while (floor.sum(axis=-1) > gpus).any():  # modules that were lifted to one GPU take it from the largest
        over = floor.sum(axis=-1) > gpus
        largest = np.argmax(np.where(floor > 1, floor - share, -np.inf), axis=-1)[..., None]
        np.put_along_axis(floor, largest, np.take_along_axis(floor, largest, -1) - over[..., None], -1)
    left = gpus - floor.sum(axis=-1)
    order = np.argsort(-(share - floor), axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    result: I64 = (floor + (rank < left[..., None])).astype(np.int64)
    return result


@dataclass(frozen=True)
class Trial:
    """One batch size.

    Attributes:
        samples: of a batch. trials: draws asked for. passed: whether all gave the reference's allocation.
        seen: allocations that were drawn, most frequent first. share: of the draws that gave the reference's.
    """

    samples: int
    trials: int
    passed: bool
    seen: tuple[tuple[int, ...], ...]
    share: float


@dataclass(frozen=True)
class StableBatch:
    """How many samples tell the allocation.

    Attributes:
        samples: b_min; None: not converged up to ``LARGEST_BATCH``, or up to the number asked for.
        allocation: at b_min, or of all samples. of_all: of all samples. trials: every batch size that was tried.
        alpha, error: of the whole search.
        nearest: (module, factor): the smallest change of one module's work that changes the allocation of all samples.
    """

    samples: int | None
    allocation: tuple[int, ...]
    of_all: tuple[int, ...]
    trials: tuple[Trial, ...]
    alpha: float
    error: float
    nearest: tuple[int, float] | None


def stable_batch(
    work: F64,
    gpus: int,
    *,
    alpha: float = 0.05,
    error: float = 0.05,
    first: int = 1,
    also: int | None = None,
    seed: int = 0,
) -> StableBatch:
    """Algorithm 2 of 001 on samples at hand, drawn with replacement.

    The dissertation spends alpha at every size anew; here the j-th size (from 0) has alpha / 2^(j+1), so that the
    whole search is wrong with probability alpha at most. The ratio is of sums (C.6), not the mean of ratios (C.1).

    Args:
        work: float64[num_samples, num_modules] [s]. gpus: of a replica. alpha, error: as ``trials_needed``.
        first: batch that is tried first, then twice as many, and so on.
        also: a batch, such as the global one, that must pass too: what holds at b_min need not hold there where few
            samples have most of the work. seed: of the draws.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 0xB0]))
    of_all = tuple(proportional(work.sum(axis=0), gpus).tolist())
    trials: list[Trial] = []
    samples, size, spent = None, first, 0
    while size <= LARGEST_BATCH:
        spent += 1
        trial = draw_trials(work, gpus, size, trials_needed(alpha / 2**spent, error), generator)
        trials.append(trial)
        if trial.passed:
            samples = size
            break
        size *= 2
    allocation = trials[-1].seen[0] if samples is not None else of_all
    if also is not None and also <= LARGEST_BATCH and (samples is None or also > samples):
        trials.append(draw_trials(work, gpus, also, trials_needed(alpha / 2 ** (spent + 1), error), generator))
    return StableBatch(samples, allocation, of_all, tuple(trials), alpha, error, nearest_breakpoint(work, gpus))


def draw_trials(work: F64, gpus: int, size: int, trials: int, generator: np.random.Generator) -> Trial:
    """A reference draw and ``trials`` more of ``size`` samples each, with replacement.

    Args:
        work, gpus: as ``stable_batch``. generator: of the draws.
    """
    sums = np.empty((trials + 1, work.shape[1]))
    block = max(1, _CELLS // size)
    for begin in range(0, trials + 1, block):
        end = min(begin + block, trials + 1)
        drawn = generator.integers(0, len(work), (end - begin, size))
        sums[begin:end] = work[drawn].sum(axis=1)
    found = proportional(sums, gpus)
    same = (found[1:] == found[0]).all(axis=1)
    kinds, counts = np.unique(found, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    seen = tuple(tuple(row) for row in kinds[order].tolist())
    return Trial(size, trials, bool(same.all()), seen, float(same.mean()))


def nearest_breakpoint(work: F64, gpus: int) -> tuple[int, float] | None:
    """The module and the factor closest to 1 by which its work, of all samples, must change for another allocation.

    Args:
        work: float64[num_samples, num_modules]. gpus: of a replica.
    Returns:
        None: no factor up to 8 changes it.
    """
    total = work.sum(axis=0)
    now = proportional(total, gpus)

    def _differs(module: int) -> Callable[[float], bool]:
        def _at(factor: float) -> bool:
            changed = total.copy()
            changed[module] *= factor
            return bool((proportional(changed, gpus) != now).any())

        return _at

    best: tuple[int, float] | None = None
    for module in range(len(total)):
        differs = _differs(module)
        for far in (1 / _FACTOR, _FACTOR):
            if not differs(far):
                continue
            near, beyond = 1.0, far
            for _ in range(50):
                middle = math.sqrt(near * beyond)
                near, beyond = (near, middle) if differs(middle) else (middle, beyond)
            if best is None or abs(math.log(beyond)) < abs(math.log(best[1])):
                best = module, beyond
    return best
