"""Configurations of llm-foundry become runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semu
import semu_models
from semu.errors import ConfigError
from semu.imports.flags import Grade
from semu.imports.kinds import program_of
from semu.imports.llmfoundry import read_llmfoundry
from semu.imports.llmfoundry.read import FLAGS
from semu.runfile.importing import import_run
from semu.runfile.schema import SCHEMA

FILES = Path(__file__).parent / "files"
NAMES = ("mpt_7b.yaml", "finetune_llama.yaml")


def read(name: str, cluster: str | None = None) -> Any:
    return read_llmfoundry((FILES / name).read_text(), str(FILES / name), cluster)


def test_keys_lead_to_a_run_file() -> None:
    for flag in FLAGS.flags:
        for key in filter(None, flag.to.split(", ") if flag.grade is Grade.EXACT else ()):
            table, _, last = key.rpartition(".")
            assert last in SCHEMA[table], f"{flag.name} leads to {key}"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tensor_ranks_split_sequences_too(ranks: int) -> None:
    text = (FILES / "mpt_7b.yaml").read_text() + f"\ntp_config:\n  tensor_parallel_degree: {ranks}\n"
    parallel = read_llmfoundry(text, "mpt_7b.yaml", "h100:8x8").tables["parallel"]
    assert (parallel["dp"], parallel["tp"], parallel["sequence_parallel"]) == (64 // ranks, ranks, ranks > 1)


def test_a_model_of_its_own() -> None:
    """References within the file are followed; attention with linear biases has no table of positions."""
    tables = read("mpt_7b.yaml", "h100:8x8").tables
    assert tables["model"]["transformer"] == {
        "layers": 32, "hidden": 4096, "ffn": 16384, "heads": 32, "kv_heads": 32, "vocab": 50368, "gated_mlp": False,
        "tied_embeddings": True, "rms_norm": False, "rotary": False, "bias": True, "dropout": 0.0, "activation": "gelu",
    }  # fmt: skip
    assert tables["parallel"] == {
        "dp": 64, "tp": 1, "sequence_parallel": False, "zero": 3, "reshard_after_forward": True,
    }  # fmt: skip
    training = tables["training"]
    assert (training["micro_batch"], training["global_batch"], training["seq_len"]) == (16, 1024, 2048)
    assert (training["precision"], training["grad_dtype"], training["recompute"]) == ("bf16", "bf16", "full")
    assert (training["cross_entropy"], training["gradient_clipping"]) == ("fused", True)

    assert (training["fsdp"], training["autocast"]) == ("fsdp1", "low_precision_norms")
    assert (training["optimizer_kernels"], training["eager_modules"]) == ("foreach", True)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("precision: amp_bf16", "precision: fp32", {"precision": "fp32", "autocast": None}),
        ("precision: amp_bf16", "precision: amp_fp16", {"precision": "fp16"}),
        ("precision: amp_bf16", "precision: amp_bf16\ncompile_config:\n  mode: default", {"eager_modules": None}),
        ("name: mpt_causal_lm", "name: mpt_causal_lm\n  norm_type: layernorm", {"autocast": "fp32_norms"}),
        ("sharding_strategy: FULL_SHARD", "sharding_strategy: NO_SHARD", {"fsdp": None}),
        ("attn_impl: flash", "attn_impl: flash", {"attention_kernel": "fa2", "attention": None}),
        ("attn_impl: flash", "attn_impl: torch", {"attention_kernel": None, "attention": "unfused"}),
    ],
)
def test_how_the_program_runs(old: str, new: str, changed: dict[str, Any]) -> None:
    text = (FILES / "mpt_7b.yaml").read_text()
    assert text.count(old) == 1
    base = read("mpt_7b.yaml").tables["training"]
    found = read_llmfoundry(text.replace(old, new), "mpt.yaml", "h100:8x8", allow_unmodelled=True).tables["training"]
    assert {name: found.get(name) for name in changed} == changed
    rest = ("fsdp", "autocast", "optimizer_kernels", "eager_modules")
    assert {n: found.get(n) for n in rest if n not in changed} == {n: base.get(n) for n in rest if n not in changed}


def test_one_replica_shards_nothing() -> None:
    text = (FILES / "mpt_7b.yaml").read_text()
    for strategy, cluster, zero in (
        ("FULL_SHARD", "h100:1x1", 0),
        ("NO_SHARD", "h100:1x2", 0),
        ("FULL_SHARD", "h100:1x2", 3),
    ):
        changed = text.replace("sharding_strategy: FULL_SHARD", f"sharding_strategy: {strategy}")
        assert read_llmfoundry(changed, "mpt.yaml", cluster).tables["parallel"]["zero"] == zero


def test_a_model_of_the_hub() -> None:
    found = read("finetune_llama.yaml")
    training, parallel = found.tables["training"], found.tables["parallel"]
    assert found.tables["model"] == {"name": "llama2-13b"}
    assert (parallel["zero"], parallel["reshard_after_forward"], training["grad_dtype"]) == (3, False, "fp32")
    assert training["micro_batch"] == 1 and any("found by trying" in note for note in found.reading.notes)
    assert training["optimizer"] == "lion"
    assert {row.key for row in found.reading.small} == {"fsdp_config.forward_prefetch"}


@pytest.mark.parametrize("name", NAMES)
def test_files_import_and_simulate(name: str) -> None:
    run = import_run(str(FILES / name)).run
    if name == "mpt_7b.yaml":
        hidden, layers = 4096, 32
        by_hand = layers * (12 * hidden * hidden + 13 * hidden) + 50368 * hidden + 2 * hidden
    else:
        by_hand = semu_models.build("llama2-13b").num_parameters()
    assert run.model.num_parameters() == by_hand
    assert semu.simulate(run.job()).iteration_time_s > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("alibi: true", "sliding_window_size: 512"),
        ("name: mpt_causal_lm", "name: hf_t5"),
        ("device_train_microbatch_size: 16", "device_train_microbatch_size: some"),
        ("global_train_batch_size: 1024", "global_train_batch_size: 1001"),
        ("sharding_strategy: FULL_SHARD", "sharding_strategy: FULL"),
        ("n_heads: 32", "n_heads: ["),
    ],
)
def test_refusals(old: str, new: str) -> None:
    text = (FILES / "mpt_7b.yaml").read_text()
    assert old in text
    with pytest.raises(ConfigError) as caught:
        read_llmfoundry(text.replace(old, new), "x.yaml", "h100:1x8")
    line = text[: text.index(old)].count("\n") + 1
    assert str(caught.value.where).startswith(f"x.yaml:{line}" if new and "[" not in new else "x.yaml")


def test_files_of_others_are_not_taken() -> None:
    for name in NAMES:
        program = program_of(name, (FILES / name).read_text())
        assert program is not None and program.word == "llmfoundry"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files(data: st.DataObject) -> None:
    text = (FILES / data.draw(st.sampled_from(NAMES))).read_text()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 30)))
    try:
        read_llmfoundry(text[:at] + data.draw(st.text(max_size=8)) + text[end:], "x.yaml")
    except ConfigError as error:
        assert error.where
