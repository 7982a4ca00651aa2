"""The doorway: schedules that bring what they need, networks that are shared, run files to start from, tables that fit
the terminal, what is installed."""

from __future__ import annotations

import csv
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import semu
import semu_models
from semu.cli import main
from semu.cli.commands.doctor import kernel_cache
from semu.runfile import load_run
from semu.schedule.registry import ALL_SCHEDULES
from semu.simulation.schedules.cuts import job_for
from semu.units import fit_columns

INSTANCES = Path(__file__).parents[2] / "benchmarks" / "instances" / "first_minutes"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


# -- memory ----------------------------------------------------------------------------------------------------------
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("vlm-m", "--set", "training.recompute=none"), "activations"),
        (("llama3-8b", "--cluster", "h100:1x8", "--parallel", "dp8"), "optimizer|parameters|gradients|activations"),
    ],
)
def test_what_does_not_fit_says_of_what_and_the_line_that_does(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], most: str
) -> None:
    code, _, err = run(capsys, "simulate", *words)
    assert code == 3
    assert re.search(rf"does not fit: .*; most of it is ({most}), \d", err)
    line = next(line for line in err.splitlines() if "it fits with: semu " in line)
    pasted = shlex.split(line.partition("it fits with: semu ")[2])
    keys = [word.partition("=")[0] for before, word in pairwise(pasted) if before == "--set"]
    assert len(keys) == len(set(keys)) and keys
    kept = [word for word in words if word != "--set" and word.partition("=")[0] not in keys]
    assert pasted[: len(kept) + 1] == ["simulate", *kept]
    assert document(capsys, *pasted)["fits"] is True


# -- schedules -------------------------------------------------------------------------------------------------------
WHOLE, SPLIT = ("hanayo", "interleaved", "chimera", "1f1b"), ("zb-v", "v-half", "v-min", "zb-h1")
CUTS = [*(("lm-7b", name) for name in (*WHOLE, *SPLIT)), *(("vlm-s", name) for name in WHOLE)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("setup", "name"), CUTS)
def test_a_schedule_brings_its_cut(setup: str, name: str) -> None:
    assert ALL_SCHEDULES[name].splits_backward == (name in SPLIT)
    job = load_run(setup, [f"training.schedule={name}"])
    reference = job_for(load_run(setup, [f"training.global_batch={job.training.global_batch}"]), name)
    assert (job.parallel.vpp, job.parallel.placement) == (reference.parallel.vpp, reference.parallel.placement)
    assert semu.evaluate(job).iteration_time_s == semu.evaluate(reference).iteration_time_s


def test_what_a_schedule_sets_is_said_and_what_is_given_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "simulate", "lm-7b", "--set", "training.schedule=zb-v")
    assert any("'zb-v' needs, and sets, parallel.vpp = 2" in note for note in found["warnings"])
    code, _, err = run(
        capsys, "simulate", "lm-7b", "--set", "training.schedule=zb-v", "--set", "parallel.placement=circular"
    )
    assert code == 2 and "v-shape" in err
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\nname = "lm-7b"\n[cluster]\ndevice = "h800"\n[parallel]\ntp = 2\npp = 4\n'
        '[training]\nseq_len = 4096\nschedule = "v-half"\n'
    )
    assert load_run(file).parallel.placement == "v-shape"
    file.write_text(file.read_text().replace("pp = 4", "pp = 4\nvpp = 1"))
    with pytest.raises(semu.ConfigError, match="several groups of layers on each rank"):
        semu.evaluate(load_run(file))


def test_the_nearest_of_a_schedule_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    job = load_run("lm-7b", ["training.schedule=dualpipe"])
    assert (job.training.schedule, job.parallel.vpp, job.parallel.placement) == ("dualpipe-v", 2, "v-shape")


@pytest.mark.parametrize("setup", ["lm-7b", "vlm-s"])
def test_an_order_of_ones_own_in_python(setup: str) -> None:
    job = load_run(setup, ["training.global_batch=16", "training.recompute=full"])
    named = load_run(setup, ["training.global_batch=16", "training.recompute=full", "training.schedule=gpipe"])
    schedule = semu.schedule.gpipe(semu.prepare(job).shape)
    for given in (schedule, "gpipe"):
        assert semu.simulate(job, schedule=given).iteration_time_s == semu.simulate(named).iteration_time_s
    assert semu.simulate(job, schedule=schedule).peak_memory_bytes > semu.simulate(job).peak_memory_bytes
    with pytest.raises(semu.ScheduleError):
        semu.simulate(job, schedule=ALL_SCHEDULES["gpipe"](ALL_SCHEDULES["gpipe"].shape(2, 4)))


def test_every_schedule_is_an_attribute() -> None:
    assert all(getattr(semu.schedule, name.replace("-", "_")) is family for name, family in ALL_SCHEDULES.items())
    with pytest.raises(AttributeError, match="zbv"):
        _ = semu.schedule.zbv


# -- files of other programs -----------------------------------------------------------------------------------------
def test_a_script_of_megatron_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = str(INSTANCES.parents[2] / "examples" / "mixtral_8x7b.sh")
    imported = str(tmp_path / "run.toml")
    assert run(capsys, "import", script, "-o", imported)[0] == 0
    words = ("--set", "training.micro_batch=1")
    found, again = (document(capsys, "simulate", name, *words) for name in (script, imported))
    assert found["iteration_time_s"] == again["iteration_time_s"]
    code, _, err = run(capsys, "simulate", script, "--set", "parallel.tp=5")
    assert code == 2 and "5" in err


def test_a_llava_style_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = INSTANCES / "megatron_vlm.sh"
    found = document(capsys, "simulate", str(script))
    language, tower = (semu_models.build(name).modules[0] for name in ("llama2-7b", "clip-vision-l-14-336"))
    count = sum(block.num_parameters() for _, block in tower.blocks()) - 2 * 1024  # without the pooled output's norm
    projector = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    padding = 2 * 256 * 4096  # both token tables: 32000 rows become a multiple of 128 x tp 4
    assert found["parameters"] == language.body.num_parameters() + padding + count + projector
    assert found["tokens_per_iteration"] <= 32 * 2048 and any("taken as clip" in note for note in found["warnings"])
    assert found["settings"]["model.llm"]["value"]["layers"] == 32
    text = script.read_text()
    for before, after, said in (
        (" --vision-model-type clip", "", "[model.encoder] and [model.llm]"),
        ("--patch-dim 14", "--patch-dim 16", "nearest allowed: 14"),
        ("type clip", "type clop", "did you mean 'clip'"),
    ):
        own = tmp_path / "own.sh"
        own.write_text(text.replace(before, after))
        code, _, err = run(capsys, "simulate", str(own))
        assert code == 2 and said in err, err


# -- networks --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("model", ["llama3-8b", "llava-1.5-7b"])
def test_oversubscription_divides_the_cards(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", model, "--cluster", "h100:2x8", "--parallel", "tp2-pp2")
    plain = document(capsys, *words)
    shared = document(capsys, *words, "--set", "cluster.oversubscription=4")
    slower = document(capsys, *words, "--set", "cluster.override.nic_bytes_per_s=12.5e9")
    assert shared["iteration_time_s"] == slower["iteration_time_s"] > plain["iteration_time_s"]
    assert shared["job"]["cluster"]["oversubscription"] == 4 and "oversubscription" not in plain["job"]["cluster"]


@pytest.mark.parametrize(("model", "sizes"), [("llama3-8b", "tp8-dp2"), ("llava-1.5-7b", "tp2-dp8")])
def test_a_fabric_between_nodes(model: str, sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    """AWS's rings wait longer at each step; so much longer as by its coefficients, which an override may change."""
    words = ("simulate", model, "--cluster", "h100:2x8", "--parallel", sizes)
    plain = document(capsys, *words)
    slow = document(capsys, *words, "--set", "cluster.fabric=efa")
    assert slow["iteration_time_s"] > plain["iteration_time_s"]
    assert slow["job"]["cluster"]["fabric"] == "efa" and "fabric" not in plain["job"]["cluster"]
    quick = (
        f"--set=cluster.override.link.nic.{kind}.hop_s=0" for kind in ("all_gather", "reduce_scatter", "all_reduce")
    )
    assert (
        document(capsys, *words, "--set", "cluster.fabric=efa", *quick)["iteration_time_s"] < slow["iteration_time_s"]
    )


def test_a_fabric_that_semu_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "simulate", "lm-7b", "--set", "cluster.fabric=eva")
    assert code == 2 and "cluster.fabric" in err and "'efa'" in err


@pytest.mark.parametrize("sizes", ["tp2-pp2", "tp2-dp4-pp2", "tp4-dp4"])
def test_four_cards_of_a_node_are_shared(sizes: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "llama3-8b", "--cluster", "h100:2x8", "--parallel", sizes)
    told = document(capsys, *words, "--set", "cluster.nics_per_node=4", "--set", "cluster.nic_gbit=100")
    same = document(capsys, *words, "--set", "cluster.override.nic_bytes_per_s=6.25e9")
    assert told["iteration_time_s"] == same["iteration_time_s"]
    assert told["job"]["cluster"]["nics_per_node"] == 4 and told["job"]["cluster"]["nic_gbit"] == 100


def test_leaves_hide_what_lies_above_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "llama3-8b", "--cluster", "h100:4x8", "--parallel", "tp8-dp4", "--set")
    plain, slow, leaf, below = (
        document(capsys, *words, "cluster.oversubscription=1", *more)["iteration_time_s"]
        for more in (
            (),
            ("--set", "cluster.oversubscription=8"),
            ("--set", "cluster.oversubscription=8", "--set", "cluster.leaf_nodes=2"),
            ("--set", "cluster.oversubscription=8", "--set", "cluster.leaf_nodes=4"),
        )
    )
    assert below == plain < leaf == slow  # replicas are on all four nodes


def test_trays_of_a_rack(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "llama3-70b", "--cluster", "gb200:4x4", "--parallel", "tp8-dp2")
    apart, rack = document(capsys, *words), document(capsys, *words, "--set", "cluster.nvlink_domain=16")
    node = document(capsys, *words[:2], "--cluster", "gb200:1x16", *words[4:])
    assert rack["iteration_time_s"] == node["iteration_time_s"] < apart["iteration_time_s"]


def test_oversubscription_below_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "simulate", "lm-7b", "--set", "cluster.oversubscription=0.5")
    assert code == 2 and "cluster.oversubscription" in err and "nearest allowed: 1" in err
    with pytest.raises(semu.ConfigError, match="oversubscription"):
        semu.Cluster("h100", oversubscription=float("nan"))


# -- grid ------------------------------------------------------------------------------------------------------------
GRID = ("--vary", "pp=2:4,vpp=1:2:3:4,tp=1:2", "--fix", "micro_batch=1")


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "any", None])
@pytest.mark.parametrize(("run_name", "layers"), [("lm-7b", 32), ("vlm-s", 32)])
@pytest.mark.sampled(2)
def test_a_framework_can_cut_what_is_legal(
    framework: str | None, run_name: str, layers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = () if framework is None else ("--framework", framework)
    found = document(capsys, "grid", run_name, *GRID, *words, "--set", "training.global_batch=16")
    points = [(row["pp"], row["vpp"], 16 // row["dp"]) for row in found["rows"]]
    assert points
    if framework in ("megatron", None):
        assert all(layers % (pp * vpp) == 0 and (vpp == 1 or count % pp == 0) for pp, vpp, count in points)
    if framework == "any":
        assert any(cut["rule"] == "framework" for cut in found["cuts"]) is False
    if framework == "megatron":
        assert any(cut["rule"] == "framework" for cut in found["cuts"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run_name", ["lm-7b", "vlm-s"])
def test_a_framework_says_what_it_does_not_run(run_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("grid", run_name, "--vary", "pp=2:4,vpp=1:2,zero,placement=circular:v-shape,schedule=1f1b:zb-v:gpipe")
    words += ("--fix", "micro_batch=1", "--fix", "tp=2", "--set", "training.global_batch=16")
    zero_2 = "Megatron-LM shards the optimizer alone in a pipeline (ZeRO-1); pp = 2 with ZeRO-2"
    for framework, zeros, schedules, said in (
        ("megatron", {0, 1}, {"1f1b"}, {"Megatron-LM has 1F1B and interleaved 1F1B, no zb-v", zero_2}),
        ("torchtitan", {2, 3}, {"1f1b", "gpipe", "zb-v"}, {"torch has no schedule zb-v with one stage per rank"}),
    ):
        found = document(capsys, *words, "--framework", framework)
        assert {row["zero"] for row in found["rows"] if row["dp"] > 1} <= zeros
        assert {row["schedule"] for row in found["rows"]} <= schedules
        cuts = [cut for cut in found["cuts"] if cut["rule"] == "framework"]
        assert said <= {cut["example"] for cut in cuts}
        assert all(cut["source"] and "asks that" in cut["says"] for cut in cuts)
        legal = sum(cut["count"] for cut in found["cuts"]) + found["legal"]
        assert legal == found["combinations"]


def test_torchtitan_brings_zero_3(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("grid", "lm-7b", "--vary", "tp=1:2", "--fix", "pp=1", "--framework", "torchtitan")
    words += ("--set", "training.global_batch=16")
    found = document(capsys, *words)
    assert {row["zero"] for row in found["rows"]} == {3} and "zero" in found["axes"]
    code, _, err = run(capsys, *words, "--fix", "zero=1")
    assert code == 2 and "it has no ZeRO-1" in err and 'framework "any"' in err


def test_heads_that_torchtitan_does_not_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        "[model.transformer]\nlayers = 4\nhidden = 512\nffn = 1024\nheads = 8\nkv_heads = 2\nvocab = 1024\n"
        '[cluster]\ndevice = "h100"\n[parallel]\ndp = 8\n[training]\nglobal_batch = 8\nseq_len = 512\n'
    )
    words = ("grid", str(file), "--vary", "tp=1:2:4", "--exhaustive")
    free = {row["tp"] for row in document(capsys, *words, "--framework", "any")["rows"]}
    assert {row["tp"] for row in document(capsys, *words, "--framework", "torchtitan")["rows"]} == free & {1, 2}


def test_unknown_frameworks(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "grid", "lm-7b", "--framework", "megatrn")
    assert code == 2 and "did you mean 'megatron'" in err


def test_gpus_whatever_the_runs_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\nname = "lm-7b"\n[cluster]\ndevice = "h800"\nnodes = 4\n[parallel]\ndp = 1\ntp = 2\npp = 4\n'
        "[training]\nseq_len = 2048\nglobal_batch = 16\n"
    )
    assert main(["simulate", str(file)]) == 2  # 8 ranks, 32 GPUs
    capsys.readouterr()
    found = document(capsys, "grid", str(file), "--gpus", "16", "--vary", "tp=2,pp=2:4")
    assert found["cluster"] == "h800:2x8" and found["rows"]


def test_rows_within_noise_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("grid", "lm-7b", "--vary", "pp=4,vpp,tp=2", "--fix", "micro_batch=1", "--framework", "any")
    words += ("--set", "training.global_batch=128")
    rows = [row for row in document(capsys, *words)["rows"] if row["fits"]][:10]
    code, out, _ = run(capsys, *words)
    assert code == 0
    groups: list[list[float]] = []
    for row in rows:
        near = groups and row["iteration_time_s"] <= 1.005 * groups[-1][0]
        groups[-1].append(row["iteration_time_s"]) if near else groups.append([row["iteration_time_s"]])
    said = [int(count) for count in re.findall(r"and (\d+) like it", out)]
    assert said == [len(group) - 1 for group in groups if len(group) > 1] and sum(said) > 0
    numbered = re.findall(r"^ *(\d+)  +\d", out, flags=re.M)
    assert list(map(int, numbered)) == [1 + sum(map(len, groups[:i])) for i in range(len(groups))]


# -- what fits a terminal --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize(
    "words",
    ["list models", "list setups", "list devices", "list schedules", "list", "schedules lm-7b", "grid lm-7b"],
)
@pytest.mark.sampled(2)
def test_tables_fit_the_terminal(
    words: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, *words.split())
    table = out.partition("\nlm-7b on")[0] if words.startswith("grid") else out
    assert code == 0
    if columns == 80 or words.startswith(("list ", "schedules")):
        wide = [line for line in table.splitlines() if len(line) > max(columns, 80)]
        assert wide == []
    monkeypatch.setenv("COLUMNS", "400")
    if words == "list setups":
        assert "a wider terminal" in out and "a wider terminal" not in run(capsys, *words.split())[1]


def test_columns_lose_their_last_words_first() -> None:
    rows = [("name", "n", "text", "more"), ("a", "10", "one two three four", "x")]
    right = (False, True, False, False)
    assert fit_columns(rows, right, width=80)[1] == "a     10  one two three four  x"
    cut = fit_columns(rows, right, width=22)
    assert cut[1:3] == ["a     10  one two", "          three four"]
    assert cut[-3:] == ["", "(a wider terminal", "  shows more: more)"]
    assert fit_columns(rows, right, width=10)[1] == "a     10"


# -- files to start from ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("words", [(), ("llama3-8b",), ("vlm-m",), ("vlm-s", "--set", "training.schedule=interleaved")])
def test_init_round_trips(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    first = document(capsys, "init", *words, "-o", str(file))
    again = document(capsys, "simulate", str(file), "--dump-config")
    assert again["config"] == first["config"]
    text = file.read_text()
    assert text.count("# ") > 40 and max(map(len, text.splitlines())) <= 80
    code, out, _ = run(capsys, "init", *words)
    assert code == 0 and out.splitlines()[1:] == text.splitlines()[1:]
    code, _, err = run(capsys, "init", *words, "-o", str(file))
    assert code == 2 and "stays as it is" in err and file.read_text() == text


# -- the machine -----------------------------------------------------------------------------------------------------
def test_doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = document(capsys, "doctor")
    assert found["versions"]["semu"] == semu.__version__ and found["versions"]["numba"]
    missing = [row for row in found["extras"] if row["version"] is None]
    assert all("in a checkout" in row["install"] and "semu[" not in row["install"] for row in missing)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "f.1.nbc").write_bytes(b"12345")
    (tmp_path / "x" / "f.nbi").write_bytes(b"123")
    cache = kernel_cache()
    assert cache == {"folder": str(tmp_path), "kernels": 1, "size_bytes": 8, "is_writable": True}
    assert str(tmp_path) in run(capsys, "doctor")[1]
    missing = {
        row["command"]: (row["missing"], row["kernels"]) for row in document(capsys, "doctor")["missing_kernels"]
    }
    assert missing["simulate"][0] == missing["simulate"][1] < missing["search"][0]


@pytest.mark.slow
def test_doctor_warms(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "doctor", "--warm")
    assert all(row["missing"] == 0 for row in found["missing_kernels"])
    assert [row["command"] for row in found["warm"]] == ["simulate", "grid", "search", "others"]


def test_completion(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    code, out, _ = run(capsys, "completion", "bash")
    assert code == 0 and "--framework" in out and "llama3-70b" in out and "what-if" in out
    code, _, err = run(capsys, "completion", "bsh")
    assert code == 2 and "did you mean 'bash'" in err


def test_a_picture_of_schedules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schedules.png"
    assert run(capsys, "schedules", "lm-7b", "--compare", "zb-v", "--picture", str(file))[0] == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert run(capsys, "schedules", "lm-7b", "--picture", str(tmp_path / "no" / "x.png"))[0] == 2


# -- measurements ----------------------------------------------------------------------------------------------------
def test_a_table_without_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = INSTANCES / "gemm.csv"
    with_column = tmp_path / "with.csv"
    rows = list(csv.reader(table.read_text().splitlines()))
    with_column.write_text("\n".join(",".join([*row, "device" if not i else "H100-SXM"]) for i, row in enumerate(rows)))
    scores = [document(capsys, "calibrate", "--score", str(file), "--profile", "h100") for file in (table, with_column)]
    assert scores[0] == scores[1] and scores[0]["kinds"][0]["n"] == len(rows) - 1


def test_fits_of_plain_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    for name in ("gemm.csv", "all_reduce_perf.log"):
        place = tmp_path / f"{name}.toml"
        assert run(capsys, "calibrate", str(INSTANCES / name), "--device", "h100", "-o", str(place))[0] == 0
        assert semu.Cluster(str(place)).profile.name


# -- what is assumed -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["llama3-8b", "vlm-s", "run.toml"])
def test_json_says_where_every_setting_comes_from(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.toml"
    assert run(capsys, "init", "lm-7b", "-o", str(file))[0] == 0
    words = (str(file) if name == "run.toml" else name, "--set", "training.overhead_s=0.01")
    settings = document(capsys, "simulate", *words)["settings"]
    config = document(capsys, "simulate", *words, "--dump-config")["config"]
    assert {key: row["value"] for key, row in settings.items()} == {
        f"{table}.{key}": value for table, values in config.items() for key, value in values.items()
    }
    source = {key: row["source"] for key, row in settings.items()}
    assert source["training.overhead_s"] == "--set" and "default" in source.values()
    if name == "run.toml":
        assert file.read_text().splitlines()[int(source["parallel.tp"].split(":")[-1]) - 1].startswith("tp = 2")
    else:
        assert source["parallel.tp"] == f"{'model' if name == 'llama3-8b' else 'setup'} {name}"
