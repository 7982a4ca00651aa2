"""``semu search --export``: what another program can be told of a schedule, simulated as that program launches it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.cli import main

LLAMA = ("llama3-8b", "--cluster", "h100:1x8", "--parallel", "tp2-pp4")
LARGE = ("llama3-70b", "--cluster", "h100:8x8", "--parallel", "tp8-pp4", "--set", "training.global_batch=16")
SEARCH = ("--rollouts", "8", "--json")


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(list(words)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("program", "name"), [("megatron", "best.sh"), ("nemo", "best.yaml")])
def test_the_file_runs_as_told(program: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cut found goes along under the program's own schedule, and the file takes the time that is told."""
    path = tmp_path / name
    found = document(capsys, "search", *LARGE, *SEARCH, "--export", f"{program}:{path}")
    told = found["exported"]
    assert told["file"] == str(path) and told["fits"]
    again = document(capsys, "simulate", str(path), "--cluster", "h100:8x8", "--json")
    assert again["iteration_time_s"] == pytest.approx(told["iteration_time_s"], rel=1e-9)
    assert told["iteration_time_s"] < found["baseline"]["iteration_time_s"], "not merely the run as it was"
    layers = found["partition"]["llm"]["layers"]
    assert len(layers) > 4 and sum(layers) == 80
    assert "the cut into stages of the schedule found" not in told["unsaid"]
    if program == "megatron":
        stages = path.read_text().partition("--pipeline-model-parallel-layout '")[2].partition("'")[0].split("|")
        counts = [int(stage.strip("EL").partition("*")[2] or stage.count("t")) for stage in stages]
        assert counts == layers
    assert any(sentence.startswith("the order of stages: as the file launches it") for sentence in told["unsaid"])


@pytest.mark.slow
def test_a_cut_that_the_program_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """14 microbatches are no multiple of 4 ranks, so Megatron-LM cannot interleave: the run stays, and that is told."""
    path = tmp_path / "best.sh"
    words = (*LLAMA, "--set", "training.global_batch=14")
    found = document(capsys, "search", *words, *SEARCH, "--export", f"megatron:{path}")
    told = found["exported"]
    assert "the cut into stages of the schedule found" in told["unsaid"]
    assert main(["export", *words, "--to", "megatron"]) == 0
    assert path.read_text() == capsys.readouterr().out, "the run as it was"
    again = document(capsys, "simulate", str(path), "--json")
    assert again["iteration_time_s"] == pytest.approx(told["iteration_time_s"], rel=1e-9)


@pytest.mark.slow
def test_never_slower_than_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the cut found is no gain under the program's schedule, Megatron-LM's own virtual stages are written."""
    path = tmp_path / "best.sh"
    words = (*LLAMA, "--set", "training.global_batch=16")
    found = document(capsys, "search", *words, *SEARCH, "--export", f"megatron:{path}")
    assert found["exported"]["iteration_time_s"] <= found["baseline"]["iteration_time_s"] * (1 + 1e-12)


@pytest.mark.parametrize("command", ["search", "grid"])
def test_a_model_that_cannot_be_said(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused before anything is searched, and nothing is written."""
    path = tmp_path / "best.sh"
    assert main([command, "vlm-s", "--export", f"megatron:{path}"]) == 2
    assert "a decoder" in capsys.readouterr().err
    assert not path.exists()
