"""``--explore`` end to end: two shipped setups, towers with a contrastive loss, a 5B GPT with a vocabulary of 1M."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semu.cli import main
from semu.schedule.registry import REGISTRY

RUNS = Path(__file__).parents[2] / "examples" / "runs"
CLIP, GPT = str(RUNS / "clip-towers.toml"), str(RUNS / "gpt-5b-1m.toml")


def explored(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["schedules", *words, "--explore", "--split", "--top", "2", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    rows = [row for row in found["schedules"] if row["fits"]]  # type: ignore[attr-defined]
    shipped = min(row["iteration_time_s"] for row in rows if row["name"] in REGISTRY)
    assert rows[0]["iteration_time_s"] == min(row["iteration_time_s"] for row in rows) <= shipped
    assert any(row["name"] not in REGISTRY for row in rows)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("run", ["vlm-m", "t2v-s", CLIP])
def test_schedules(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    explored([run], capsys)


@pytest.mark.slow
def test_schedules_of_a_large_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    explored([GPT], capsys)


def test_the_instruction_of_a_run_file_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    """Groups of four make the pipeline hold more and wait longer than 1F1B in lockstep does."""
    found = []
    for more in ([], ["--set", "training.schedule=1f1b"]):
        assert main(["simulate", CLIP, "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    grouped, plain = found
    assert grouped["breakdown_s"]["exposed_communication"]["towers"] > 0
    assert max(grouped["peak_memory_bytes"]) > max(plain["peak_memory_bytes"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("run", "axes"),
    [
        ("t2v-s", "pp=2:4,vpp=1:2,micro_batch=1:2:4,recompute=full"),
        (CLIP, "pp=2:4,vpp=1,micro_batch=8:16:32"),
        (GPT, "pp=4,vpp=1:2,micro_batch=1"),
    ],
)
def test_a_grid_tries_rules_and_is_never_worse(run: str, axes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grid", run, "--explore", "--vary", axes, "--top", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert any(row["schedule"] not in REGISTRY for row in said["rows"])
    assert main(["grid", run, "--vary", axes, "--framework", "any", "--top", "1", "--json"]) == 0
    (plain, *_) = json.loads(capsys.readouterr().out)["rows"]
    assert said["rows"][0]["iteration_time_s"] <= plain["iteration_time_s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["vlm-m"], ["t2v-s"], [GPT, "--set", "parallel.vocabulary=ends"]], ids=lambda own: own[0]
)
def test_a_search_begins_with_explored_orders(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", *words, "--explore", "--rollouts", "20", "--workers", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["iteration_time_s"] <= said["explored"]["iteration_time_s"]
