"""The suite on the CPU, end to end: needs torch."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is the executor extra")

from calibration.bench import CudaStopwatch  # noqa: E402
from calibration.collective_cases import COLLECTIVES  # noqa: E402
from calibration.measure import main  # noqa: E402
from calibration.step.model_step import MODELS  # noqa: E402
from calibration.step.torch_model import Decoder, SwiGLU  # noqa: E402
from calibration.steps import StepCase, step_cases  # noqa: E402
from calibration.table import SCHEMAS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DRY = ["--device", "cpu", "--quick"]


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("measured")
    assert main(["--out", str(made), *DRY]) == 0
    return made


def test_all_tables_are_there_and_say_that_they_are_dry(folder: Path) -> None:
    counts = {name: len(rows(folder, name)) for name in SCHEMAS if name != "collectives"}
    assert counts == {
        **{"gemm": 9, "attention": 4, "memory_ops": 29, "model_steps": 6},
        **{"convolutions": 12, "launches": 14, "mask_tiles": 4, "clocks": 10},
    }
    for name in counts:
        for row in rows(folder, name):
            assert tuple(row) == SCHEMAS[name].columns
            assert row["device"] == "cpu"
            assert row["source"] == folder.name
            assert "dry run" in row["note"].partition(" | ")[2]
            times = [float(value) for column, value in row.items() if column.startswith(("time_us", "step_us"))]
            assert all(0 < value < math.inf for value in times)


def test_what_the_cpu_has_not_is_skipped_with_a_reason(folder: Path) -> None:
    skipped = json.loads((folder / "skipped.json").read_text())
    assert len(skipped) == 2
    assert all("fp8" in line and "compute capability" in line for line in skipped)


def test_the_record_names_the_software(folder: Path) -> None:
    record = json.loads((folder / "machine.json").read_text())
    assert record["torch"] == torch.__version__
    assert record["runs"][0]["options"]["quick"] is True


def test_a_second_run_measures_only_what_lacks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "gemm.csv"
    before = path.read_text()
    lines = before.splitlines(keepends=True)
    path.write_text("".join(lines[:-2]) + lines[-1][:20])  # one row lacks, one is torn
    others = {name: (folder / f"{name}.csv").read_text() for name in ("attention", "memory_ops", "model_steps")}
    assert main(["--out", str(folder), *DRY]) == 0
    assert {name: (folder / f"{name}.csv").read_text() for name in others} == others
    after = path.read_text()
    assert after.startswith("".join(lines[:-2]))
    assert len(after.splitlines()) == len(lines)
    assert "attention" not in capsys.readouterr().err


@pytest.mark.parametrize("case", [*step_cases(quick=True), *step_cases()], ids=str)
def test_torchs_model_has_the_parameters_of_the_step(case: StepCase) -> None:
    with torch.device("meta"):
        model = MODELS.get(case.scope, Decoder)(case)
    assert sum(parameter.numel() for parameter in model.parameters()) == case.num_parameters


def test_swiglu_has_the_gradient_of_its_formula() -> None:
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    gate, up = x.chunk(2, dim=-1)
    expected = torch.nn.functional.silu(gate) * up
    weight = torch.randn_like(expected)
    (by_hand,) = torch.autograd.grad(SwiGLU.apply(x), x, weight)
    (by_torch,) = torch.autograd.grad(expected, x, weight)
    torch.testing.assert_close(by_hand, by_torch)


def test_recomputation_changes_no_gradient() -> None:
    plain, again = step_cases(quick=True)[1:3]
    torch.manual_seed(0)
    model = Decoder(plain)
    ids = torch.randint(plain.vocab, (plain.micro_batch, plain.seq_len))
    gradients = []
    for case in (plain, again):
        model.case = case
        model.zero_grad()
        model(ids, ids).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second)


def test_a_gpu_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device, and the test is about machines without")
    assert main(["--out", str(tmp_path / "new")]) == 2
    assert "no CUDA device here" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_round_waits_meets_and_is_timed_between_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            told.append("event")

        def synchronize(self) -> None:
            told.append("wait")

        def elapsed_time(self, other: object) -> float:
            return 7.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: told.append("lead") if cycles > 0 else None)
    calls = [lambda i=i: told.append(f"call {i}") for i in range(2)]
    stopwatch = CudaStopwatch(meet=lambda: told.append("meet"))
    assert stopwatch.round_s(calls, 1, 2) == pytest.approx(7e-3)
    assert told == ["meet", "event", "call 1", "call 0", "event", "wait"]  # how long issuing takes is not known yet
    told.clear()
    stopwatch.round_s(calls, 3, 1)
    assert told == ["lead", "meet", "event", "call 1", "event", "wait"]
    told.clear()
    plain = CudaStopwatch(leads=False)
    plain.round_s(calls, 0, 1)
    plain.round_s(calls, 0, 1)
    assert "lead" not in told


@pytest.mark.multiprocess
def test_collectives_of_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["calibration/measure.py", "--out", str(tmp_path), *DRY]
    for _ in range(2):
        subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
        found = rows(tmp_path, "collectives")
        assert len(found) == 10
    assert {row["collective"] for row in found} == set(COLLECTIVES)
    for row in found:
        assert float(row["busbw_gbps"]) <= float(row["algbw_gbps"])


@pytest.mark.gpu
def test_the_gpu_is_measured(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--quick"]) == 0
    assert all(int(row["peak_allocated_bytes"]) > 0 for row in rows(tmp_path, "model_steps"))
    assert len(rows(tmp_path, "attention")) == 4
