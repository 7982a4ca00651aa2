"""Configurations of torchtitan become runs: TOML of two releases, and a registry in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semu_models
from semu.cli import main
from semu.errors import ConfigError
from semu.imports.flags import Grade
from semu.imports.kinds import program_of
from semu.imports.torchtitan import read_torchtitan
from semu.imports.torchtitan.read import FLAGS
from semu.imports.torchtitan.tables import MODELS, SIZES
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu.runfile.schema import SCHEMA

FILES = Path(__file__).parent / "files"
NAMES = ("llama_8b_fp8.toml", "llama_405b_3d.toml", "qwen_moe_eager.toml")


def read(file: str, cluster: str | None = None, name: str | None = None) -> Any:
    return read_torchtitan((FILES / file).read_text(), file, cluster, name=name)


def test_keys_lead_to_a_run_file() -> None:
    for flag in FLAGS.flags:
        for key in filter(None, flag.to.split(", ") if flag.grade is Grade.EXACT else ()):
            table, _, last = key.rpartition(".")
            assert last in SCHEMA[table], f"{flag.name} leads to {key}"


def test_a_file_of_one_node() -> None:
    found = read("llama_8b_fp8.toml")
    assert found.tables["model"] == {"name": "llama3-8b"}
    assert found.tables["cluster"] == {"device": "h100", "nodes": 1, "gpus_per_node": 8}
    assert found.tables["parallel"] == {
        "dp": 8, "tp": 1, "pp": 1, "cp": 1, "sequence_parallel": False, "zero": 3, "reshard_after_forward": True,
    }  # fmt: skip
    training = found.tables["training"]
    assert (training["micro_batch"], training["global_batch"], training["precision"]) == (2, 16, "fp8")
    assert (training["recompute"], training["recompute_policy"]) == ("full", "every_second_matmul")
    assert (
        training["cross_entropy"] == "unfused" and "eager_modules" not in training and training["software"] == "torch"
    )
    assert [row.key for row in found.reading.small] == ["quantize.linear.float8.enable_fsdp_float8_all_gather"]
    assert training["left_out"] == ["quantize.linear.float8.enable_fsdp_float8_all_gather 0.05"]


@pytest.mark.parametrize(
    ("converters", "expected", "small"),
    [
        (["quantize.linear.mx"], ("fp8", "mxfp8"), []),
        (["mx", "quantize.grouped_mm.mx"], ("fp8", "mxfp8"), []),
        (["quantize.grouped_mm.mx"], ("bf16", None), ["model.converters"]),
        (["float8"], ("fp8", "tensorwise"), []),
    ],
)
def test_converters(converters: list[str], expected: tuple[str, str | None], small: list[str]) -> None:
    text = f'[job]\n[model]\nname = "llama3"\nflavor = "8B"\nconverters = {converters}\n'
    found = read_torchtitan(text, "x.toml")
    training = found.tables["training"]
    assert (training["precision"], training.get("fp8_recipe")) == expected
    assert [row.key for row in found.reading.small] == small


@pytest.mark.parametrize(
    ("dtype", "converters", "expected"),
    [
        ("float32", [], (None, None, "fp32")),
        ("bfloat16", [], ("bf16", "bf16", "bf16")),
        ("bfloat16", ["float8"], (None, None, "fp32")),
    ],
)
def test_a_model_in_bf16_has_no_other_copy(dtype: str, converters: list[str], expected: tuple[str | None, ...]) -> None:
    text = f'[job]\n[model]\nname = "llama3"\nflavor = "8B"\nconverters = {converters}\n[training]\ndtype = "{dtype}"\n'
    training = read_torchtitan(text, "x.toml").tables["training"]
    assert tuple(map(training.get, ("master_dtype", "optimizer_state_dtype", "grad_dtype"))) == expected


def test_three_dimensions() -> None:
    """2 x 2 replicas of 8 x 8 GPUs; 126 layers, embedding and head over 16 stages: 8 each, 7 in the first and last."""
    found = read("llama_405b_3d.toml")
    parallel, training = found.tables["parallel"], found.tables["training"]
    assert found.tables["cluster"]["nodes"] == 32
    assert {key: parallel[key] for key in ("dp", "tp", "pp", "vpp", "zero", "zero_group")} == {
        "dp": 4, "tp": 8, "pp": 8, "vpp": 2, "zero": 3, "zero_group": 2,
    }  # fmt: skip
    assert parallel["layout"] == {"layers": [7, *[8] * 14, 7]} and not parallel["reshard_after_forward"]
    assert (training["micro_batch"], training["global_batch"], training["schedule"]) == (1, 64, "interleaved")
    assert found.tables["overlap"] == {"tensor_parallel": True} and not training["gradient_clipping"]
    assert "cross_entropy" not in training, "the loss is parallel over tensor-parallel ranks"
    with pytest.raises(ConfigError, match="64 GPUs, and the degrees of parallelism are for 256"):
        read("llama_405b_3d.toml", "h100:8x8")


def test_experts_without_compilation() -> None:
    found = read("qwen_moe_eager.toml")
    parallel, training = found.tables["parallel"], found.tables["training"]
    assert found.tables["cluster"]["nodes"] == 2 and found.tables["model"] == {"name": "qwen3-30b-a3b"}
    sizes = {key: parallel[key] for key in ("dp", "cp", "cp_kind", "ep", "etp")}
    assert sizes == {"dp": 8, "cp": 2, "cp_kind": "ring", "ep": 4, "etp": 1}
    assert training["eager_modules"] and training["recompute_every"] == 2
    assert (training["micro_batch"], training["global_batch"]) == (2, 64)


@pytest.mark.parametrize(("said", "ranks"), [("", 1), ("expert_tensor_parallel_degree = 1\n", 1)])
def test_experts_are_not_split_unless_said(said: str, ranks: int) -> None:
    text = '[job]\n[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[parallelism]\nexpert_parallel_degree = 8\n' + said
    parallel = read_torchtitan(text, "x.toml", "h100:1x8").tables["parallel"]
    assert (parallel["ep"], parallel["etp"], parallel["dp"]) == (8, ranks, 8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_files_simulate(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(FILES / name), "--json"]) in (0, 3)
    document = json.loads(capsys.readouterr().out)
    assert document["iteration_time_s"] > 0
    assert (
        document["parameters"]
        == semu_models.build(
            {"llama_8b_fp8.toml": "llama3-8b", "llama_405b_3d.toml": "llama3-405b"}.get(name, "qwen3-30b-a3b")
        ).num_parameters()
    )


def test_a_registry_is_read_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="2 configurations in the file") as caught:
        read("registry.py")
    assert caught.value.nearest == "--define config=llama3_8b_small_batch"
    first = read("registry.py", name="llama3_8b_small_batch").tables
    assert first["training"]["eager_modules"] and first["training"]["recompute_policy"] == "every_second_matmul"
    assert first["training"]["left_out"] == ["loss.chunked 0.01"]
    second = read("registry.py", name="llama3_8b_tensor").tables
    assert (second["parallel"]["tp"], second["training"]["micro_batch"], second["training"]["precision"]) == (
        2,
        4,
        "fp8",
    )
    assert second["overlap"] == {"tensor_parallel": True}
    assert second["training"]["recompute"] == "full"
    place = str(FILES / "registry.py")
    assert main(["simulate", place, "--define", "config=llama3_8b_tensor", "--json"]) == 0
    assert main(["simulate", place, "--define", "config=llama3_8b_tenser", "--json"]) == 2
    assert "llama3_8b_tensor" in capsys.readouterr().out


def test_flavors_have_the_parameters_of_their_arithmetic() -> None:
    """Embedding, head, norms and layers of the flavors for trying things out, counted by hand."""
    sizes = SIZES["llama3"]["debugmodel"]
    run = resolve_tables({"model": {"transformer": dict(sizes)}, "cluster": {"device": "h100"}}, Places(""))
    layer = 4 * 256 * 256 + 3 * 256 * 768 + 2 * 256
    assert run.model.num_parameters() == 2 * 2048 * 256 + 6 * layer + 256
    assert all(name in semu_models.MODELS for flavors in MODELS.values() for name in flavors.values())


@pytest.mark.parametrize(
    ("line", "where", "nearest"),
    [
        ('flavor = "9B"', "x.toml:3 model.flavor", "8B"),
        ('name = "llama33"', "x.toml:3 model.name", "llama3"),
        ('flavor = "8B"\nflavour = 3', "x.toml:4", "model.flavor"),
        ('flavor = "8B"\n[training]\nlocal_batch_size = 3\nglobal_batch_size = 25', "x.toml:6", 24),
        ('flavor = "8B"\n[training]\nenable_cpu_offload = true', "x.toml:5", None),
        ('flavor = "8B"\n[activation_checkpoint]\nmode = "memory_budget"', "x.toml:5", None),
        ('flavor = "8B"\nconverters = ["gloo"]', "x.toml:4", None),
        ('flavor = "8B"\n[parallelism]\ntensor_parallel_degree = "many"', "x.toml:5", None),
        ('flavor = "8B"\n[parallelism]\npipeline_parallel_degree = 35', "x.toml:5", None),
        ('flavor = "8B"\nbroken = [', "x.toml", None),
    ],
)
def test_refusals(line: str, where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        read_torchtitan(f"[job]\n[model]\n{line}\n", "x.toml")
    assert str(caught.value.where).startswith(where)
    assert nearest is None or caught.value.nearest == nearest


def test_files_of_others_are_not_taken() -> None:
    assert program_of("run.toml", '[model]\nname = "lm-7b"\n[parallel]\ntp = 2\n[training]\nseq_len = 8\n') is None
    for name in NAMES:
        program = program_of(name, (FILES / name).read_text())
        assert program is not None and program.word == "torchtitan"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_files(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from((*NAMES, "registry.py")))
    text = (FILES / name).read_text()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(len(text), at + 30)))
    text = text[:at] + data.draw(st.text(max_size=8)) + text[end:]
    try:
        read_torchtitan(text, name, name="llama3_8b_tensor" if name.endswith(".py") else None)
    except ConfigError as error:
        assert error.where
