"""What people type first: a number of GPUs, a device alone, keys of the run file as options."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli.test_command import TINY

import semu
import semu_models
from semu.cli import main
from semu.cli.options.every import build_parser, parse_arguments
from semu.cli.spellings import SPELLINGS, run_keys
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.hardware.profile import load_profile
from semu.parallel.config import Parallel
from semu.runfile import Overrides, resolve_run

SIZES = ("device", "nodes", "gpus_per_node")


def config(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--dump-config", "--json", "--quiet"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["config"]
    return found


def error(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert main([*words, "--quiet"]) == code
    return capsys.readouterr().err


@pytest.mark.parametrize("command", ["simulate", "search", "schedules", "goodput"])
@pytest.mark.parametrize("name", ["lm-7b", "gpt2"])
def test_keys_of_training_are_options(command: str, name: str) -> None:
    said = parse_arguments([command, name, "--seq-len", "512", "--set", "a=1", "--global-batch=64", "--tp", "2"])
    assert said.run == name
    assert said.assignments == ["training.seq_len=512", "a=1", "training.global_batch=64", "parallel.tp=2"]


def test_a_key_as_an_option_is_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--seq-len", "2048", "--micro-batch", "2", "--recompute=full", "--tp", "4", "--pp", "1")
    keys = (
        "training.seq_len=2048",
        "training.micro_batch=2",
        "training.recompute=full",
        "parallel.tp=4",
        "parallel.pp=1",
    )
    words = [word for key in keys for word in ("--set", key)]
    found = config(capsys, "simulate", "lm-7b", *short)
    assert found == config(capsys, "simulate", "lm-7b", *words)
    assert (found["training"]["seq_len"], found["parallel"]["tp"]) == (2048, 4)


def test_an_option_of_the_command_stays_its_own() -> None:
    """``simulate --samples`` and ``plan --schedule`` are no keys."""
    assert parse_arguments(["simulate", "lm-7b", "--samples", "3"]).samples == 3
    said = parse_arguments(["search", "lm-7b", "--seed", "3", "--schedule", "1f1b"])
    assert said.seed == 3
    with pytest.raises(ConfigError, match="unknown option '--seq-len'"):
        parse_arguments(["doctor", "--seq-len", "3"])


@pytest.mark.parametrize("words", [("--seq-len",), ("--seq-len", "--json"), ("--seq-len=",)])
def test_a_key_without_a_value(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--seq-len needs a value"):
        parse_arguments(["simulate", "lm-7b", *words])


def test_wrong_values_and_near_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert "training.seq_len" in error(capsys, "simulate", "lm-7b", "--seq-len", "many")
    assert "nearest allowed: 131072" in error(capsys, "simulate", "lm-7b", "--seq-len", "128k")
    assert "nearest allowed: 4096" in error(capsys, "simulate", "lm-7b", "--seq-len", "4096.0")
    assert "did you mean '--batch-size'?" in error(capsys, "simulate", "lm-7b", "--batch-sise", "8")
    assert "did you mean '--micro-batch'?" in error(capsys, "simulate", "lm-7b", "--micro-batches", "8")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (("--gpu", "h200", "--gpus", "16"), ("--cluster", "h200:16")),
        (("--device=a100-80g", "--nodes", "2"), ("--cluster", "a100-80g:2x8")),
        (("--gpu", "4"), ("--gpus", "4")),
        (
            ("--batch-size", "64", "--seq-length=512", "--mbs", "2"),
            ("--global-batch", "64", "--seq-len", "512", "--micro-batch", "2"),
        ),
        (
            ("--tensor-model-parallel-size", "2", "--pipeline-parallel", "2", "--nodes", "1"),
            ("--tp", "2", "--pp", "2", "--gpus", "8"),
        ),
        (("--dtype", "fp16", "--zero-stage", "3"), ("--set", "training.precision=fp16", "--set", "parallel.zero=3")),
        (("--nodes", "2", "--gpus-per-node", "4"), ("--cluster", "h100:2x4")),
        (("--gpu", "a100", "--gpus=12", "--nproc-per-node=4"), ("--cluster", "a100:3x4")),
        (("--gpus", "12", "--nodes", "2", "--nproc_per_node", "6"), ("--cluster", "h100:2x6")),
        (("--gpus-per-node", "2"), ("--cluster", "h100:1x2")),
        (("--nodes", "1", "--gpus", "8"), ("--cluster", "h100:1x8")),
        (("--lora", "16"), ("--set", "model.lora.rank=16")),
        (("--fsdp", "--fp16"), ("--set", "parallel.zero=3", "--set", "training.precision=fp16")),
        (("--bf16", "--fsdp", "fsdp2"), ("--set", "training.fsdp=fsdp2")),
        (("--num_processes", "8", "--max_seq_length", "512"), ("--gpus", "8", "--seq-len", "512")),
        (("--nnodes", "2", "--num-gpus-per-node", "4"), ("--cluster", "h100:2x4")),
        (("--gpus", "8", "-tp", "2", "--local-batch-size=2"), ("--gpus", "8", "--tp", "2", "--micro-batch", "2")),
        (("--gpus", "1,024"), ("--gpus", "1024")),
        (
            ("--parallelism.tensor_parallel_degree", "2", "--training.seq_len", "512"),
            ("--tp", "2", "--seq-len", "512"),
        ),
        (("--gradient_checkpointing", "True"), ("--recompute", "full")),
        (("--gradient-checkpointing", "--fp16"), ("--recompute", "full", "--precision", "fp16")),
        (("--recompute-granularity", "selective"), ("--recompute", "selective")),
        (("--ac", "none", "--zero3"), ("--recompute", "none", "--zero", "3")),
        (("--sharding-strategy=SHARD_GRAD_OP",), ("--zero", "2")),
        (("--tp", "2", "--sequence-parallel", "false"), ("--tp", "2", "--set", "parallel.sequence_parallel=false")),
        (("--overlap-grad-reduce",), ("--set", "overlap.grad_reduce=true")),
        (("--gpus", "8", "--pp", "4", "--vp", "3"), ("--gpus", "8", "--pp", "4", "--vpp", "3")),
        (("--gpus", "8", "--parallel", "TP=2, pp2"), ("--gpus", "8", "--parallel", "tp2-pp2")),
        (("--gpus", "8", "--parallel", "tp2pp2dp2"), ("--gpus", "8", "--parallel", "dp2-tp2-pp2")),
        (
            ("--gpus", "8", "--pp", "2", "--pipeline-parallel-schedule", "ZBVZeroBubble"),
            ("--gpus", "8", "--pp", "2", "--schedule", "zb-v"),
        ),
    ],
)
def test_options_as_other_programs_spell_them(
    theirs: tuple[str, ...], ours: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert config(capsys, "simulate", "gpt2", *theirs) == config(capsys, "simulate", "gpt2", *ours)


def test_every_spelling_means_an_option() -> None:
    """Of ``semu simulate``, or a key of a run file; none hides one of a command."""
    usage = build_parser()[1]["simulate"].format_usage()
    for theirs, ours in SPELLINGS.items():
        assert theirs not in run_keys() and f"[{theirs} " not in usage
        assert ours in run_keys() or f"[{ours} " in usage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--gpu", "h100", "--cluster", "h200"),
            "the device is told twice; expected one of --cluster, --device, --gpu",
        ),
        (("--gpus", "8", "--nodes", "2", "--gpus-per-node", "8"), "told twice; expected 16; got 8"),
        (("--gpus", "8", "--gpus", "8", "--gpus-per-node", "4"), "the number of GPUs is told twice"),
        (
            ("--gpus", "10", "--gpus-per-node", "4"),
            "no nodes of 4 GPUs; expected a multiple of 4; got 10; nearest allowed: 8",
        ),
        (("--gpus", "3", "--nodes", "4"), "no 4 equal nodes; expected a multiple of 4; got 3; nearest allowed: 4"),
        (
            ("--cluster", "h100:2x8", "--gpus-per-node", "4"),
            "told twice; expected --cluster DEVICE, or no --gpus-per-node",
        ),
        (("--cluster=h100:2x8", "--nodes", "2"), "told twice; expected --cluster DEVICE, or no --nodes; got h100:2x8"),
        (("--nodes", "2", "--gpus-per-node", "0"), "--gpus-per-node: no number of GPUs; expected at least 1; got 0"),
        (("--nodes", "two"), "--nodes: no number of nodes; expected at least 1; got two"),
        (("--nodes",), "--nodes needs a value"),
        (("--gpu", "h101"), "unknown device 'h101', did you mean 'h100'?"),
        (("--cluster", "h100x64"), "nearest allowed: h100:64"),
        (("--cluster", "H100x2x8"), "nearest allowed: H100:2x8"),
    ],
)
def test_what_is_told_twice_or_is_no_number(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in error(capsys, "simulate", "gpt2", *words)


def test_lists_and_runs_without_their_command(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("models", "devices"):
        assert main([word]) == 0
        found = capsys.readouterr().out
        assert main(["list", word]) == 0 and capsys.readouterr().out == found
    assert main(["list", "gpus"]) == 0
    assert capsys.readouterr().out == found
    assert "did you mean 'semu simulate llama3-8b'?" in error(capsys, "llama3-8b", "--gpus", "8")


@pytest.mark.parametrize("command", ["simulate", "search", "plan", "what-if"])
def test_a_model_that_fits_nowhere_is_no_bad_input(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "llama3-70b", "--gpus", "2", "--json"]) == 3
    said = json.loads(capsys.readouterr().out)["error"]
    assert said["kind"] == "MemoryLimitError" and "alone fill" in said["got"]


@pytest.mark.parametrize(("words", "ranks"), [(("--gpus", "8", "--cp", "8"), 8), (("--gpus", "4"), 2), ((), 2)])
def test_context_ranks_of_a_model_by_name(
    words: tuple[str, ...], ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """They belong to the layout that is chosen; one chosen before had no room for them."""
    assert main(["context", "gpt2", *words, "--policies", "zigzag", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cp"] == ranks
    assert any("parallel.cp: not given" in note for note in found["warnings"]) == ("--cp" not in words)
    assert "did you mean 'simulate'?" in error(capsys, "simluate", "llama3-8b")
    assert "did you mean 'semu simulate gpt2'?" in error(capsys, "gpt2")
    assert "semu simulate" not in error(capsys, "qwertz", "--gpus", "8")


@pytest.mark.slow
def test_a_model_that_does_not_fit_says_what_its_state_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """18 bytes a parameter over 79.1 GiB a GPU; not of a run that may keep fewer."""
    least = math.ceil(18 * 405_853_388_800 / load_profile("h100").memory_bytes.value)
    said = error(capsys, "simulate", "llama3-405b", "--gpus", "8", code=3)
    assert f"weights, gradients and optimizer state alone fill {least} GPUs" in said
    assert "alone fill" not in error(capsys, "simulate", "llama3-405b", "--gpus", "8", "--grad-dtype", "bf16", code=3)


def test_a_grid_of_a_model_is_based_on_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """The batch is that of a run on as many GPUs, not of the fewest that hold the model."""
    assert config(capsys, "grid", "gpt2", "--gpus", "16") == config(capsys, "simulate", "gpt2", "--gpus", "16")
    own = config(capsys, "grid", "lm-7b", "--gpus", "16")  # a setup has its own batch, and its own nodes
    assert own == config(capsys, "simulate", "lm-7b")


def test_a_device_alone_keeps_a_setups_size(capsys: pytest.CaptureFixture[str]) -> None:
    own, other = (config(capsys, "simulate", "vlm-m", *words) for words in ((), ("--cluster", "a100-80g")))
    assert other["cluster"] == {**own["cluster"], "device": "a100-80g"}


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (("--gpus", "8"), ("h100", 1, 8)),
        (("--cluster", "h200", "--gpus", "16"), ("h200", 2, 8)),
        (("--cluster", "h200:4"), ("h200", 1, 4)),
        (("--cluster", "a100-80g", "--parallel", "dp2-tp2-pp4"), ("a100-80g", 2, 8)),
        (("--gpus", "4", "--parallel", "tp4"), ("h100", 1, 4)),
    ],
)
def test_sizes_of_a_model(
    words: tuple[str, ...], sizes: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found = config(capsys, "simulate", "gpt2", *words)["cluster"]
    assert tuple(found[name] for name in SIZES) == sizes


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        (("--gpus", "768"), (8, 8, 12)),
        (("--tp", "4"), (8, 4, 12)),
        (("--gpu", "h100", "--gpus", "1024", "--pp", "8"), (16, 8, 8)),
        (("--set", "cluster.nodes=12"), (1, 8, 12)),
        (("--cluster", "h200"), (4, 8, 12)),
        (("--gpus", "768", "--set", "parallel.dp=8"), (8, 8, 12)),
    ],
)
def test_a_setups_replicas_follow_its_gpus(
    words: tuple[str, ...], sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    found = config(capsys, "simulate", "gpt3-175b", *words)["parallel"]
    assert tuple(found[axis] for axis in ("dp", "tp", "pp")) == sizes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "1024"), "a replica takes 96 GPUs (tp 8 x pp 12), and 1024 are no whole number of replicas"),
        (("--gpus", "1024"), "nearest allowed: pp = 8"),
        (("--set", "cluster.nodes=3", "--set", "cluster.gpus_per_node=4", "--tp", "8"), "nearest allowed: 96 GPUs"),
        (("--gpus", "768", "--set", "parallel.dp=4"), "nearest allowed: dp = 8"),
        (("--tp", "many"), "not an integer"),
    ],
)
def test_gpus_that_hold_no_whole_replicas(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in error(capsys, "simulate", "gpt3-175b", *words)


def test_a_device_alone_takes_the_fewest_gpus_that_do() -> None:
    free, named = (resolve_run("gpt2", Overrides(cluster=cluster)) for cluster in (None, "a100-80g"))
    assert {**named.config["cluster"], "device": "h100"} == free.config["cluster"]
    assert any(note.startswith("cluster.nodes: not given, taken as a100-80g:1x1") for note in named.notes)
    one = resolve_run("gpt2", Overrides(["cluster.device=a100-80g"]))
    assert one.config["cluster"]["gpus_per_node"] == 8  # a run file that names a device means one node


def test_a_script_of_another_program_keeps_its_size(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 "
        "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
        "--global-batch-size 32 --tensor-model-parallel-size 2 --vocab-size 32000 --bf16\n"
    )
    found = [resolve_run(str(script), Overrides(cluster=said)).config["cluster"] for said in (None, "h200", "h200:8")]
    assert [one["nodes"] * one["gpus_per_node"] for one in found] == [16, 16, 8]
    assert [one["device"] for one in found] == ["h100", "h200", "h200"]


def test_wrong_numbers_of_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.toml"
    run.write_text(TINY)
    assert "nearest allowed: 16" in error(capsys, "simulate", str(run), "--gpus", "12")
    assert "--gpus: no number of GPUs" in error(capsys, "simulate", str(run), "--gpus", "0")
    assert "told twice" in error(capsys, "simulate", str(run), "--cluster", "h100:1x8", "--gpus", "8")
    assert "nearest allowed: h100:8" in error(capsys, "simulate", str(run), "--cluster", "8xh100")


@pytest.mark.parametrize(
    ("command", "more"), [("context", ("--policies", "zigzag")), ("grid", ("--gpus", "8", "--vary", "tp"))]
)
def test_variables_of_a_script_are_known_to_every_command(
    command: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "pretrain.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size 256 --num-attention-heads 4"
        " --seq-length 256 --max-position-embeddings 256 --micro-batch-size 1 --global-batch-size 16 --vocab-size 1024"
        " --tokenizer-type NullTokenizer --bf16 --context-parallel-size 2 --transformer-impl transformer_engine"
        " --position-embedding-type rope --normalization RMSNorm --mock-data\n"
    )
    assert "--define NAME=VALUE" in error(capsys, command, str(script), *more)
    assert main([command, str(script), *more, "--define", "LAYERS=4", "--quiet"]) == 0


def test_values_of_others_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"--sharding-strategy: unknown value 'HYBRID'; expected one of full_shard"):
        parse_arguments(["simulate", "gpt2", "--sharding-strategy", "HYBRID"])
    with pytest.raises(ConfigError, match="--recompute-granularity: unknown value 'nothing'"):
        parse_arguments(["simulate", "gpt2", "--recompute-granularity"])
    with pytest.raises(ConfigError, match="a number of GPUs like 1024, not '1,02'"):
        parse_arguments(["simulate", "gpt2", "--gpus", "1,02"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("simulate", "gpt2", "--deepspeed", "x"), "expected an option of semu simulate --help, a key of .training."),
        (("doctor", "--deepspeed"), "expected an option of semu doctor --help; got"),
        (("simulate", "gpt2", "-o", "x"), "unknown option '-o'"),
        (("simulate", "gpt2", "fsdp.yaml"), "expected semu simulate RUN and options"),
        (("simulate", "gpt2", "TP=8"), "nearest allowed: --tp 8"),
        (("estimate-memory", "gpt2"), "did you mean 'simulate'"),
        (("memory", "gpt2"), "nearest allowed: simulate"),
        (("tune", "gpt2"), "nearest allowed: grid"),
    ],
)
def test_what_is_refused_is_told_what_is_legal(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_arguments(words)


SCRIPT = (
    "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
    "--tensor-model-parallel-size 2 --vocab-size 32000 --bf16 "
)


@pytest.mark.parametrize(
    ("flags", "changes", "sizes"),
    [
        ("--global-batch-size 32", ["parallel.tp=4"], (4, 1, 32)),
        ("--global-batch-size 32", ["cluster.nodes=4"], (16, 1, 32)),
        ("", ["parallel.tp=4"], (4, 1, 4)),
        ("", ["training.micro_batch=3"], (8, 3, 24)),
        ("", ["training.micro_batch=3", "training.global_batch=48"], (8, 3, 48)),
        ("--global-batch-size 32", [], (8, 1, 32)),
    ],
)
def test_sizes_that_a_script_does_not_say_follow(
    flags: str, changes: list[str], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    """dp is GPUs / (tp x pp x cp), and a batch that nobody says one microbatch a replica."""
    script = tmp_path / "run.sh"
    script.write_text(f"{SCRIPT}{flags}\n")
    run = resolve_run(str(script), Overrides(changes))
    run.job()
    found = run.config
    assert (found["parallel"]["dp"], found["training"]["micro_batch"], found["training"]["global_batch"]) == sizes
    assert any(note.startswith(("parallel.dp: 8 ->", "training.global_batch: 8 ->")) for note in run.notes) == (
        sizes[0] != 8 or sizes[2] == 24
    )


def test_a_script_without_whole_replicas(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{SCRIPT}\n")
    with pytest.raises(ConfigError, match=r"a replica takes 6 GPUs .tp 2 x pp 3., and 16 are no whole number"):
        resolve_run(str(script), Overrides(["parallel.pp=3"]))


def grid_points(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["grid", "gpt2", "--gpus", "8", "--set", "model.vocab_multiple=128", *words, "--json", "--quiet"]) == 0
    return [*json.loads(capsys.readouterr().out)["rows"]]


@pytest.mark.parametrize(
    ("words", "tp", "micro_batch"),
    [
        (("--tp", "4"), {4}, None),
        (("--set", "training.micro_batch=2"), None, {2}),
        (("--parallel", "tp2"), {2}, None),
        (("--tp", "2,4", "--micro-batch", "1"), {2, 4}, {1}),
        (("--tp", "4", "--vary", "tp=2:4", "--fix", "micro_batch=1"), {2, 4}, {1}),
    ],
)
def test_what_is_said_of_a_grids_axes_holds(
    words: tuple[str, ...], tp: set[int] | None, micro_batch: set[int] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """``semu grid gpt2 --tp 4`` varied tp all the same."""
    rows = grid_points(capsys, *words, "--top", "50")
    assert tp is None or {row["tp"] for row in rows} == tp
    assert micro_batch is None or {row["micro_batch"] for row in rows} == micro_batch


def test_objects_beside_a_name() -> None:
    """``cluster`` and ``parallel`` of Python may be objects, and a job's may be texts."""
    texts = resolve_run("gpt2", Overrides(cluster="h100:1x8", parallel="tp2-pp2")).config
    cluster = Cluster("h100", nodes=1, gpus_per_node=8)
    for parallel in (Parallel(tp=2, pp=2), {"tp": 2, "pp": 2}):
        found = resolve_run("gpt2", Overrides(cluster=cluster, parallel=parallel)).config
        assert all(found["cluster"][name] == texts["cluster"][name] for name in SIZES)
        assert all(found["parallel"][axis] == texts["parallel"][axis] for axis in ("dp", "tp", "pp", "vpp", "cp"))
    own = semu.TrainingJob(semu_models.gpt2(), "h100:1x8", "tp2-pp2-dp2", semu.Training(global_batch=4, seq_len=512))
    assert (own.cluster, own.parallel) == (cluster, Parallel(tp=2, pp=2, dp=2))
    fixed = semu.grid("gpt2", cluster=cluster, parallel={"tp": 4}, top=50)
    assert {row.point.tp for row in fixed.rows} == {4}
    for wrong, said in (({"cluster": 3}, "no cluster"), ({"parallel": 3}, "no parallel configuration")):
        with pytest.raises(ConfigError, match=said):
            resolve_run("gpt2", Overrides(**wrong))
    with pytest.raises(ConfigError, match="a device that has no name"):
        resolve_run("gpt2", Overrides(cluster=Cluster(load_profile("h100"))))
