"""Simulated against measured steps; the measured ones are made up, so no torch is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import semu
from calibration.compare import compare, main, simulated
from calibration.step.step_models import step_job, step_model
from calibration.steps import LAYER_1B, LAYER_8B, MODEL_1B, MODEL_500M, StepCase, step_cases
from calibration.table import STEPS, Table, Value, read_rows
from semu.errors import ConfigError

TINY = step_cases(quick=True)


def measured_row(case: StepCase, found: dict[str, float], memory: bool = True) -> dict[str, Value]:
    """A row that says exactly twice what was simulated."""
    times: dict[str, Value] = {f"{name}_us": 2e6 * found[name] for name in ("forward", "backward", "optimizer", "step")}
    bytes_: dict[str, Value] = {
        "static_bytes": 2 * int(found["static"]) if memory else None,
        "peak_allocated_bytes": 2 * int(found["peak allocated"]) if memory else None,
        "peak_reserved_bytes": 2 * int(found["peak reserved"]) if memory else None,
    }
    rest: dict[str, Value] = {"step_us_min": 1.0, "step_us_max": 9.0, "parameters": 1, "note": "torch eager"}
    return {"device": "H100-SXM", **case.row(), **times, **bytes_, **rest}


@pytest.mark.parametrize("case", [*step_cases(), *TINY], ids=StepCase.label)
def test_sizes_agree_with_the_simulated_model(case: StepCase) -> None:
    assert step_model(case).num_parameters() == case.num_parameters


def test_a_layer_by_hand() -> None:
    attention = 4096 * 4096 * 2 + 2 * 4096 * 1024
    assert LAYER_8B.num_parameters == attention + 3 * 4096 * 14336 + 2 * 4096
    found = simulated(LAYER_8B, "h100")
    assert found["static"] == 2 * 4 * LAYER_8B.num_parameters  # parameter, gradient, two moments, 2 bytes each
    # 7 elements of 2 bytes at 0.887 of 3.35 TB/s, the profile's BabelStream triad, and what 16 bits lose; then zeros
    profile = semu.Cluster("h100", 1, 1).profile
    item, copy = profile.efficiencies[semu.OpKind.OPTIMIZER], profile.efficiencies[semu.OpKind.COPY]
    per_byte = LAYER_8B.num_parameters / profile.mem_bytes_per_s.value
    expected = item.t0_s + 20 * per_byte / item.mem + 2 * per_byte / copy.mem
    assert found["optimizer"] == pytest.approx(expected, rel=1e-6)
    assert found["step"] == pytest.approx(found["forward"] + found["backward"] + found["optimizer"])


@pytest.mark.parametrize("case", [LAYER_1B, MODEL_500M])
def test_backward_costs_about_twice_forward_and_recomputation_once_more(case: StepCase) -> None:
    found = simulated(case, "h200")
    assert 1.8 < found["backward"] / found["forward"] < 2.4
    again = simulated(replace(case, recompute="full"), "h200")
    assert again["forward"] == found["forward"]
    assert found["backward"] + 0.5 * found["forward"] < again["backward"] <= found["backward"] + found["forward"]
    if case.layers > 1:
        assert again["peak allocated"] < found["peak allocated"] <= found["peak reserved"]


def test_the_larger_model_is_llama_like() -> None:
    assert MODEL_1B.num_parameters == 1_498_482_688
    assert step_job(MODEL_1B, "h100").model.num_parameters() == MODEL_1B.num_parameters


def test_figures_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(tmp_path, STEPS, "made up")
    for number, case in enumerate(TINY):
        table.append(measured_row(case, simulated(case, "h100"), memory=number > 0))
    rows = list(read_rows(tmp_path / "model_steps.csv", STEPS))
    assert [StepCase.of(row) for row in rows] == TINY
    figures = compare(rows, "h100")
    assert len(figures) == 4 + 7 * (len(TINY) - 1)
    assert all(figure.ratio == pytest.approx(0.5, rel=1e-4) for figure in figures)
    assert main([str(tmp_path), "--profile", "h100"]) == 0
    text = capsys.readouterr().out
    assert text.count("peak allocated") == len(TINY)
    assert f"  step             50.0% of {len(TINY)} steps" in text
    assert f"  static           50.0% of {len(TINY) - 1} steps" in text
    assert all(case.label() in text for case in TINY)
    assert main([str(tmp_path), "--profile", "h100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["ratio"] for row in document] == [figure.ratio for figure in figures]
    assert {row["unit"] for row in document} == {"s", "bytes"}


def test_bad_rows_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--profile", "h100"]) == 2
    assert "no measured steps" in capsys.readouterr().err
    row = {name: str(value) for name, value in measured_row(TINY[0], simulated(TINY[0], "h100")).items()}
    with pytest.raises(ConfigError, match="not a measurement") as caught:
        compare([{**row, "step_us": "-3"}], "h100")
    assert caught.value.where == "model_steps.csv step_us"
    with pytest.raises(ConfigError, match="not a step"):
        compare([{**row, "hidden": "many"}], "h100")
    with pytest.raises(ConfigError):
        compare([row], "h1000")
    Table(tmp_path, STEPS, "made up").append(measured_row(TINY[0], simulated(TINY[0], "h100")))
    assert main([str(tmp_path), "--profile", "h1000", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "ConfigError"
