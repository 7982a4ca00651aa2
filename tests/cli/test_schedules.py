"""``semu schedules``: its table, its files and every exit code."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli import main
from semu.runfile import load_run
from semu.schedule import ALL_SCHEDULES, is_executed

TEXT = """\
[model.transformer]
layers = 8
hidden = 512
heads = 8
vocab = 32000

[cluster]
device = "h100"
gpus_per_node = 4

[parallel]
pp = 4

[training]
global_batch = 8
seq_len = 512
"""


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(TEXT)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["schedules", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, *words, "--json")
    return code, json.loads(out)


# -- the table ---------------------------------------------------------------------------------------------------
def test_the_table(text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run(capsys, text, "--compare", "zb-h1,interleaved,zb-v")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "transformer-8x512 on h100:1x4, dp1-tp1-pp4, 8 microbatches per replica"
    heads = "schedule vpp iteration vs own bubble peak GiB rank fits placement makespan"
    assert " ".join(lines[2].split()) == heads
    rows = {line.split()[0]: line for line in lines[3:7]}
    assert list(rows) == ["1f1b", "zb-h1", "interleaved", "zb-v"]
    assert " own" in rows["1f1b"]
    assert sum("best" in line for line in rows.values()) == 1
    for name, line in rows.items():
        words = [f"training.schedule={name}"]
        words += {"1f1b": [], "zb-h1": [], "interleaved": ["parallel.vpp=2"]}.get(
            name, ["parallel.vpp=2", "parallel.placement=v-shape"]
        )
        alone = semu.simulate(load_run(text, words))
        assert f" {alone.iteration_time_s * 1e3:.2f} ms " in line
        assert line.endswith(f" {alone.makespan_s * 1e3:.2f} ms")
        assert f" {alone.bubble_ratio:.1%} " in line
        assert f" {max(alone.peak_memory_bytes) / 2**30:.2f} " in line


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("setup", "extra"), [("vlm-m", ()), ("lm-7b", ("--set", "training.global_batch=8"))])
def test_json_of_all_is_what_simulate_finds(
    setup: str, extra: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = document(capsys, setup, "--compare", "all", *extra)
    assert code == 0
    rows = found["schedules"]
    refused = [row["name"] for row in found["refused"]]
    assert sorted([*refused, *(row["name"] for row in rows)]) == sorted(ALL_SCHEDULES)
    assert {name for name in ALL_SCHEDULES if not is_executed(name)} <= set(refused)
    assert len(rows) >= 16
    own = rows[0]
    assert (found["own"], own["is_own"], own["difference_s"]) == ("1f1b", True, 0.0)
    best = min((row for row in rows if row["fits"]), key=lambda row: row["iteration_time_s"])
    assert [row["name"] for row in rows if row["is_best"]] == [best["name"]] == [found["best"]]
    for name in ("1f1b", "interleaved-zb", "v-half"):
        row = next(row for row in rows if row["name"] == name)
        words = [f"training.schedule={name}", f"parallel.vpp={row['vpp']}"]
        words += ["parallel.placement=v-shape"] if row["placement"] == "v-shape" else []
        alone = semu.simulate(load_run(setup, [*extra[1:], *words]))
        assert row["iteration_time_s"] == alone.iteration_time_s
        assert row["peak_memory_bytes"] == list(alone.peak_memory_bytes)
        assert row["difference_s"] == alone.iteration_time_s - own["iteration_time_s"]
        assert (row["bubble_ratio"], row["makespan_s"], row["mfu"]) == (
            alone.bubble_ratio,
            alone.makespan_s,
            alone.mfu,
        )


def test_options_change_the_run(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--parallel", "pp2-dp2-vpp2", "--cluster", "h800:1x4", "--set", "training.schedule=interleaved")
    code, found = document(capsys, text, "--compare", "looped-bfs", *words)
    assert code == 0
    assert found["title"].startswith("transformer-8x512 on h800:1x4, dp2-tp1-pp2-vpp2")
    assert [(row["name"], row["vpp"]) for row in found["schedules"]] == [("interleaved", 2), ("looped-bfs", 2)]
    code, out, _ = run(capsys, text, "--dump-config", *words)
    assert code == 0
    assert 'schedule = "interleaved"' in out


# -- files -------------------------------------------------------------------------------------------------------
def test_the_csv_runs_again(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    code, out, err = run(capsys, text, "--compare", "zb-v", "--csv", str(path), "--json")
    assert code == 0
    lines = list(csv.DictReader(path.read_text().splitlines()))
    assert ",".join(lines[0]) == "schedule,rank,position,chunk,phase,microbatch,start_s,end_s,bytes"
    assert {line["schedule"] for line in lines} == {"zb-v"}
    row = json.loads(out)["schedules"][1]
    highest = [max(int(line["bytes"]) for line in lines if line["rank"] == str(rank)) for rank in range(4)]
    assert highest == row["peak_memory_bytes"]
    assert max(float(line["end_s"]) for line in lines) == row["makespan_s"]
    told = err.partition("it runs again with:\n")[2].replace("\\\n", "").split()
    assert main(["simulate", text, *told, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["iteration_time_s"] == row["iteration_time_s"]
    assert again["peak_memory_bytes"] == row["peak_memory_bytes"]


def test_the_csv_of_several(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.csv"
    code, _, err = run(capsys, text, "--compare", "zb-v,1f1b", "--csv", str(path))
    assert (code, "runs again" in err) == (0, False)
    names = [line["schedule"] for line in csv.DictReader(path.read_text().splitlines())]
    assert list(dict.fromkeys(names)) == ["1f1b", "zb-v"]
    words = ("--set", f"training.schedule_file={path}")
    assert run(capsys, text, *words)[0] == 4
    assert "several schedules in one file" in run(capsys, text, *words)[2]


def test_out_writes_its_files(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, text, "--compare", "gpipe", "--out", str(tmp_path / "out"), "--json")
    names = ["result.json", "schedules.png", "report.html", "1f1b.csv", "gpipe.csv"]
    assert code == 0
    assert [line.split("/")[-1] for line in err.splitlines() if "wrote" in line] == names
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(names)
    saved = json.loads((tmp_path / "out" / "result.json").read_text())
    assert {"run": text, **saved} == json.loads(out)


# -- exit codes --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "where", "got", "nearest"),
    [
        (["--compare", "zb-vv"], "--compare", "zb-vv", "zb-v"),
        (["--compare", "1f1b,,gpipe"], "--compare", "", None),
        (["--ranks", "4"], "--ranks", None, None),
        (["--csv", "/no/such/folder/x.csv"], "--csv /no/such/folder/x.csv", "/no/such/folder", None),
        (["--set", "training.schedule=zb-v", "--set", "parallel.vpp=1"], "--set parallel.vpp", None, None),
    ],
)
def test_bad_input_exits_2(
    words: list[str],
    where: str,
    got: str | None,
    nearest: str | None,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = document(capsys, text, *words)
    error = found["error"]
    assert code == 2
    assert where.split()[0] in error["where"] or "parallel" in error["where"]
    assert error["got"] == got or got is None
    assert error["nearest"] == nearest or nearest is None


def test_nothing_that_can_run(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (text, "--compare", "interleaved", "--set", "training.global_batch=7")
    code, out, err = run(capsys, *words)
    assert code == 2
    assert "not run: interleaved: interleaved 1F1B runs its microbatches in groups" in out
    assert "none of the schedules asked for can run: interleaved" in err
    code, found = document(capsys, *words)
    assert code == 2
    assert [row["name"] for row in found["schedules"]] == ["1f1b"]
    assert found["refused"][0]["error"]["expected"] == "a multiple of 4 microbatches"


def test_frozen_stages_in_a_schedule_that_needs_a_backward(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--set", 'model.frozen=["encoder"]', "--compare")
    code, out, err = run(capsys, "vlm-m", *words, "zb-v")
    assert code == 4
    assert "zb-v: needs a backward of every chunk" in out
    assert "none of the schedules asked for can run" in err
    assert run(capsys, "vlm-m", *words, "zb-v,zb-h1")[0] == 0


def test_what_does_not_fit_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "vlm-m", "--compare", "zb-v")
    assert code == 3
    assert re.search(r"semu: zb-v does not fit: rank \d needs [\d.]+ GiB, [\d.]+ GiB more than", err)
    assert " own" in out
    assert run(capsys, "vlm-m", "--compare", "zb-v,interleaved")[0] == 0
    words = ("--set", "training.recompute=none", "--set", "cluster.override.memory_bytes=20e9")
    code, out, err = run(capsys, "vlm-m", "--compare", "gpipe", *words)
    assert code == 3
    assert "none of them fits in the 18.63 GiB of a device" in out
    assert "semu: 1f1b does not fit: rank 0 needs" in err
    code, found = document(capsys, "vlm-m", "--compare", "gpipe", *words)
    assert (code, found["best"], [row["fits"] for row in found["schedules"]]) == (3, None, [False, False])


def test_an_illegal_file_exits_4(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("rank,position,chunk,phase,microbatch\n0,0,0,F,0\n")
    code, found = document(capsys, text, "--set", f"training.schedule_file={path}")
    assert (code, found["error"]["kind"], found["error"]["got"]) == (4, "ScheduleError", "1")


def test_strict_refuses_defaults(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = tmp_path / "guessed.toml"
    device.write_text(
        'name = "guessed"\nmemory_bytes = 84e9\nmem_bytes_per_s = 3.0e12\nnvlink_bytes_per_s = 400e9\n'
        "nic_bytes_per_s = 50e9\n[flop_per_s]\nbf16 = 800e12\n"
    )
    code, found = document(capsys, text, "--profile", str(device), "--strict", "--compare", "gpipe")
    assert (code, found["error"]["got"]) == (5, "provenance default")


# -- without a run -----------------------------------------------------------------------------------------------
def test_plain_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--ranks", "4", "--microbatches", "8")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines()[3:] if not line.startswith(" ")]  # the others go on with a source
    assert sorted(line.split()[0] for line in rows) == sorted(ALL_SCHEDULES)
    code, found = document(capsys, "--ranks", "4", "--microbatches", "7", "--compare", "dualpipe-v,1f1b")
    assert [(row["name"], row["makespan_s"]) for row in found["schedules"]] == [("1f1b", 3.0 * (7 + 4 - 1))]
    assert [row["name"] for row in found["refused"]] == ["dualpipe-v"]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_plain_numbers_that_no_schedule_takes(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--ranks", "3", "--microbatches", "7", "--compare", "chimera", *more)
    assert code == 4
    assert "both directions interlock on an even number of ranks" in out
    assert "none of the schedules asked for can run: chimera" in err


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ([], "semu schedules"),
        (["--ranks", "4"], "semu schedules"),
        (["--ranks", "0", "--microbatches", "4"], "--ranks"),
        (["--ranks", "9" * 20, "--microbatches", "1"], "--ranks, --microbatches"),
        (["--ranks", "4", "--microbatches", "4", "--out", "x"], "--out"),
        (["--ranks", "4", "--microbatches", "4", "--set", "a=1"], "--set"),
    ],
)
def test_plain_numbers_that_are_none(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, *words)
    assert (code, found["error"]["where"]) == (2, where)


def test_listed_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "schedules"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert lines["schedule"].split() == ["schedule", "placement", "backward", "description"]
    assert lines["zb-v"].split()[1:4] == ["v-shape", "split", "ZB-V:"]
    assert lines["1f1b"].split()[1:3] == ["one-to-one", "whole"]
    assert main(["list", "schedules", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["schedules"]}
    assert {name for name, row in rows.items() if row["is_executed"]} == {n for n in ALL_SCHEDULES if is_executed(n)}
    assert (rows["zb-v"]["placement"], rows["zb-v"]["splits_backward"]) == ("v-shape", True)
    assert len({row["description"] for row in rows.values()}) == len(rows)
