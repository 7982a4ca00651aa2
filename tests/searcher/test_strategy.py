"""What strategies propose, and which sequences of a rollout get candidates."""

from __future__ import annotations

import time

import numpy as np
import pytest
from searcher.instances import vlm

from semu.searcher.orders.interleave import Interleaver
from semu.searcher.orders.loop import Budget, search_orders
from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategy import LocalStrategy


@pytest.mark.parametrize("seed", range(3))
def test_insertions_propose_nothing_twice(seed: int) -> None:
    space = OrderSpace.of(vlm(2, 16, seed=seed, images=(1, 2)))
    strategy, rng = LocalStrategy(space), np.random.default_rng(seed)
    asked = []
    for _ in range(12):
        proposal = strategy.ask(rng, 8)
        asked += [row.tobytes() for row in proposal.sequences]
        strategy.tell(proposal, rng.random(8))
    assert len(set(asked)) == len(asked) == 96


def test_a_space_with_few_sequences_is_proposed_again() -> None:
    space = OrderSpace.of(vlm(2, 1, images=(1, 1)))
    strategy, rng = LocalStrategy(space), np.random.default_rng(0)
    for _ in range(5):
        assert strategy.ask(rng, 4).sequences.shape == (4, space.num_items)


@pytest.mark.parametrize("seed", range(4))
def test_sequences_that_are_not_worth_it_keep_the_leanest(seed: int) -> None:
    free = vlm(3, 4, seed=seed, candidates=4, peaks=True)
    largest = int(np.maximum(free.forward_peak_bytes, free.held_bytes + free.backward_peak_bytes).max())
    problem = vlm(3, 4, seed=seed, candidates=4, peaks=True, limit_bytes=5 * largest)
    space, worker = OrderSpace.of(problem), Interleaver(problem)
    forward, backward = space.orders(space.random(np.random.default_rng(seed), 12))
    whole = worker.run(forward, backward)
    middle = float(np.median(whole.lean_s))
    some = worker.run(forward, backward, worth_s=middle)
    is_worth = whole.lean_s <= middle
    assert np.array_equal(some.lean_s, whole.lean_s)
    assert np.array_equal(some.makespan_s[is_worth], whole.makespan_s[is_worth])
    assert np.array_equal(some.makespan_s[~is_worth], whole.lean_s[~is_worth])
    assert (whole.makespan_s[~is_worth] < whole.lean_s[~is_worth]).any()


def test_a_search_without_a_better_sequence_for_long_ends() -> None:
    problem = vlm(2, 4, seed=1)
    space, worker = OrderSpace.of(problem), Interleaver(problem)

    began = time.perf_counter()
    found = search_orders(
        space,
        lambda forward, backward, worth_s: worker.run(forward, backward, worth_s=worth_s),
        Budget(time_s=30.0, workers=1, patience_s=0.05),
        num_stages=problem.num_stages,
    )
    assert found.ended_by == "stale"
    assert time.perf_counter() - began >= found.curve[-1].time_s + 0.05
    assert worker.run(*space.orders(found.sequence[None])).makespan_s[0] == found.curve[-1].makespan_s
