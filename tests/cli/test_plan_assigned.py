"""``semu plan RUN --stream FILE --assign METHOD``: iterations whose samples are assigned, then planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from searcher.assignment.jobs import draw_vlm, write_samples

import semu
from semu.cli import main
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.reordering import assigned_iterations

WHERE = {"cluster": "h800:1x8", "parallel": "dp1-tp2-pp4"}
RUN = ("vlm-s", "--cluster", WHERE["cluster"], "--parallel", WHERE["parallel"], "--set", "training.global_batch=4")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", *RUN, "--rollouts", "2", *words, "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_samples(tmp_path / "samples.jsonl", draw_vlm(260, 5))


def loads_of(path: Path, method: str, window: int = 1) -> list[dict[str, int]]:
    """Items of all microbatches of the first two iterations, by the library."""
    job = semu.load_run("vlm-s", ["training.global_batch=4"], **WHERE)
    source = SampleSource.read(job, str(path))
    assigner = Assigner(job, method, samples=source.samples)
    found = [one for _, one in assigned_iterations(assigner, source, window)][:2]
    streams = ("text", "vision", "vision_tokens")
    return [{name: sum(len(item.lengths[name]) for item in one.batch.items) for name in streams} for one in found]


@pytest.mark.parametrize("words", [pytest.param((), marks=pytest.mark.slow), ("--window", "2")])
def test_iterations_are_those_of_the_assigner(words: tuple[str, ...], path: Path, capsys) -> None:
    code, found = run(capsys, "--stream", str(path), "--assign", "coupled", "--iterations", "2", *words)
    assert code == 0
    wanted = loads_of(path, "coupled", int(words[1]) if words else 1)
    assert [row["items"] for row in found["rows"]] == wanted
    assert all(row["planned_s"] <= row["heuristic_s"] for row in found["rows"])


@pytest.mark.slow
def test_a_loop_goes_on_behind_assigned_iterations(path: Path, tmp_path: Path, capsys) -> None:
    given = ("--stream", str(path), "--assign", "coupled")
    code, whole = run(capsys, *given, "--iterations", "2")
    assert code == 0
    out = str(tmp_path / "out")
    assert run(capsys, *given, "--iterations", "1", "--out", out)[0] == 0
    code, again = run(capsys, *given, "--iterations", "2", "--out", out, "--resume")
    assert code == 0
    assert again["rows"] == whole["rows"]
    code, other = run(capsys, *given, "--window", "2", "--iterations", "2", "--out", out, "--resume")
    assert (code, "window differs" in other["error"]["expected"]) == (2, True)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--iterations", "1", "--assign", "coupled"), "--assign"),
        (("--window", "2"), "--window"),
        (("--assign", "coupled"), "--assign"),
        (("--stream", "FILE", "--assign", "coupled", "--set", "assignment.window=0"), "assignment.window"),
        (("--stream", "FILE", "--assign", "coupled", "--set", "assignment.costs=nosuch.json"), "nosuch.json"),
        (("--stream", "FILE", "--assign", "cupled"), "assignment.method"),
        (("--stream", "FILE", "--window", "2"), "--window"),
        (("--stream", "FILE", "--assign", "coupled", "--window", "0"), "--window"),
        (("--stream", "missing.jsonl", "--assign", "coupled"), "missing.jsonl"),
    ],
)
def test_bad_input_is_named(words: tuple[str, ...], where: str, path: Path, capsys) -> None:
    given = [str(path) if word == "FILE" else word for word in words]
    code, found = run(capsys, *given)
    assert code == 2
    assert where in found["error"]["where"]


def test_a_window_of_no_stream_says_what_it_wants(capsys) -> None:
    code, found = run(capsys, "--window", "2")
    assert (code, found["error"]["expected"]) == (2, "--iterations N or --stream FILE")
    code, found = run(capsys, "--window", "2", "--iterations", "1")
    assert (code, found["error"]["expected"]) == (2, "with --stream FILE --assign METHOD")


@pytest.mark.slow
def test_options_of_the_run_file_are_those_of_the_command_line(path: Path, capsys) -> None:
    given = ("--stream", str(path), "--assign", "coupled", "--iterations", "1")
    code, by_flag = run(capsys, *given, "--window", "2")
    assert code == 0
    code, by_key = run(capsys, *given, "--set", "assignment.window=2")
    assert code == 0
    assert by_key["rows"] == by_flag["rows"]
    code, counted = run(capsys, *given, "--set", "assignment.count=20")
    assert code == 0
    job = semu.load_run("vlm-s", ["training.global_batch=4"], **WHERE)
    samples = SampleSource.read(job, str(path), 20).iteration(0)[0]
    assert counted["rows"][0]["items"]["vision"] == len(samples.items["vision"].lengths)
