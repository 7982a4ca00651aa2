"""Logs of nanotron, NeMo, DeepSpeed, HuggingFace's Trainer and Composer: times, memory, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.cli import main
from semu.errors import ConfigError
from semu.validation.logs.log_reader import PARSERS, read_log
from semu.validation.logs.training_log import LogFormat, LoggedMemory, TrainingLog

NANOTRON = [
    "11/20/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 1 / 20 | consumed_tokens: 1.05M | "
    "elapsed_time_per_iteration_ms: 9.87K | tokens_per_sec: 106K | tokens_per_sec_per_gpu: 13.3K | "
    "global_batch_size: 256 | lm_loss: 11.9 | lr: 0.0003 | model_tflops_per_gpu: 131",
    "11/20/2026 10:00:09 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 2 / 20 | consumed_tokens: 2.1M | "
    "elapsed_time_per_iteration_ms: 986 | tokens_per_sec: 1.06M | global_batch_size: 256 | lm_loss: 11.2",
]
NEMO = [
    "Training epoch 0, iteration 0/99 | lr: 1e-05 | global_batch_size: 128 | global_step: 0 | "
    "reduced_train_loss: 11.03 | train_step_timing in s: 20.5",
    "Training epoch 0, iteration 1/99 | lr: 2e-05 | global_batch_size: 128 | global_step: 1 | "
    "reduced_train_loss: 10.9 | train_step_timing in s: 1.25 | consumed_samples: 256",
    "Epoch 0: :   3%|2    | 3/100 [00:25<, reduced_train_loss=10.1, global_step=2.0, train_step_timing in s=1.5]",
]
DEEPSPEED = [
    "[2026-11-20 10:00:00,000] [INFO] [config.py:1001:print]   train_batch_size ............. 64",
    "[2026-11-20 10:00:01,000] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 100.00 | "
    "bwd_microstep: 200.00 | step_microstep: 25.00",
    "[2026-11-20 10:00:01,000] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 400.00 | bwd: 800.00 | "
    "bwd_inner: 790.00 | bwd_allreduce: 9.00 | step: 50.00",
    "[2026-11-20 10:00:03,000] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 410.00 | bwd: 810.00 | "
    "bwd_inner: 799.00 | bwd_allreduce: 9.00 | step: 55.00",
]
DEEPSPEED_RATES = [
    DEEPSPEED[0],
    "[INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=30.0, "
    "CurrSamplesPerSec=32.0, MemAllocated=10.0GB, MaxMemAllocated=40.5GB",
]
TRAINER = [
    "  1%|1         | 10/1000 [00:20<33:00,  2.00s/it]",
    "{'loss': 2.1, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}",
    "  2%|2         | 20/1000 [00:35<30:00,  1.75s/it]",
]
COMPOSER = [
    "[batch=1/100]:",
    "         Train time/epoch: 0",
    "         Train throughput/batches_per_sec: 0.5000",
    "         Train throughput/device/batches_per_sec: 0.0625",
    "         Train memory/peak_allocated_mem: 40.5000",
    "[batch=2/100]:",
    "         Train throughput/batches_per_sec: 0.8000",
]


Iteration = tuple[int, float, int | None]
"""Number, time [s], global batch."""


def log_of(path: Path, lines: list[str]) -> TrainingLog:
    path.write_text("\n".join(lines) + "\n")
    return read_log(path)


@pytest.mark.parametrize(
    ("lines", "format_", "times"),
    [
        (NANOTRON, LogFormat.NANOTRON, [(1, 9.87, 256), (2, 0.986, 256)]),
        (NEMO, LogFormat.NEMO, [(0, 20.5, 128), (1, 1.25, 128), (2, 1.5, None)]),
        (DEEPSPEED, LogFormat.DEEPSPEED, [(1, 1.25, None), (2, 1.275, None)]),
        (DEEPSPEED_RATES, LogFormat.DEEPSPEED, [(10, 2.0, 64)]),
        (TRAINER, LogFormat.TRAINER, [(20, 1.5, None)]),
        (COMPOSER, LogFormat.COMPOSER, [(1, 2.0, None), (2, 1.25, None)]),
        (
            ["{'train_runtime': 50.0, 'train_steps_per_second': 0.25, 'epoch': 1.0}"],
            LogFormat.TRAINER,
            [(1, 4.0, None)],
        ),
    ],
)
def test_times(
    lines: list[str], format_: LogFormat, times: list[tuple[int, float, int | None]], tmp_path: Path
) -> None:
    log = log_of(tmp_path / "log", lines)
    assert log.format is format_
    assert [(one.number, one.global_batch) for one in log.iterations] == [(number, batch) for number, _, batch in times]
    assert [one.time_s for one in log.iterations] == pytest.approx([time for _, time, _ in times])


def test_quick_iterations_of_a_trainer(tmp_path: Path) -> None:
    """Of a bar, the time between two of its lines: ten iterations in 0.3 s, then ten in 0.45 s."""
    bars = ["1%| | 10/1000 [00:00<00:50, 20.00it/s]", "2%| | 20/1000 [00:00<00:39, 25.00it/s]"]
    last = "3%| | 30/1000 [00:01<00:40, 24.00it/s]"
    log = log_of(tmp_path / "log", [*bars, last, "1%| | 2/50 [01:00<25:00, 30.00s/it]"])  # another loop's
    assert [one.time_s for one in log.iterations] == pytest.approx([0.03, 0.045])


@pytest.mark.parametrize(
    ("lines", "number", "left"),
    [
        (NANOTRON, "986", [9.87]),
        (NEMO, "20.5", [1.25, 1.5]),
        (COMPOSER, "0.8000", [2.0]),
    ],
)
@pytest.mark.parametrize("damage", ["0", "0.000", "9" * 400])
def test_a_time_that_is_none_is_left_out(
    lines: list[str], number: str, left: list[float], damage: str, tmp_path: Path
) -> None:
    """An iteration of no time, or of one beyond what numbers hold."""
    log = log_of(tmp_path / "log", [line.replace(number, damage) for line in lines])
    assert [one.time_s for one in log.iterations] == pytest.approx(left)


def test_a_clock_with_a_part_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    """A part of a step may be nothing, not more than numbers hold."""
    for damage, left in (("0.00", [1.25, 0.865]), ("9" * 400, [1.25]), ("1.2.3", [1.25])):
        log = log_of(tmp_path / "log", [line.replace("410.00", damage) for line in DEEPSPEED])
        assert [one.time_s for one in log.iterations] == pytest.approx(left)


def test_memory(tmp_path: Path) -> None:
    rates = log_of(tmp_path / "log", DEEPSPEED_RATES)
    assert rates.memory == {(None, LoggedMemory.MAX_ALLOCATED): 40.5 * 2.0**30}
    assert log_of(tmp_path / "log", COMPOSER).memory == {(None, LoggedMemory.MAX_ALLOCATED): 40.5e9}


def test_the_state_of_a_trainer(tmp_path: Path) -> None:
    history = [{"loss": 2.0, "step": 10}, {"train_runtime": 50.0, "train_steps_per_second": 0.2, "step": 20}]
    log = log_of(tmp_path / "trainer_state.json", [json.dumps({"global_step": 20, "log_history": history}, indent=1)])
    assert [(one.number, one.time_s) for one in log.iterations] == [(20, 2.5)]


def test_two_programs_in_one_log(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two frameworks"):
        log_of(tmp_path / "log", [*NANOTRON, *NEMO])


def test_a_side_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text("\n".join(COMPOSER) + "\n")
    assert main(["compare", "lm-7b", str(tmp_path / "train.log"), "--json"]) == 0
    side = json.loads(capsys.readouterr().out)["sides"][1]
    assert (side["kind"], side["iteration_time_s"]) == ("log of Composer", 1.25)
    assert main(["validate", "--run", "lm-7b", "--log", str(tmp_path / "train.log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quantities"]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_logs(data: st.DataObject) -> None:
    """What is damaged is left out."""
    lines = data.draw(st.sampled_from([NANOTRON, NEMO, DEEPSPEED, DEEPSPEED_RATES, TRAINER, COMPOSER]))
    text = "\n".join(lines)
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=6)) + text[data.draw(st.integers(at, min(len(text), at + 20))) :]
    for parse in PARSERS:
        log = parse(damaged.splitlines())
        assert log is None or all(one.time_s is None or one.time_s > 0 for one in log.iterations)
