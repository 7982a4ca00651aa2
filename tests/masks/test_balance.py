"""Policies of context ranks: against brute force, CP-SAT, and what other programs do."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.masks.balance import blocks_of, cut_tokens, deal_blocks
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import IntArray, Spans
from semu.masks.tile_lists import reads_of_blocks
from semu.masks.tiles import work_of_blocks
from semu.parallel.context import Balance


def _optimum(weight: IntArray, ranks: int) -> int:
    """Least possible largest load (Cornstarch, eq. 3.4), by CP-SAT."""
    cp_model = pytest.importorskip("ortools.sat.python.cp_model")
    model = cp_model.CpModel()
    is_there = [[model.new_bool_var("") for _ in range(ranks)] for _ in weight]
    most = model.new_int_var(0, int(weight.sum()), "")
    for row in is_there:
        model.add_exactly_one(row)
    for rank in range(ranks):
        model.add(sum(int(w) * row[rank] for w, row in zip(weight, is_there, strict=True)) <= most)
    for number in range(min(ranks, len(weight))):  # ranks are alike
        model.add(sum(is_there[number][rank] for rank in range(number + 1, ranks)) == 0)
    model.minimize(most)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = 5.0, 2
    status = solver.solve(model)
    return int(solver.objective_value) if status == cp_model.OPTIMAL else int(np.ceil(solver.best_objective_bound))


def test_lpt_against_the_optimum() -> None:
    """Optimal in >= 80 % of masks' rows, never 5 % off, never beyond Graham's bound."""
    draw = np.random.default_rng(0)
    cases, optimal, worst = 0, 0, 1.0
    for _ in range(25):
        ranks = int(draw.integers(2, 9))
        count = int(draw.integers(3 * ranks, 41)) if 3 * ranks < 40 else 40
        lengths = draw.multinomial(128 * count, draw.dirichlet(np.ones(4)))
        spans = Spans.of_runs([[run for n in lengths if n for run in (("document", 0, 0), ("text", -1, int(n)))]])
        weight = work_of_blocks(Seen.of(MaskKind.DOCUMENT, spans), spans.starts, blocks_of(spans.starts, 128))
        load = np.bincount(deal_blocks(Balance.LPT, weight, ranks), weights=weight, minlength=ranks).max()
        best = _optimum(weight, ranks)
        cases += 1
        optimal += load <= best
        worst = max(worst, load / best)
        assert load <= (4 / 3 - 1 / (3 * ranks)) * best
    assert optimal >= 0.8 * cases
    assert worst <= 1.05


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(weights=st.lists(st.integers(1, 60), min_size=2, max_size=9), ranks=st.integers(2, 3))
def test_lpt_is_within_graham_s_bound_of_brute_force(weights: list[int], ranks: int) -> None:
    weight = np.array(weights)
    best = min(
        int(np.bincount(of, weights=weight, minlength=ranks).max())
        for of in np.stack(np.unravel_index(np.arange(ranks ** len(weights)), (ranks,) * len(weights)), axis=1)
    )
    load = np.bincount(deal_blocks(Balance.LPT, weight, ranks), weights=weight, minlength=ranks).max()
    assert load <= (4 / 3 - 1 / (3 * ranks)) * best


def test_many_blocks_are_balanced_to_a_thousandth() -> None:
    draw = np.random.default_rng(3)
    lengths = draw.multinomial(1 << 17, draw.dirichlet(np.ones(20)))
    spans = Spans.of_text(lengths[lengths > 0])
    weight = work_of_blocks(Seen.whole(spans.starts), spans.starts, blocks_of(spans.starts, 128))
    load = np.bincount(deal_blocks(Balance.LPT, weight, 8), weights=weight)
    assert len(weight) / 8 >= 100
    assert load.max() / load.mean() <= 1.001


def _by_token(policy: Balance, spans: Spans, ranks: int, block: int = 128) -> IntArray:
    seen = Seen.of(MaskKind.DOCUMENT, spans)
    cut = cut_tokens(
        policy,
        spans,
        ranks,
        block,
        lambda bounds: work_of_blocks(seen, spans.starts, bounds),
        reads=lambda bounds: reads_of_blocks(seen, spans.starts, bounds),
    )
    return cut.permutation


def test_head_tail_is_torch_s() -> None:
    balancers = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    for length, ranks in ((512, 4), (1024, 2), (96, 8)):
        expected = balancers._HeadTailLoadBalancer(length, ranks, "cpu")._generate_indices()[0].numpy()
        np.testing.assert_array_equal(_by_token(Balance.ZIGZAG, Spans.of_text([length]), ranks), expected)


def test_per_document_head_tail_is_torch_s() -> None:
    """torch writes document after document, each rank by rank; a rank's own tokens are the same, in the same order."""
    balancers = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    lengths, ranks = [64, 128, 32, 96], 4
    theirs = balancers._PerDocumentHeadTailLoadBalancer([lengths], ranks, "cpu")._generate_indices()[0].numpy()
    runs = [run for n in lengths for run in (("document", 0, 0), ("text", -1, n))]
    mine = _by_token(Balance.DOCUMENT_ZIGZAG, Spans.of_runs([runs]), ranks)
    of_rank = np.concatenate([np.repeat(np.arange(ranks), n // ranks) for n in lengths])
    expected = np.concatenate([theirs[of_rank == rank] for rank in range(ranks)])
    np.testing.assert_array_equal(mine, expected)


def test_snake_is_torch_s_round_robin() -> None:
    balancers = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    torch = pytest.importorskip("torch")
    lengths, ranks = [900, 300, 500, 348], 4
    document = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))

    def _mask(_b, _h, q, k):  # type: ignore[no-untyped-def]
        return (q >= k) & (document[q] == document[k])

    block_mask = flex.create_block_mask(_mask, 1, 1, 2048, 2048, device="cpu")
    expected = balancers._PTRRLoadBalancer(block_mask, ranks)._generate_indices()[0].numpy()
    runs = [run for n in lengths for run in (("document", 0, 0), ("text", -1, n))]
    np.testing.assert_array_equal(_by_token(Balance.SNAKE, Spans.of_runs([runs]), ranks), expected)


def test_packed_chunks_are_megatron_s() -> None:
    """Transformer Engine's ``thd_get_partitioned_indices``: of every sequence of a multiple of 2 cp tokens, rank r has
    chunks r and 2 cp - 1 - r. Its kernel runs on a GPU alone; the few lines of its definition stand here."""
    lengths, ranks = [64, 16, 48, 128], 4
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    expected = []
    for rank in range(ranks):
        for begin, end in pairwise(bounds.tolist()):
            size = (end - begin) // (2 * ranks)
            expected += range(begin + rank * size, begin + (rank + 1) * size)
            expected += range(end - (rank + 1) * size, end - rank * size)
    np.testing.assert_array_equal(_by_token(Balance.ZIGZAG, Spans.of_text(lengths), ranks), expected)


@pytest.mark.parametrize("policy", [Balance.LPT_EQUAL, Balance.SNAKE])
def test_equal_blocks_are_asked_for(policy: Balance) -> None:
    with pytest.raises(ConfigError, match="equal blocks") as caught:
        _by_token(policy, Spans.of_text([1000, 1048]), 4)
    assert (caught.value.where, caught.value.nearest) == ("parallel.cp_balance", "lpt")
    load = np.bincount(np.repeat(np.arange(4), 512))
    assert len(_by_token(policy, Spans.of_text([1024, 1024]), 4)) == load.sum()


def test_fewer_blocks_than_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than cp = 8") as caught:
        _by_token(Balance.LPT, Spans.of_text([512]), 8)
    assert (caught.value.where, caught.value.nearest) == ("parallel.cp_block", 64)


@pytest.mark.parametrize("policy", Balance)
def test_the_same_input_gives_the_same_bytes(policy: Balance) -> None:
    spans = Spans.of_text([1024, 512, 512])
    assert _by_token(policy, spans, 4).tobytes() == _by_token(policy, spans, 4).tobytes()
