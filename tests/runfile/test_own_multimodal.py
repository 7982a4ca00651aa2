"""Vision-language models put together in a run file: equal to shipped ones, sizes by hand, files, messages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import semu_models
from semu.errors import ConfigError
from semu.runfile import Overrides, RunConfig, resolve_run
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu.simulation import simulate

FIRST_MINUTES = Path(__file__).parents[2] / "benchmarks" / "instances" / "first_minutes"
SIZES = {"layers": 4, "hidden": 64, "ffn": 256, "heads": 4, "patch": 14, "image_size": 112}
LANGUAGE = {"layers": 4, "hidden": 96, "ffn": 320, "heads": 6, "kv_heads": 2, "vocab": 512, "gated_mlp": True}


def run_of(model: dict[str, Any], **parallel: Any) -> RunConfig:
    tables = {"cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 4}, "training": {"global_batch": 8}}
    return resolve_tables(
        {"model": model, "parallel": {"dp": 4 // parallel.get("pp", 1), **parallel}, **tables}, Places("")
    )


@pytest.mark.parametrize(
    ("name", "projector"),
    [("internvl3-1b", {"merge": 2, "norm": True}), ("llava-1.5-7b", {})],
)
def test_parts_of_a_shipped_model_make_that_model_again(name: str, projector: dict[str, Any]) -> None:
    """InternVL's projector and LLaVA's are said in words of ``[model.projector]``; LLaVA also holds idle parameters."""
    own = run_of({"encoder": name, "llm": name, "projector": projector}, pp=2)
    shipped = run_of({"name": name}, pp=2)
    idle = sum(p.numel for path, p in shipped.model.modules[0].body.named_parameters() if ".unused." in path)
    assert own.model.num_parameters() == shipped.model.num_parameters() - idle
    assert (idle > 0) is name.startswith("llava")
    assert own.config["batch"]["kind"] == "vlm"
    ours, theirs = simulate(own.job()), simulate(shipped.job())
    assert ours.breakdown_s["compute"] == pytest.approx(theirs.breakdown_s["compute"], rel=1e-12)
    assert ours.mfu == pytest.approx(theirs.mfu, rel=1e-3 if idle else 1e-12)


def test_the_sizes_of_a_table_are_those_of_the_model() -> None:
    run = run_of({"encoder": dict(SIZES), "llm": dict(LANGUAGE), "projector": {"merge": 2, "hidden": 128}})
    encoder, llm = run.model.modules
    h, features, patches = 64, 14 * 14 * 3, 8 * 8
    layer = 4 * h * h + 4 * h + 2 * h * 256 + 256 + h + 4 * h
    projector = 4 * h * 128 + 128 + 128 * 96 + 96
    assert encoder.body.num_parameters() == features * h + h + patches * h + 4 * layer + 2 * h + projector
    w, kv = 96, 32
    assert llm.body.num_parameters() == 2 * 512 * w + w + 4 * (2 * w * w + 2 * w * kv + 3 * w * 320 + 2 * w)
    assert encoder.merging is not None
    assert (encoder.merging.length, encoder.merging.tokens_of_one(patches, "here")) == (64, 16)
    assert [module.name for module in run.model.modules] == ["encoder", "llm"]


def test_two_files_are_one_model(tmp_path: Path) -> None:
    """transformers' counts of SigLIP So400m and Llama 3 8B; the pooling head is left out, and said."""
    run = resolve_run(FIRST_MINUTES / "two_configs.toml")
    head = 15_238_352
    projector = (1152 + 1) * 4096 + (4096 + 1) * 4096
    assert run.model.num_parameters() == 428_225_600 - head + 8_030_261_248 + projector
    assert any(f"{head:,} parameters" in note for note in run.notes)
    for name in ("two_configs.toml", "siglip.json", "config.json"):
        shutil.copy(FIRST_MINUTES / name, tmp_path / name)
    assert Path(resolve_run(tmp_path / "two_configs.toml").config["model"]["encoder"]) == tmp_path / "siglip.json"


@pytest.mark.parametrize("name", ["own_vlm.toml", "two_configs.toml"])
def test_what_is_dumped_loads_to_the_same_job(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = resolve_run(FIRST_MINUTES / name)
    (tmp_path / "dumped.toml").write_text(run.to_toml())
    monkeypatch.chdir(tmp_path)
    again = resolve_run("dumped.toml")
    assert again.to_toml() == run.to_toml()
    assert again.model.num_parameters() == run.model.num_parameters()


@pytest.mark.parametrize("name", ["own_vlm.toml", "two_configs.toml"])
def test_modules_are_frozen_and_adapted_by_their_names(name: str) -> None:
    def trained(*changes: str) -> dict[str, int]:
        model = resolve_run(FIRST_MINUTES / name, Overrides(changes)).model
        return {m.name: sum(p.numel for _, p in m.body.named_parameters() if p.requires_grad) for m in model.modules}

    both = trained()
    assert trained('model.frozen=["encoder"]') == {"encoder": 0, "llm": both["llm"]}
    tower = '"encoder.embedding", "encoder.layers", "encoder.norm"'
    width = 3584 if name == "own_vlm.toml" else 4096
    projector = (1152 + 1) * width + (width + 1) * width
    assert trained(f'model.frozen=[{tower}, "llm"]') == {"encoder": projector, "llm": 0}
    lora = trained('model.lora={rank=2, targets=["q_proj"], trainable=["encoder.projector"]}')
    assert lora["encoder"] > projector and 0 < lora["llm"] < both["llm"] / 1000


def test_a_name_and_a_table_mix_and_partitions_follow_the_modules() -> None:
    run = run_of(
        {"encoder": dict(SIZES), "llm": "Qwen2 0.5B"}, pp=2, partition="latency", modules={"encoder": {"tp": 1}}
    )
    report = simulate(run.job())
    assert report.parameters == run.model.num_parameters()
    assert run.model.modules[1].body.num_parameters() == semu_models.build("qwen2-0.5b").num_parameters()


def test_the_vocabulary_is_padded_for_tensor_parallelism() -> None:
    run = run_of({"encoder": dict(SIZES), "llm": {**LANGUAGE, "vocab": 511}}, tp=2, dp=2)
    assert run.config["model"]["vocab_multiple"] == 128
    assert (
        run.model.modules[1].body.num_parameters()
        == run_of({"encoder": dict(SIZES), "llm": dict(LANGUAGE)}).model.modules[1].body.num_parameters()
    )


@pytest.mark.parametrize(
    ("change", "where", "nearest"),
    [
        ({"llm": None}, "model.llm", 'llm = "mistral-7b"'),
        ({"encoder": None}, "model.encoder", 'encoder = "siglip-so400m"'),
        ({"name": "gpt2"}, "model", None),
        ({"projector": {"merge": 3}}, "model.projector.merge", 2),
        ({"projector": {"layers": 3}}, "model.projector.layers", 2),
        ({"projector": {"layers": 1, "hidden": 8}}, "model.projector.hidden", None),
        ({"projector": {"widht": 3}}, "model.projector.widht", None),
        ({"encoder": {**SIZES, "heads": 7}}, "model.encoder.heads", 4),
        ({"encoder": {**SIZES, "patch": 113}}, "model.encoder.patch", 112),
        ({"encoder": {"layers": 2}}, "model.encoder.hidden", None),
        ({"encoder": {**SIZES, "activation": "gelou"}}, "model.encoder.activation", "gelu"),
        ({"encoder": {**SIZES, "patch_size": 14}}, "model.encoder.patch_size", None),
        ({"encoder": "qwen2-vl-7b"}, "model.encoder", None),
        ({"encoder": "siglip-so400n"}, "model.encoder", "siglip-so400m"),
        ({"llm": "siglip-so400m"}, "model.llm", None),
        ({"llm": {**LANGUAGE, "heads": 5}}, "model.llm.heads", None),
        ({"llm": {**LANGUAGE, "mtp_layers": 1}}, "model.llm.mtp_layers", 0),
        ({"llm": {"hidden": 8}}, "model.llm.layers", None),
        ({"llm": 3}, "model.llm", None),
    ],
)
def test_what_does_not_fit_is_said_at_its_key(change: dict[str, Any], where: str, nearest: object) -> None:
    model = {"encoder": dict(SIZES), "llm": dict(LANGUAGE), **change}
    with pytest.raises(ConfigError) as caught:
        run_of({key: value for key, value in model.items() if value is not None})
    assert caught.value.where == where
    if nearest is not None:
        assert caught.value.nearest == nearest
