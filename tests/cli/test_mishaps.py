"""Mistakes and mishaps of everyday use: each gets a plain answer, and nothing that was computed is lost."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli.test_command import TINY

import semu.schedule
import semu_models
from semu.cli import main
from semu.errors import ConfigError, unknown_name
from semu.schedule.registry import ALL_SCHEDULES
from semu.searcher.grid.space import RankBy

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=[2, 4])
def run_file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(TINY.replace("layers = 2", f"layers = {request.param}"))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def process(words: Sequence[str], *, stdout: str | None = None, cwd: Path | None = None) -> tuple[int, str]:
    """Exit code and stderr of a command in a process of its own."""
    with open(stdout or os.devnull, "w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "semu", *words],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=300,
        )
    return done.returncode, done.stderr


# -- messages ------------------------------------------------------------------------------------------------------
def test_a_value_in_a_message_is_short() -> None:
    error = ConfigError("no", got="a" * 10**6, nearest="b" * 10**6)
    assert len(str(error)) < 500 and "(1,000,000 characters)" in str(error)
    assert len(json.dumps(error.to_json())) < 700
    assert len(str(unknown_name("setup", "x" * 10**6, ["lm-7b"]))) < 700
    error = unknown_name("order", "tim", list(RankBy))
    assert "did you mean 'time'?" in str(error) and "RankBy" not in str(error)


@pytest.mark.parametrize("text", ["[" * 3000, '{"a": "' + "b" * 10**6 + '"}', "words " * 10**5, "w" * 10**5])
@pytest.mark.sampled(2)
def test_import_does_not_print_a_file_back(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("big.json", "big.sh", "big.txt"):
        (tmp_path / name).write_text(text)
        code, out, err = run(capsys, "import", str(tmp_path / name))
        assert (code, out) == (2, "") and len(err) < 3000


@pytest.mark.parametrize("text", ['{"a": [' + "1, " * 10**6 + "1]}", "[" + '{"a": "b"}, ' * 10**5 + "1]"])
def test_calibrate_does_not_read_json_as_a_header(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semu.fitting.readers.tables.read_table", None)
    (tmp_path / "big.json").write_text(text)
    code, _, err = run(capsys, "calibrate", str(tmp_path / "big.json"), "--device", "h100")
    assert code == 2 and "JSON without traceEvents" in err and len(err) < 600


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("layers = 100_000_000", "expected an integer from 1 to 16384"),
        ("hidden = 9223372036854775808", "nearest allowed: 2147483647"),
        ("vocab = 4_000_000_000", "nearest allowed: 2147483647"),
        ("hidden = 100_000_000", "too large to be counted"),
    ],
)
def test_sizes_beyond_64_bits_are_refused(
    change: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, products of them began again below zero, and MFU was 300 %."""
    key = change.partition(" ")[0]
    lines = [change if line.startswith(f"{key} = ") else line for line in TINY.splitlines()]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    code, out, err = run(capsys, "simulate", str(tmp_path / "run.toml"))
    assert (code, out) == (2, "") and said in err


def test_options_that_other_programs_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean '--device'?" in run(capsys, "simulate", "lm-7b", "--devise", "h100")[2]
    _, _, err = run(capsys, "simulate", "lm-7b", "--sede", "1")
    assert "did you mean '--seed'?" in err
    assert "did you mean" not in run(capsys, "simulate", "lm-7b", "--xyzzy", "1")[2]
    _, _, err = run(capsys, "simulate", "lm-7b", "--set")
    assert "--set needs a value" in err and "expected see" not in err


def test_folders_and_links_are_not_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.toml").mkdir()
    code, _, err = run(capsys, "simulate", str(tmp_path / "x.toml"))
    assert code == 2 and "Is a directory" in err and "nearest" not in err
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "simulate", "a")
    assert code == 2 and "symbolic links" in err


# -- files ---------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", [("simulate",), ("simulate", "--json"), ("--help",), ("schedules",)])
def test_stdout_on_a_full_disk(words: tuple[str, ...], run_file: str) -> None:
    others = words if words == ("--help",) else (words[0], run_file, *words[1:])
    code, err = process(others, stdout="/dev/full")
    assert code == 2 and "cannot write to stdout: No space left on device" in err
    assert "defect" not in err and "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("simulate",), "result.json"),
        (("what-if",), "what_if.json"),
        (("grid", "--vary", "tp", "--top", "2"), "grid.csv"),
        (("search", "--rollouts", "1"), "schedule.json"),
    ],
)
@pytest.mark.sampled(4)
def test_the_text_outlives_a_full_disk(
    words: tuple[str, ...], file: str, run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / file).symlink_to("/dev/full")
    code, out, err = run(capsys, words[0], run_file, *words[1:], "--out", str(tmp_path / "out"))
    assert code == 2 and "No space left on device" in err
    assert len(out.splitlines()) > 5
    code, out, _ = run(capsys, words[0], run_file, *words[1:], "--out", str(tmp_path / "out"), "--json")
    assert code == 2 and json.loads(out)["error"]["kind"] == "ConfigError"


def test_an_imported_run_on_stdout_may_go_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "import", "config.json")
    assert code == 0
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "r.toml").write_text(out)
    assert run(capsys, "simulate", "sub/r.toml")[0] == 0
    assert run(capsys, "import", "config.json", "-o", "sub/s.toml")[0] == 0
    assert 'hf_config = "../config.json"' in (tmp_path / "sub" / "s.toml").read_text()


@pytest.mark.sampled(2)
def test_how_much_of_a_trace_is_written(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = {}
    for detail in ("full", "ranks", "json", "none"):
        folder = tmp_path / detail
        assert run(capsys, "simulate", run_file, "--out", str(folder), "--trace", detail)[0] == 0
        (*names,) = (path.name for path in folder.glob("trace*"))
        assert names == {"none": [], "json": ["trace.json"]}.get(detail, ["trace.json.gz"])
        for name in names:
            data = (folder / name).read_bytes()
            text = gzip.decompress(data) if name.endswith(".gz") else data
            events[detail] = json.loads(text)["traceEvents"]
    assert events["full"] == events["json"]
    stages = [event for event in events["full"] if event.get("args", {}).get("level") == "stage"]
    assert [event for event in events["ranks"] if event.get("args", {}).get("level") == "stage"] == stages
    assert len(events["ranks"]) < len(events["full"]) / 2
    code, out, err = run(capsys, "simulate", run_file, "--out", str(tmp_path / "o"), "--trace", "all")
    assert (code, out) == (2, "") and "one of full, json, none, ranks" in err


def test_a_picture_of_a_plan_comes_with_a_summary(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, picture = str(tmp_path / "plan.json"), str(tmp_path / "plan.png")
    assert run(capsys, "plan", run_file, "-o", plan)[0] == 0
    listed, drawn = (
        run(capsys, "plan", "--show", plan, *more)[1].splitlines() for more in ((), ("--picture", picture))
    )
    assert len(drawn) < 20 < len(listed)
    one = run(capsys, "plan", "--show", plan, "--picture", picture, "--rank", "1")[1].splitlines()
    assert len(drawn) < len(one) < len(listed)


# -- grid ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--axes", "tp"), "--axes"),
        (("--axes", "tp,ep"), "--axes"),
        (("--top", "0"), "--top"),
        (("--rank-by", "colour"), "--rank-by"),
        (("--rank-by", "cost"), "--price"),
        (("--workers", "0"), "--workers"),
        (("--gpus", "0"), "--gpus"),
        (("--vary", "colour"), "--vary"),
        (("--vary", "tp", "--fix", "zero=9"), "--fix zero"),
    ],
)
def test_a_grid_names_flags_and_checks_them_first(
    words: tuple[str, ...],
    where: str,
    run_file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semu.searcher.grid.grid_search.legal_points", None)
    code, out, _ = run(capsys, "grid", run_file, *words, "--json")
    assert code == 2 and json.loads(out)["error"]["where"] == where


# -- the rest ------------------------------------------------------------------------------------------------------
def test_rows_that_cannot_be_read_are_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.json").write_text('[{"a": 1}, 3]')
    code, out, err = run(capsys, "validate", "--runs", str(tmp_path / "runs.json"))
    assert code == 2 and "2 error" in out
    assert "semu: row 1: trust: missing field" in err and "row row" not in err
    assert "2 of 2 rows cannot be read" in err


@pytest.mark.skipif(find_spec("scipy") is None, reason="scipy is the fit extra")
def test_few_rows_of_nccl_tests_are_said_to_be_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["#       size         count      type   redop    root     time   algbw   busbw #wrong"]
    lines[0:0] = ["# nThread 1 nGpus 8 minBytes 1048576 maxBytes 8388608", "#"]
    for number in range(3):
        size = 2 ** (26 + number)
        time_us = size * 1.75 / 400e9 * 1e6
        algbw = size / time_us / 1e3
        lines.append(f"{size} {size // 4} float sum -1 {time_us:.2f} {algbw:.2f} {algbw * 1.75:.2f} 0")
    (tmp_path / "all_reduce_perf.log").write_text("\n".join(lines) + "\n")
    words = ("calibrate", str(tmp_path / "all_reduce_perf.log"), "--device", "h100")
    code, out, err = run(capsys, *words)
    assert code == 0, err
    words = " ".join(out.split())
    assert "3 rows, too few sizes or ranks for " in words and "the profile's values stay" in words


def test_what_schedules_offer_is_listed() -> None:
    assert {"PipelineStudy", "ALL_SCHEDULES"} <= {*dir(semu.schedule)}
    assert semu.schedule.ALL_SCHEDULES == ALL_SCHEDULES


def test_two_schedules_of_the_documents_differ(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "explanation" / "checkpoints.md").read_text()
    code = text[text.index("state = semu.prepare(") :].partition("```")[0]
    exec(code, {"semu": semu, "semu_models": semu_models})
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.split()[1] != second.split()[1]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is the executor extra")
def test_a_killed_rank_ends_a_demo_cleanly(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(tmp_path / "plan.json")
    assert run(capsys, "plan", run_file, "-o", plan)[0] == 0
    work = (
        "import sys, threading, time\n"
        "from multiprocessing import active_children\n"
        "from semu.cli import main\n"
        "def kill():\n"
        "    while len(active_children()) < 2:\n"
        "        time.sleep(0.1)\n"
        "    time.sleep(8.0)\n"
        "    active_children()[-1].kill()\n"
        "if __name__ == '__main__':\n"
        "    threading.Thread(target=kill, daemon=True).start()\n"
        f"    sys.exit(main(['run', {plan!r}, '--demo', '--iterations', '100000', '--timeout', '8']))\n"
    )
    (tmp_path / "work.py").write_text(work)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "work.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert done.returncode == 6, done.stderr
    assert "the rank's process has died" in done.stderr and "SIGKILL" in done.stderr
    assert "terminate called" not in done.stderr and "frame #" not in done.stderr
