"""The refit of software factors: known factors come back, and the minimum is one."""

from __future__ import annotations

import importlib.util
import math
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

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


def job(seq_len: int, hidden: int, micro_batch: int) -> object:
    sizes = {"layers": 4, "hidden": hidden, "ffn": 4 * hidden, "heads": hidden // 64, "vocab": 1024}
    return make_job(
        {
            "model": {"transformer": sizes},
            "cluster": {"device": "a100-80g", "nodes": 1, "gpus_per_node": 1},
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
    return [job(seq, hidden, micro) for seq in (1024, 8192) for hidden in (1024, 4096) for micro in (1, 2)]


def test_factors_that_made_the_times_come_back(script: ModuleType, jobs: list[object]) -> None:
    made = np.array([1.04, 1.8, 1.3, 0.0, 0.0])
    samples = [
        script.Sample(str(n), "gh"[n % 2], each, script.Sample(str(n), "g", each, 1.0).predicted_s(made))
        for n, each in enumerate(jobs)
    ]
    factors, line, free = script.fit(samples)
    measured = np.array([sample.measured_s for sample in samples])
    assert script.mape(np.array([sample.predicted_s(factors) for sample in samples]), measured) < 1.0
    assert [script.NAMES[number] for number in free] == ["matmul", "triton-fa1", "memory_bound"]
    assert factors[1] == pytest.approx(1.8, rel=0.1)
    assert list(factors[3:]) == [0.0, 0.0]  # one GPU: nothing tells of them
    held = script.left_out(samples, line, free)
    assert max(group.error for group in held.values()) < 2.0
    assert {name: (group.n, group.inside) for name, group in held.items()} == {"g": (4, 4), "h": (4, 4)}
    late = [replace(sample, measured_s=sample.measured_s * (3 if sample.group == "g" else 1)) for sample in samples]
    assert script.left_out(late, line, free)["g"].inside == 0


def test_the_error_of_factors_is_that_of_groups_left_out(script: ModuleType) -> None:
    held = {"g": script.LeftOut(10.0, 4, 4), "h": script.LeftOut(20.0, 4, 1)}
    found = script.Result("a100-80g", "torch", {**script.NEUTRALS, "matmul": 1.1}, 8, 2.0, 9.0, {}, held)
    table = tomllib.loads(found.tables()["software.torch"])["software"]["torch"]
    assert table["matmul"]["relative_error"] == pytest.approx(0.15)
    assert found.to_json()["left_out"]["h"] == {"error": 20.0, "n": 4, "inside": 1}


def test_the_minimum_is_below_all_others(script: ModuleType) -> None:
    random = np.random.default_rng(3)
    n = 12
    slope = random.uniform(0.05, 0.6, (n, 5)) * np.array([1, 1, 1, 0.5, 300])
    line = script.Line(script.NEUTRAL, slope[:, :3].sum(axis=1) + 0.3, slope)
    measured = line.predicted_s(np.array([1.1, 2.0, 1.2, 0.3, 2e-4])) * np.exp(random.normal(0, 0.05, n))
    measured[0] *= 1.5
    groups = ["one"] * 8 + ["two"] * 4
    found = script.solve(line, measured, groups, range(5))

    def cost(factors: np.ndarray) -> float:
        total = 0.0
        for number in range(n):
            error = abs(math.log(line.predicted_s(factors)[number] / measured[number]))
            huber = error**2 / 2 if error <= 0.08 else 0.08 * (error - 0.04)
            total += huber / math.sqrt(groups.count(groups[number]))
        for number, name in enumerate(script.NAMES):
            away = math.log(factors[number]) if script.NEUTRAL[number] else factors[number]
            total += (0.04 / script.HOW[name].prior * away) ** 2 / 2
        return total

    least = cost(found)
    for width in (0.3, 0.03, 0.003):
        for _ in range(400):
            added = random.normal(0, width, 5) * np.array([0, 0, 0, 0.1, 1e-5])
            other = found * np.exp(random.normal(0, width, 5)) + added
            other = np.clip(other, script.NEUTRAL, script.MOST)
            assert cost(other) >= least - 1e-7


def test_a_factor_needs_runs_that_tell_of_it(script: ModuleType) -> None:
    slope = np.zeros((6, 5))
    slope[:, 0], slope[:3, 1], slope[:, 2] = 0.6, 0.5, 0.3
    line = script.Line(script.NEUTRAL, np.ones(6), slope)
    assert script.worth_fitting(line) == [0, 2]  # attention matters to three runs only
    assert script.worth_fitting(script.Line(script.NEUTRAL, np.ones(5), slope[:5])) == [0, 2]
    one = script.Line(script.NEUTRAL, np.ones(4), np.tile([0.9, 0.9, 0.9, 0.9, 0.0], (4, 1)))
    assert script.worth_fitting(one) == [1, 3]  # two of four runs: those that their prior moves most


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
    table = tomllib.loads(out)["software"]["megatron"]
    assert set(table) == set(script.FACTORS)
    assert all(number["provenance"] in ("fitted", "default") for number in table.values())
    assert "# a100-80g: left out g " in out
    few = write_runs(tmp_path / "few.json", *rows[::2])  # one group
    assert script.main(["--runs", few]) == 0
    assert "software" not in capsys.readouterr().out
