"""What launch arguments of a row say: layers of the first and last ranks, the way the token loss is made."""

from __future__ import annotations

from typing import Any

import pytest
from validation.rows_kit import row

from semu.runfile import make_job
from semu.validation.jobs import run_tables
from semu.validation.resolve import candidates

FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"


def tables(arguments: dict[str, Any], **changes: Any) -> Any:
    made = row({"megatron_args": arguments, "vp": 1, **changes})
    return run_tables(made, next(iter(candidates(made))), made.profile)


@pytest.mark.parametrize(
    ("arguments", "pp", "layers"),
    [
        ({FIRST: 2, LAST: 2}, 4, [2, 4, 4, 2]),
        ({FIRST: 3}, 4, [3, 3, 3, 3]),
        ({LAST: 4}, 3, [4, 4, 4]),
        ({FIRST: 1, LAST: 3}, 4, [1, 4, 4, 3]),
        ({FIRST: 5, LAST: 2}, 4, [3, 3, 3, 3]),  # 5 layers do not divide into 2 ranks: as without
        ({}, 4, [3, 3, 3, 3]),
    ],
)
def test_layers_of_pipeline_ranks(arguments: dict[str, Any], pp: int, layers: list[int]) -> None:
    made = tables(arguments, **{"model.layers": 12, "pp": pp, "dp": 1, "gpus": pp})
    assert made["parallel"]["layout"]["layers"] == layers
    assert make_job(made).parallel.pp == pp


def test_a_layout_of_the_row_comes_first() -> None:
    told = {"layers": [6, 2, 2, 2]}
    made = tables({FIRST: 2, LAST: 2}, **{"model.layers": 12, "pp": 4, "dp": 1, "gpus": 4, "layout": told})
    assert made["parallel"]["layout"] == told


@pytest.mark.parametrize(
    ("arguments", "told", "word"),
    [
        ({"--cross-entropy-loss-fusion": True}, None, "compiled"),
        ({"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"}, None, "fused"),
        ({"--cross-entropy-loss-fusion": True}, "fused", "fused"),
        ({"--cross-entropy-loss-fusion": False}, None, "in_place"),
        ({}, None, "in_place"),
    ],
)
@pytest.mark.parametrize("date", ["2024-07", "2025-11"])
def test_the_token_loss(arguments: dict[str, Any], told: str | None, word: str | None, date: str) -> None:
    made = tables(arguments, cross_entropy=told, software_date=date, software="megatron")
    assert made["training"].get("cross_entropy") == word


@pytest.mark.parametrize(
    ("software", "date", "word"),
    [
        ("megatron", "2025-04", None),
        ("megatron", "2025-05", "fused"),
        ("megatron", None, None),
        ("torch", "2025-11", None),
    ],
)
def test_a_loss_that_nothing_says_is_that_of_its_date(software: str, date: str | None, word: str | None) -> None:
    made = row({"software": software, "software_date": date})
    table = run_tables(made, next(iter(candidates(made))), made.profile)["training"]
    assert table.get("cross_entropy") == word
