"""GPUs for modules in proportion to work, and the batch that tells them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from semu.searcher.assignment.allocation import nearest_breakpoint, proportional, stable_batch, trials_needed


def test_59_draws_at_five_percent():
    """001 appendix C.2: alpha = p = 0.05 needs k = 59."""
    assert trials_needed(0.05, 0.05) == 59
    assert 0.95**59 <= 0.05 < 0.95**58


@pytest.mark.parametrize(
    ("vision", "llm", "gpus", "wanted"), [(1.27, 1, 16, (9, 7)), (1, 1, 16, (8, 8)), (5, 3, 16, (10, 6))]
)
def test_ratios_of_the_dissertation(vision, llm, gpus, wanted):
    """1.27 : 1 of 16 GPUs is 9 : 7; Table 4.2 prints 8 : 8 beside it."""
    assert tuple(proportional(np.array([vision, llm], float), gpus)) == wanted


def test_proportional_is_the_closest_whole_allocation():
    generator = np.random.default_rng(0)
    for _ in range(100):
        work, gpus = generator.exponential(1, 3), int(generator.integers(6, 14))
        share = work / work.sum() * gpus
        if share.min() < 1:
            continue
        found = proportional(work, gpus)
        assert found.sum() == gpus
        legal = [own for own in product(range(1, gpus + 1), repeat=3) if sum(own) == gpus]
        best = min(np.abs(np.array(own) - share).sum() for own in legal)
        assert np.abs(found - share).sum() == pytest.approx(best)


def test_every_module_has_a_gpu():
    assert proportional(np.array([0.0, 1.0, 1000.0]), 4).tolist() == [1, 1, 2]
    assert proportional(np.array([[1.0, 0.0], [0.0, 0.0]]), 4).tolist() == [[3, 1], [2, 2]]


def test_a_stable_ratio_is_told_by_one_sample():
    work = np.tile([[2.0, 1.0]], (50, 1)) * np.random.default_rng(1).exponential(1, (50, 1))
    found = stable_batch(work, 9)
    assert found.samples == 1
    assert found.allocation == found.of_all == (6, 3)


def test_b_min_holds_on_fresh_draws():
    """What the confidence says, counted: of many batches of b_min samples few differ."""
    generator = np.random.default_rng(3)
    work = generator.lognormal(0, 1, (4000, 2)) * [1.5, 1.0]
    found = stable_batch(work, 8, seed=4)
    assert found.samples is not None
    drawn = generator.integers(0, len(work), (2000, found.samples))
    fresh = proportional(work[drawn].sum(axis=1), 8)
    assert (fresh != np.array(found.allocation)).any(axis=1).mean() <= 0.1


def test_alpha_is_spent_over_the_sizes():
    work = np.random.default_rng(3).lognormal(0, 1, (4000, 2))
    found = stable_batch(work, 8, alpha=0.05)
    assert [own.trials for own in found.trials] == [
        trials_needed(0.05 / 2 ** (j + 1), 0.05) for j in range(len(found.trials))
    ]
    assert found.trials[0].trials == 72


def test_a_heavy_tail_passes_when_small_and_fails_at_the_global_batch():
    """One sample in 2,000 has most of the encoder's work: 16 samples hardly ever have it, 2,048 have it or not."""
    work = np.ones((2000, 2))
    work[0, 0] = 4000.0
    found = stable_batch(work, 4, also=2048, seed=1)
    assert found.samples is not None
    assert found.samples <= 64
    assert found.allocation == (2, 2)
    assert found.of_all == (3, 1)
    assert found.trials[-1].samples == 2048
    assert not found.trials[-1].passed


@pytest.mark.slow
def test_not_converged_is_an_answer():
    work = np.array([[1.0, 1.0], [1.0, 1.0]])
    work = np.concatenate((work * [3, 1], work * [1, 3]))
    found = stable_batch(work, 3, seed=0)  # the ratio lies on a breakpoint: 1.5 GPUs each
    assert found.samples is None
    assert not any(own.passed for own in found.trials)


def test_the_nearest_breakpoint_changes_the_allocation_and_less_does_not():
    work = np.random.default_rng(5).exponential(1, (100, 3))
    module, factor = nearest_breakpoint(work, 12)
    now = proportional(work.sum(axis=0), 12)
    for scale, differs in ((factor, True), (1 + 0.999 * (factor - 1), False)):
        changed = work.copy()
        changed[:, module] *= scale
        assert (proportional(changed.sum(axis=0), 12) != now).any() == differs
