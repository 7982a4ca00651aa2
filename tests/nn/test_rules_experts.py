"""Rules of experts by hand, and rounded sizes against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import GraphError
from semu.graph.dim import DimTable, Poly
from semu.graph.rounding import rounded, with_rounded
from semu.hardware.kinds import DType, OpKind
from semu.hardware.network import CommGroup
from semu.nn import MixtureOfExperts
from semu.nn.routing import ExpertPlan, Routing, rank_means
from semu.nn.trace.block import CarrySpec, Input, TracedBlock, trace, trace_block
from semu.nn.trace.options import TraceOptions

T, H, F, E, K = 32, 64, 48, 8, 2
S = T * K


def traced(options: TraceOptions | None = None, *, gated: bool = True) -> TracedBlock:
    module = MixtureOfExperts(H, F, E, K, gated=gated)
    chosen = options if options is not None else TraceOptions()
    return trace_block(module, [CarrySpec((T, H), (1, 1), DType.BF16, True, None)], chosen)


def rows(block: TracedBlock, kind: OpKind) -> list[tuple[str, str, object, object, object]]:
    return [
        (op.path, op.phase.value, op.flop, op.mem_bytes, op.net_bytes)
        for op in block.graph.operators
        if op.kind is kind
    ]


def test_grouped_products() -> None:
    up, down = 2 * S * H * 2 * F, 2 * S * F * H
    up_bytes, down_bytes = 2 * (S * H + E * H * 2 * F + S * 2 * F), 2 * (S * F + E * H * F + S * H)
    assert rows(traced(), OpKind.GROUPED_MATMUL) == [
        ("experts.up", "F", up, up_bytes, 0),
        ("experts.down", "F", down, down_bytes, 0),
        ("experts.down.grad_bw", "I", down, down_bytes, 0),
        ("experts.down.weight_bw", "W", down, 2 * (S * F + S * H) + 8 * E * H * F, 0),
        ("experts.up.grad_bw", "I", up, up_bytes, 0),
        ("experts.up.weight_bw", "W", up, 2 * (S * H + S * 2 * F) + 8 * E * H * 2 * F, 0),
    ]


def test_routing_moves_bytes_only() -> None:
    table = T * E
    permuted = T * H * 2 + S * (H * 2 + 4 + 8) + table * 5
    summed = (S + T) * H * 2 + S * 8
    block = traced()
    assert rows(block, OpKind.TOP_K) == [
        ("router.top_k", "F", 0, table * (2 + 4 + 1), 0),
        ("router.auxiliary_loss", "F", 0, table * 5, 0),
        ("router.top_k_bw", "I", 0, table * (2 + 4 + 4 + 1), 0),
    ]
    assert rows(block, OpKind.PERMUTE) == [
        ("permute", "F", 0, permuted, 0),
        ("unpermute", "F", 0, summed, 0),
        ("unpermute_bw", "I", 0, summed, 0),
        ("permute_bw", "I", 0, permuted, 0),
    ]
    block.graph.lint()


def test_a_rank_sorts_what_came_from_several_ranks() -> None:
    """Local experts: 8 / 4, each with rows of four ranks; one expert a rank needs no sort."""
    for ep, sorts in ((4, 4), (8, 0)):
        plan = ExpertPlan(ep, 1, CommGroup("ep", ep))
        block = traced(TraceOptions(experts=plan))
        names = [path for path, *_ in rows(block, OpKind.PERMUTE)]
        assert sum("sort" in name for name in names) == sorts
        assert [op.path.rsplit(".", 1)[0] for op in block.graph.operators if op.kind is OpKind.ALL_TO_ALL] == [
            "dispatch",
            "combine",
            "combine_bw",
            "dispatch_bw",
        ]
        held = {use.path: use.numel for use in block.parameters}
        assert held == {"router.gate.weight": H * E, "experts.up": E // ep * H * 2 * F, "experts.down": E // ep * H * F}
        assert {use.path for use in block.parameters if use.is_expert} == {"experts.up", "experts.down"}


@pytest.mark.parametrize(("ep", "etp"), [(4, 1), (4, 2), (1, 2), (8, 1)])
def test_gathered_tokens(ep: int, etp: int) -> None:
    """Every rank has all n T tokens and the rows of its E / ep experts, as many as n T K / ep on average."""
    n = ep * etp
    plan = ExpertPlan(ep, etp, CommGroup("ep", ep), CommGroup("etp", etp), token_group=CommGroup("experts", n))
    block = traced(TraceOptions(experts=plan))
    block.graph.lint()
    others, table = (n - 1) * T, E // ep
    assert rows(block, OpKind.ALL_GATHER) == [
        ("mask.all_gather", "F", 0, 0, others * E),
        ("probabilities.all_gather", "F", 0, 0, others * E * 4),
        ("tokens.all_gather", "F", 0, 0, others * H * 2),
        ("combine_bw.all_gather", "I", 0, 0, others * H * 2),
    ]
    assert rows(block, OpKind.REDUCE_SCATTER) == [
        ("combine.reduce_scatter", "F", 0, 0, others * H * 2),
        ("tokens_bw.reduce_scatter", "I", 0, 0, others * H * 2),
        ("probabilities_bw.reduce_scatter", "I", 0, 0, others * E * 4),
    ]
    r = n * T * K // ep
    permuted = n * T * H * 2 + r * (H * 2 + 4 + 8) + n * T * table * 5
    summed = (r + n * T) * H * 2 + r * 8
    assert rows(block, OpKind.PERMUTE) == [
        ("columns", "F", 0, 2 * n * T * table, 0),
        ("columns", "F", 0, 2 * n * T * table * 4, 0),
        ("permute", "F", 0, permuted, 0),
        ("unpermute", "F", 0, summed, 0),
        ("unpermute_bw", "I", 0, summed, 0),
        ("permute_bw", "I", 0, permuted, 0),
        ("columns_bw", "I", 0, n * T * (table + E) * 4, 0),
    ]
    flop = sum(op.flop for op in block.graph.operators if op.kind is OpKind.GROUPED_MATMUL)
    assert flop == 3 * 2 * r * 3 * H * F // etp
    assert {op.kind for op in block.graph.operators}.isdisjoint({OpKind.ALL_TO_ALL})


def test_fp8_experts_and_a_router_that_is_not() -> None:
    from semu.nn import TransformerLayer

    module = TransformerLayer(H, F, 4, rms_norm=True, bias=False, mlp=MixtureOfExperts(H, F, E, K))
    graph = trace(module, Input((T, H), requires_grad=True), options=TraceOptions(compute_dtype=DType.FP8))
    grouped = [op for op in graph.operators if op.kind is OpKind.GROUPED_MATMUL]
    assert {op.dtype for op in grouped} == {DType.FP8}
    assert grouped[0].mem_bytes == S * H + E * H * 2 * F + 2 * S * 2 * F
    router = [op for op in graph.operators if "router" in op.path and op.kind is OpKind.MATMUL]
    assert len(router) == 3
    assert {op.dtype for op in router} == {DType.BF16}
    casts = [op.path for op in graph.operators if op.kind is OpKind.CAST and "experts" in op.path]
    assert casts == [f"mlp.experts.{name}" for name in ("up.cast", "down.cast", "down.grad_cast", "up.grad_cast")]


def test_experts_that_fp8_products_cannot_take() -> None:
    from semu.nn import TransformerLayer

    module = TransformerLayer(H, F, 4, rms_norm=True, bias=False, mlp=MixtureOfExperts(H, 24, E, K))
    with pytest.raises(GraphError, match="fp8 products cannot take"):
        trace(module, Input((T, H)), options=TraceOptions(compute_dtype=DType.FP8))


# -- rounded sizes -----------------------------------------------------------------------------------------------------
fractions = st.fractions(min_value=Fraction(1, 8), max_value=8, max_denominator=50)


@given(st.integers(0, 5000), st.integers(1, 64), fractions, fractions, st.integers(1, 300))
def test_rounded(value: int, times: int, share: Fraction, mean: Fraction, step: int) -> None:
    size = rounded(times * Poly.symbol("text.shard"), share, mean=mean, step=step, where="here")
    names = {name for dim in [size] if isinstance(dim, Poly) for monomial in dim.terms for name in monomial}
    base = {"text.shard": np.array([value])}
    for wanted, is_mean in ((share, False), (mean, True)):
        if share == mean == step == 1:
            wanted = Fraction(1)
        got = DimTable.build([size]).evaluate(with_rounded(base, names, mean=is_mean))
        assert got.tolist() == [[step * ceil(value * times * wanted / step)]]
    assert rounded(value, share, mean=mean, step=step, where="here") == step * ceil(value * share / step)


def test_a_share_of_a_sum_is_refused() -> None:
    with pytest.raises(GraphError, match="a share of a sum"):
        rounded(Poly.symbol("a") + Poly.symbol("b"), Fraction(3, 2), mean=Fraction(1), where="here")


@given(st.lists(st.integers(0, 50), min_size=8, max_size=8).filter(any), st.sampled_from([1, 2, 4, 8]))
def test_loads_of_ranks(loads: list[int], ep: int) -> None:
    """The worst rank's share of the rows, with and without dropping, from a count expert by expert."""
    mean = Fraction(sum(loads), 8)
    each = 8 // ep
    for limit in (None, Fraction(1), Fraction(3, 2)):
        kept = [Fraction(load) if limit is None else min(Fraction(load), limit * mean) for load in loads]
        by_rank = [sum(kept[rank * each : (rank + 1) * each]) for rank in range(ep)]
        worst, average = Routing(tuple(map(Fraction, loads)), limit).shares(ep)
        assert worst == max(by_rank) / (mean * each)
        assert average == Fraction(sum(kept)) / (mean * 8)
    assert rank_means(list(map(Fraction, loads)), ep)[0] == Fraction(sum(loads[:each]), each)
