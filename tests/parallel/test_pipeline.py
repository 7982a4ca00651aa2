"""Cutting layers into stages against the enumeration of all cuts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.parallel.pipeline import nearest_multiple, partition, place_chunks

weights = st.lists(st.integers(0, 9), min_size=1, max_size=9)


def parts(weight: Sequence[float], cut: Sequence[int]) -> list[float]:
    return [sum(weight[a:b]) for a, b in pairwise(cut)]


def all_cuts(count: int, num_parts: int) -> list[list[int]]:
    return [[0, *inner, count] for inner in combinations(range(1, count), num_parts - 1)]


def by_enumeration(weight: Sequence[float], num_parts: int) -> list[int]:
    """Lightest heaviest part; then smallest sum of squares; then lexicographically first."""

    def rank(cut: list[int]) -> tuple[float, float, list[int]]:
        sums = parts(weight, cut)
        return max(sums), sum(s * s for s in sums), cut

    return min(all_cuts(len(weight), num_parts), key=rank)


@given(weights, st.data())
def test_the_cut_is_the_one_that_enumeration_finds(weight: list[int], data: st.DataObject) -> None:
    num_parts = data.draw(st.integers(1, len(weight)))
    assert partition(weight, num_parts) == by_enumeration(weight, num_parts)


@pytest.mark.slow
def test_ten_thousand_cuts_are_those_of_all_cuts() -> None:
    """Cornstarch eq. 3.5: the heaviest of all stages is as light as in the best of all cuts, to the last bit of the
    weights, which are multiples of 2^-20."""
    draw = np.random.default_rng(0)
    for _ in range(10_000):
        count = int(draw.integers(1, 13))
        num_parts = int(draw.integers(1, count + 1))
        weight = draw.integers(0, 1 << 20, count) / (1 << 20)
        weight[draw.random(count) < 0.2] = 0.0  # layers that cost nothing
        total = np.concatenate([[0.0], np.cumsum(weight)])
        best = np.diff(total[_cuts(count, num_parts)], axis=1).max(axis=1).min()
        cut = partition(weight.tolist(), num_parts)
        assert len(cut) == num_parts + 1
        assert max(parts(weight.tolist(), cut)) == best


@cache
def _cuts(count: int, num_parts: int) -> NDArray[np.int64]:
    return np.array(all_cuts(count, num_parts))


@pytest.mark.parametrize(
    ("weight", "num_parts"),
    [
        ([4, 4, 4, 4], 2),
        ([1, 1, 1, 1, 1], 2),
        ([0, 0, 0], 2),
        ([5, 1, 1, 1, 5], 3),
        ([9, 1, 1, 1, 1, 1, 1], 3),
        ([5, 3, 8, 1], 3),
        ([3, 4, 7, 1], 3),
        ([1, 9, 7, 2, 5, 3], 4),
        ([1, 3, 3, 0, 8, 1, 13], 4),
        ([1, 7, 2, 5, 2, 13], 5),
        ([5, 1, 3, 6, 2, 8, 1, 13], 6),
    ],
    ids=str,
)
def test_among_the_best_cuts_the_most_even_one_then_the_first(weight: list[int], num_parts: int) -> None:
    """Also where a more even cut has a heavier part, and where the best beginning alone would spoil the rest."""
    assert partition(weight, num_parts) == by_enumeration(weight, num_parts)


@given(st.lists(st.integers(0, 2**22), min_size=1, max_size=11), st.data())
def test_large_weights_are_cut_as_enumeration_says(weight: list[int], data: st.DataObject) -> None:
    """Sums of at most 11 numbers below 2^22 have squares below 2^53: float64 adds them without rounding."""
    num_parts = data.draw(st.integers(1, len(weight)))
    assert partition(weight, num_parts) == by_enumeration(weight, num_parts)


def test_the_result_is_the_callers_own() -> None:
    first = partition([1, 2, 3, 4], 2)
    first[1] = 99
    assert partition([1.0, 2.0, 3.0, 4.0], 2) == by_enumeration([1, 2, 3, 4], 2)


def test_equal_layers_are_cut_evenly() -> None:
    for layers, stages in ((32, 4), (96, 8), (7, 7)):
        assert set(parts([1.0] * layers, partition([1.0] * layers, stages))) == {layers / stages}


def test_more_stages_than_layers() -> None:
    with pytest.raises(ConfigError, match="3 blocks cannot be cut into 4 stages") as caught:
        partition([1, 2, 3], 4)
    assert (caught.value.where, caught.value.got, caught.value.nearest) == ("parallel.pp", 4, 3)


@pytest.mark.paper
def test_dip_worked_example() -> None:
    """DIP §2.2: 64 ViT layers of 6.75 ms and 64 language layers of 10.5 ms on 16 stages: 63 to 73.5 ms a stage."""
    layers = [6.75] * 64 + [10.5] * 64
    stages = parts(layers, partition(layers, 16))
    assert max(stages) == 73.5
    assert min(stages) >= 63
    assert max(stages) / min(stages) - 1 == pytest.approx(0.167, abs=5e-4)


# -- chunks ------------------------------------------------------------------------------------------------------
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3), st.data())
def test_chunks_hold_every_block_once_and_follow_the_cut(modules: list[list[int]], data: st.DataObject) -> None:
    flat = [weight for module in modules for weight in module]
    num_ranks = data.draw(st.integers(1, len(flat)))
    counts = [len(module) for module in modules]
    chunks = place_chunks(counts, flat, num_ranks)
    cut = partition(flat, num_ranks)
    owner = [sum(block >= bound for bound in cut[1:]) for block in range(len(flat))]
    names = [(module, block) for module, count in enumerate(counts) for block in range(count)]
    held = [(chunk.module, block, chunk.rank) for chunk in chunks for block in range(chunk.first, chunk.last)]
    assert held == [(module, block, rank) for (module, block), rank in zip(names, owner, strict=True)]
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert len(chunks) <= num_ranks + len(modules) - 1
    assert {chunk.rank for chunk in chunks} == set(range(num_ranks))


def test_a_stage_across_two_modules_is_two_chunks() -> None:
    chunks = place_chunks([3, 3], [1.0] * 6, 2)
    assert [(c.index, c.rank, c.module, c.first, c.last) for c in chunks] == [(0, 0, 0, 0, 3), (1, 1, 1, 0, 3)]
    chunks = place_chunks([2, 4], [1.0] * 6, 2)
    assert [(c.index, c.rank, c.module, c.first, c.last) for c in chunks] == [
        (0, 0, 0, 0, 2),
        (1, 0, 1, 0, 1),
        (2, 1, 1, 1, 4),
    ]


# -- virtual stages ----------------------------------------------------------------------------------------------
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=3), st.data())
def test_groups_are_dealt_to_the_ranks_in_turn(modules: list[list[int]], data: st.DataObject) -> None:
    flat = [weight for module in modules for weight in module]
    num_ranks = data.draw(st.integers(1, len(flat)))
    num_slots = data.draw(st.integers(1, len(flat) // num_ranks))
    counts = [len(module) for module in modules]
    together = place_chunks(counts, flat, num_ranks * num_slots)
    chunks = place_chunks(counts, flat, num_ranks, num_slots)
    assert [(c.index, c.module, c.first, c.last) for c in chunks] == [
        (c.index, c.module, c.first, c.last) for c in together
    ]
    dealt = [(slot, rank) for slot in range(num_slots) for rank in range(num_ranks)]
    assert [(c.slot, c.rank) for c in chunks] == [dealt[c.rank] for c in together]


@pytest.mark.parametrize("num_slots", [2, 4, 8])
def test_gpt3_is_cut_as_megatron_does(num_slots: int) -> None:
    """96 layers on 12 ranks: as many in every virtual stage, the embedding with the first, the head with the last."""
    hidden, vocab, positions = 12288, 51200, 2048
    layer = 12 * hidden**2 + 13 * hidden
    weights = [(vocab + positions) * hidden, *[layer] * 96, vocab * hidden + 2 * hidden]
    chunks = place_chunks([98], weights, 12, num_slots)
    each = 96 // (12 * num_slots)
    assert [c.last - c.first for c in chunks] == [each + 1] + [each] * (12 * num_slots - 2) + [each + 1]


def test_a_large_embedding_takes_the_place_of_layers() -> None:
    """Llama 3 8B: embedding and head weigh as much as 2.4 layers each, so fewer layers stand beside them."""
    layer, vocabulary = 218_112_000, 128256 * 4096
    chunks = place_chunks([34], [vocabulary, *[layer] * 32, vocabulary], 4, 2)
    assert [c.last - c.first for c in chunks] == [3, 4, 4, 5, 5, 5, 5, 3]


def test_too_many_virtual_stages() -> None:
    with pytest.raises(ConfigError, match="7 blocks cannot be cut into 2 x 4 virtual stages") as caught:
        place_chunks([3, 4], [1.0] * 7, 2, 4)
    assert (caught.value.where, caught.value.got, caught.value.nearest) == ("parallel.vpp", 4, 3)
    with pytest.raises(ConfigError, match="7 blocks cannot be cut into 8 stages") as caught:
        place_chunks([3, 4], [1.0] * 7, 8, 2)
    assert (caught.value.where, caught.value.nearest) == ("parallel.pp", 7)


@given(st.integers(1, 60), st.integers(1, 12))
def test_the_nearest_multiple(count: int, size: int) -> None:
    multiples = [size * number for number in range(1, 61)]
    assert nearest_multiple(count, size) == min(multiples, key=lambda multiple: (abs(multiple - count), multiple))
