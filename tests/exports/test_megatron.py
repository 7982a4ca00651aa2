"""Runs as arguments of Megatron-LM, and as configurations of Megatron-Bridge made of them: read back they are the same
job, and what they cannot say is said."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest
from imports.megatron.random_arguments import legal_arguments
from imports.megatron.test_random_arguments import script

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.exports import export
from semu.exports.megatron import changed_script
from semu.exports.transformer_sizes import differences, transformer_of
from semu.imports.megatron import read_megatron
from semu.imports.nemo import read_nemo
from semu.runfile import Overrides, resolve_run
from semu.runfile.config import RunConfig
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu_models import MODELS, build

FILES = Path(__file__).parents[1] / "imports" / "megatron" / "files"


def read_back(text: str, run: RunConfig) -> RunConfig:
    cluster = run.config["cluster"]
    asked = f"{cluster['device']}:{cluster['nodes']}x{cluster['gpus_per_node']}"
    return resolve_tables(read_megatron(text, asked).tables, Places("run.sh"))


@pytest.mark.sampled(28)
@pytest.mark.parametrize("case", range(200))
def test_round_trips(case: int) -> None:
    """Import, export, import: the same time and the same memory on every rank, to the last bit."""
    arguments = legal_arguments(random.Random(case), [])
    read = read_megatron(script(arguments))
    read.tables["training"].pop("left_out", None)
    run = resolve_tables(read.tables, Places(""))
    exported = export(run, "megatron")
    assert exported.unsaid == ()
    one, other = semu.simulate(run.job()), semu.simulate(read_back(exported.text, run).job())
    assert (one.iteration_time_s, one.peak_memory_bytes) == (other.iteration_time_s, other.peak_memory_bytes)
    bridge = export(run, "nemo")
    assert bridge.unsaid == ()
    cluster = run.config["cluster"]
    asked = f"{cluster['device']}:{cluster['nodes']}x{cluster['gpus_per_node']}"
    third = semu.simulate(resolve_tables(read_nemo(bridge.text, "run.yaml", asked).tables, Places("")).job())
    assert (one.iteration_time_s, one.peak_memory_bytes) == (third.iteration_time_s, third.peak_memory_bytes)


@pytest.mark.parametrize(
    ("name", "cluster", "parallel"),
    [
        ("llama3-70b", "h100:16x8", "tp8-pp4"),
        ("mixtral-8x7b", "h100:4x8", "tp2-pp2-ep4"),
        ("deepseek-v3", "h100:32x8", "pp16-ep16"),
        ("qwen3-8b", "h100:1x8", "tp2-pp2"),
        ("gpt2-xl", "h100:1x8", "tp1"),
    ],
)
def test_shipped_models(name: str, cluster: str, parallel: str) -> None:
    """A model that is named comes back as sizes with the same parameters, cut where the run's stages end."""
    run = resolve_run(name, Overrides(["training.workspaces=transformer_engine"], cluster, parallel))
    exported = export(run, "megatron")
    assert exported.unsaid == ()
    back = read_back(exported.text, run)
    assert back.model.num_parameters() == run.model.num_parameters()
    one, other = semu.simulate(run.job()), semu.simulate(back.job())
    assert (one.iteration_time_s, one.peak_memory_bytes) == (other.iteration_time_s, other.peak_memory_bytes)


@pytest.mark.slow
def test_sizes_of_shipped_models() -> None:
    """Every dense or sparse decoder that ``[model.transformer]`` can say is read back from its modules; others say
    where they differ."""
    found = {name: transformer_of(build(name)) for name in MODELS if "vl" not in name and "t2v" not in name}
    plain = {name for name, sizes in found.items() if not isinstance(sizes, str)}
    assert {"llama3-8b", "gpt2", "qwen2-72b", "mixtral-8x22b", "deepseek-v2", "qwen1.5-moe-a2.7b"} <= plain
    for name in ("llama3.2-1b", "qwen3-30b-a3b", "deepseek-v2-lite"):
        sizes = found[name]
        assert not isinstance(sizes, str)
        assert sizes.model().num_parameters() == build(name).num_parameters()
    assert "window" in str(found["mistral-7b"]) and "sinks" in str(found["gpt-oss-20b"])
    assert found["bert-base"] == "a model that differs from a plain decoder at bert"
    assert found["vit-2b"] == "a model that is no decoder of text"


def test_differences_of_models() -> None:
    assert differences(build("llama3-8b"), build("llama3-8b")) is None
    assert differences(build("llama3-8b"), build("llama3.2-3b")) is not None
    assert differences(build("llama3-8b"), build("vlm-s")) == "llm"


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("lm-7b", "training.schedule=zb-h1", "training.schedule: zb-h1 here, 1f1b there"),
        ("llama3-8b", "training.software=torch", "training.software: torch here, megatron there"),
        ("llama3-8b", "training.attention_kernel=fa2", "training.attention_kernel: fa2 here, nothing there"),
    ],
)
def test_what_cannot_be_said(name: str, setting: str, sentence: str) -> None:
    run = resolve_run(name, Overrides([setting], "h100:1x8", "pp2"))
    assert any(told.startswith(sentence) for told in export(run, "megatron").unsaid)


def test_what_is_no_decoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be said in sizes of a decoder"):
        export(resolve_run("vlm-s"), "megatron")
    with pytest.raises(ConfigError, match="unknown program"):
        export(resolve_run("lm-7b"), "megatorn")


def test_what_only_running_tells_is_told_by_the_export(tmp_path: Path) -> None:
    """Parameters, variables and commands in paths are the shell's when the exported script runs, and no arguments."""
    text = (
        "SAVE=$1\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8"
        " --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 32 --bf16"
        ' --vocab-size 1000 --save "$SAVE/last" --data-path "$CORPUS" --load `echo here` --split 99,1,0\n'
    )
    path = tmp_path / "run.sh"
    path.write_text(text)
    before = resolve_run(str(path))
    after = resolve_run(str(path), Overrides(["training.recompute=full"]))
    _, changed = changed_script(text, str(path), before, after)
    fake = "torchrun() { printf '%s\\n' \"$@\"; }\n"
    done = subprocess.run(
        ["bash", "-c", fake + changed, "run.sh", "my dir", "more"],
        capture_output=True,
        text=True,
        check=True,
        env={"CORPUS": "/data/c4", "PATH": "/usr/bin:/bin"},
    )
    words = done.stdout.splitlines()
    told = {name: words[words.index(name) + 1] for name in ("--save", "--data-path", "--load", "--split")}
    assert told == {"--save": "my dir/last", "--data-path": "/data/c4", "--load": "here", "--split": "99,1,0"}
    assert words[-1] == "1" and words[-2] == "--recompute-num-layers", "the script's own parameters are no arguments"


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The way from a script to a better configuration in the script's own words."""
    script_path, best = str(FILES / "llama3_8b_fp8.sh"), tmp_path / "best.sh"
    assert main(["export", script_path, "--to", "megatron", "--json", "--diff"]) == 0
    assert json.loads(capsys.readouterr().out)["diff"] == "", "nothing changes where nothing is changed"
    words = ["--set", "training.recompute=full"]
    assert main(["export", script_path, "--to", "megatron", "--diff", *words, "-o", str(best)]) == 0
    lines = capsys.readouterr().out.splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert [line.strip("+ \\") for line in changed] == [
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ]
    assert "--lr 0.00015" in best.read_text(), "arguments that no run file has stay"
    assert main(["grid", script_path, "--vary", "tp=1:2,cp=1:2", "--export", f"megatron:{best}", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["exported"]["file"] == str(best)
    assert main(["simulate", str(best), "--json"]) == 0
    time_s = json.loads(capsys.readouterr().out)["iteration_time_s"]
    assert time_s == pytest.approx(document["report"]["iteration_time_s"], rel=1e-12)
    assert main(["export", "lm-7b", "--to", "megatron", "--diff"]) == 2
    assert main(["grid", "lm-7b", "--export", "torchtitn"]) == 2
