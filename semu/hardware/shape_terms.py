"""How the shape of an operator, beyond its FLOP and bytes, costs rate: tiles, waves, rows; ``p_norm`` of two times.

Functions on numbers or arrays that broadcast; all but ``p_norm`` return FLOP or bytes to be done at the peak rate.

A matrix product is computed in tiles of the result, one tile on each multiprocessor at a time, wave after wave. A tile
at an edge is computed whole, a last wave that is not full costs more than its share, and each tile pays a prologue.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_TILES = ((256, 128, 0), (128, 256, 0), (128, 128, 1), (64, 128, 2), (128, 64, 2))
"""Rows, columns, and how often the edge has been halved, of the tiles that kernel libraries choose from."""

ATTENTION_ROWS = 128
"""Rows of queries in a tile of a fused attention kernel (2307.08691 §3.2; 2407.08608 §4)."""


def p_norm(a: Any, b: Any, p: float) -> Any:
    """(a^p + b^p)^(1/p), the soft maximum of two times: their sum at p = 1, the longer one at p = infinity.

    Args:
        a, b: >= 0. p: >= 1.
    """
    longer, shorter = np.maximum(a, b), np.minimum(a, b)
    if np.isinf(p):
        return longer
    return longer * (1.0 + (shorter / (longer + (longer == 0.0))) ** p) ** (1.0 / p)


def tiled_flop(
    m: Any, n: Any, k: Any, *, tiles_at_once: Any, k0: Any, rest: Any, tile_128: Any, groups: Any = 1.0
) -> Any:
    """FLOP of equal products [m, k] x [k, n] as their tiles and waves cost them, for the best tile.

    With x = groups ceil(m / t_m) ceil(n / t_n) / P tiles of t_m x t_n per multiprocessor:
    2 t_m t_n P (k + k0) (x + rest (ceil(x) - x)) / min(e, 1), e = 1 for 256 x 128, ``tile_128`` for 128 x 128 and
    its square for 64 x 128. Monotone in m, n and k; at least 2 m n k groups.

    Args:
        m, n, k: sizes of one product, >= 0. tiles_at_once: P, multiprocessors. k0: prologue of a tile [elements of k].
        rest: what an idle place in the last wave costs, as a share of a busy one. tile_128: see above, > 0.
        groups: products in one kernel.
    Source:
        The form of the microbenchmark data ("soft tile waves"); groups: CUTLASS's grouped products fill waves together.
    """
    best: Any = np.inf
    for rows, columns, halvings in _TILES:
        waves = groups * np.ceil(m / rows) * np.ceil(n / columns) / tiles_at_once
        busy = waves + rest * (np.ceil(waves) - waves)
        best = np.minimum(best, 2.0 * rows * columns * busy / np.minimum(tile_128**halvings, 1.0))
    return best * tiles_at_once * (k + k0)


def attention_factor(tokens: Any, pairs: Any, heads: Any, share: Any, *, s0: Any, tiles_at_once: Any, rest: Any) -> Any:
    """Cost of fused attention over its FLOP: 1 + s0 g / l + rest 128 P share / (tokens heads).

    The second term is for short sequences, l = pairs / tokens. The third is for the last tiles, which run alone: a tile
    of 128 queries over a whole sequence costs 2 x 128 l (d + d_v), and each of P multiprocessors loses ``rest`` tiles,
    whatever the number of heads; with few heads and sequences that is most of the time.

    Args:
        tokens, pairs, heads: of the kernel, > 0. share: 2 where causal halves the pairs, else 1. s0: [tokens].
        tiles_at_once: P, multiprocessors. rest: tiles.
    Source:
        The form of the microbenchmark data, g = 1 if causal, else 1/2; the last term is semu's.
    """
    short = s0 * (share / 2.0) * tokens / pairs
    return 1.0 + short + rest * ATTENTION_ROWS * tiles_at_once * share / (tokens * heads)


def masked_factor(tiles: Any, partial: Any, span: Any, heads: Any, *, tiles_at_once: Any, partial_tile: Any) -> Any:
    """Cost of attention under a mask over the FLOP of its tiles: P span / (tiles heads), what multiprocessors lose that
    are done before the last one, times 1 + (partial_tile - 1) partial / tiles, what masking costs inside tiles.

    Args:
        tiles, partial: tiles of one head, > 0, and those in which some pairs are masked. span: tiles until the last
            multiprocessor is done, with all heads. heads: of the kernel. tiles_at_once: P; 0: nothing is lost.
        partial_tile: time of a tile in which some pairs are masked, over that of another, >= 1.
    """
    lost = np.where(tiles_at_once > 0, tiles_at_once * span / (tiles * heads), 1.0)
    return np.maximum(lost, 1.0) * (1.0 + (partial_tile - 1.0) * partial / tiles)


def row_bytes_factor(width: Any, row0: Any) -> Any:
    """How much a row-wise kernel (norm, softmax) moves in effect: 1 + row0 / width of a row.

    Args:
        width: elements of a row, > 0. row0: elements at which the rate has halved, >= 0.
    """
    return 1.0 + row0 / width


def cache_factor(moved: Any, *, cache_bytes: Any, cached: Any) -> Any:
    """Time of a kernel whose bytes may lie in the cache, over its time from memory: 1 / cached up to the size of the
    cache, 1 from twice the size on, linear in the bytes between, of which ever more must be read from memory again.

    Args:
        moved: bytes, >= 0. cache_bytes: size of the cache, > 0. cached: rate in the cache over that of memory, >= 1.
    Source:
        semu's, from norms on A100 and H100 (vidur): rates fall by a third between 0.7 and 1.4 times the L2 cache.
    """
    missed = np.clip(moved / cache_bytes - 1.0, 0.0, 1.0)
    return (1.0 + (cached - 1.0) * missed) / cached


def has_fused_softmax(length: Any) -> Any:
    """Whether Megatron-LM's fused softmax takes rows of a length, else fp32 copies and PyTorch's softmax do: more than
    16, at most 16,384, and a multiple of 4 (``FusedScaleMaskSoftmax.is_kernel_available``).

    Args:
        length: scores of a row; of rows that differ the mean, which counts as one that the kernel takes if no integer.
    """
    is_even = (length % 4.0 == 0.0) | (length % 1.0 != 0.0)
    return is_even & (length > 16.0) & (length <= 16384.0)
