"""Whole files: their tables, their parameters by Megatron-LM's formula, a simulation of them, the command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.imports.megatron import read_megatron
from semu.runfile import load_run, make_job

HERE = Path(__file__).parent / "files"
EXAMPLE = Path(__file__).parents[3] / "examples" / "mixtral_8x7b.sh"
COMMON = {"software": "megatron", "attention": "fused", "workspaces": "transformer_engine", "gradient_clipping": True}
LLAMA = {"gated_mlp": True, "rms_norm": True, "rotary": True, "bias": False, "tied_embeddings": False, "dropout": 0.0}

EXPECTED: dict[str, dict[str, dict[str, Any]]] = {
    "gpt3_175b.sh": {
        "model": {
            "transformer": {
                **{"layers": 96, "hidden": 12288, "ffn": 49152, "heads": 96, "kv_heads": 96, "head_dim": 128},
                **{"vocab": 50257, "vocab_multiple": 128, "positions": 2048, "dropout": 0.1},
                **{"gated_mlp": False, "rms_norm": False, "rotary": False, "bias": True, "tied_embeddings": True},
            }
        },
        "cluster": {"device": "h100", "nodes": 128, "gpus_per_node": 8},
        "parallel": {
            **{"dp": 8, "tp": 8, "pp": 16, "vpp": 1, "cp": 1, "ep": 1, "partition": "layers"},
            **{"sequence_parallel": False, "zero": 0},
        },
        "training": {
            **COMMON,
            **{"micro_batch": 1, "global_batch": 1536, "seq_len": 2048, "precision": "fp16", "grad_dtype": "fp16"},
            **{"loss_scaling": True, "recompute": "none", "schedule": "1f1b", "cross_entropy": "in_place"},
            **{"gradient_accumulation_fusion": True},
        },
        "overlap": {"grad_reduce": False, "param_gather": False, "pipeline": False},
    },
    "llama3_8b_fp8.sh": {
        "model": {
            "transformer": {
                **LLAMA,
                **{"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128},
                **{"vocab": 128256, "vocab_multiple": 128},
            }
        },
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
        "parallel": {
            **{"dp": 4, "tp": 1, "pp": 1, "vpp": 1, "cp": 2, "ep": 1, "cp_kind": "ring"},
            **{"sequence_parallel": False, "zero": 1},
        },
        "training": {
            **COMMON,
            **{"micro_batch": 1, "global_batch": 128, "seq_len": 8192, "precision": "fp8", "grad_dtype": "bf16"},
            **{"fp8_recipe": "tensorwise", "fp8_weights": "primary", "recompute": "none", "schedule": "1f1b"},
            **{"cross_entropy": "fused", "gradient_accumulation_fusion": True},
        },
        "overlap": {"grad_reduce": True, "param_gather": True},
    },
    "mixtral_8x7b.sh": {
        "model": {
            "transformer": {
                **LLAMA,
                **{"layers": 32, "hidden": 4096, "ffn": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128},
                **{"vocab": 32000, "vocab_multiple": 128, "experts": 8, "top_k": 2, "moe_ffn": 14336},
            }
        },
        "cluster": {"device": "h100", "nodes": 8, "gpus_per_node": 8},
        "parallel": {
            **{"dp": 16, "tp": 1, "pp": 4, "vpp": 1, "cp": 1, "ep": 8, "partition": "layers"},
            **{"sequence_parallel": False, "zero": 1},
        },
        "training": {
            **COMMON,
            **{"micro_batch": 1, "global_batch": 256, "seq_len": 4096, "precision": "bf16", "grad_dtype": "fp32"},
            **{"recompute": "selective", "schedule": "1f1b", "cross_entropy": "in_place"},
            **{"gradient_accumulation_fusion": True, "moe_grouped_gemm": True},
        },
        "overlap": {"grad_reduce": True, "param_gather": True, "pipeline": False},
    },
    "deepseek_v3.sh": {
        "model": {
            "transformer": {
                **LLAMA,
                **{"layers": 61, "hidden": 7168, "ffn": 18432, "heads": 128, "kv_heads": 128, "head_dim": 128},
                **{"vocab": 129280, "vocab_multiple": 3232, "experts": 256, "top_k": 8, "moe_ffn": 2048},
                **{"shared_ffn": 2048, "first_k_dense": 3},
                "mla": {
                    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128},
                    **{"qk_pos_emb_head_dim": 64, "v_head_dim": 128},
                },
            }
        },
        "cluster": {"device": "h100", "nodes": 128, "gpus_per_node": 8},
        "parallel": {
            **{"dp": 64, "tp": 1, "pp": 16, "vpp": 2, "cp": 1, "ep": 64, "etp": 1},
            **{"sequence_parallel": False, "zero": 1, "layout": {"stages": "Et|(tt|)*30L"}},
        },
        "training": {
            **COMMON,
            **{"micro_batch": 1, "global_batch": 15360, "seq_len": 4096, "precision": "bf16", "grad_dtype": "fp32"},
            **{"optimizer_state_dtype": "bf16", "schedule": "interleaved", "cross_entropy": "in_place"},
            **{"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1},
            **{"gradient_accumulation_fusion": True, "moe_grouped_gemm": True},
        },
        "overlap": {"grad_reduce": True, "param_gather": True, "pipeline": True},
    },
    "gpt_7b.log": {
        "model": {
            "transformer": {
                **LLAMA,
                **{"layers": 28, "hidden": 3584, "ffn": 18944, "heads": 28, "kv_heads": 4, "head_dim": 128},
                **{"vocab": 151808, "qkv_bias": True},
            }
        },
        "cluster": {"device": "h100", "nodes": 2, "gpus_per_node": 8},
        "parallel": {
            **{"dp": 4, "tp": 2, "pp": 2, "vpp": 1, "cp": 1, "ep": 1, "partition": "layers"},
            **{"sequence_parallel": True, "zero": 1},
        },
        "training": {
            **COMMON,
            **{"micro_batch": 2, "global_batch": 256, "seq_len": 4096, "precision": "bf16", "grad_dtype": "fp32"},
            **{"recompute": "full", "recompute_method": "block", "recompute_layers": 4, "schedule": "1f1b"},
            **{"cross_entropy": "in_place", "gradient_accumulation_fusion": True},
        },
        "overlap": {"grad_reduce": True, "param_gather": True, "pipeline": False},
    },
}
FILES = [EXAMPLE if name == EXAMPLE.name else HERE / name for name in EXPECTED]


def megatron_parameters(table: dict[str, Any], tp: int) -> int:
    """Weights counted layer by layer as Megatron-LM's modules hold them, with tables padded to tp x multiple rows."""
    h, heads, groups, width = table["hidden"], table["heads"], table["kv_heads"], table["head_dim"]
    step = table.get("vocab_multiple", 1) * tp
    rows = -(-table["vocab"] // step) * step
    norm = h if table["rms_norm"] else 2 * h
    has_bias = table["bias"]
    if "mla" in table:
        m = table["mla"]
        query, rope, value = m["qk_head_dim"], m["qk_pos_emb_head_dim"], m["v_head_dim"]
        attention = h * m["q_lora_rank"] + m["q_lora_rank"] + m["q_lora_rank"] * heads * (query + rope)
        attention += h * (m["kv_lora_rank"] + rope) + m["kv_lora_rank"] + m["kv_lora_rank"] * heads * (query + value)
        attention += heads * value * h
    else:
        columns = (heads + 2 * groups) * width
        attention = (
            h * columns + heads * width * h + columns * (has_bias or table.get("qkv_bias", False)) + h * has_bias
        )
    up = 2 if table["gated_mlp"] else 1
    dense = (up + 1) * h * table["ffn"] + (up * table["ffn"] + h) * has_bias
    mixture = 0
    if "experts" in table:
        mixture = (up + 1) * h * (table["experts"] * table["moe_ffn"] + table.get("shared_ffn", 0)) + h * table[
            "experts"
        ]
    first = table.get("first_k_dense", 0) if "experts" in table else table["layers"]
    layers = table["layers"] * (attention + 2 * norm) + first * dense + (table["layers"] - first) * mixture
    tables = rows * h * (1 if table["tied_embeddings"] else 2) + table.get("positions", 0) * h
    return int(layers + tables + norm)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_tables(path: Path) -> None:
    assert read_megatron(path).tables == EXPECTED[path.name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_parameters(path: Path) -> None:
    tables = read_megatron(path).tables
    job = make_job(tables)
    expected = megatron_parameters(EXPECTED[path.name]["model"]["transformer"], EXPECTED[path.name]["parallel"]["tp"])
    assert job.model.num_parameters() == expected


def test_published_parameters() -> None:
    """Totals in print: GPT-3 175 B (2005.14165), Llama 3 8 B, Mixtral 46.7 B, DeepSeek-V3 671 B (2412.19437)."""
    totals = {path.name: make_job(read_megatron(path).tables).model.num_parameters() for path in FILES}
    assert totals == {
        "gpt3_175b.sh": 174_615_846_912,
        "llama3_8b_fp8.sh": 8_030_261_248,
        "mixtral_8x7b.sh": 46_702_792_704,
        "deepseek_v3.sh": 671_026_404_352,
        "gpt_7b.log": 7_615_616_512 - 2 * 256 * 3584,  # transformers pads Qwen2.5 7B to 152064 rows
    }


@pytest.mark.parametrize("name", ["llama3_8b_fp8.sh", "gpt_7b.log"])
def test_simulation(name: str, tmp_path: Path) -> None:
    """What is written simulates as the same tables do, made by hand."""
    from semu.runfile.importing import import_run

    place = tmp_path / "run.toml"
    place.write_text(import_run(str(HERE / name)).to_toml(str(tmp_path)))
    report = semu.simulate(load_run(place))
    by_hand = semu.simulate(make_job(EXPECTED[name]))
    assert (report.iteration_time_s, report.peak_memory_bytes) == (
        by_hand.iteration_time_s,
        by_hand.peak_memory_bytes,
    )
    assert report.fits


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``semu import SCRIPT -o run.toml && semu simulate run.toml``."""

    def semu_command(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    place = str(tmp_path / "run.toml")
    document = json.loads(semu_command("import", str(EXAMPLE), "-o", place, "--json"))
    assert document["parameters"] == 46_702_792_704
    assert {"key": "--num-experts", "value": 8, "meaning": "model.transformer.experts = 8", "line": 29} in document[
        "reading"
    ]["understood"]
    assert {"key": "cluster.device", "value": "h100", "meaning": "cluster.device"} in document["reading"]["defaulted"]
    assert "--lr" in [row["key"] for row in document["reading"]["ignored"]]
    assert "unmodelled" not in document["reading"]
    assert tomllib.loads(Path(place).read_text())["parallel"]["ep"] == 8
    result = json.loads(semu_command("simulate", place, "--json"))
    assert result["fits"] and result["parameters"] == 46_702_792_704


def test_cluster_of_the_user() -> None:
    run = read_megatron(EXAMPLE, "h800:16x8")
    assert run.tables["cluster"] == {"device": "h800", "nodes": 16, "gpus_per_node": 8}
    assert run.tables["parallel"]["dp"] == 32
    assert "cluster: 128 GPUs as asked, the file is for 64" in run.reading.notes
    assert "cluster.device" not in [row.key for row in run.reading.defaulted]


def test_multi_token_prediction() -> None:
    """A further layer with its projection of 2 x 7168 and three norms (2412.19437 §2.2); tables are the model's own."""
    text = (HERE / "deepseek_v3.sh").read_text()
    further = text.replace("*30L", "*29tt|mL").replace("--bf16\n", "--bf16 --mtp-num-layers 1\n")
    run = read_megatron(further)
    assert run.tables["parallel"]["layout"] == {"stages": "Et|(tt|)*29tt|mL"}
    assert run.tables["model"]["transformer"]["mtp_layers"] == 1
    expected = EXPECTED["deepseek_v3.sh"]["model"]["transformer"]
    deeper = megatron_parameters({**expected, "layers": 62}, 1) - megatron_parameters(expected, 1)
    more = deeper + 2 * 7168 * 7168 + 3 * 7168
    assert make_job(run.tables).model.num_parameters() == 671_026_404_352 + more
    with pytest.raises(ConfigError, match=r"1 layers of multi-token prediction \(m\), and the model has 0"):
        make_job(read_megatron(text.replace("*30L", "*29tt|mL")).tables)


@pytest.mark.parametrize(
    ("flag", "activation", "is_gated"),
    [
        ("--squared-relu", "squared_relu", False),
        ("--openai-gelu", "gelu_tanh", False),
        ("--quick-geglu", "quick_gelu", True),
    ],
)
def test_activations(flag: str, activation: str, is_gated: bool) -> None:
    """They have the parameters, the times and the memory of the network that is gated as they are."""
    text = EXAMPLE.read_text()
    tables = read_megatron(text.replace("    --swiglu\n", f"    {flag}\n")).tables
    own = tables["model"]["transformer"]
    assert (own["activation"], own["gated_mlp"], own["ffn"]) == (activation, is_gated, 14336)
    job = make_job(tables)
    assert job.model.num_parameters() == megatron_parameters(own, 1)
    usual = make_job({**tables, "model": {"transformer": {k: v for k, v in own.items() if k != "activation"}}})
    one, other = semu.simulate(job), semu.simulate(usual)
    assert (one.iteration_time_s, one.peak_memory_bytes) == (other.iteration_time_s, other.peak_memory_bytes)
