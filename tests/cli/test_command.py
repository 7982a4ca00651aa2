"""The command line: what it prints where, and every exit code."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

import semu.simulation
import semu_models
from semu.cli import console, main
from semu.hardware.profile import list_profiles
from semu.present.report import Report
from semu.runfile import load_run
from semu.runfile.resolve import resolve_run
from semu.schedule import ALL_SCHEDULES, SCHEDULES
from semu.searcher.what_if.advice import advise
from semu.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]

TINY = """\
[model.transformer]
layers = 2
hidden = 512
heads = 8
vocab = 32000

[cluster]
device = "h100"
gpus_per_node = 4

[parallel]
dp = 2
pp = 2

[training]
global_batch = 8
seq_len = 512
"""

HUGE = TINY.replace("hidden = 512", "hidden = 16384").replace("layers = 2", "layers = 8")

GUESSED_DEVICE = """\
name = "guessed"
memory_bytes = 84e9
mem_bytes_per_s = 3.0e12
nvlink_bytes_per_s = 400e9
nic_bytes_per_s = 50e9
[flop_per_s]
bf16 = 800e12
"""


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(TINY)
    return str(path)


@pytest.fixture
def semu_in_process() -> dict[str, str]:
    """Environment of a subprocess that finds this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and body of the error document of a command with ``--json``."""
    code, out, err = run(capsys, *words, "--json")
    document = json.loads(out)
    assert list(document) == ["error"]
    assert sorted(document["error"]) == ["expected", "got", "kind", "message", "nearest", "where"]
    assert err.startswith("semu: error: ")
    return code, document["error"]


@pytest.mark.parametrize(("argv", "expected"), [(None, 100_000), (["list"], 700)])
def test_only_a_process_of_its_own_collects_rarely(
    argv: list[str] | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["semu", "list"])
    before = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        assert main(argv) == 0
        assert gc.get_threshold()[0] == expected
    finally:
        gc.set_threshold(*before)


# -- simulate ------------------------------------------------------------------------------------------------------
def test_simulate_prints_the_table_of_the_report(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = simulate(load_run(tiny))
    code, out, _ = run(capsys, "simulate", tiny)
    assert (code, out) == (0, repr(advise(load_run(tiny), report)) + "\n")
    code, out, _ = run(capsys, "simulate", tiny, "--details")
    assert (code, out.endswith("\n\n" + report.details() + "\n")) == (0, True)
    code, out, _ = run(capsys, "simulate", tiny, "--provenance")
    assert (code, out.endswith("\n\n" + report.provenance_text() + "\n")) == (0, True)


def test_transfers_share_links_where_that_is_asked_for(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", tiny, "--contention")
    expected = simulate(load_run(tiny), contention=True)
    assert (code, out) == (0, repr(expected) + "\n")
    assert "transfers slowed" in out
    code, out, _ = run(capsys, "simulate", tiny, "--contention", "--json")
    assert expected.contention is not None
    assert (code, json.loads(out)["contention"]) == (0, expected.contention.to_json())
    assert "contention" not in json.loads(run(capsys, "simulate", tiny, "--json")[1])
    code, error = error_of(capsys, "simulate", tiny, "--contention", "--samples", "5", "--set", "training.jitter=0.1")
    assert (code, error["where"], error["nearest"]) == (2, "samples", 0)


def test_samples_of_the_iteration(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", tiny, "--json", "--samples", "30", "--seed", "4")
    code, out, _ = run(capsys, *words, "--set", "training.jitter=0.1")
    document = json.loads(out)
    expected = simulate(load_run(tiny, ["training.jitter=0.1"]), samples=30, seed=4).samples
    assert expected is not None
    assert (code, document["samples"]) == (0, expected.to_json())
    assert document["samples"]["iteration_time_s"]["p50"] < document["samples"]["iteration_time_s"]["p95"]
    code, out, err = run(capsys, *words)
    both = json.loads(out)["samples"]["iteration_time_s"]
    assert (code, both["p50"]) == (0, both["p95"])
    assert "training.jitter is 0" in err
    code, _, err = run(capsys, "simulate", tiny, "--samples", "-1")
    assert code == 2
    assert "samples" in err


def test_simulate_json_is_the_report(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", tiny, "--json")
    report = advise(load_run(tiny), simulate(load_run(tiny)))
    document = json.loads(out)
    assert code == 0
    settings = document.pop("settings")
    assert settings == json.loads(json.dumps(resolve_run(tiny).settings()))
    assert settings["cluster.device"]["value"] == "h100" and tiny in settings["cluster.device"]["source"]
    assert settings["batch.kind"]["source"] == "default"
    assert document == json.loads(json.dumps(report.to_json()))
    promised = {
        "iteration_time_s",
        "mfu",
        "hfu",
        "model_tflop_per_s_per_gpu",
        "tokens_per_s_per_gpu",
        "bubble_ratio",
        "peak_memory_bytes",
        "static_memory_bytes",
        "reserved_memory_bytes",
        "fits",
        "parameters",
        "breakdown_s",
        "provenance",
        "warnings",
    }
    assert promised <= set(document)
    assert {"compute", "exposed_communication", "bubble", "optimizer", "other"} <= set(document["breakdown_s"])


def test_virtual_stages_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The bubble shrinks; chunks name their virtual stages; more of them than blocks are refused at the flag."""
    reports = {}
    for vpp in (1, 2):
        words = ["simulate", "lm-7b", "--cluster", "h800:4x8", "--parallel", f"dp1-tp8-pp4-vpp{vpp}", "--json"]
        code, out, _ = run(capsys, *words, "--set", "training.global_batch=8")
        assert code == 0
        reports[vpp] = json.loads(out)
    assert reports[2]["bubble_ratio"] < reports[1]["bubble_ratio"]
    places = [(chunk["rank"], chunk["virtual_stage"]) for chunk in reports[2]["job"]["chunks"]]
    assert places == [(rank, slot) for slot in range(2) for rank in range(4)]
    words[words.index("--parallel") + 1] = "dp1-tp8-pp4-vpp9"
    code, error = error_of(capsys, *words[:-1], "--set", "training.global_batch=8")
    assert (code, error["where"], error["nearest"]) == (2, "--parallel parallel.vpp", 8)


def test_a_setup_with_flags(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "vlm-m", "--cluster", "h800:8x8", "--parallel", "dp8-tp2-pp4", "--seed", "3", "--json"]
    code, out, err = run(capsys, *words)
    job = json.loads(out)["job"]
    assert code == 0
    assert (job["cluster"], job["training"]["global_batch"], job["batch"]["seed"]) == (
        {"device": "h800", "nodes": 8, "gpus_per_node": 8},
        128,
        3,
    )
    assert "semu: training.global_batch: 16 -> 128" in err


@pytest.mark.slow
def test_what_stderr_tells_is_in_the_result_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "lm-7b", "--set", "training.micro_batch=2", "--set", "batch.kind=vlm", "--json"]
    _, out, err = run(capsys, *words, "--out", str(tmp_path))
    warnings = json.loads(out)["warnings"]
    (change,) = (text for text in warnings if text.startswith("training.global_batch: 73 -> 72"))
    (stream,) = (text for text in warnings if "'vision'" in text)
    assert err.startswith(f"semu: {change}\nsemu: {stream}\n")
    assert json.loads((tmp_path / "result.json").read_text())["warnings"] == warnings
    assert f"note: {change}" in " ".join(run(capsys, *words[:-1], "--details")[1].split())


def test_set_changes_the_run(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "training.seq_len=1024", "--set", "parallel.zero=0", "--profile", "h200"]
    _, out, _ = run(capsys, "simulate", tiny, "--json", *words)
    document = json.loads(out)
    assert document["tokens_per_iteration"] == 8 * 1024
    assert document["job"]["parallel"]["zero"] == 0
    assert document["job"]["cluster"]["device"] == "h200"


def test_out_writes_the_files_and_says_so(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "simulate", tiny, "--json", "--out", str(tmp_path / "out"))
    names = ["result.json", "trace.json.gz", "timeline.png", "memory.png", "report.html"]
    assert code == 0
    assert [row for row in err.split("\n") if "wrote" in row] == [
        f"semu: wrote {tmp_path / 'out' / name}" for name in names
    ]
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == json.loads(out)


def test_dump_config_stops_and_loads_back(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["simulate", tiny, "--set", "training.recompute=full", "--dump-config"]
    with monkeypatch.context() as patch:
        patch.setattr(semu.simulation, "simulate", None)
        code, out, _ = run(capsys, *words)
        _, as_json, _ = run(capsys, *words, "--json")
    assert code == 0
    assert json.loads(as_json) == {"config": tomllib.loads(out)}
    (tmp_path / "again.toml").write_text(out)
    assert run(capsys, "simulate", str(tmp_path / "again.toml"), "--dump-config")[1] == out
    _, first, _ = run(capsys, *words[:-1], "--json")
    _, second, _ = run(capsys, "simulate", str(tmp_path / "again.toml"), "--json")
    documents = [json.loads(text) for text in (first, second)]
    values = [{key: entry["value"] for key, entry in one.pop("settings").items()} for one in documents]
    assert documents[0] == documents[1] and values[0] == values[1]


# -- exit codes ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("is_json", [False, True])
def test_what_does_not_fit_is_printed_and_exits_3(
    is_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "huge.toml"
    path.write_text(HUGE)
    code, out, err = run(capsys, "simulate", str(path), *(["--json"] if is_json else []))
    report = simulate(load_run(path))
    need = max(sum(kinds) - kinds.capacity for kinds in report.memory)
    over = (need - report.capacity_bytes) / 2**30
    assert over > 0
    assert code == 3
    rank = report.fullest_rank
    assert f"semu: does not fit: rank {rank} needs {need / 2**30:.2f} GiB, {over:.2f} GiB more than" in err
    if is_json:
        document = json.loads(out)
        assert (document["fits"], "error" in document) == (False, False)
    else:
        shown = [row for row in repr(report).split("\n") if not row.startswith("fits with")]
        assert [row for row in shown[:9] if row not in out.split("\n")] == []


@pytest.mark.slow
def test_a_change_that_fits_is_told_with_what_it_saves_and_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Activations of 64 GiB and more: recomputation is enough, and what is told of it is what it gives."""
    path = tmp_path / "long.toml"
    path.write_text(TINY.replace("layers = 2", "layers = 96"))
    words = ["simulate", str(path), "--set", "training.seq_len=65536", "--set", "training.recompute=none"]
    code, out, _ = run(capsys, *words, "--json")
    assert code == 3
    before = json.loads(out)
    by_change = {tuple(entry["settings"].items()): entry for entry in before["nearest_fit"]}
    entry = by_change[(("training.recompute", "full"),)]
    code, out, _ = run(capsys, *words, "--set", "training.recompute=full", "--json")
    after = json.loads(out)
    assert code == 0
    assert "nearest_fit" not in after
    assert entry["peak_memory_bytes"] == max(after["peak_memory_bytes"])
    assert entry["saved_bytes"] == max(before["peak_memory_bytes"]) - max(after["peak_memory_bytes"])
    assert entry["iteration_time_s"] == after["iteration_time_s"]
    assert entry["added_time_s"] == after["iteration_time_s"] - before["iteration_time_s"]
    times = [entry["iteration_time_s"] for entry in before["nearest_fit"]]
    assert times == sorted(times)
    _, out, _ = run(capsys, *words, "--details")
    assert "changes after which it fits in memory, the fastest first" in out
    assert "training.recompute=full" in out


@pytest.mark.parametrize(
    ("words", "where", "nearest"),
    [
        (["--set", "parallel.tpp=2"], "--set parallel.tpp", "tp"),
        (["--set", "model.transformer.layer=2"], "--set model.transformer.layer", "layers"),
        (["--cluster", "h100:1x8"], "RUN:11 parallel", "dp = 4"),
        (["--cluster", "h10:1x8"], "--cluster", "h100"),
        (["--parallel", "dp8"], "--parallel parallel", "dp = 4"),
        (["--set", "training.global_batch=7"], "--set training.global_batch", 6),
        (["--set", "parallel.ep=2"], "--set parallel.ep", 1),
        (["--set", "parallel.cp_kind=rings"], "--set parallel.cp_kind", "ring"),
        (["--set", "training.schedule=1f1"], "--set training.schedule", "1f1b"),
        (["--profile", "absent/device.toml"], "absent/device.toml", None),
        (["--seed", "x"], "semu simulate", None),
        (["--clusters", "h100:1x4"], "semu simulate", "--cluster"),
        (["another"], "semu simulate", None),
    ],
)
def test_bad_input_exits_2_and_says_where(
    words: list[str], where: str, nearest: object, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = error_of(capsys, "simulate", tiny, *words)
    assert (code, error["where"], error["nearest"]) == (2, where.replace("RUN", tiny), nearest)
    assert error["kind"] == "ConfigError"


def test_heads_that_tensor_parallelism_does_not_divide(capsys: pytest.CaptureFixture[str]) -> None:
    code, error = error_of(capsys, "simulate", "vlm-m", "--cluster", "h800:4x16", "--parallel", "tp16-pp4")
    assert code == 2
    assert error["where"].startswith("--parallel parallel.tp")
    assert (error["expected"], error["got"], error["nearest"]) == ("a divisor of 40", "tp = 16", 10)


def test_unknown_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "simulate", "vlm-mm")[1]["nearest"] == "vlm-m"
    assert "semu list models" in error_of(capsys, "simulate", "qwen9-32b")[1]["expected"]
    assert error_of(capsys, "simulate", "absent/run.toml")[1]["where"] == "absent/run.toml"


def test_a_corrupt_line_of_metadata(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "meta.jsonl").write_text('{"text_tokens": 5}\n{"text_tokens": -5}\n')
    Path(tiny).write_text(TINY + '[batch]\nkind = "file"\npath = "meta.jsonl"\n')
    code, error = error_of(capsys, "simulate", tiny)
    assert (code, error["where"]) == (2, f"{tmp_path / 'meta.jsonl'}:2")


def test_a_batch_that_the_model_cannot_read(capsys: pytest.CaptureFixture[str]) -> None:
    code, error = error_of(capsys, "simulate", "vlm-m", "--set", "batch.kind=text")
    assert (code, error["where"]) == (2, "--set batch.kind")
    assert "vision" in error["message"]


def test_strict_refuses_default_coefficients(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = tmp_path / "guessed.toml"
    device.write_text(GUESSED_DEVICE)
    code, error = error_of(capsys, "simulate", tiny, "--profile", str(device), "--strict", "--out", str(tmp_path / "o"))
    assert (code, error["kind"]) == (5, "MissingCoefficientError")
    assert "matmul" in error["where"]
    assert not (tmp_path / "o").exists()
    assert run(capsys, "simulate", tiny, "--profile", str(device))[0] == 0
    code, out, _ = run(capsys, "simulate", tiny, "--strict", "--json")
    assert code == 0
    assert "default" not in json.loads(out)["provenance"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("setup", ["lm-7b", "vlm-s"])
def test_an_interval_that_is_too_wide_is_refused(setup: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", setup, "--json")
    found = json.loads(out)
    above = 100 * (found["iteration_time_interval_s"][1] / found["iteration_time_s"] - 1)
    code, error = error_of(capsys, "simulate", setup, "--strict-interval", str(above - 0.1))
    assert (code, error["kind"], error["got"]) == (5, "MissingCoefficientError", f"{above:.1f} %")
    assert found["uncertainty"]["kinds"][0]["kind"] in error["where"]
    assert run(capsys, "simulate", setup, "--strict-interval", str(above + 0.1))[0] == 0
    assert error_of(capsys, "simulate", setup, "--strict-interval", "-1")[0] == 2


def test_too_little_memory_is_no_defect(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a process may have less memory than a run of many microbatches takes, that was a defect in semu."""

    def _fail(*_: object, **__: object) -> None:
        raise MemoryError("Allocation failed (probably too large).")

    monkeypatch.setattr("semu.simulation.simulate", _fail)
    code, out, err = run(capsys, "simulate", tiny, "--json")
    error = json.loads(out)["error"]
    assert (code, error["kind"]) == (2, "ConfigError")
    assert "not the memory" in err and "defect" not in err


def test_a_defect_exits_70(tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Report:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(semu.simulation, "simulate", broken)
    code, error = error_of(capsys, "simulate", tiny)
    assert (code, error["kind"], error["message"]) == (70, "InternalError", "ZeroDivisionError: a bug")
    _, _, err = run(capsys, "simulate", tiny)
    assert "please report" in err
    assert "Traceback" not in err
    assert "in broken" in run(capsys, "simulate", tiny, "--debug")[2]


@pytest.mark.parametrize("is_json", [False, True])
def test_an_interrupt_exits_130(
    is_json: bool, tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> Report:
        raise KeyboardInterrupt

    monkeypatch.setattr(semu.simulation, "simulate", interrupted)
    code, out, err = run(capsys, "simulate", tiny, *(["--json"] if is_json else []))
    assert (code, err) == (130, "semu: interrupted\n")
    assert json.loads(out)["error"]["kind"] == "Interrupted" if is_json else out == ""


def test_a_number_that_json_lacks_is_a_defect(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Infinite:
        fits, provenance = True, {}  # type: ignore[var-annotated]

        def to_json(self) -> dict[str, float]:
            return {"mfu": float("inf")}

    monkeypatch.setattr(semu.simulation, "simulate", lambda *_, **__: Infinite())
    assert error_of(capsys, "simulate", tiny)[0] == 70


# -- list, version, help -------------------------------------------------------------------------------------------
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("models", list(semu_models.MODELS)),
        ("setups", list(semu_models.SETUPS)),
        ("devices", list_profiles()),
        ("schedules", [*SCHEDULES, *(name for name in ALL_SCHEDULES if name not in SCHEDULES)]),
    ],
)
def test_lists(what: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "list", what)
    rows = text.split("\n\n")[0].strip().split("\n")[1:]
    rows = [row for row in rows if not row.startswith(" ")]  # the others go on with a description
    assert (code, [row.split()[0] for row in rows]) == (0, names)
    code, out, _ = run(capsys, "list", what, "--json")
    assert (code, [row["name"] for row in json.loads(out)[what]]) == (0, names)


def test_list_alone_lists_the_lists(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "list")
    names = [row.split()[0] for row in text.strip().split("\n")[1:]]
    assert (code, names) == (0, ["models", "setups", "devices", "schedules", "masks"])
    rows = json.loads(run(capsys, "list", "--json")[1])["lists"]
    assert [row["name"] for row in rows] == names
    assert all(run(capsys, "list", name)[0] == 0 for name in names)


def test_a_listed_device_tells_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(run(capsys, "list", "devices", "--json")[1])["devices"]}
    assert rows["h800"]["nic_bytes_per_s"] == 25e9  # 200 Gbit/s
    assert rows["h800-400g"]["nic_bytes_per_s"] == 50e9
    assert 79.0 < rows["h100"]["memory_bytes"] / 2**30 < 79.2


def test_a_listed_model_tells_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in json.loads(run(capsys, "list", "models", "--json")[1])["models"]}
    assert rows["vlm-m"]["parameters"] == sum(rows["vlm-m"]["modules"].values())


@pytest.mark.parametrize(
    ("words", "nearest"),
    [(["simulat", "x"], "simulate"), (["list", "device"], "devices"), (["simulate"], None), ([], None)],
)
def test_bad_commands(words: list[str], nearest: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = error_of(capsys, *words)
    assert (code, error["nearest"]) == (2, nearest)


def test_json_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "--json", "list", "schedules")[1])["schedules"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert run(capsys, "--version") == (0, f"semu {project['version']}\n", "")


@pytest.mark.parametrize("words", [["--help"], ["simulate", "--help"], ["validate", "--help"], ["list", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert out.startswith("usage: semu")


# -- as a process --------------------------------------------------------------------------------------------------
@pytest.mark.extras
def test_help_imports_nothing_heavy(semu_in_process: dict[str, str]) -> None:
    code = "import sys, semu.cli; semu.cli.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], env=semu_in_process, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "semu.cli.options.every" in loaded
    assert loaded & {"numpy", "numba", "matplotlib", "semu_models", "semu.present.report", "semu.job"} == set()


@pytest.mark.slow
def test_streams_of_a_process(tiny: str, semu_in_process: dict[str, str]) -> None:
    command = [sys.executable, "-m", "semu.cli", "simulate", tiny, "--json"]
    done = subprocess.run(command, env=semu_in_process, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["fits"] is True
    bad = subprocess.run([*command, "--set", "a.b=1"], env=semu_in_process, capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert json.loads(bad.stdout)["error"]["where"] == "--set a"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", [["--help"], ["list", "models"], ["list", "devices", "--json"]])
def test_a_reader_that_goes_away_is_no_error(words: list[str], semu_in_process: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "semu.cli", *words],
        env=semu_in_process,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    messages = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), messages) == (0, "")


@pytest.mark.slow
def test_a_terminal_without_unicode(semu_in_process: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "semu.cli", "list", "models"],
        env={**semu_in_process, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.isascii()


# -- progress ------------------------------------------------------------------------------------------------------
def test_quick_steps_say_nothing_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.Progress() as progress:
        progress("first")
        progress("second")
    assert capsys.readouterr().err == ""


def test_long_steps_say_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PATIENCE_S", 0.05)
    with console.Progress() as progress:
        for step in ("costing", "running"):
            progress(step)
            time.sleep(0.2)
    lines = [row.partition("] ")[2] for row in capsys.readouterr().err.strip().split("\n")]
    assert lines == ["costing", "running"]


def test_a_terminal_sees_every_step(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with console.Progress() as progress:
        progress("first")
        progress("second")
    assert [row.partition("] ")[2] for row in capsys.readouterr().err.strip().split("\n")] == ["first", "second"]
