"""The refit of software factors: known factors come back, and the minimum is one."""

from __future__ import annotations

import importlib.util
import math
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from semu.runfile import make_job
from tests.validation.rows_kit import run, write_runs

SCRIPT = Path(__file__).parents[2] / "calibration" / "software_factors.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("software_factors", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["software_factors"] = module
    spec.loader.exec_module(module)
    return module


def device(job: Any) -> str:
    return str(job.cluster.profile.name)


def job(seq_len: int, hidden: int, micro_batch: int, device: str) -> object:
    sizes = {"layers": 4, "hidden": hidden, "ffn": 4 * hidden, "heads": hidden // 64, "vocab": 1024}
    return make_job(
        {
            "model": {"transformer": sizes},
            "cluster": {"device": device, "nodes": 1, "gpus_per_node": 1},
            "parallel": {},
            "training": {
                "micro_batch": micro_batch,
                "global_batch": 2 * micro_batch,
                "seq_len": seq_len,
                "software": "torch",
                "attention_kernel": "triton-fa1",
            },
        }
    )


@pytest.fixture(scope="module")
def jobs() -> list[object]:
    sizes = [(seq, hidden, micro) for seq in (1024, 8192) for hidden in (1024, 4096) for micro in (1, 2)]
    return [
        job(*size, device) for device in ("a100-80g", "h100") for size in (*sizes, (16384, 1024, 1), (2048, 2048, 2))
    ]


@pytest.mark.slow
def test_factors_that_made_the_times_come_back(script: ModuleType, jobs: list[object]) -> None:
    made = {"matmul": 1.04, "forward": 1.4, "backward": 1.8, "memory_bound": 1.3, "interference": 0.0}
    samples = [
        script.Sample(
            str(n), "gh"[n % 2], device(each), each, script.Sample(str(n), "g", "", each, 1.0).predicted_s(made)
        )
        for n, each in enumerate(jobs)
    ]
    factors, line, free = script.fit(samples)
    measured = np.array([sample.measured_s for sample in samples])
    assert script.mape(script.predictions(samples, line.parameters, factors), measured) < 1.0
    found = dict(zip(line.parameters, factors.tolist(), strict=True))
    told = {script.Parameter("matmul", "a100-80g"), script.Parameter("matmul", "h100")}
    told |= {script.Parameter(name) for name in ("forward", "backward", "memory_bound")}  # of both devices
    assert {line.parameters[number] for number in free} <= told
    assert script.Parameter("backward") in {line.parameters[number] for number in free}
    assert found[script.Parameter("backward")] == pytest.approx(1.8, rel=0.1)
    assert found[script.Parameter("interference")] == 0.0  # one GPU: nothing tells of it
    held = script.left_out(samples, line, free)
    assert max(group.error for group in held.values()) < 2.5
    half = len(samples) // 2
    assert {name: (group.n, group.inside) for name, group in held.items()} == {"g": (half, half), "h": (half, half)}
    late = [replace(sample, measured_s=sample.measured_s * (3 if sample.group == "g" else 1)) for sample in samples]
    assert script.left_out(late, line, free)["g"].inside == 0


def test_the_error_of_factors_is_that_of_groups_left_out(script: ModuleType) -> None:
    held = {"g": script.LeftOut(10.0, 4, 4), "h": script.LeftOut(20.0, 4, 1)}
    factors = {script.Parameter("matmul", "a100-80g"): 1.1, script.Parameter("memory_bound"): 1.2}
    factors |= {script.Parameter("matmul", "h100"): 1.0, script.Parameter("backward"): 2.0}
    found = script.Result(script.Software.TORCH, factors, 8, 2.0, 9.0, {}, held)
    tables = {name: found.tables(name) for name in found.devices}
    table = tomllib.loads(tables["a100-80g"]["software.torch"])["software"]["torch"]
    assert table["matmul"]["relative_error"] == pytest.approx(0.15)
    other = tomllib.loads(tables["h100"]["software.torch"])["software"]["torch"]
    assert other["matmul"]["provenance"] == "default" and other["memory_bound"] == table["memory_bound"]
    assert other["matmul"]["relative_error"] == pytest.approx(0.15)  # what leaving it neutral costs, too
    kernels = [each["attention_kernel.triton-fa1"] for each in tables.values()]
    assert kernels[0] == kernels[1] and "backward = { value = 2" in kernels[0]
    assert found.to_json()["left_out"]["h"] == {"error": 20.0, "n": 4, "inside": 1}


def neutral_line(script: ModuleType, names: list[str], time: np.ndarray, slope: np.ndarray) -> Any:
    parameters = tuple(script.Parameter(name) for name in names)
    return script.Line(parameters, np.array([parameter.neutral for parameter in parameters]), time, slope)


def test_the_minimum_is_below_all_others(script: ModuleType) -> None:
    random = np.random.default_rng(3)
    n, names = 12, ["matmul", "backward", "memory_bound", "interference"]
    slope = random.uniform(0.05, 0.6, (n, 4)) * np.array([1, 1, 1, 0.5])
    line = neutral_line(script, names, slope[:, :3].sum(axis=1) + 0.3, slope)
    measured = line.predicted_s(np.array([1.1, 2.0, 1.2, 0.3])) * np.exp(random.normal(0, 0.05, n))
    measured[0] *= 1.5
    groups = ["one"] * 8 + ["two"] * 4
    found = script.solve(line, measured, groups, range(4))

    def cost(factors: np.ndarray) -> float:
        total = 0.0
        for number in range(n):
            error = abs(math.log(line.predicted_s(factors)[number] / measured[number]))
            huber = error**2 / 2 if error <= 0.08 else 0.08 * (error - 0.04)
            total += huber / math.sqrt(groups.count(groups[number]))
        for number, name in enumerate(names):
            away = math.log(factors[number]) if script.NEUTRALS[name] else factors[number]
            total += (0.04 / script.HOW[name].prior * away) ** 2 / 2
        return total

    least, most = cost(found), np.array([script.HOW[name].most for name in names])
    for width in (0.3, 0.03, 0.003):
        for _ in range(400):
            other = found * np.exp(random.normal(0, width, 4)) + random.normal(0, width, 4) * np.array([0, 0, 0, 0.1])
            assert cost(np.clip(other, line.neutral, most)) >= least - 1e-7


def test_a_factor_needs_eight_runs_of_two_groups(script: ModuleType) -> None:
    names = ["matmul", "backward", "memory_bound"]
    slope = np.zeros((10, 3))
    slope[:, 0], slope[:7, 1], slope[:, 2] = 0.6, 0.5, 0.3
    line = neutral_line(script, names, np.ones(10), slope)
    mixed = list("ghghghghgh")
    assert script.worth_fitting(line, mixed) == [0, 2]  # attention matters to seven runs only
    assert script.worth_fitting(line, ["g"] * 10) == []
    slope[:8, 1] = 0.5
    assert script.worth_fitting(line, mixed) == [0, 1, 2]
    assert script.worth_fitting(line, [*"gggggggghh"]) == [0, 2]  # those that attention matters to are of one group


@pytest.mark.slow
def test_the_command_prints_a_profile_table(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        run({"model.seq_len": 256 * 2 ** (n % 5)}, id=str(n), group="gh"[n % 2], iteration_time_s=0.004 * 2 ** (n % 5))
        for n in range(10)
    ]
    rows += [run(id="untold", trust="D"), run(id="other device", profile="h100")]
    runs = write_runs(tmp_path / "runs.json", *rows)
    assert script.main(["--runs", runs]) == 0
    out = capsys.readouterr().out
    first, second = out.split("# h100\n")
    table = tomllib.loads(first)["software"]["megatron"]
    assert set(table) == set(tomllib.loads(second)["software"]["megatron"]) == set(script.FACTORS)
    assert all(number["provenance"] in ("fitted", "measured", "default") for number in table.values())
    assert table["transfer_s"]["provenance"] == "measured"
    assert "# megatron: left out g " in out
    few = write_runs(tmp_path / "few.json", *rows[:7])
    assert script.main(["--runs", few]) == 0
    assert "software" not in capsys.readouterr().out
