"""Tiles of masks against whole tables of pairs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from masks.dense import dense_mask, dense_tiles, drawn_spans

from semu.errors import ConfigError
from semu.masks.balance import Cut, cut_tokens
from semu.masks.bits import bits_of, read_bits, seen_of_bits
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import IntArray, Spans
from semu.masks.tile_lists import reads_of_blocks
from semu.masks.tiles import count, packed, work_of_blocks
from semu.nn.window import Window
from semu.parallel.context import Balance
from semu.workload.masked import ContextPlan

WINDOWS = (None, Window.sliding(37), Window.chunked(70))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(MaskKind),
    window=st.sampled_from(WINDOWS),
    policy=st.sampled_from(Balance),
    ranks=st.integers(1, 5),
    block=st.integers(20, 140),
    by_owner=st.booleans(),
)
@example(seed=1, kind=MaskKind.CAUSAL, window=None, policy=Balance.STRIPED, ranks=2, block=128, by_owner=True)
def test_tiles_are_those_of_a_table(
    seed: int, kind: MaskKind, window: Window | None, policy: Balance, ranks: int, block: int, by_owner: bool
) -> None:
    spans = drawn_spans(np.random.default_rng(seed))
    seen = Seen.of(kind, spans)
    seen = seen if window is None else seen.within(window, spans.starts)
    try:
        work, reads = partial(work_of_blocks, seen, spans.starts), partial(reads_of_blocks, seen, spans.starts)
        cut = cut_tokens(policy, spans, ranks, block, work, reads=reads)
    except ConfigError:  # too few blocks, or unequal ones
        cut = cut_tokens(Balance.ZIGZAG, spans, ranks)
    assert sorted(cut.permutation.tolist()) == list(range(spans.num_tokens))
    mask = dense_mask(kind, spans, window)
    found = count(seen, spans.starts, cut, by_owner=by_owner)
    expected = dense_tiles(mask, spans, cut, by_owner=by_owner)
    for mine, other in zip((found.pairs, found.tiles, found.partial, found.columns), expected, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert found.pairs.sum() == mask.sum()  # no policy makes or loses work


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(MaskKind))
def test_bits_say_what_spans_say(seed: int, kind: MaskKind) -> None:
    spans = drawn_spans(np.random.default_rng(seed))
    bits = bits_of(kind, spans)
    cut = Cut(spans.starts, np.zeros(len(spans.starts) - 1, np.int32), 1)
    longest = int(np.diff(spans.starts).max())
    rows = np.zeros((len(spans.starts) - 1, longest), np.int64)
    for number, (begin, end) in enumerate(zip(spans.starts[:-1], spans.starts[1:], strict=True)):
        rows[number, : end - begin] = bits[begin:end]
    again = count(seen_of_bits(rows, spans.starts), spans.starts, cut, by_owner=False)
    np.testing.assert_array_equal(again.pairs, count(Seen.of(kind, spans), spans.starts, cut, by_owner=False).pairs)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(MaskKind))
def test_a_token_sees_itself_under_every_kind(seed: int, kind: MaskKind) -> None:
    spans = drawn_spans(np.random.default_rng(seed))
    assert dense_mask(kind, spans).diagonal().all()
    assert ContextPlan(mask=kind.value).blind(spans) == 0


def test_bit_63_is_causal_too_and_empty_rows_see_nothing() -> None:
    starts = np.array([0, 4])
    text = np.array([1 | 1 << 62, np.int64(-(2**63)) | 1, 0, 2], np.int64)
    seen = seen_of_bits(text, starts)
    found = count(seen, starts, Cut(starts, np.zeros(1, np.int32), 1), by_owner=False)
    assert found.pairs.sum() == 1 + 2 + 0 + 1


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        ([1 | 1 << 62, 1], "causal bit"),
        ([1 | 1 << 62], "longer than the mask"),
    ],
)
def test_bad_bits_are_refused(bits: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        seen_of_bits(np.array(bits), np.array([0, 2]))


def test_more_items_than_bits_are_refused() -> None:
    spans = Spans.of_runs([[("vision", item, 1) for item in range(62)]])
    with pytest.raises(ConfigError, match="62 bits") as caught:
        bits_of(MaskKind.MULTIMODAL, spans)
    assert (caught.value.got, caught.value.nearest) == (63, 62)


def test_a_file_that_is_no_mask_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "mask.npy", np.zeros((2, 2, 2)))
    with pytest.raises(ConfigError, match="not a mask"):
        read_bits(tmp_path / "mask.npy")
    (tmp_path / "mask.npy").write_text("no")
    with pytest.raises(ConfigError, match="cannot read the mask"):
        read_bits(tmp_path / "mask.npy")


def test_runs_that_do_not_sum_to_the_length_are_refused() -> None:
    with pytest.raises(ConfigError, match="do not sum") as caught:
        Spans.of_runs([[("text", -1, 5)], [("text", -1, 4)]], length=5)
    assert caught.value.got == 4


def test_tiles_of_a_rank_do_not_cross_sequences() -> None:
    spans = Spans.of_text([200, 100])
    pieces = packed(cut_tokens(Balance.ZIGZAG, spans, 2), spans.starts)
    assert pieces.size.tolist() == [100, 50, 100, 50]


def _figure() -> tuple[IntArray, int]:
    return np.array([1, 2, 2, 4, 5, 2, 2, 8]), 26  # Cornstarch, figure 3.3a


@pytest.mark.parametrize(("ranks", "most"), [(2, 13), (3, 9), (4, 8)])
def test_the_paper_s_blocks_are_dealt_as_well_as_can_be(ranks: int, most: int) -> None:
    from semu.masks.balance import deal_blocks

    weight, total = _figure()
    load = np.bincount(deal_blocks(Balance.LPT, weight, ranks), weights=weight, minlength=ranks)
    assert (load.max(), load.sum()) == (most, total)
