"""The first screen: short enough, its numbers are the report's; budgets; advice that holds when simulated."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.present.report import Report
from semu.present.summary import LINES, WIDTH, Budget, read_tokens, summarize
from semu.runfile import load_run
from semu.searcher.what_if.advice import GAIN, advise
from semu.simulation.memory.changes_that_fit import nearest_fit

GIB = 1 << 30
BUDGET = Budget(15e12, 2.5, 700.0)
JOBS = [
    ("lm-7b", ()),
    ("vlm-s", ()),
    ("t2v-s", ()),
    ("vlm-7b", ()),
    ("qwen2-vl-7b", ()),
    ("qwen2-audio-7b", ()),
    ("vlm-s", ("training.precision=fp8",)),
    ("lm-7b", ("training.recompute=none",)),
    ("lm-7b", ("cluster.override.memory_bytes=2e10",)),
]


def is_screen(text: str) -> bool:
    lines = text.split("\n")
    return len(lines) <= LINES and all(len(line) <= WIDTH for line in lines)


def numbers(report: Report, text: str) -> None:
    """What the screen says of a report, against the report's own figures."""
    flat = " ".join(text.split())
    assert f"{report.tokens_per_s_per_gpu:,.0f} tokens/s per GPU" in flat
    assert f"MFU {report.mfu:.1%}" in flat and f"HFU {report.hfu:.1%}" in flat
    rank = max(range(len(report.held_memory_bytes)), key=lambda one: report.held_memory_bytes[one])
    held, room = report.held_memory_bytes[rank], report.room
    need = held + room.other_bytes + room.margin_bytes
    verdict = "fits" if need <= room.capacity_bytes else "does not fit"
    assert f"memory {verdict}: rank {rank} needs {need / GIB:.2f}" in flat
    assert f"allocated {report.peak_memory_bytes[rank] / GIB:.2f}, reserved {held / GIB:.2f}," in flat
    assert (verdict == "fits") == report.fits


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "changes"), JOBS)
def test_the_screen(name: str, changes: tuple[str, ...]) -> None:
    job = load_run(name, changes)
    report = semu.simulate(job)
    for budget in (None, BUDGET):
        text = summarize(report, budget)
        assert is_screen(text)
        numbers(report, text)
    assert repr(report) == summarize(report)


@pytest.mark.slow
def test_the_screen_of_samples_contention_and_changes_that_fit() -> None:
    job = load_run("lm-7b", ["training.jitter=0.05"])
    report = semu.simulate(job, samples=20, seed=1)
    crowded = semu.simulate(load_run("vlm-s", []), contention=True)
    assert crowded.contention is not None and is_screen(summarize(crowded, BUDGET))
    assert is_screen(summarize(report, BUDGET))
    assert report.samples is not None and "with jitter" in repr(report)
    small = load_run("lm-7b", ["cluster.override.memory_bytes=2e10"])
    misfit = semu.simulate(small)
    found = replace(misfit, nearest_fit=nearest_fit(small, misfit, semu.simulate)[:1])
    assert is_screen(repr(found)) and "fits with" in repr(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [("15T", 15e12), ("300B", 3e11), ("2e12", 2e12), ("1.5m", 1.5e6), (" 7 K ", 7e3), ("12", 12.0)],
)
def test_tokens(text: str, count: float) -> None:
    assert read_tokens(text, where="--tokens") == count


@pytest.mark.parametrize("text", ["", "many", "-3B", "3G", "1e", "T"])
def test_no_tokens(text: str) -> None:
    with pytest.raises(ConfigError, match="not a number of tokens"):
        read_tokens(text, where="--tokens")


@pytest.mark.parametrize("name", ["lm-7b", "vlm-s"])
def test_budgets_by_hand(name: str) -> None:
    job = load_run(name, [])
    report = semu.simulate(job)
    found = BUDGET.of(report)
    seconds = 15e12 / report.tokens * report.iteration_time_s
    assert found["days"] == pytest.approx(seconds / 86400)
    assert found["gpu_hours"] == pytest.approx(job.cluster.num_gpus * seconds / 3600)
    assert found["usd"] == pytest.approx(2.5 * found["gpu_hours"])
    assert found["kwh"] == pytest.approx(0.7 * found["gpu_hours"])
    assert {*Budget(1e9).of(report)} == {"tokens", "days", "gpu_hours"}


def test_a_budget_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "lm-7b", "--json", "--tokens", "300B", "--gpu-hour-usd", "2"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["budget"]["usd"] == pytest.approx(2 * document["budget"]["gpu_hours"])
    assert document["budget"]["tokens"] == 3e11
    assert main([*words[:2], "--tokens", "plenty"]) == 2
    assert "--tokens" in capsys.readouterr().err
    assert main([*words[:2], "--tokens", "300B", "--gpu-hour-usd=-1"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("name", ["vlm-s", "lm-7b", "gpt3-175b", "t2v-s"])
@pytest.mark.sampled(2)
def test_advice_gains_what_it_says_and_fits(name: str) -> None:
    job = load_run(name, [])
    found = advise(job, semu.simulate(job))
    assert is_screen(repr(found))
    for line in found.advice:
        match = re.fullmatch(r"((?:--set \S+ )*--set \S+): (\d+)% less time", line)
        assert match is not None
        other = semu.simulate(load_run(name, match[1].replace("--set ", "").split()))
        gain = 1 - other.iteration_time_s / found.iteration_time_s
        assert other.fits
        assert gain >= GAIN and f"{gain:.0%}" == f"{match[2]}%"
        assert line.replace(": ", " # ") in " ".join(repr(found).replace("\\\n", " ").split())


def test_some_job_is_advised() -> None:
    full = load_run("lm-7b", ["training.recompute=full"])
    found = advise(full, semu.simulate(full))
    assert found.reasons and any("training.recompute" in line for line in found.advice)
    assert any("recomputation takes" in line for line in found.reasons)
    asked = semu.simulate("lm-7b", ["training.recompute=full"], advice=True)
    assert (asked.reasons, asked.advice) == (found.reasons, found.advice) and asked.settings


@pytest.mark.parametrize(
    ("name", "where", "reason", "option"),
    [
        ("gpt2-xl", ("h100:1x8", "tp1-pp2"), "kernels reach", "--set training.micro_batch=4"),
        ("deepseek-v2-lite", ("h100:1x4", "dp4-ep4"), "while 3 GiB stay free", "--set parallel.tp=2"),
    ],
)
def test_a_misfit_does_not_end_the_tries(name: str, where: tuple[str, str], reason: str, option: str) -> None:
    """Of deepseek-v2-lite the first tries of the reason do not fit; a later one does, and is faster."""
    words = ["training.recompute=full"] if reason.startswith("while") else ["training.seq_len=256"]
    job = load_run(name, words, cluster=where[0], parallel=where[1])
    found = advise(job, semu.simulate(job))
    assert any(reason in text for text in found.reasons)
    assert any(option in line for line in found.advice)


def test_where_nothing_helps_it_is_said() -> None:
    job = load_run("mixtral-8x7b", cluster="h100:2x8", parallel="dp8-pp2-ep8", overrides=["training.recompute=full"])
    found = advise(job, semu.simulate(job))
    assert any("recomputation takes" in text for text in found.reasons) and not found.advice
    assert "no change that was tried makes it faster" in repr(found) and is_screen(repr(found))


@pytest.mark.parametrize(("name", "unit"), [("gpt2", "ms"), ("lm-7b", "s")])
def test_an_interval_has_the_unit_of_its_time(name: str, unit: str) -> None:
    shown = repr(semu.simulate(name))
    match = re.search(r"iteration +([\d.]+) (m?s), 90% interval ([\d.]+) to ([\d.]+) (m?s)", shown)
    assert match is not None and match[2] == match[5] == unit
    assert float(match[3]) < float(match[1]) < float(match[4])
    assert "1 GPUs" not in shown


def test_nothing_is_advised_about_what_does_not_fit() -> None:
    small = load_run("lm-7b", ["cluster.override.memory_bytes=2e10"])
    report = semu.simulate(small)
    assert advise(small, report) is report
