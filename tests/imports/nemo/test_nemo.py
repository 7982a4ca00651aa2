"""Configurations of NeMo and Megatron-Bridge become runs, by way of Megatron-LM's arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.imports.kinds import program_of
from semu.imports.megatron import read_megatron
from semu.imports.megatron.flags import FLAGS
from semu.imports.nemo import read_nemo
from semu.imports.nemo.read import _INVERSE, _RENAME
from semu.runfile.importing import import_run

FILES = Path(__file__).parent / "files"
NAMES = ("bridge.yaml", "nemo_gpt.yaml")
BRIDGE_AS_ARGUMENTS = """
torchrun --nnodes 4 --nproc_per_node 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 \\
  --num-attention-heads 64 --group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 \\
  --max-position-embeddings 8192 --tokenizer-type NullTokenizer --vocab-size 128256 --normalization RMSNorm --swiglu \\
  --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights --attention-dropout 0 \\
  --hidden-dropout 0 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --context-parallel-size 2 \\
  --num-virtual-stages-per-pipeline-rank 5 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce \\
  --overlap-param-gather --micro-batch-size 1 --global-batch-size 256 --bf16 --fp8-format hybrid \\
  --fp8-recipe tensorwise --fp8-param-gather --tp-comm-overlap --cross-entropy-loss-fusion \\
  --cross-entropy-fusion-impl te
"""


def read(name: str, cluster: str | None = None) -> Any:
    return read_nemo((FILES / name).read_text(), name, cluster)


def test_a_saved_run_is_its_arguments() -> None:
    """The same tables as of the launch line that says the same."""
    ours, theirs = read("bridge.yaml").tables, read_megatron(BRIDGE_AS_ARGUMENTS).tables
    assert ours == theirs


def test_a_configuration_of_nemo() -> None:
    tables = read("nemo_gpt.yaml").tables
    model, training = tables["model"]["transformer"], tables["training"]
    assert tables["cluster"] == {"device": "h100", "nodes": 8, "gpus_per_node": 8}
    assert (model["layers"], model["hidden"], model["vocab"], model["tied_embeddings"]) == (44, 6144, 50257, True)
    assert not model["rms_norm"] and not model["rotary"] and model["bias"] and model["positions"] == 2048
    assert (tables["parallel"]["tp"], tables["parallel"]["zero"], training["recompute"]) == (4, 1, "selective")
    assert (training["micro_batch"], training["global_batch"], training["seq_len"]) == (2, 256, 2048)
    assert tables["overlap"]["grad_reduce"] and tables["overlap"]["param_gather"]


@pytest.mark.parametrize(("nodes", "devices"), [(1, 8), (2, 4), (4, 4), (8, 1)])
def test_nodes_and_devices_are_counted(nodes: int, devices: int) -> None:
    text = (FILES / "nemo_gpt.yaml").read_text()
    for key, size in (("num_nodes", nodes), ("devices", devices)):
        text = re.sub(rf"^  {key}: .*$", f"  {key}: {size}", text, flags=re.MULTILINE)
    found = read_nemo(text, "some.yaml", None).tables["cluster"]
    assert (found["nodes"], found["gpus_per_node"]) == (nodes, devices)


def test_renamed_keys_are_arguments_that_are_modelled_or_graded() -> None:
    for key, dest in {**_RENAME, **_INVERSE}.items():
        if dest not in ("grad_reduce_dtype", "megatron_amp"):
            assert FLAGS.printed(dest) is not None, f"{key} leads to {dest}"


@pytest.mark.parametrize("name", NAMES)
def test_files_import_and_simulate(name: str) -> None:
    run = import_run(str(FILES / name)).run
    layers, hidden, ffn, vocab = (80, 8192, 28672, 128512) if name == "bridge.yaml" else (44, 6144, 24576, 50688)
    if name == "bridge.yaml":
        by_hand = layers * (2 * hidden * hidden + 2 * hidden * 1024 + 3 * hidden * ffn + 2 * hidden)
        by_hand += 2 * vocab * hidden + hidden
    else:
        by_hand = layers * (4 * hidden * hidden + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 4 * hidden)
        by_hand += vocab * hidden + 2048 * hidden + 2 * hidden
    assert run.model.num_parameters() == by_hand
    assert semu.simulate(run.job()).iteration_time_s > 0


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("  some_new_layer: 3", "model.some_new_layer"),
        ("  gated_linear_unit: true\n  activation_func: torch.nn.functional.gelu", "model.gated_linear_unit"),
        ("  experimental_attention_variant: gated_delta_net", "model.experimental_attention_variant"),
    ],
)
def test_another_model_is_refused(line: str, key: str) -> None:
    text = (FILES / "bridge.yaml").read_text()
    text = text.replace("  gated_linear_unit: true\n", "").replace("    _call_: false\n", "")
    text = text.replace("  activation_func:\n    _target_: torch.nn.functional.silu\n", line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_nemo(text, "x.yaml")
    assert caught.value.got == key
    read_nemo(text, "x.yaml", allow_unmodelled=True)


def test_a_vocabulary_that_the_file_does_not_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tokenizers of the hub that belong to shipped models are looked up; others are asked for once."""
    text = (FILES / "nemo_gpt.yaml").read_text().replace("library: megatron", "library: huggingface")
    known = read_nemo(text.replace("GPT2BPETokenizer", "meta-llama/Llama-3.1-8B"), "x.yaml")
    assert known.tables["model"]["transformer"]["vocab"] == 128256
    assert "vocabulary: 128256 entries, those of llama3-8b" in known.reading.notes
    place = tmp_path / "own.yaml"
    place.write_text(text.replace("GPT2BPETokenizer", "own/tokenizer"))
    assert main(["simulate", str(place)]) == 2
    assert "--set model.transformer.vocab=N" in capsys.readouterr().err
    assert main(["simulate", str(place), "--set", "model.transformer.vocab=64000", "--json"]) == 0


def test_files_of_others_are_not_taken() -> None:
    assert program_of("x.yaml", "MODEL_ARGS:\n  --num-layers: 4\n").word == "megatron"  # type: ignore[union-attr]
    for name in NAMES:
        program = program_of(name, (FILES / name).read_text())
        assert program is not None and program.word == "nemo"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files(data: st.DataObject) -> None:
    text = (FILES / data.draw(st.sampled_from(NAMES))).read_text()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 30)))
    try:
        read_nemo(text[:at] + data.draw(st.text(max_size=8)) + text[end:], "x.yaml")
    except ConfigError as error:
        assert error.where
