"""The same arguments in a script, a log and a YAML file become the same tables, whatever their order and shape."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.imports.megatron import read_megatron
from semu.runfile import format_toml, make_job

Words = dict[str, str | bool]

PRINTED = {
    "disable-bias-linear": ("add_bias_linear", False),
    "no-gradient-accumulation-fusion": ("gradient_accumulation_fusion", False),
    "no-overlap-p2p-communication": ("overlap_p2p_comm", False),
    "fp8-format": ("fp8", None),
    "fp8-param-gather": ("fp8_param", True),
}
"""Flags that are not printed under their own name, and what a switch prints."""
DEFAULTS = {
    "add_bias_linear": "True",
    "gradient_accumulation_fusion": "True",
    "overlap_p2p_comm": "True",
    "attention_dropout": "0.1",
    "hidden_dropout": "0.1",
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "clip_grad": "1.0",
    "swiglu": "False",
    "fp8": "None",
    "num_experts": "None",
    "moe_layer_freq": "1",
    "moe_router_topk": "2",
    "cp_comm_type": "['p2p']",
    "attention_backend": "AttnBackend.auto",
    "exp_avg_dtype": "torch.float32",
    "recompute_modules": "['core_attn']",
    "make_vocab_size_divisible_by": "128",
    "some_new_switch": "False",
    "squared_relu": "False",
}
"""What a log prints of arguments that nobody gave."""


@st.composite
def arguments(draw: Callable[..., object]) -> tuple[Words, dict[str, int]]:
    """A job that fits together, and what its tables must say: facts that need no reading of ours."""

    def pick(*values: object) -> object:
        return draw(st.sampled_from(values))

    tp, pp, cp, layers = pick(1, 2), pick(1, 2, 4), pick(1, 2), pick(4, 8)
    heads, width = pick(4, 8), pick(16, 32)
    assert isinstance(tp, int) and isinstance(pp, int) and isinstance(cp, int) and isinstance(layers, int)
    assert isinstance(heads, int) and isinstance(width, int)
    dp = 16 // (tp * pp * cp)
    batch = dp * pp * 2
    words: Words = {
        **{"num-layers": str(layers), "hidden-size": str(heads * width), "num-attention-heads": str(heads)},
        **{"seq-length": "64", "max-position-embeddings": "64", "vocab-size": "1000", "bf16": True},
        **{"micro-batch-size": "1", "global-batch-size": str(batch), "tensor-model-parallel-size": str(tp)},
        **{"pipeline-model-parallel-size": str(pp), "context-parallel-size": str(cp)},
    }
    facts = {"layers": layers, "hidden": heads * width, "tp": tp, "pp": pp, "cp": cp, "dp": dp, "global_batch": batch}
    optional: list[Words] = [
        {"swiglu": True},
        {"ffn-hidden-size": "96"},
        {"normalization": "RMSNorm"},
        {"position-embedding-type": "rope"},
        {"untie-embeddings-and-output-weights": True},
        {"add-qkv-bias": True},
        {"group-query-attention": True, "num-query-groups": "2"},
        {"attention-dropout": "0.0", "hidden-dropout": "0.0"},
        {"sequence-parallel": True},
        {"use-distributed-optimizer": True, "overlap-grad-reduce": True, "overlap-param-gather": True},
        {"recompute-granularity": "selective", "recompute-modules": "core_attn mlp"},
        {"no-gradient-accumulation-fusion": True},
        {"clip-grad": "0.0"},
        {"attention-backend": "flash"},
        {"fp8-format": "hybrid", "fp8-recipe": "blockwise"},
        {"make-vocab-size-divisible-by": "64"},
        {"use-precision-aware-optimizer": True, "exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16"},
        {"lr": "1e-4", "seed": "1234"},
    ]
    for extra in optional:
        if draw(st.booleans()):
            words |= extra
    if draw(st.booleans()):
        experts: Words = {"num-experts": "4", "moe-router-topk": "1", "moe-token-dispatcher-type": "alltoall"}
        frequency = f"([0]*1+[1]*{layers - 1})"
        words |= {**experts, "disable-bias-linear": True, "moe-grouped-gemm": True, "moe-layer-freq": frequency}
        words |= {"sequence-parallel": True}
    if pp > 1 and draw(st.booleans()):
        words |= {"num-layers-per-virtual-pipeline-stage": "1"}
    return words, facts


def as_script(words: Words, draw: st.DataObject) -> str:
    """In some order, in an array, a text, or on the command itself."""
    names = draw.draw(st.permutations(list(words)))
    parts: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for name in names:
        value = words[name]
        where = draw.draw(st.integers(0, 2)) if isinstance(value, bool) or "(" not in value else 0
        joint = "=" if draw.draw(st.booleans()) and not isinstance(value, bool) and " " not in value else " "
        told = "" if isinstance(value, bool) else f'{joint}"{value}"' if "(" in value else f"{joint}{value}"
        parts[where].append(f"--{name}{told}")
    array = "\n    ".join(parts[0])
    return (
        f'#!/bin/bash\nN=2\nARGS=(\n    {array}\n)\nMORE="{" ".join(parts[1])}"\n'
        f'torchrun --nnodes=$N --nproc_per_node 8 pretrain_gpt.py "${{ARGS[@]}}" $MORE {" ".join(parts[2])}\n'
    )


def as_log(words: Words, prefix: str) -> str:
    """Printed with everything that nobody gave."""
    printed = dict(DEFAULTS)
    for name, value in words.items():
        dest, switch = PRINTED.get(name, (name.replace("-", "_"), True))
        shown = str(switch) if isinstance(value, bool) else value
        printed[dest] = {"bf16": "torch.bfloat16"}.get(shown, shown) if "dtype" in dest else shown
        if name == "recompute-modules":
            printed[dest] = str(shown.split())
    lines = [f"{prefix}  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(printed.items())]
    dashes = "-" * 20
    begin, end = f"{prefix}{dashes} arguments {dashes}", f"{prefix}{dashes} end of arguments {dashes}"
    return "\n".join(["hello", begin, *lines, f"{prefix}  world_size ....... 16", end, "bye\n"])


def as_config(words: Words) -> str:
    lines = [f"  --{name}: {'true' if isinstance(value, bool) else value}" for name, value in words.items()]
    return "\n".join(["ENV_VARS:", "  A: 1", "MODEL_ARGS:", *lines, "TEST_TYPE: regular\n"])


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), arguments())
def test_forms_agree(data: st.DataObject, given_arguments: tuple[Words, dict[str, int]]) -> None:
    words, facts = given_arguments
    script = read_megatron(as_script(words, data))
    log = read_megatron(as_log(words, data.draw(st.sampled_from(["", "[default0]:", "0: "]))))
    config = read_megatron(as_config(words), "h100:2x8")
    assert script.tables == log.tables == config.tables
    assert tomllib.loads(format_toml(script.tables)) == script.tables
    flat = {**script.tables["model"]["transformer"], **script.tables["parallel"], **script.tables["training"]}
    assert {name: flat[name] for name in facts} == facts
    job = make_job(script.tables)
    assert job.num_microbatches == 2 * facts["pp"]
    for run in (script, log, config):
        rows = (*run.reading.understood, *run.reading.ignored)
        names = [row.key.removeprefix("--") for row in rows if row.key != "launcher"]
        assert len(names) == len(set(names))
    told = {row.key for row in (*script.reading.understood, *script.reading.ignored)}
    assert {f"--{name}" for name in words} <= told
