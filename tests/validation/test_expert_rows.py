"""Published runs with experts and latent attention: they run, or the missing feature is named."""

from __future__ import annotations

from typing import Any

import pytest
from validation.rows_kit import row

from semu.runfile import make_job
from semu.validation.evaluate import evaluate_row
from semu.validation.result import Status

MOE = {"num_experts": 8, "topk": 2, "moe_ffn_hidden": 256, "shared_expert_ffn": None, "layer_freq": 1}
MLA = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_head_dim": 32, "qk_pos_emb_head_dim": 16, "v_head_dim": 32}
BASE = {"model.moe": MOE, "model.bias_linear": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"ep": 2},
        {"ep": 1, "sharding_kind": "fsdp"},
        {"ep": 2, "model.moe": {**MOE, "shared_expert_ffn": 512, "layer_freq": 2}},
        {"tp": 2, "gpus": 4, "ep": 4, "etp": 1, "sequence_parallel": True},
        {"tp": 2, "gpus": 4, "ep": 2, "sequence_parallel": True, "model.mla": MLA},
        {"model.mla": MLA, "model.moe": None},
        {"ep": 2, "sharding_kind": "fsdp"},
        {"ep": 2, "precision_kind": "fp8", "profile": "h100", "model.gated_mlp": True},
    ],
)
def test_a_row_runs(changes: dict[str, Any]) -> None:
    result = evaluate_row(row({**BASE, **changes}), make_job)
    assert (result.status, result.reason) == (Status.OK, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ep": 3}, "parallel.ep: the ranks cannot be shared out"),
        ({"tp": 2, "gpus": 4}, "parallel.sequence_parallel"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], reason: str) -> None:
    result = evaluate_row(row({**BASE, **changes}), make_job)
    assert result.status is Status.REFUSED
    assert (result.reason or "").startswith(reason)
