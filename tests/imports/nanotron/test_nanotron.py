"""Configurations of nanotron become runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semu
from semu.errors import ConfigError
from semu.imports.flags import Grade
from semu.imports.kinds import program_of
from semu.imports.nanotron import read_nanotron
from semu.imports.nanotron.read import FLAGS
from semu.runfile.importing import import_run
from semu.runfile.schema import SCHEMA

FILE = Path(__file__).parent / "files" / "llama_1b.yaml"
TEXT = FILE.read_text()


def test_keys_lead_to_a_run_file() -> None:
    for flag in FLAGS.flags:
        for key in filter(None, flag.to.split(", ") if flag.grade is Grade.EXACT else ()):
            table, _, last = key.rpartition(".")
            assert last in SCHEMA[table], f"{flag.name} leads to {key}"


def test_tables() -> None:
    found = read_nanotron(TEXT, "x.yaml")
    assert found.tables["model"]["transformer"] == {
        "layers": 16, "hidden": 2048, "ffn": 8192, "heads": 32, "kv_heads": 32, "vocab": 131072, "gated_mlp": True,
        "tied_embeddings": True,
    }  # fmt: skip
    assert found.tables["cluster"] == {"device": "h100", "nodes": 2, "gpus_per_node": 8}
    assert found.tables["parallel"] == {
        "dp": 4, "tp": 2, "pp": 2, "cp": 1, "ep": 1, "sequence_parallel": True, "zero": 1, "partition": "layers",
    }  # fmt: skip
    training = found.tables["training"]
    assert (training["micro_batch"], training["global_batch"], training["seq_len"]) == (2, 128, 4096)
    assert (training["precision"], training["grad_dtype"], training["recompute"]) == ("bf16", "fp32", "none")
    assert training["eager_modules"] and training["schedule"] == "1f1b" and training["attention_kernel"] == "fa2"
    assert training["eager_kernels"] == "flash-attn"
    assert not found.reading.small


@pytest.mark.parametrize(("clip", "is_clipped"), [("1.0", True), ("0.0", False), ("null", False)])
def test_gradients_are_clipped_above_zero(clip: str, is_clipped: bool) -> None:
    training = read_nanotron(TEXT.replace("clip_grad: 1.0", f"clip_grad: {clip}"), "x.yaml").tables["training"]
    assert training["gradient_clipping"] == is_clipped


def test_what_the_words_say() -> None:
    text = (
        TEXT.replace("1f1b", "afab").replace("REDUCE_SCATTER", "ALL_REDUCE").replace("zero_stage: 1", "zero_stage: 0")
    )
    text = text.replace("accumulate_grad_in_fp32: true", "accumulate_grad_in_fp32: false")
    tables = read_nanotron(text.replace("recompute_layer: false", "recompute_layer: true"), "x.yaml").tables
    assert tables["training"]["schedule"] == "gpipe" and tables["training"]["recompute"] == "full"
    assert not tables["parallel"]["sequence_parallel"] and tables["parallel"]["zero"] == 0
    assert tables["training"]["grad_dtype"] == "bf16"
    assert read_nanotron(TEXT, "x.yaml", "h100:4x8").tables["parallel"]["dp"] == 8, "a larger cluster has more replicas"


def test_it_imports_and_simulates() -> None:
    run = import_run(str(FILE)).run
    layer = 4 * 2048 * 2048 + 3 * 2048 * 8192 + 2 * 2048
    assert run.model.num_parameters() == 131072 * 2048 + 16 * layer + 2048
    assert semu.simulate(run.job()).iteration_time_s > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hidden_act: silu", "hidden_act: gelu"),
        ("hidden_size: 2048", "hidden_size: wide"),
        ("is_llama_config: true", "moe_config: 3"),
        ("  sequence_length: 4096\n", ""),
        ("tp_mode: REDUCE_SCATTER", "tp_mode: SCATTER"),
        ("dp: 4", "dp: 0"),
        ("vocab_size: 131072", "vocab_size: ["),
    ],
)
def test_refusals(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError) as caught:
        read_nanotron(TEXT.replace(old, new, 1), "x.yaml")
    line = TEXT[: TEXT.index(old)].count("\n") + 1
    assert str(caught.value.where).startswith(f"x.yaml:{line}" if new and "[" not in new else "x.yaml")


def test_files_of_others_are_not_taken() -> None:
    program = program_of("x.yaml", TEXT)
    assert program is not None and program.word == "nanotron"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TEXT)))
    end = data.draw(st.integers(at, min(len(TEXT), at + 30)))
    try:
        read_nanotron(TEXT[:at] + data.draw(st.text(max_size=8)) + TEXT[end:], "x.yaml")
    except ConfigError as error:
        assert error.where
