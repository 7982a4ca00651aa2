"""Runs as configurations of DeepSpeed, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.exports.deepspeed import export_deepspeed
from semu.imports.deepspeed.read import read_deepspeed
from semu.imports.huggingface.parts import Asked
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables

OUTSIDE = ("the model is not part of the file: gpt2", "the device and the nodes are not part of the file: --cluster")
PROGRAM = {
    "software": "torch",
    "attention_kernel": "sdpa",
    "cross_entropy": "unfused",
    "eager_modules": True,
    "seq_len": 1024,
}
"""What a configuration of DeepSpeed leaves to the program, as it is read."""


def run_of(parallel: dict[str, Any], training: dict[str, Any], overlap: dict[str, Any], gpus: int = 8) -> Any:
    tables: dict[str, Any] = {
        "model": {"name": "gpt2"},
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": gpus},
        "parallel": parallel,
        "training": {**PROGRAM, **({"fsdp": "none"} if parallel["zero"] == 3 else {}), **training},
        "overlap": overlap,
    }
    return resolve_tables(tables, Places("test"))


def read_back(text: str, gpus: int) -> Any:
    asked = Asked(f"h100:1x{gpus}", model="gpt2")
    return resolve_tables(read_deepspeed(text, "ds_config.json", asked).tables, Places("test"))


@st.composite
def runs(draw: st.DrawFn) -> tuple[Any, int]:
    """A run that DeepSpeed can say, and its GPUs."""
    dp, zero = draw(st.sampled_from([1, 2, 4, 8])), draw(st.integers(0, 3))
    cp = draw(st.sampled_from([1, 2]))
    parallel: dict[str, Any] = {"dp": dp, "cp": cp, "zero": zero}
    if cp > 1:
        parallel["cp_kind"] = "all_to_all"
    if zero < 3 and draw(st.booleans()):
        parallel |= {"tp": 2, "sequence_parallel": False}
    if zero == 3 and dp > 2 and draw(st.booleans()):
        parallel["zero_group"] = 2
    precision = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    micro, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    training: dict[str, Any] = {"micro_batch": micro, "global_batch": micro * steps * dp, "precision": precision}
    training["grad_dtype"] = draw(st.sampled_from(["fp32", precision]))
    training["gradient_clipping"] = draw(st.booleans())
    if precision == "fp16":
        training["loss_scaling"] = True
    if precision == "bf16" and draw(st.booleans()):
        training["optimizer_state_dtype"] = "bf16"
    if zero and draw(st.booleans()):
        training["offload"] = ["optimizer"] if zero < 3 else ["weights", "optimizer"]
    overlap = {
        "grad_reduce": draw(st.booleans()) if zero else False,
        "param_gather": draw(st.booleans()) if zero == 3 else False,
    }
    return run_of(parallel, training, overlap, dp * cp * parallel.get("tp", 1)), dp * cp * parallel.get("tp", 1)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(runs())
def test_there_and_back(case: tuple[Any, int]) -> None:
    run, gpus = case
    exported = export_deepspeed(run.config)
    assert all(sentence.startswith(OUTSIDE) for sentence in exported.unsaid), exported.unsaid
    config = {name: dict(table) for name, table in read_back(exported.text, gpus).config.items()}
    ours = {name: dict(table) for name, table in run.config.items()}
    for table in (config["training"], ours["training"]):
        table["offload"] = sorted(table.get("offload") or ())
        table.pop("left_out", None)
    if "tp" not in run.config["parallel"] or run.config["parallel"]["tp"] == 1:
        config["parallel"].pop("sequence_parallel"), ours["parallel"].pop("sequence_parallel")
    if run.config["parallel"]["zero"] == 0:
        config["overlap"].pop("param_gather"), ours["overlap"].pop("param_gather")
    assert config == ours


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "tp": st.sampled_from([1, 2]),
            "pp": st.sampled_from([1, 2]),
            "cp": st.sampled_from([1, 2]),
            "zero": st.integers(0, 3),
            "sequence_parallel": st.booleans(),
        }
    ),
    st.sampled_from(["none", "full"]),
    st.sampled_from(["bf16", "fp8", "tf32"]),
)
def test_what_cannot_be_said_is_named(parallel: dict[str, Any], recompute: str, precision: str) -> None:
    if parallel["pp"] > 1 and parallel["zero"] > 1:
        parallel["zero"] = 1
    gpus = 2 * parallel["tp"] * parallel["pp"] * parallel["cp"]
    training = {"micro_batch": 1, "global_batch": 8, "recompute": recompute, "precision": precision}
    run = run_of(parallel, training, {}, gpus)
    exported = export_deepspeed(run.config)
    json.loads(exported.text)
    said = "\n".join(exported.unsaid)
    assert "read back" not in said
    assert ("parallel.pp: 2 here, 1 in the file" in said) is (parallel["pp"] > 1)
    is_ring = parallel["cp"] > 1
    assert ("parallel.cp: 2 here, 1 in the file" in said) is is_ring
    is_hidden = parallel["tp"] > 1 and (parallel["sequence_parallel"] or parallel["zero"] == 3)
    assert ("parallel.tp: 2 here, 1 in the file" in said) is is_hidden
    assert ("training.recompute: full here, none in the file" in said) is (recompute == "full")
    assert ("training.precision" in said) is (precision != "bf16")


def test_a_file() -> None:
    """By hand."""
    training = {"micro_batch": 2, "global_batch": 32, "precision": "bf16", "grad_dtype": "bf16"}
    run = run_of({"zero": 3, "zero_group": 4}, training | {"gradient_clipping": True}, {"grad_reduce": True})
    assert json.loads(export_deepspeed(run.config).text) == {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "mics_shard_size": 4},
        "optimizer": {"type": "AdamW"},
        "gradient_clipping": 1.0,
        "communication_data_type": "bf16",
        "data_types": {"grad_accum_dtype": "bf16"},
    }
