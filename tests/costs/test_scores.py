"""Unfused attention: products in tiles of every sequence and head, and a softmax that not every length is fused for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from nn.tracing_kit import Apply, number, options, spec

from semu.costs.shape_factors import ShapeFactors
from semu.hardware.efficiency import Efficiency
from semu.hardware.kinds import OpKind
from semu.hardware.shape_terms import ATTENTION_ROWS, has_fused_softmax, tiled_flop
from semu.nn import Sequences
from semu.nn import functional as F
from semu.nn.trace.block import trace_block

COUNT, HEADS, WIDTH = 3, 4, 88
TILES = {"tiles_at_once": 108.0, "tile_k0": 95.0, "tile_rest": 0.15, "tile_128": 0.94}


def costed(queries: int, keys: int) -> list[tuple[str, float, float, float]]:
    """Name, FLOP, FLOP and bytes with the terms of the shape of every operator of an attention."""
    q, k = Sequences.uniform(COUNT, queries), Sequences.uniform(COUNT, keys, "other" if queries != keys else "text")
    inputs = [spec(COUNT * packed.length, HEADS, WIDTH, sequences=packed) for packed in (q, k, k)]  # type: ignore[operator]
    unfused = replace(options(), fused_attention=False)
    graph = trace_block(Apply(lambda q, k, v: F.attention(q, k, v, causal=False)), inputs, unfused).graph
    efficiency = Efficiency(**TILES)
    factors = ShapeFactors(graph.operators, [efficiency] * len(graph.operators))
    flop, mem = (
        np.array([[float(number(getattr(operator, name)))] for operator in graph.operators])
        for name in ("flop", "mem_bytes")
    )
    more_flop, more_bytes = factors.apply(flop, mem, {}, np.arange(len(flop)))
    return [
        (operator.path.split(".")[-1], float(own), float(tiled), float(moved))
        for operator, own, tiled, moved in zip(
            graph.operators, flop[:, 0], more_flop[:, 0], more_bytes[:, 0], strict=True
        )
    ]


@pytest.mark.parametrize(("queries", "keys"), [(256, 256), (257, 257), (512, 77)])
def test_products_are_those_of_every_sequence_and_head(queries: int, keys: int) -> None:
    """m, n, k of each: scores q k^T and dP = dO v^T; context P v and dq = dS k; dk = dS^T q and dv = P^T dO."""
    sizes = {
        **dict.fromkeys(("scores", "context_left_bw"), (queries, keys, WIDTH)),
        **dict.fromkeys(("context", "scores_left_bw"), (queries, WIDTH, keys)),
        **dict.fromkeys(("context_right_bw", "scores_right_bw"), (keys, WIDTH, queries)),
    }
    found = {name: (own, tiled) for name, own, tiled, _ in costed(queries, keys) if name in sizes}
    assert found.keys() == sizes.keys()
    terms = {"tiles_at_once": 108.0, "k0": 95.0, "rest": 0.15, "tile_128": 0.94, "groups": COUNT * HEADS}
    for name, (m, n, k) in sizes.items():
        own, tiled = found[name]
        assert own == 2 * COUNT * HEADS * queries * keys * WIDTH
        assert tiled == pytest.approx(tiled_flop(m, n, k, **terms), rel=1e-12)


@pytest.mark.parametrize(("length", "is_fused"), [(256, True), (257, False), (258, False), (16, False), (20, True)])
def test_a_softmax_of_a_length_without_a_fused_kernel(length: int, is_fused: bool) -> None:
    """Copies to fp32 and back (2 x 6 bytes), and a softmax in fp32 (8, its gradient 12), instead of 4 and 6 bytes."""
    scores = COUNT * HEADS * length**2
    moved = {name: bytes_ for name, _, _, bytes_ in costed(length, length) if name.startswith("softmax")}
    each = (4, 6) if is_fused else (20, 24)
    assert moved == {"softmax": pytest.approx(each[0] * scores), "softmax_bw": pytest.approx(each[1] * scores)}
    assert has_fused_softmax(float(length)) == is_fused
    assert has_fused_softmax(length + 0.5) == (length >= 16)  # lengths that differ: their mean


@pytest.mark.parametrize(("queries", "keys", "causal"), [(256, 256, False), (256, 256, True), (64, 320, False)])
def test_a_fused_kernel_costs_by_its_queries_whatever_the_keys(queries: int, keys: int, causal: bool) -> None:
    """FLOP times 1 + s0 g / l + rest 128 P share / (tokens heads), l = pairs / tokens, tokens those of queries."""
    q, k = Sequences.uniform(COUNT, queries), Sequences.uniform(COUNT, keys, "other" if queries != keys else "text")
    inputs = [spec(COUNT * packed.length, HEADS, WIDTH, sequences=packed) for packed in (q, k, k)]  # type: ignore[operator]
    graph = trace_block(Apply(lambda q, k, v: F.attention(q, k, v, causal=causal)), inputs, options()).graph
    (kernel,) = (one for one in graph.operators if one.kind is OpKind.ATTENTION_FORWARD)
    factors = ShapeFactors([kernel], [Efficiency(s0_tokens=40.0, tiles_at_once=108.0, tile_rest=0.15)])
    flop, _ = factors.apply(np.ones((1, 1)), np.ones((1, 1)), {}, np.arange(1))
    tokens, share = COUNT * queries, 2.0 if causal else 1.0
    length = float(number(kernel.key[2])) / tokens
    assert causal or length == keys
    expected = 1 + 40.0 * share / 2 / length + 0.15 * ATTENTION_ROWS * 108 * share / (tokens * HEADS)
    assert flop[0, 0] == pytest.approx(expected, rel=1e-12)
