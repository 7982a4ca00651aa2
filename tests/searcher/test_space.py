"""Sequences of segment groups: legal ones, their number, what they mean to the interleaving."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.instances import vlm
from searcher.reference import is_legal_sequence

from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategy import DepthFirstStrategy


def legal_by_definition(space: OrderSpace) -> set[tuple[int, ...]]:
    """All permutations of the items with the kinds due, each behind its needs."""
    forward = [i for i in space.default.tolist() if i < space.num_groups]
    backward = [i for i in space.default.tolist() if i >= space.num_groups]
    found = set()
    for a in itertools.permutations(forward):
        for b in itertools.permutations(backward):
            left, right = iter(a), iter(b)
            sequence = tuple(next(right) if kind else next(left) for kind in space.kinds.tolist())
            at = {item: place for place, item in enumerate(sequence)}
            if all(at[before] < at[item] for item in sequence for before in space.needs[item]):
                found.add(sequence)
    return found


@pytest.mark.parametrize(("microbatches", "frozen"), [(1, False), (2, False), (2, True), (3, True)])
def test_depth_first_walks_all_legal_sequences_once(microbatches: int, frozen: bool) -> None:
    space = OrderSpace.of(vlm(2, microbatches, seed=1, images=(1, 2), frozen=frozen))
    walk = DepthFirstStrategy(space).ask(np.random.default_rng(0), 10**6).sequences
    found = {tuple(row) for row in walk.tolist()}
    assert len(found) == len(walk)
    assert found == legal_by_definition(space)
    assert tuple(walk[0].tolist()) == tuple(space.default.tolist())


def test_a_group_without_images_has_no_items() -> None:
    space = OrderSpace.of(vlm(2, 3, seed=0, images=(0, 0)))
    assert space.num_items == 6  # the language model's forward and backward of three microbatches


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(0, 1000), st.booleans(), st.data())
def test_nearest_is_the_greedy_choice(microbatches: int, seed: int, frozen: bool, data: st.DataObject) -> None:
    space = OrderSpace.of(vlm(2, microbatches, seed=seed, frozen=frozen))
    rng = np.random.default_rng(seed)
    wish = rng.integers(0, 4, 2 * space.num_groups).astype(float)  # ties
    depth = data.draw(st.integers(0, space.num_items))
    prefix = space.random(rng, 1)[0][:depth]
    placed = prefix.tolist()
    for kind in space.kinds.tolist()[depth:]:
        ready = [
            (wish[item], item)
            for item in space.default.tolist()
            if (item >= space.num_groups) == kind and item not in placed and set(space.needs[item]) <= set(placed)
        ]
        placed.append(min(ready)[1])
    assert space.nearest(wish[None], prefix)[0].tolist() == placed
    assert is_legal_sequence(space, space.nearest(wish[None], prefix)[0])


def test_equal_microbatches_keep_their_order() -> None:
    """Of m equal microbatches there is one order, where m! of different ones."""
    equal = vlm(2, 4, images=(0, 0))
    object.__setattr__(equal, "forward_s", np.ones_like(equal.forward_s))
    object.__setattr__(equal, "backward_s", np.full_like(equal.backward_s, 2.0))
    object.__setattr__(equal, "held_bytes", np.ones_like(equal.held_bytes))
    object.__setattr__(equal, "forward_peak_bytes", np.ones_like(equal.held_bytes))
    walk = DepthFirstStrategy(OrderSpace.of(equal)).ask(np.random.default_rng(0), 10**6).sequences
    assert len(walk) == 1
    different = DepthFirstStrategy(OrderSpace.of(vlm(2, 3, images=(0, 0)))).ask(np.random.default_rng(0), 10**6)
    assert len(different.sequences) == 36  # 3! orders of forwards, 3! of backwards


def test_orders_are_those_of_the_sequence() -> None:
    space = OrderSpace.of(vlm(2, 3, seed=3, images=(1, 2), frozen=True))
    sequences = space.random(np.random.default_rng(0), 5)
    forward, backward = space.orders(sequences)
    for row, first, second in zip(sequences.tolist(), forward.tolist(), backward.tolist(), strict=True):
        assert [item for item in row if item < space.num_groups] == first
        has_backward = [group for group in second if space.exists[space.num_groups + group]]
        assert [item - space.num_groups for item in row if item >= space.num_groups] == has_backward
        assert sorted(second) == list(range(space.num_groups))
