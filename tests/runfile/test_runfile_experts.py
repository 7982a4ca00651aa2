"""``[model.transformer]`` with experts and latent attention, the keys of routing, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.cli.command import main
from semu.errors import ConfigError
from semu.nn import LatentAttention, MixtureOfExperts
from semu.runfile import load_run
from semu.runfile.resolve import resolve_run
from semu.runfile.transformer import TransformerConfig
from semu.simulation import simulate

RUN = """
[model.transformer]
layers = 4
hidden = 256
heads = 4
vocab = 512
gated_mlp = true
ffn = 512
experts = 8
top_k = 2
moe_ffn = 128
{extra}

[cluster]
device = "h100"
gpus_per_node = 8

[parallel]
dp = 4
tp = 2
ep = 4
{parallel}

[training]
micro_batch = 1
global_batch = 8
seq_len = 512
{training}
{tables}
"""


def write(folder: Path, extra: str = "", parallel: str = "", training: str = "", tables: str = "") -> str:
    path = folder / "run.toml"
    path.write_text(RUN.format(extra=extra, parallel=parallel, training=training, tables=tables))
    return str(path)


MLA = """
[model.transformer.mla]
q_lora_rank = 96
kv_lora_rank = 64
qk_head_dim = 32
qk_pos_emb_head_dim = 16
v_head_dim = 32
"""


def blocks(path: str) -> list[Any]:
    body = load_run(path).model.modules[0].body
    return [body[number] for number in range(1, 5)]  # type: ignore[index]


LATENT = {"kv_lora_rank": 24, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16, "q_lora_rank": 40}
EXPERTS = {"experts": 4, "top_k": 2, "moe_ffn": 32}


@pytest.mark.parametrize(
    ("changes", "without", "more"),
    [
        ({"qk_norm": True}, {}, 3 * 2 * 16),
        ({"qk_layer_norm": True}, {}, 3 * 4 * 16),  # a weight and a bias, of queries and of keys
        ({"mla": LATENT}, {"mla": LATENT | {"norms": False}}, 3 * (24 + 40)),
        (EXPERTS | {"expert_bias": True}, EXPERTS, 3 * 4 * (32 + 64)),
    ],
)
def test_norms_and_biases_by_hand(changes: dict[str, Any], without: dict[str, Any], more: int) -> None:
    """Parameters that a key brings, in three layers of width 64 with four heads of 16."""
    base = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 128}
    one, other = (TransformerConfig.from_table(base | table) for table in (changes, without))
    assert one.model().num_parameters() - other.model().num_parameters() == more
    for config in (one, other):
        assert TransformerConfig.from_table(config.to_table()) == config


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("", [True] * 4),
        ("moe_layer_freq = 2", [True, False, True, False]),
        ("moe_layer_freq = [0, 1, 1, 0]", [False, True, True, False]),
        ("first_k_dense = 1", [False, True, True, True]),
        ("first_k_dense = 1\nmoe_layer_freq = 2", [False, False, True, False]),
    ],
)
def test_which_layers_have_experts(tmp_path: Path, extra: str, expected: list[bool]) -> None:
    layers = blocks(write(tmp_path, extra))
    assert [isinstance(layer.mlp, MixtureOfExperts) for layer in layers] == expected


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "shared_ffn = 192\nshared_gate = true\nqk_norm = true",
        "etp = 1",
        "moe_imbalance = [1, 1, 2, 1, 1, 1, 1, 1]\nmoe_capacity_factor = 1.5",
    )
    job = load_run(path)
    layer = blocks(path)[0]
    assert layer.mlp.shared.up.weight.shape == (2 * 192, 256)
    assert layer.mlp.shared_gate.weight.shape == (1, 256)
    assert layer.attention.query_norm.weight.shape == (64,)
    assert (job.parallel.etp, job.parallel.expert_data_ranks) == (1, 2)
    assert job.training.moe_imbalance == (1, 1, 2, 1, 1, 1, 1, 1)
    written = tmp_path / "again.toml"
    written.write_text(resolve_run(path).to_toml())
    again = load_run(str(written))
    assert (again.parallel, again.training) == (job.parallel, job.training)
    assert simulate(again).to_json() == simulate(job).to_json()


def test_latent_attention(tmp_path: Path) -> None:
    path = write(tmp_path, tables=MLA)
    layer = blocks(path)[0]
    assert isinstance(layer.attention, LatentAttention)
    sizes = {name: p.shape for name, p in layer.attention.named_parameters()}
    assert sizes["query_down.weight"] == (96, 256)
    assert sizes["query_up.weight"] == (4 * 48, 96)
    assert sizes["kv_down.weight"] == (64 + 16, 256)
    assert sizes["kv_up.weight"] == (4 * 64, 64)
    assert sizes["out.weight"] == (256, 4 * 32)
    written = tmp_path / "again.toml"
    written.write_text(resolve_run(path).to_toml())
    assert simulate(load_run(str(written))).to_json() == simulate(load_run(path)).to_json()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"extra": "first_k_dense = 4"}, "model.transformer.first_k_dense"),
        ({"extra": "moe_layer_freq = [0, 0, 0, 0]"}, "model.transformer.moe_layer_freq"),
        ({"extra": "moe_layer_freq = [1, 0]"}, "model.transformer.moe_layer_freq"),
        ({"extra": "shared_gate = true"}, "model.transformer.shared_gate"),
        ({"extra": "mtp_layers = -1"}, "model.transformer.mtp_layers"),
        ({"parallel": "etp = 3"}, "parallel.etp"),
        ({"training": "moe_imbalance = 0.9"}, "training.moe_imbalance"),
        ({"training": "moe_pad_to_capacity = true"}, "training.moe_pad_to_capacity"),
        ({"tables": MLA.replace("kv_lora_rank = 64", "")}, "model.transformer.mla.kv_lora_rank"),
        ({"tables": MLA.replace("v_head_dim = 32", "v_head_dim = 0")}, "model.transformer.mla.v_head_dim"),
    ],
)
def test_refused_with_the_line(tmp_path: Path, change: dict[str, str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(load_run(write(tmp_path, **change)))
    assert caught.value.where is not None
    assert caught.value.where.endswith(f" {where}")


def test_half_a_mixture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(extra="", parallel="", training="", tables="").replace("top_k = 2\n", ""))
    with pytest.raises(ConfigError, match="experts without top_k"):
        load_run(str(path))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert main(["simulate", path, "--parallel", "dp4-tp2-ep8-etp1", "--json", "--out", str(tmp_path / "out")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["job"]["parallel"]["etp"] == 1
    assert document["job"]["parallel"]["expert_dp"] == 1
    assert document["active_parameters"] < document["parameters"]
    assert "ep" in document["breakdown_s"]["exposed_communication"]
    assert (tmp_path / "out" / "timeline.png").stat().st_size
    assert main(["list", "models"]) == 0
    assert "mixtral-8x7b" in capsys.readouterr().out
    assert main(["simulate", path, "--parallel", "dp4-tp2-ep3"]) == 2
    assert "ep" in capsys.readouterr().err
