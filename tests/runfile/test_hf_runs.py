"""A config.json in a run file, as a run of its own, and imported."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import semu_models
from semu.cli import main
from semu.errors import ConfigError, MemoryLimitError
from semu.runfile import Overrides, load_run, make_job, resolve_run
from semu.runfile.importing import describe_model, import_run
from semu.simulation import simulate
from tests.semu_models.published_counts import CONFIGS

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}

RUN = """\
[model]
hf_config = "models/small.json"
{model}
[cluster]
device = "h100"
gpus_per_node = 4

[parallel]
{parallel}

[training]
global_batch = 8
seq_len = 256
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.json").write_text(json.dumps(SMALL, indent=1))
    return tmp_path


def run_file(folder: Path, model: str = "", parallel: str = "dp = 2\ntp = 2") -> Path:
    path = folder / "run.toml"
    path.write_text(RUN.format(model=model, parallel=parallel))
    return path


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


# -- run files -----------------------------------------------------------------------------------------------------
def test_the_path_starts_from_the_run_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_file(folder)
    monkeypatch.chdir(folder.parent)
    job = load_run(path)
    assert job.model.name == "small"
    assert job.model.num_parameters() == 2 * 1000 * 128 + 128 + 4 * (2 * 128**2 * 3 // 2 + 3 * 128 * 256 + 2 * 128)


def test_a_dumped_run_loads_from_anywhere(folder: Path, tmp_path: Path) -> None:
    run = resolve_run(run_file(folder))
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "again.toml").write_text(run.to_toml())
    assert simulate(load_run(other / "again.toml")).iteration_time_s == simulate(run.job()).iteration_time_s


def test_a_published_config_is_the_shipped_model() -> None:
    """The same modules, so the same time and memory to the last bit."""
    changes = ["cluster.gpus_per_node=8", "training.global_batch=32", "training.seq_len=4096"]
    flags: dict[str, Any] = {"cluster": "h100:1x8", "parallel": "dp4-tp2"}
    read = simulate(load_run(CONFIGS / "llama3-8b.json", changes, **flags))
    tables = {
        "model": {"name": "llama3-8b"},
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
        "parallel": {"dp": 4, "tp": 2},
        "training": {"global_batch": 32, "seq_len": 4096},
    }
    shipped = simulate(make_job(tables))
    assert read.iteration_time_s == shipped.iteration_time_s
    assert read.peak_memory_bytes == shipped.peak_memory_bytes
    assert read.parameters == shipped.parameters == 8_030_261_248


def test_parts_of_it_can_be_frozen(folder: Path) -> None:
    whole = load_run(run_file(folder)).model
    model = load_run(run_file(folder, 'frozen = ["llm.embedding", "llm.layers.1"]')).model
    layer = (whole.num_parameters() - 2 * 1000 * 128 - 128) // 4
    assert whole.num_parameters() - model.num_parameters(trainable_only=True) == 1000 * 128 + layer


def test_unknown_keys_are_left_out_on_request(folder: Path) -> None:
    path = folder / "models" / "small.json"
    path.write_text(json.dumps({**SMALL, "mystery": 7}))
    with pytest.raises(ConfigError, match="mystery"):
        load_run(run_file(folder))
    assert load_run(run_file(folder, 'hf_ignore = ["mystery"]')).model.name == "small"
    assert load_run(run_file(folder), ['model.hf_ignore=["mystery"]']).model.name == "small"


@pytest.mark.parametrize(
    ("model", "where", "message"),
    [
        ('name = "lm-7b"', "run.toml:1 model", "given twice"),
        ("vocab_multiple = 0", "run.toml:3 model.vocab_multiple", "not a size"),
        ('hf_ignore = ["hidden_size"]', "run.toml:3 model.hf_ignore", "cannot be left out"),
    ],
)
def test_what_does_not_go_with_it_is_refused(folder: Path, model: str, where: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_run(run_file(folder, model))
    assert caught.value.where is not None and caught.value.where.endswith(where)


def test_its_keys_need_it() -> None:
    with pytest.raises(ConfigError, match="without hf_config"):
        load_run("lm-7b", ["model.hf_ignore=[]"])


def test_rows_of_the_token_table_are_padded_only_on_request(folder: Path) -> None:
    exact = load_run(run_file(folder)).model.num_parameters()
    padded = load_run(run_file(folder, "vocab_multiple = 64")).model.num_parameters()
    assert padded - exact == 2 * (1024 - 1000) * 128  # 1000 rows up to a multiple of 64 x tp 2
    with pytest.raises(ConfigError) as caught:
        simulate(load_run(run_file(folder, parallel="tp = 4"), ["parallel.dp=1", "model.hf_config=x.json"]))
    assert "cannot read the file" in caught.value.message


def test_what_the_file_says_against_the_run_is_told(folder: Path) -> None:
    notes = resolve_run(run_file(folder), Overrides(["training.seq_len=1024", "parallel.tp=3"])).notes
    assert any("training.seq_len: 1024 is more than the 512 tokens" in note for note in notes)
    assert any("parallel.tp: 3 does not divide the 1000 rows" in note for note in notes)
    assert not any("seq_len" in note or "does not divide" in note for note in resolve_run(run_file(folder)).notes)


# -- a config.json as a run ----------------------------------------------------------------------------------------
def test_a_config_is_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "models" / "small.json"
    code, out, err = command(capsys, "simulate", path, "--cluster", "h100:1x4", "--parallel", "dp2-tp2", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["parameters"] == load_run(run_file(folder)).model.num_parameters()
    assert "training.seq_len: not given, taken as 512, the longest context that the file names" in err
    assert any("keys understood" in warning for warning in report["warnings"])


def test_a_folder_with_a_config_is_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "models" / "small.json").rename(folder / "models" / "config.json")
    words = ("--cluster", "h100:1x1", "--parallel", "dp1", "--dump-config")
    code, out, _ = command(capsys, "simulate", folder / "models", *words)
    tables = tomllib.loads(out)
    assert (code, tables["model"]["hf_config"]) == (0, str(folder / "models" / "config.json"))
    assert tables["training"]["seq_len"] == 512


def test_what_is_set_stays(folder: Path) -> None:
    changes = ["training.seq_len=128", "training.recompute=selective", "batch.kind=text"]
    run = resolve_run(folder / "models" / "small.json", Overrides(changes, "a100-80g:1x2", "pp2"))
    assert run.config["training"]["seq_len"] == 128
    assert run.config["training"]["recompute"] == "selective"
    assert run.config["cluster"]["device"] == "a100-80g"
    assert (run.config["parallel"]["dp"], run.config["parallel"]["pp"]) == (1, 2)


def test_without_a_cluster_the_fewest_nodes_are_taken(folder: Path) -> None:
    run = resolve_run(folder / "models" / "small.json")
    assert (run.config["cluster"]["device"], run.config["cluster"]["nodes"]) == ("h100", 1)
    assert any("the fastest of the layouts tried" in note for note in run.notes)
    assert simulate(run.job()).fits


def test_without_sizes_the_given_cluster_is_used(folder: Path) -> None:
    run = resolve_run(folder / "models" / "small.json", Overrides(cluster="a100-40g:1x2"))
    sizes = run.config["parallel"]
    assert sizes["dp"] * sizes["tp"] * sizes["pp"] == 2


def test_without_a_cluster_the_sizes_make_one(folder: Path) -> None:
    run = resolve_run(folder / "models" / "small.json", Overrides(parallel="dp2-tp2-pp4"))
    assert (run.config["cluster"]["nodes"], run.config["cluster"]["gpus_per_node"]) == (2, 8)
    run = resolve_run(folder / "models" / "small.json", Overrides(parallel="dp3"))
    assert (run.config["cluster"]["nodes"], run.config["cluster"]["gpus_per_node"]) == (1, 3)


def test_a_cluster_that_is_too_small_is_refused() -> None:
    with pytest.raises(MemoryLimitError, match="fits in the memory of h100:1x8") as caught:
        resolve_run(CONFIGS / "llama3.1-405b.json", Overrides(cluster="h100:1x8"))
    assert caught.value.where == "--cluster"


def test_a_table_that_tp_does_not_divide_is_padded_and_said_so(folder: Path) -> None:
    path = folder / "models" / "small.json"
    path.write_text(json.dumps({**SMALL, "vocab_size": 1001}))
    run = resolve_run(path, Overrides(cluster="h100:1x2", parallel="tp2"))
    assert run.config["model"]["vocab_multiple"] == 128
    assert run.model.modules[0].blocks()[0][1].num_parameters() == 1024 * 128
    assert any("tp = 2 does not divide the 1001 rows" in note for note in run.notes)


# -- import --------------------------------------------------------------------------------------------------------
def test_import_writes_a_run_that_loads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "run.toml"
    words = ("--cluster", "h100:1x4", "--parallel", "dp2-tp2")
    code, out, err = command(capsys, "import", folder / "models" / "small.json", "-o", output, *words)
    assert code == 0 and f"wrote {output}" in err
    for part in ("understood (", "defaulted (", "ignored (", "decided for the run", "parameters", "torchtitan"):
        assert part in out
    tables = tomllib.loads(output.read_text())
    assert tables["model"] == {"hf_config": "models/small.json"}
    assert tables["training"] == {"seq_len": 512, "global_batch": 32}
    assert load_run(output).model.num_parameters() == load_run(run_file(folder)).model.num_parameters()


def test_import_without_a_file_prints_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, "import", folder / "models" / "small.json")
    tables = tomllib.loads(out)
    assert code == 0
    assert Path(tables["model"]["hf_config"]).resolve() == (folder / "models" / "small.json").resolve()
    assert "understood (" in err


def test_import_as_json_is_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "import", folder / "models" / "small.json", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["reading"]["model_type"] == "llama"
    assert document["parameters"] == sum(row["parameters"] for row in document["modules"] if row["level"] == 0)
    flop = document["flop_per_token"]
    assert set(flop) == {"seq_len", "semu", "megatron", "megatron_full", "palm", "torchtitan", "traced"}
    assert flop["traced"] == flop["semu"]
    assert document["predicted"]["fits"] is True
    report = simulate(resolve_run(folder / "models" / "small.json").job())
    assert document["predicted"]["iteration_time_s"] == report.iteration_time_s
    assert tomllib.loads(document["toml"])["cluster"]["device"] == "h100"


def test_modules_of_a_tied_model_sum_to_its_parameters() -> None:
    imported = import_run(str(CONFIGS / "llama3.2-1b.json"), Overrides(cluster="h100:1x8", parallel="dp8"))
    rows = describe_model(imported.run)
    assert sum(row["parameters"] for row in rows if row["level"] == 0) == 1_235_814_400
    by_path = {row["path"]: row for row in rows}
    assert by_path["llm.layers.0 .. 15"]["count"] == 16
    assert by_path["llm.head"]["parameters"] == 2048


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "lama"}', "unknown model_type 'lama', did you mean 'llama'?"),
        ('{"model_type": "llama", "hidden_size"', "at byte 37 (the file looks truncated)"),
        ('{"tokenizer_class": "X", "chat_template": "y"}', "a tokenizer's configuration"),
        ('{"model_type": "llama", "quantization_config": {"quant_method": "awq"}}', "quantised checkpoint (awq)"),
        ('{"model_type": "llama", "num_attention_heads": 7}', "does not divide"),
    ],
)
@pytest.mark.parametrize("verb", ["simulate", "import"])
def test_bad_files_are_one_error_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, text: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    code, out, err = command(capsys, verb, path, "--json")
    error = json.loads(out)["error"]
    assert code == 2
    assert message in error["message"] and message in err
    assert error["where"].startswith(str(path))


def test_keys_can_be_left_out_of_an_import(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "models" / "small.json"
    path.write_text(json.dumps({**SMALL, "mystery": 7}))
    words = ("--cluster", "h100:1x1", "--parallel", "dp1", "--json")
    assert command(capsys, "import", path, *words)[0] == 2
    code, out, _ = command(capsys, "import", path, *words, "--set", 'model.hf_ignore=["mystery"]')
    document = json.loads(out)
    assert code == 0 and "mystery" in [row["key"] for row in document["reading"]["ignored"]]
    assert tomllib.loads(document["toml"])["model"]["hf_ignore"] == ["mystery"]


def test_a_run_that_cannot_be_simulated_is_written_and_said_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--cluster", "h100:1x3", "--parallel", "tp3", "--set", "model.vocab_multiple=1", "--json")
    code, out, err = command(capsys, "import", folder / "models" / "small.json", *words)
    assert code == 0 and "cannot be simulated as it is" in err
    assert json.loads(out)["predicted"] is None


def test_what_is_frozen_is_not_traced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--cluster", "h100:1x1", "--parallel", "dp1", "--json", "--set", 'model.frozen=["llm"]')
    code, out, _ = command(capsys, "import", folder / "models" / "small.json", *words)
    flop = json.loads(out)["flop_per_token"]
    assert code == 0 and flop["traced"] * 3 == flop["semu"]


@pytest.mark.parametrize(("name", "text"), [("notes.md", "# notes"), ("empty.txt", "")])
def test_other_files_cannot_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    code, out, _ = command(capsys, "import", tmp_path / name, "--json")
    error = json.loads(out)["error"]
    assert (code, error["message"]) == (2, "not a file that semu can import")


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, out, _ = command(capsys, "import", tmp_path / "confg.json", "--json")
    error = json.loads(out)["error"]
    assert (code, error["nearest"]) == (2, "config.json")


def test_a_folder_to_write_to_must_be_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("-o", folder / "no" / "run.toml", "--json")
    code, out, _ = command(capsys, "import", folder / "models" / "small.json", *words)
    assert (code, json.loads(out)["error"]["message"]) == (2, "no such folder")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama3-8b", "llama3-70b", "llama3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "gemma2-9b"]
)
def test_published_configs_run_with_one_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "simulate", CONFIGS / f"{name}.json", "--json")
    report = json.loads(out)
    assert code == 0 and report["fits"] and 0.05 < report["mfu"] < 0.65


def test_the_shipped_models_are_those_of_their_configs() -> None:
    """One module tree, whichever way it was described."""
    from semu_models.hf import load_hf

    for name in ("llama3-8b", "llama3-70b", "qwen2-72b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gemma2-9b"):
        read = load_hf(CONFIGS / f"{name}.json").model.modules[0].body
        shipped = semu_models.build(name).modules[0].body
        assert read.num_parameters() == shipped.num_parameters()
        assert [n for n, _ in read.named_parameters()] == [n for n, _ in shipped.named_parameters()]


@pytest.mark.parametrize(("flags", "nearest"), [({}, 6), ({"cluster": "h100:1x8"}, 24), ({"cluster": "h100:3x8"}, 72)])
def test_what_is_wrong_with_every_layout_is_told(folder: Path, flags: dict[str, Any], nearest: int) -> None:
    """Not that nothing fits: no memory would help."""
    path = folder / "models" / "small.json"
    with pytest.raises(ConfigError, match="does not divide into microbatches") as caught:
        resolve_run(path, Overrides(("training.micro_batch=3", "training.global_batch=7"), **flags))
    assert caught.value.nearest == nearest
    with pytest.raises(ConfigError, match="unknown schedule"):
        resolve_run(path, Overrides(('training.schedule="nope"',), **flags))


@pytest.mark.slow
def test_an_encoder_that_cannot_be_cut_gets_a_tp_of_its_own_in_a_layout_that_is_chosen() -> None:
    """25 heads, and the rest is too large for tp = 1."""
    config = CONFIGS / "internvl3-78b.json"
    run = resolve_run(config, Overrides(cluster="h100:4x8"))
    assert run.config["parallel"]["tp"] > 1
    assert run.config["parallel"]["modules"] == {"vision": {"tp": 1}}
    with pytest.raises(MemoryLimitError, match=r"memory of h100:2x8"):
        resolve_run(config, Overrides(cluster="h100:2x8"))


@pytest.mark.parametrize(
    ("model", "sizes", "expected"),
    [
        ("internvl3-78b", "tp8-pp4", {"vision": {"tp": 1}}),  # 25 and 64 heads
        ("internvl3-78b", "tp1-pp8-dp4", None),
        ("internvl3-8b", "tp8-pp2-dp2", "28 heads cannot be split"),  # of the backbone: nothing is guessed
        ("qwen2-vl-72b", "tp8-pp4", None),  # 16 and 64 heads
    ],
)
def test_heads_that_tp_does_not_divide(model: str, sizes: str, expected: object) -> None:
    run = resolve_run(model, Overrides(cluster="h100:4x8", parallel=sizes))
    said = [note for note in run.notes if "does not divide its 25 heads" in note]
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            simulate(run.job())
        return
    assert run.config["parallel"].get("modules") == expected
    assert len(said) == (expected is not None)


def test_a_tp_of_an_encoder_that_is_given_stays() -> None:
    changes = ("parallel.modules.vision.tp=5", "parallel.tp=5")
    run = resolve_run("internvl3-78b", Overrides(changes, cluster="h100:5x4", parallel="tp5-pp4"))
    assert run.config["parallel"]["modules"] == {"vision": {"tp": 5}}
