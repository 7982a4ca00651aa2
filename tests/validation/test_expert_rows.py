"""Published runs with experts and latent attention: they run, or the missing feature is named."""

from __future__ import annotations

from typing import Any

import pytest
from validation.rows_kit import row

from semu.hardware.kinds import Port
from semu.job.experts import mixtures
from semu.runfile import make_job
from semu.validation.evaluate import evaluate_row
from semu.validation.jobs import run_tables
from semu.validation.resolve import candidates
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
        {"ep": 2, "model.moe": {**MOE, "layer_freq": "([0]*1+[1]*3)"}},
        {"ep": 2, "model.moe": {**MOE, "dense_layers": 1}},
        {"tp": 2, "gpus": 4, "ep": 4, "sequence_parallel": True},
        {"dp": 4, "gpus": 4, "ep": 2, "zero_group": 2},
        {"pp": 3, "gpus": 6, "vp": None, "schedule_kind": "1f1b", "model.layers": 5},
        {"model.moe": None, "model.activation": "squared_relu"},
        {"model.moe": None, "model.activation": "geglu", "model.gated_mlp": True},
        {"model.mla": MLA, "recompute_kind": "selective", "recompute_modules": ["mla_up_proj", "moe_act", "layernorm"]},
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


@pytest.mark.parametrize(
    ("moe", "dense"),
    [
        ({"layer_freq": "([0]*1+[1]*3)"}, 1),
        ({"layer_freq": [0, 0, 1, 1]}, 2),
        ({"layer_freq": None, "dense_layers": 3}, 3),
        ({"layer_freq": 2}, 2),
    ],
)
def test_layers_without_experts_are_those_that_the_row_says(moe: dict[str, Any], dense: int) -> None:
    read = row({**BASE, "model.moe": {**MOE, **moe}})
    job = make_job(run_tables(read, next(iter(candidates(read))), "h100"))
    assert len(mixtures(job.model)) == 4 - dense


def test_dropped_tokens_are_the_capacity_of_balanced_routing() -> None:
    for notes, factor in (
        ("Load balanced. Token-drop run.", 1.0),
        ("token drop (capacity limited)", 1.0),
        (None, None),
    ):
        read = row({**BASE, "ep": 2, "notes": notes})
        training = make_job(run_tables(read, next(iter(candidates(read))), "h100")).training
        assert (training.moe_capacity_factor, training.moe_pad_to_capacity) == (factor, factor is not None)


@pytest.mark.parametrize(
    ("gpu", "profile", "device"),
    [
        ("GB200-186GB (NVL72)", "b200", "gb200-nvl72"),
        ("GB300-279GB (NVL72)", "b200", "gb300-nvl72"),
        ("B200-SXM-180GB", "b200", "b200"),
        ("H100-SXM-96GB-HBM2e-500W", "h100-96g", "h100-96g"),
        ("H800-SXM-80GB", "h800", "h800"),
        ("A800", "a100-80g", "a800"),
        (None, "b200", "b200"),
        ("X1", "b200", "b200"),
    ],
)
def test_a_row_runs_on_the_gpu_that_it_names(gpu: str | None, profile: str, device: str) -> None:
    assert row(gpu=gpu, profile=profile).profile == device


def test_trays_of_an_nvlink_domain_are_its_nodes() -> None:
    changes = {
        "gpu": "GB200",
        "profile": "b200",
        "gpus": 8,
        "dp": 8,
        "gpus_per_node": 8,
        "gpus_per_tray": 4,
        "global_batch": 16,
    }
    read = row(changes)
    job = make_job(run_tables(read, next(iter(candidates(read))), read.profile))
    assert (job.cluster.nodes, job.cluster.gpus_per_node, job.cluster.nvlink_domain) == (2, 4, 8)
    assert job.cluster.place_group("dp", range(8)).port is Port.NVLINK
