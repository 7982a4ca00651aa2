"""What experts cannot be asked for is refused by name, with the nearest legal value."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.jobs import gpt, job_of, text_items
from simulation.models.test_experts import moe

from semu.errors import ConfigError
from semu.nn import MixtureOfExperts
from semu.parallel.config import Parallel

CASES: list[tuple[dict[str, Any], dict[str, Any], str, object]] = [
    ({"dp": 3, "ep": 3}, {}, "parallel.ep", 1),
    ({"dp": 16, "ep": 16}, {}, "parallel.ep", 8),
    ({"dp": 2, "ep": 4}, {}, "parallel.ep", 2),
    ({"dp": 2, "tp": 2, "ep": 4, "etp": 2}, {}, "parallel.ep", 2),
    ({"dp": 6, "ep": 4}, {}, "parallel.ep", 2),
    ({"tp": 2, "etp": 4, "dp": 2}, {}, "parallel.etp", 2),
    ({"tp": 4, "etp": 3, "dp": 3}, {}, "parallel.etp", 2),
    ({"dp": 2, "tp": 2, "ep": 2, "sequence_parallel": False}, {}, "parallel.sequence_parallel", "true"),
    ({"dp": 8, "ep": 4, "zero_group": 2}, {}, "parallel.zero_group", 4),
    ({"dp": 8, "ep": 4, "zero": 3, "zero_group": 2}, {}, "parallel.zero_group", 4),
    ({"dp": 8, "tp": 2, "ep": 8, "etp": 2, "zero": 3, "zero_group": 2}, {}, "parallel.zero_group", 8),
    ({"dp": 4, "tp": 2, "ep": 8, "etp": 1, "zero": 3, "zero_group": 2}, {}, "parallel.zero_group", 4),
    ({"dp": 4, "ep": 4}, {"moe_imbalance": 0.5}, "training.moe_imbalance", 1),
    ({"dp": 4, "ep": 4}, {"moe_imbalance": 5}, "training.moe_imbalance", 4),
    ({"dp": 8, "ep": 8}, {"moe_imbalance": 5}, "training.moe_imbalance", 4.0),
    ({"dp": 4}, {"moe_imbalance": 1.5}, "training.moe_imbalance", 1),
    ({"dp": 4, "ep": 4}, {"moe_imbalance": [1, 2]}, "training.moe_imbalance", None),
    ({"dp": 4, "ep": 4}, {"moe_imbalance": [0] * 8}, "training.moe_imbalance", None),
    ({"dp": 4, "ep": 4}, {"moe_imbalance": [9, *[1] * 7]}, "training.moe_imbalance", 8.0),
    ({"dp": 4, "ep": 4}, {"moe_imbalance": True}, "training.moe_imbalance", 1),
    ({"dp": 4, "ep": 4}, {"moe_capacity_factor": 0}, "training.moe_capacity_factor", 1),
    ({"dp": 4, "ep": 4}, {"moe_pad_to_capacity": True}, "training.moe_pad_to_capacity", "false"),
]


@pytest.mark.parametrize(("sizes", "options", "where", "nearest"), CASES)
def test_refused(sizes: dict[str, Any], options: dict[str, Any], where: str, nearest: object) -> None:
    parallel = Parallel(**sizes)
    with pytest.raises(ConfigError) as caught:
        job_of(moe(), text_items(parallel.dp), parallel, **options)
    assert (caught.value.where, caught.value.nearest) == (where, nearest)
    assert caught.value.expected


@pytest.mark.parametrize(
    ("sizes", "options", "where"),
    [
        ({"dp": 2, "ep": 2}, {}, "parallel.ep"),
        ({"dp": 2, "etp": 1}, {}, "parallel.etp"),
        ({"dp": 2}, {"moe_imbalance": 1.5}, "training.moe_imbalance"),
        ({"dp": 2}, {"moe_capacity_factor": 1.5}, "training.moe_capacity_factor"),
        ({"dp": 2}, {"moe_grouped_gemm": False}, "training.moe_grouped_gemm"),
    ],
)
def test_a_dense_model_has_no_experts_to_spread(sizes: dict[str, Any], options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match="no experts") as caught:
        job_of(gpt(), text_items(2), Parallel(**sizes), **options)
    assert caught.value.where == where


def test_a_token_cannot_use_more_experts_than_there_are() -> None:
    with pytest.raises(ConfigError, match="9 of 8 experts") as caught:
        MixtureOfExperts(64, 48, 8, 9)
    assert caught.value.nearest == 8
    with pytest.raises(ConfigError, match="a gate for shared experts"):
        MixtureOfExperts(64, 48, 8, 2, shared_gate=True)


@pytest.mark.parametrize(
    ("sizes", "etp"),
    [
        ({"dp": 4, "tp": 2, "ep": 4}, 2),
        ({"dp": 2, "tp": 2, "ep": 4}, 1),
        ({"dp": 2, "tp": 4, "ep": 2, "cp": 2}, 4),
        ({"dp": 2, "tp": 4, "ep": 8}, 1),
        ({"dp": 4, "tp": 2, "ep": 2, "zero": 3}, 1),
        ({"dp": 2, "tp": 2, "ep": 4, "etp": 2}, 2),
    ],
)
def test_experts_are_split_as_the_framework_splits_them(sizes: dict[str, Any], etp: int) -> None:
    assert Parallel(**sizes).expert_tensor_ranks == etp


@pytest.mark.parametrize(("sizes", "etp"), [({"dp": 4, "zero": 3}, None), ({"dp": 4, "zero": 2}, None)])
def test_experts_that_are_spread_as_all_else_may_be_sharded(sizes: dict[str, Any], etp: None) -> None:
    from simulation.comparison import assert_equal
    from simulation.reference.expansion import expand

    from semu.simulation import simulate

    job = job_of(moe(), text_items(4), Parallel(**sizes, etp=etp))
    assert_equal(simulate(job), expand(job))
