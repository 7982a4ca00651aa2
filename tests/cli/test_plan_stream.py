"""``semu plan RUN --iterations``, ``--stream``: table, files, exit codes, loops that are broken off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.runs import SMALL_VLM

from semu.cli import main

SMALL = (SMALL_VLM, "--set", "training.global_batch=2")
QUICK = (*SMALL, "--rollouts", "10")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def plain(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "measured"}


@pytest.mark.slow
def test_the_table_the_files_and_a_loop_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
    code, out, _ = run(capsys, *QUICK, "--iterations", "2", "--out", whole)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["iteration", "text", "vision", "plan"]
    assert [line.split()[0] for line in lines[1:3]] == ["0", "1"]
    assert "2 of 2 iterations, ended by iterations" in out
    files = ["iterations.png", "report.html", "result.json", "state.json"]
    assert sorted(path.name for path in Path(whole).iterdir()) == files
    assert (Path(whole) / "iterations.png").read_bytes()[:4] == b"\x89PNG"
    result = json.loads((Path(whole) / "result.json").read_text())
    assert result["outcomes"] == {"planned": 2, "best so far": 0, "heuristic": 0, "fallback": 0}
    assert result["is_reproducible"]
    assert {"hidden_share", "latency_median_s", "latency_p95_s"} <= result["measured"].keys()
    for row in result["rows"]:
        assert row["planned_s"] <= row["heuristic_s"]
        assert row["gain"] == row["megatron_s"] / row["planned_s"]
        assert row["gain_alike"] == row["alike_s"] / row["planned_s"]
        assert 1.0 <= row["gain_alike"] <= row["gain"]
    alike = sum(row["alike_s"] for row in result["rows"]) / sum(row["planned_s"] for row in result["rows"])
    assert result["gain_over_megatron_alike"] == alike
    assert f"{alike:.3f} x its speed with the recomputation that fits best" in " ".join(out.split())
    # a loop of one, and one more behind it: the same plans as in one go
    assert run(capsys, *QUICK, "--iterations", "1", "--out", broken)[0] == 0
    code, out, err = run(capsys, *QUICK, "--iterations", "2", "--out", broken, "--resume", "--json")
    assert code == 0
    assert "going on behind 1 iteration" in err
    again = json.loads(out)
    assert {name: again[name] for name in plain(result)} == plain(result)
    code, _, err = run(capsys, *SMALL, "--rollouts", "11", "--iterations", "2", "--out", broken, "--resume")
    assert code == 2
    assert "rollouts differs" in err
    (Path(broken) / "state.json").write_text("[]")
    assert run(capsys, *QUICK, "--iterations", "2", "--out", broken, "--resume")[0] == 2


@pytest.mark.slow
def test_a_stream_is_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stream.jsonl"
    code, out, _ = run(capsys, *SMALL, "--iterations", "2", "--write-stream", str(path), "--json")
    assert (code, json.loads(out)["iterations"]) == (0, 2)
    path.write_text(path.read_text() + "{nonsense\n")
    words = (*QUICK, "--stream", str(path), "--out", str(tmp_path / "out"))
    code, out, err = run(capsys, *words, "--json")
    assert code == 2
    document = json.loads(out)
    assert (document["ended_by"], len(document["rows"])) == ("error", 2)
    assert document["error"]["where"] == f"{path}:3"
    assert "not JSON" in err
    assert json.loads((tmp_path / "out" / "result.json").read_text())["rows"] == document["rows"]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    code, out, err = run(capsys, *words, "--iterations", "5", "--json")
    assert code == 0
    again = json.loads(out)
    assert (again["ended_by"], again["asked"], again["rows"]) == ("stream", 5, document["rows"])
    assert "the stream ended after 2 of 5" in err
    path.write_text('\n{"microbatches": [{"streams": {"vision": [4]}}]}\n')
    code, out, err = run(capsys, *QUICK, "--stream", str(path), "--json")
    assert (code, json.loads(out)["error"]["where"]) == (2, f"iteration 0, {path}:2, microbatch 0")
    path.write_text("{nonsense\n")
    code, out, err = run(capsys, *QUICK, "--stream", str(path), "--json")
    assert (code, json.loads(out)["error"]["where"]) == (2, f"{path}:1")


def put(table: Any, *path: Any) -> None:
    for key in path[:-2]:
        table = table[key]
    table[path[-2]] = path[-1]


def test_a_damaged_state_is_no_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is wrong with it: it is named, and left as it is."""
    path = tmp_path / "state.json"
    measured = {"latency_s": 1.0, "prepare_s": 1.0, "cpu_s": 1.0, "trained_s": 1.0, "stall_s": 0.0}
    times = {"planned_s": 1.0, "heuristic_s": 1.0, "megatron_s": None, "peak_memory_bytes": 1, "fits": True}
    said = {"outcome": "planned", "ended_by": "rollouts", "error": None}
    counts = {"index": 0, "microbatches": 2, "items": {"text": 2}, "rollouts": 1, "moves": 0}
    row = {**measured, **times, **said, **counts}
    for change in (
        ("key", [1]),
        ("key", None),
        ("rows", 3),
        ("rows", 0, "planned_s", "x"),
        ("rows", 0, "latency_s", None),
        ("rows", 0, "stall_s", float("nan")),
        ("rows", 0, "items", [2]),
        ("rows", 0, "items", {"text": "two"}),
        ("rows", 0, "outcome", "done"),
        ("rows", 0, "error", 5),
        ("rows", 0, "index", 7),
        ("rows", 0, "items", {"text": 10**400}),
        ("priorities", {"modules": ["llm"], "wish": [[1.0]], "level": 0.0}),
    ):
        table: Any = {"key": {}, "rows": [dict(row)], "priorities": None}
        put(table, *change)
        path.write_text(json.dumps(table))
        code, out, _ = run(capsys, *QUICK, "--iterations", "2", "--out", str(tmp_path), "--resume", "--json")
        error = json.loads(out)["error"]
        assert (code, error["where"], error["message"]) == (2, str(path), "not the state of a loop"), change
        assert path.read_text() == json.dumps(table)


@pytest.mark.slow
def test_a_shorter_loop_keeps_what_a_longer_one_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*QUICK, "--out", str(tmp_path), "--resume", "--json")
    assert run(capsys, *words, "--iterations", "2")[0] == 0
    before = (tmp_path / "state.json").read_text()
    code, out, _ = run(capsys, *words, "--iterations", "1")
    assert (code, len(json.loads(out)["rows"])) == (0, 1)
    assert (tmp_path / "state.json").read_text() == before


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from semu.searcher.planner import planner

    inner, calls = planner.Planner.take, []

    def take(*arguments: Any, **options: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return inner(*arguments, **options)

    monkeypatch.setattr(planner.Planner, "take", take)
    code, out, err = run(capsys, *QUICK, "--iterations", "9", "--out", str(tmp_path), "--json")
    assert code == 130
    assert "interrupted" in err
    document = json.loads(out)
    assert (document["ended_by"], len(document["rows"]), document["asked"]) == ("interrupt", 2, 9)
    assert json.loads((tmp_path / "result.json").read_text())["rows"] == document["rows"]
    monkeypatch.undo()
    _, out, _ = run(capsys, *QUICK, "--iterations", "3", "--out", str(tmp_path), "--resume", "--json")
    again = json.loads(out)
    _, out, _ = run(capsys, *QUICK, "--iterations", "3", "--json")
    assert again["rows"] == json.loads(out)["rows"]


@pytest.mark.slow
def test_a_time_limit_and_a_pace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*SMALL, "--time", "0.05", "--iterations", "2", "--speed", "1000", "--sleep", "--deadline", "30", "--json")
    code, out, _ = run(capsys, *words)
    assert code == 0
    document = json.loads(out)
    assert not document["is_reproducible"]
    assert document["measured"]["speed"] == 1000
    for row, measured in zip(document["rows"], document["measured"]["rows"], strict=True):
        assert measured["trained_s"] == row["planned_s"] / 1000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume",), "--iterations"),
        (("--iterations", "0"), "--iterations"),
        (("--iterations", "2", "--speed", "0"), "--speed"),
        (("--iterations", "2", "--speed", "inf"), "--speed"),
        (("--iterations", "2", "--deadline", "nan"), "--deadline"),
        (("--iterations", "2", "--resume"), "--out"),
        (("--iterations", "2", "--workers", "100000"), "workers"),
        (("--iterations", "2", "--rollouts", "-1"), "rollouts"),
        (("--stream", "missing.jsonl"), "missing.jsonl"),
        (("--iteration", "2"), "--iterations"),
        (("--iterations", "2", "--write-stream", "none/a.jsonl"), "no such folder"),
        (("--iterations", "2", "--write-stream", "a.jsonl", "--out", "a"), "nothing is trained"),
    ],
)
def test_bad_input_is_named(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, *words)
    assert (code, out) == (2, "")
    assert said in err


def test_memory_that_does_not_suffice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--set", "cluster.override.memory_bytes=2000000000", "--iterations", "2")
    code, out, _ = run(capsys, *SMALL, *words)
    assert (code, out) == (3, "")
