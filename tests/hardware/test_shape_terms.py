"""Tiles, waves and rows: against loops over the tiles of a product, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.hardware.shape_terms import attention_factor, cache_factor, row_bytes_factor, tiled_flop

SIZES = st.integers(1, 3000)
TERMS = {"tiles_at_once": 132.0, "k0": 90.0, "rest": 0.25, "tile_128": 0.9}


def laid_out(m: int, n: int, k: int, rows: int, columns: int, at_once: int) -> float:
    """FLOP of the tiles, computed one after the other; with rest = 1 a wave that is begun is paid whole."""
    tiles = sum(1 for _ in range(0, m, rows) for _ in range(0, n, columns))
    waves = 0
    while waves * at_once < tiles:
        waves += 1
    return 2.0 * rows * columns * k * waves * at_once


@given(m=SIZES, n=SIZES, k=SIZES, at_once=st.integers(1, 200))
def test_whole_waves_by_counting(m: int, n: int, k: int, at_once: int) -> None:
    tiles = ((256, 128), (128, 256), (128, 128), (64, 128), (128, 64))
    expected = min(laid_out(m, n, k, rows, columns, at_once) for rows, columns in tiles)
    assert tiled_flop(m, n, k, tiles_at_once=at_once, k0=0, rest=1, tile_128=1) == pytest.approx(expected, rel=1e-12)


@given(m=SIZES, n=SIZES, k=SIZES, more=st.integers(1, 500), groups=st.integers(1, 9))
def test_never_less_than_the_flop_and_monotone(m: int, n: int, k: int, more: int, groups: int) -> None:
    cost = tiled_flop(m, n, k, groups=groups, **TERMS)
    assert cost >= 2.0 * m * n * k * groups
    for larger in ((m + more, n, k), (m, n + more, k), (m, n, k + more)):
        assert tiled_flop(*larger, groups=groups, **TERMS) >= cost * (1 - 1e-12)
    assert tiled_flop(m, n, k, groups=groups + 1, **TERMS) >= cost * (1 - 1e-12)


def test_large_products_cost_their_flop_and_prologue() -> None:
    cost = tiled_flop(2**20, 2**20, 4096, **TERMS)
    assert cost == pytest.approx(2.0 * 2**40 * (4096 + 90), rel=1e-4)


@given(
    tokens=st.integers(1, 10**6), length=st.integers(1, 10**5), heads=st.integers(1, 128), share=st.sampled_from([1, 2])
)
def test_attention_by_hand(tokens: int, length: int, heads: int, share: int) -> None:
    pairs = tokens * length
    factor = attention_factor(tokens, pairs, heads, share, s0=400, tiles_at_once=100, rest=0.5)
    d = 7  # cancels: flop = 2 pairs heads d / share, a tile of 128 queries costs 2 x 128 length d
    flop, tile = 2 * pairs * heads * d / share, 2 * 128 * length * d
    expected = flop * (1 + 400 * share / 2 / length) + 0.5 * 100 * tile
    assert factor * flop == pytest.approx(expected, rel=1e-9)


@given(
    moved=st.integers(1, 10**9), more=st.integers(1, 10**8), size=st.integers(10**6, 10**8), rate=st.floats(1.0, 3.0)
)
def test_what_lies_in_the_cache_by_hand(moved: int, more: int, size: int, rate: float) -> None:
    factor = cache_factor(moved, cache_bytes=size, cached=rate)
    missed = 0.0 if moved <= size else 1.0 if moved >= 2 * size else (moved - size) / size
    assert factor == pytest.approx(1 / rate + (1 - 1 / rate) * missed, rel=1e-12)
    assert 1 / rate - 1e-12 <= factor <= 1 + 1e-12
    assert (moved + more) * cache_factor(moved + more, cache_bytes=size, cached=rate) > moved * factor


def test_rows() -> None:
    assert row_bytes_factor(512, 512) == 2
    assert np.all(np.diff(row_bytes_factor(np.arange(1, 100), 30.0)) < 0)
    assert math.isclose(row_bytes_factor(10**9, 30.0), 1.0, rel_tol=1e-6)
