"""``semu simulate RUN --baseline NAME``: what it runs, what it says, the run file that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semu.baselines import BASELINES
from semu.cli import main
from semu.runfile import load_run
from semu.simulation.estimate import evaluate

TINY = """\
[model]
name = "vlm-s"

[cluster]
device = "h800"
nodes = 1
gpus_per_node = 8

[parallel]
tp = 4
pp = 2
{extra}
[training]
global_batch = 8
recompute = "full"

[batch]
kind = "vlm"
"""


OF_OTHER_MODELS = ("t-1f1b", "tessel", "tessel-fast", "distmm")
"""Baselines of models of one module, and of dual encoders, which have tests of their own."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(TINY.format(extra='placement = "circular"'))
    return str(file)


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in OF_OTHER_MODELS])
@pytest.mark.sampled(2)
def test_the_command_is_the_function(path: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = BASELINES[name](load_run(path))
    code = main(["simulate", path, "--baseline", name, "--json"])
    out, err = capsys.readouterr()
    assert code in (0, 3)
    assert json.loads(out)["iteration_time_s"] == evaluate(expected.job).iteration_time_s
    assert f"--baseline {name}: " in err
    assert all(key in err for key in expected.changes)
    assert any(f"--baseline {name}: " in warning for warning in json.loads(out)["warnings"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["nnscaler", "optimus", "fsdp"])
def test_the_run_file_that_it_writes_runs_the_same(
    path: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", path, "--baseline", name, "--dump-config"]) == 0
    written = tmp_path / "written.toml"
    written.write_text(capsys.readouterr().out)
    expected = BASELINES[name](load_run(path)).job
    again = load_run(written)
    assert (again.parallel, again.training) == (expected.parallel, expected.training)
    assert evaluate(again).iteration_time_s == evaluate(expected).iteration_time_s


def test_a_baseline_takes_a_layout_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "laid.toml"
    file.write_text(TINY.format(extra="\n[parallel.layout]\nmodules = {vit = [63, 0], llm = [0, 32]}\n"))
    assert main(["simulate", str(file), "--baseline", "megatron-1f1b", "--dump-config"]) == 0
    out, err = capsys.readouterr()
    assert "no parallel.layout" in err
    assert "layout" not in out


def test_refusals_name_the_key(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", path, "--baseline", "megatorn", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["where"], error["nearest"]) == ("--baseline", "megatron")
    assert main(["simulate", path, "--baseline", "fsdp", "--set", "training.global_batch=12", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["where"] == "--set training.global_batch"


def test_segments_in_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "segments.toml"
    file.write_text(TINY.format(extra='vpp = 3\nsegments = "separated"\n\n[parallel.shares]\nvit = 2\nllm = 1\n'))
    job = load_run(str(file))
    assert (job.parallel.segments, job.parallel.shares) == ("separated", {"vit": 2, "llm": 1})
    assert main(["simulate", str(file), "--set", "parallel.shares.llm=2", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["where"], error["nearest"]) == ("--set parallel.shares", "vpp = 4")
    assert main(["simulate", str(file), "--dump-config"]) == 0
    written = tmp_path / "written.toml"
    written.write_text(capsys.readouterr().out)
    assert load_run(str(written)).parallel == job.parallel
