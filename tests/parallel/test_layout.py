"""Layouts: what they say, as tables and as Megatron-LM's text, and how they are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.jobs import gpt
from simulation.reference.layout import spelt_out

from semu.errors import ConfigError
from semu.parallel.config import Parallel
from semu.parallel.context import check_balance
from semu.parallel.expert_layers import layer_pattern
from semu.parallel.layout import PipelineLayout
from semu.parallel.layout_text import expand_stages
from semu.parallel.stage_layers import layer_counts, stage_boundaries
from semu.parallel.vocabulary import deal_between


def expanded(text: str) -> list[str]:
    return expand_stages(text, "parallel.layout.stages")


# -- Megatron-LM's text ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*3|t*4|t*4|t*3L", ["Ettt", "tttt", "tttt", "tttL"]),
        ("E|t|t|L", ["E", "t", "t", "L"]),
        ("Et|(tt|)*2L", ["Et", "tt", "tt", "L"]),
        ("Et*2|(t*3|)*6,t*2,L", ["Ett", *["ttt"] * 6, "ttL"]),
        ("E (t t | t)*2 | t L", ["Ett", "ttt", "t", "tL"]),
        ("E((t|)*2t)*2L", ["Et", "t", "tt", "t", "tL"]),
        ("EttL", ["EttL"]),
    ],
)
def test_a_text_is_spelt_out(text: str, stages: list[str]) -> None:
    assert expanded(text) == stages == spelt_out(text).split("|")


_piece = st.recursive(
    st.sampled_from(["t", "tt", "t|t"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, st.integers(1, 3)).map(lambda pair: f"({pair[0]})*{pair[1]}"),
        st.integers(1, 4).map(lambda count: f"t*{count}"),
        inner.map(lambda text: f" ({text}),"),
    ),
    max_leaves=6,
)


@given(_piece)
def test_any_text_is_spelt_out(piece: str) -> None:
    assert expanded(f"E{piece}L") == spelt_out(f"E{piece}L").split("|")


@pytest.mark.parametrize(
    ("text", "says", "got", "nearest"),
    [
        ("Ettt|txt|tL", "unknown symbol 'x' at position 6", "x", None),
        ("Ettt|Tt|tL", "unknown symbol 'T' at position 5", "T", "t"),
        ("Et|tl", "unknown symbol 'l' at position 4", "l", "L"),
        ("E(tt|tL", "not closed at position 1", "(", None),
        ("Et)|tL", "not opened at position 2", ")", None),
        ("*2Et|tL", "nothing to repeat at position 0", "*", None),
        ("Et*|tL", "not a number of repetitions at position 3", "nothing", 1),
        ("Et*0|tL", "not a number of repetitions at position 3", "0", 1),
        ("Et*2*3|tL", "nothing to repeat at position 4", "*", None),
        ("E(t*60000)*60000|L", "too long at position 1", "more", None),
        ("Et||tL", "stage 1 of 'Et||tL' is empty", "Et||tL", None),
        ("Et|tL|", "stage 2 of 'Et|tL|' is empty", "tL|", None),
        ("tE|tL", "the embedding (E) is not at the beginning", "1 of them", None),
        ("t|tL", "the embedding (E) is not at the beginning", "0 of them", None),
        ("Et|tLL", "the loss (L) is not at the end", "2 of them", None),
        ("Et|mtL", "multi-token prediction (m) at position 3", "m", None),
        ("", "not a layout", "''", None),
    ],
)
def test_a_bad_text_says_where(text: str, says: str, got: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        PipelineLayout(stages=text)
    assert says in caught.value.message
    assert (caught.value.where, caught.value.got, caught.value.nearest) == ("parallel.layout.stages", got, nearest)
    assert caught.value.expected


# -- tables ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "table",
    [
        {"stages": "Et|tL"},
        {"layers": [1, 2]},
        {"modules": {"vit": [1, 2], "llm": [3]}},
        {"first": 1, "last": 2},
        {"last": 0},
        {"account_for_embedding": True, "account_for_loss": True},
        {},
    ],
)
def test_a_table_comes_back(table: dict[str, Any]) -> None:
    layout = PipelineLayout.of(table)
    assert layout.to_table() == table
    assert PipelineLayout.of(layout) is layout
    assert PipelineLayout.of(layout.to_table()) == layout


@pytest.mark.parametrize(
    ("table", "where", "nearest"),
    [
        ({"layer": [1, 2]}, "parallel.layout.layer", "layers"),
        ({"layers": [1, -2]}, "parallel.layout.layers", None),
        ({"layers": []}, "parallel.layout.layers", None),
        ({"layers": [True, 1]}, "parallel.layout.layers", None),
        ({"modules": {"vit": "12"}}, "parallel.layout.modules.vit", None),
        ({"modules": {}}, "parallel.layout.modules", None),
        ({"first": -1}, "parallel.layout.first", 0),
        ({"last": 1.5}, "parallel.layout.last", 0),
        ({"account_for_loss": 1}, "parallel.layout.account_for_loss", None),
        ({"layers": [1, 1], "first": 1}, "parallel.layout", None),
        ({"stages": "Et|tL", "layers": [1, 1]}, "parallel.layout", None),
        ({"first": 1, "account_for_loss": True}, "parallel.layout", None),
    ],
)
def test_a_bad_table_is_refused(table: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(pp=2, layout=table)  # type: ignore[arg-type]
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


@pytest.mark.parametrize(
    ("table", "where", "nearest"),
    [
        ({"stages": "Et|t|t|tL"}, "parallel.layout.stages", "vpp = 2"),
        ({"layers": [1, 2, 3]}, "parallel.layout.layers", None),
        ({"layers": [4]}, "parallel.layout.layers", None),
        ({"modules": {"vit": [1, 1, 1, 1], "llm": [1, 1]}}, "parallel.layout.modules", "vpp = 3"),
    ],
)
def test_a_layout_has_a_stage_for_every_virtual_stage(table: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(pp=2, layout=table)  # type: ignore[arg-type]
    assert (caught.value.where, caught.value.expected, caught.value.nearest) == (where, "2 stages", nearest)


def test_an_empty_layout_is_none() -> None:
    assert Parallel(layout={}) == Parallel()  # type: ignore[arg-type]
    assert Parallel(pp=2, layout={"layers": [1, 1]}) == Parallel(pp=2, layout=PipelineLayout(layers=(1, 1)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        Parallel(layout=3)  # type: ignore[arg-type]
    assert caught.value.where == "parallel.layout"
    with pytest.raises(ConfigError) as caught:
        Parallel(pp=2, partition="latency", layout=PipelineLayout(layers=(1, 1)))
    assert caught.value.where == "parallel.partition"


# -- even shares, as Megatron-LM's get_num_layers_to_build ------------------------------------------------------------
@pytest.mark.parametrize(
    ("layers", "table", "pp", "vpp", "counts"),
    [
        (12, {}, 4, 1, [3, 3, 3, 3]),
        (12, {}, 2, 3, [2] * 6),
        (12, {"first": 2, "last": 2}, 4, 1, [2, 4, 4, 2]),
        (12, {"first": 3}, 4, 1, [3, 3, 3, 3]),
        (10, {"last": 1}, 4, 1, [3, 3, 3, 1]),
        (16, {"first": 2, "last": 2}, 4, 2, [1, 3, 3, 1, 1, 3, 3, 1]),
        (7, {"first": 3, "last": 4}, 2, 1, [3, 4]),
        (22, {"account_for_embedding": True, "account_for_loss": True}, 8, 1, [2, *[3] * 6, 2]),
        (22, {"account_for_embedding": True, "account_for_loss": True}, 8, 3, [0, *[1] * 22, 0]),
        (7, {"account_for_loss": True}, 2, 2, [2, 2, 2, 1]),
    ],
)
def test_even_shares(layers: int, table: dict[str, Any], pp: int, vpp: int, counts: list[int]) -> None:
    assert layer_counts(layers, PipelineLayout.of(table), pp, vpp) == counts


@pytest.mark.parametrize(
    ("layers", "table", "pp", "vpp", "where", "nearest"),
    [
        (13, {}, 4, 1, "parallel.partition", "pp = 1"),
        (12, {}, 4, 2, "parallel.partition", "vpp = 1"),
        (12, {"first": 2, "last": 3}, 4, 1, "parallel.layout.first", 1),
        (12, {"last": 4}, 4, 1, "parallel.layout.last", 3),
        (12, {"first": 4, "last": 2}, 2, 1, "parallel.layout", None),
        (12, {"first": 20}, 2, 1, "parallel.layout.first", 12),
        (16, {"first": 3, "last": 1}, 4, 2, "parallel.layout", 2),
        (12, {"account_for_loss": True}, 4, 1, "parallel.layout", "pp = 1"),
        (12, {"first": 12}, 1, 1, "parallel.layout", None),
    ],
)
def test_what_does_not_divide(
    layers: int, table: dict[str, Any], pp: int, vpp: int, where: str, nearest: object
) -> None:

    with pytest.raises(ConfigError) as caught:
        stage_boundaries(gpt(layers), PipelineLayout.of(table), pp, vpp)
    assert caught.value.where == where
    if nearest is not None:
        assert caught.value.nearest == nearest


def test_the_longest_text_that_is_read() -> None:
    """65,536 symbols are read, one more is not."""
    assert expanded("Et*65534L") == ["E" + "t" * 65534 + "L"]
    with pytest.raises(ConfigError, match="too long"):
        expanded("Et*65535L")


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("([0]*3+[1]*58)", [0] * 3 + [1] * 58),
        ("[0, 1]*2", [0, 1, 0, 1]),
        ("2*[1]", [1, 1]),
        ("[1]*65536", [1] * 65536),
        ("3", 3),
    ],
)
def test_layers_with_experts(text: str, layers: int | list[int]) -> None:
    assert layer_pattern(text, "x") == layers


@pytest.mark.parametrize("text", ["[1]*65537", "[1, 0]*32769", "0", "[1]*[2]", "[0]+1", "2*3", "x"])
def test_what_is_no_pattern_of_layers(text: str) -> None:
    with pytest.raises(ConfigError, match="not a pattern"):
        layer_pattern(text, "x")


def test_blocks_of_context_ranks_divide_tiles_or_tiles_them() -> None:
    """Tiles have 128 tokens."""
    for block in (1, 2, 64, 128, 256, 384):
        check_balance("zigzag", block, 0)
    for block in (3, 96, 127, 129, 192):
        with pytest.raises(ConfigError, match="does not divide into tiles of 128"):
            check_balance("zigzag", block, 0)


def test_layers_between_a_vocabulary_that_all_ranks_share() -> None:
    """Two ranks, an embedding, four layers and a head, by hand: (rank, first, last, gang)."""
    found = [(c.rank, c.first, c.last, c.gang) for c in deal_between(Parallel(pp=2), [1.0] * 6)]
    assert found == [(0, 0, 1, 0), (1, 0, 1, 0), (0, 1, 3, -1), (1, 3, 5, -1), (0, 5, 6, 1), (1, 5, 6, 1)]
