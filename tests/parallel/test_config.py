"""``Parallel`` and ``Overlap``: checked at the door, short form round trip."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.nn.trace.sharding import ContextKind, ShardingStyle
from semu.parallel.config import Overlap, Parallel

NAMES = ("dp", "tp", "pp", "vpp", "cp", "ep")
sizes = st.fixed_dictionaries({name: st.integers(1, 64) for name in NAMES})


@given(sizes)
def test_ranks_are_the_product_of_all_but_chunks_and_experts(size: dict[str, int]) -> None:
    parallel = Parallel(**size)
    ranks = {
        (d, c, t, p)
        for d in range(min(size["dp"], 3))
        for c in range(min(size["cp"], 3))
        for t in range(min(size["tp"], 3))
        for p in range(min(size["pp"], 3))
    }
    small = Parallel(**{name: min(value, 3) for name, value in size.items()})
    assert small.num_gpus == len(ranks)
    assert parallel.num_gpus == size["dp"] * size["cp"] * size["tp"] * size["pp"]
    assert parallel.sequence_parts == (2 * size["cp"] if size["cp"] > 1 else 1)
    assert parallel.token_divisor == size["tp"] * parallel.sequence_parts
    assert parallel.gradient_ranks == parallel.shard_ranks == size["dp"] * size["cp"]


def test_a_sharding_group_has_all_context_ranks_of_its_replicas() -> None:
    parallel = Parallel(dp=8, cp=4, zero_group=2)
    assert (parallel.shard_ranks, parallel.gradient_ranks, parallel.is_sharded_in_groups) == (8, 32, True)
    assert not Parallel(dp=8, cp=4, zero_group=8).is_sharded_in_groups


def test_kinds_of_context_parallelism() -> None:
    assert Parallel().context_kind is ContextKind.RING
    for kind in ContextKind:
        assert Parallel(cp_kind=kind) == Parallel(cp_kind=kind.value)
    with pytest.raises(ConfigError, match="context parallelism") as caught:
        Parallel(cp_kind="all_gathre")
    assert (caught.value.where, caught.value.nearest) == ("parallel.cp_kind", "all_gather")


@given(sizes)
def test_short_form_round_trip(size: dict[str, int]) -> None:
    parallel = Parallel(**size)
    assert Parallel.parse(parallel.label()) == parallel


def test_groups_of_context_ranks_mean_nothing_without_any() -> None:
    assert not Parallel(cp=1, cp_inner=2).has_context_levels


@pytest.mark.parametrize(
    ("sizes", "nearest"),
    [
        ({"cp": 4, "cp_inner": 3}, 2),
        ({"cp": 4, "cp_inner": 8}, 4),
        ({"cp": 4, "cp_inner": 2, "cp_kind": "all_gather"}, 1),
        ({"cp": 4, "cp_inner": 2, "tp": 2, "modules": {"vit": {"tp": 1}}}, 1),
        ({"cp": 4, "cp_inner": 0}, 1),
    ],
)
def test_groups_of_context_ranks_are_checked(sizes: dict[str, Any], nearest: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(**sizes)
    assert (caught.value.where, caught.value.nearest) == ("parallel.cp_inner", nearest)


def test_short_form_names_the_extraordinary_only() -> None:
    assert Parallel().label() == "dp1-tp1-pp1"
    assert Parallel(dp=8, tp=2, pp=4, vpp=3).label() == "dp8-tp2-pp4-vpp3"
    assert Parallel(cp=2, ep=4).label() == "dp1-tp1-pp1-cp2-ep4"
    assert Parallel.parse("pp4-dp8") == Parallel(dp=8, pp=4)


@pytest.mark.parametrize("text", ["dp8-tp2", "dp8 tp2", "dp8, tp2", "DP8_TP2", "dp8tp2", "dp=8,tp=2", " dp:8-tp:2 "])
def test_short_forms_of_other_hands(text: str) -> None:
    assert Parallel.parse(text) == Parallel(dp=8, tp=2)


def test_parsing_keeps_what_is_no_size() -> None:
    plan = {"blocks.*.up": ShardingStyle.COLUMN}
    base = Parallel(dp=8, tp=4, vpp=2, sequence_parallel=False, zero=0, partition="latency", plan=plan)
    assert Parallel.parse("pp2", base) == replace(base, dp=1, tp=1, vpp=1, pp=2)


@pytest.mark.parametrize("text", ["", "dp", "8dp", "dp8-dp2", "dp8-xp2", "dp-8", "dp8-", "dp8--tp2", "dp8,,tp2"])
def test_what_is_no_short_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a parallel configuration") as caught:
        Parallel.parse(text)
    assert caught.value.where == "--parallel"
    assert caught.value.got == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, 2.0, "2", True, None])
def test_sizes_are_positive_integers(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match="not a parallel size") as caught:
        Parallel(**{name: value})  # type: ignore[arg-type]
    assert caught.value.where == f"parallel.{name}"
    assert caught.value.nearest == 1


def test_a_size_of_zero_in_the_short_form_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="not a parallel size") as caught:
        Parallel.parse("dp0-tp2")
    assert caught.value.where == "parallel.dp"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"zero": 4}, "parallel.zero"),
        ({"zero": -1}, "parallel.zero"),
        ({"zero": True}, "parallel.zero"),
        ({"sequence_parallel": 1}, "parallel.sequence_parallel"),
        ({"partition": "memory"}, "parallel.partition"),
    ],
    ids=str,
)
def test_other_options_are_checked(change: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Parallel(**change)  # type: ignore[arg-type]
    assert caught.value.where == where
    assert caught.value.expected


def test_by_default_data_parallel_communication_hides_and_the_rest_is_open() -> None:
    assert Overlap() == Overlap(grad_reduce=True, param_gather=True, tensor_parallel=None, pipeline=None)


@pytest.mark.parametrize("name", ["grad_reduce", "param_gather", "tensor_parallel", "pipeline"])
def test_overlap_is_made_of_switches(name: str) -> None:
    assert getattr(Overlap(**{name: True}), name) is True
    with pytest.raises(ConfigError, match="not a switch") as caught:
        Overlap(**{name: None if name == "grad_reduce" else 1})  # type: ignore[arg-type]
    assert caught.value.where == f"overlap.{name}"
