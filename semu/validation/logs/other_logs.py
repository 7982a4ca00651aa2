"""Iteration lines of nanotron, NeMo and Lightning, DeepSpeed, HuggingFace's Trainer and Composer.

    nanotron     ... iteration: 10 / 20 | ... | elapsed_time_per_iteration_ms: 1.31K | tokens_per_sec_per_gpu: 25K | ...
    NeMo         ... global_step: 10 | ... | train_step_timing in s: 1.234      (or with = in a progress bar)
    DeepSpeed    ... [Rank 0] time (ms) | fwd: 421.0 | bwd: 820.1 | ... | step: 25.3      (``wall_clock_breakdown``)
                 ... global_step=10, RunningAvgSamplesPerSec=9.3, CurrSamplesPerSec=9.2, MemAllocated=..GB, ...
    Trainer      trainer_state.json, or {'train_runtime': 100.0, ..., 'train_steps_per_second': 0.5} at the end; the
                 steps of a progress bar, 10/100 [00:20<03:00, 2.00s/it], whose time is a mean since the beginning
    Composer     [batch=10/100]: and below it  Train throughput/batches_per_sec: 0.5

nanotron rounds to three digits and writes K, M and B for thousands, millions and billions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from semu.units import GIB
from semu.validation.logs.log_lines import LogLines, positive
from semu.validation.logs.training_log import LogFormat, LoggedIteration, LoggedMemory, TrainingLog

_NUMBER = r"([\d.,]+(?:e[+-]?\d+)?)\s*([KMBT]?)"
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NANOTRON = re.compile(r"\biteration:\s*(\d+)\s*/\s*\d+\s*\|")
_NANOTRON_TIME = re.compile(rf"\belapsed_time_per_iteration_ms:\s*{_NUMBER}")
_NANOTRON_BATCH = re.compile(rf"\bglobal_batch_size:\s*{_NUMBER}")
_NEMO_STEP = re.compile(r"\bglobal_step[:=]\s*(\d+)")
_NEMO_TIME = re.compile(r"\btrain_step_timing in s[:=]\s*([\d.]+)")
_NEMO_BATCH = re.compile(r"\bglobal_batch_size[:=]\s*(\d+)")
_SPEED = re.compile(r"\btime \(ms\) \|(.*)")
_SPEED_PART = re.compile(r"\b(fwd|bwd|step):\s*([\d.]+)")
_SPEED_RATE = re.compile(r"\bglobal_step=(\d+),.*\bCurrSamplesPerSec=([\d.]+)")
_SPEED_MEMORY = re.compile(r"\bMaxMemAllocated=([\d.]+)\s*GB")
_SPEED_BATCH = re.compile(r"\btrain_batch_size\s*[.=: ]+\s*(\d+)")
_RANK = re.compile(r"\[Rank (\d+)\]")
_TRAINER_BAR = re.compile(r"\b(\d+)/(\d+) \[[\d:]+<[\d:?]+,\s*([\d.]+)(s/it|it/s)")
_TRAINER_END = re.compile(r"'train_steps_per_second':\s*'?([\d.]+)")
_COMPOSER_STEP = re.compile(r"\[(?:epoch=\d+/?\w*\]\[)?batch=(\d+)/\d+\]")
_COMPOSER_RATE = re.compile(r"throughput/batches_per_sec:\s*([\d.]+)")
_COMPOSER_MEMORY = re.compile(r"memory/peak_allocated_mem:\s*([\d.]+)")


def parse_nanotron(lines: Sequence[str]) -> TrainingLog | None:
    """Read a log of nanotron; None: no line of it is one of its iterations."""
    collected = LogLines()
    for number, line in enumerate(lines, start=1):
        if (step := _NANOTRON.search(line)) is None:
            continue
        time = _scaled(_NANOTRON_TIME.search(line))
        if time is None:
            collected.skip(number)
            continue
        batch = _scaled(_NANOTRON_BATCH.search(line))
        count = None if batch is None or batch >= 1000 else round(batch)  # larger ones are rounded
        collected.add(LoggedIteration(int(step[1]), number, time * 1e-3, None, count), None)
    return collected.log(LogFormat.NANOTRON, {})


def parse_nemo(lines: Sequence[str]) -> TrainingLog | None:
    """Read a log of NeMo or Lightning; None: no line of it tells ``train_step_timing``."""
    collected = LogLines()
    for number, line in enumerate(lines, start=1):
        for part in line.split("\r"):  # a progress bar writes over itself
            step, time = _NEMO_STEP.search(part), _NEMO_TIME.search(part)
            if step is None or time is None:
                continue
            seconds = positive(time[1])
            if seconds is None:
                collected.skip(number)
                continue
            batch = _NEMO_BATCH.search(part)
            count = None if batch is None else int(batch[1])
            collected.add(LoggedIteration(int(step[1]), number, seconds, None, count), None)
    return collected.log(LogFormat.NEMO, {})


def parse_deepspeed(lines: Sequence[str]) -> TrainingLog | None:
    """Read a log of DeepSpeed: the wall clock of every step where it is broken down, else samples per second; None: it
    has neither."""
    clocks, rates = LogLines(), LogLines()
    settings: dict[str, int] = {}
    steps = 0
    for number, line in enumerate(lines, start=1):
        if (batch := _SPEED_BATCH.search(line)) is not None:
            settings["global_batch"] = int(batch[1])
        rank = _RANK.search(line)
        if (clock := _SPEED.search(line)) is not None:
            parts = dict(_SPEED_PART.findall(clock[1]))
            if any(positive(text) is None and text.strip("0.") for text in parts.values()):
                clocks.skip(number)
                continue
            total = sum(positive(text) or 0.0 for text in parts.values())
            if {"fwd", "bwd", "step"} <= parts.keys() and total > 0:
                steps += 1
                place = None if rank is None else int(rank[1])
                clocks.add(LoggedIteration(steps, number, total * 1e-3), place)
        elif (rate := _SPEED_RATE.search(line)) is not None:
            per_second = positive(rate[2])
            size = settings.get("global_batch")
            if per_second is None or size is None:
                rates.skip(number)
                continue
            rates.add(LoggedIteration(int(rate[1]), number, size / per_second, None, size), None)
            if (memory := _SPEED_MEMORY.search(line)) is not None and (most := positive(memory[1])) is not None:
                rates.add_memory(None, LoggedMemory.MAX_ALLOCATED, most * GIB)
    found = clocks.log(LogFormat.DEEPSPEED, settings)
    return found if found is not None else rates.log(LogFormat.DEEPSPEED, settings)


def parse_trainer(lines: Sequence[str]) -> TrainingLog | None:
    """Read ``trainer_state.json`` or what HuggingFace's Trainer prints; None: no line tells a rate of its steps.

    A progress bar's times are means since its beginning; those of single steps follow from two of them.
    """
    collected = LogLines()
    text = "\n".join(lines)
    if text.lstrip().startswith("{") and '"log_history"' in text:
        for step, seconds in _history(text):
            collected.add(LoggedIteration(step, 1, seconds), None)
        return collected.log(LogFormat.TRAINER, {})
    before: tuple[int, float] | None = None
    for number, line in enumerate(lines, start=1):
        for part in line.split("\r"):
            if (bar := _TRAINER_BAR.search(part)) is None:
                continue
            rate = positive(bar[3])
            if rate is None:
                continue
            step, each = int(bar[1]), rate if bar[4] == "s/it" else 1 / rate
            if before is not None and step > before[0]:
                elapsed = step * each - before[0] * before[1]
                if elapsed > 0:
                    collected.add(LoggedIteration(step, number, elapsed / (step - before[0])), None)
            before = (step, each)
        if (end := _TRAINER_END.search(line)) is not None and (rate := positive(end[1])) is not None and before is None:
            collected.add(LoggedIteration(1, number, 1 / rate), None)
    return collected.log(LogFormat.TRAINER, {})


def _history(text: str) -> Iterator[tuple[int, float]]:
    """The mean time of all steps, as the last entry of ``log_history`` tells it."""
    try:
        history = json.loads(text)["log_history"]
        for entry in history:
            runtime, step = entry.get("train_runtime"), entry.get("step")
            if isinstance(runtime, int | float) and isinstance(step, int) and runtime > 0 and step > 0:
                yield step, runtime / step
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return


def parse_composer(lines: Sequence[str]) -> TrainingLog | None:
    """Read what Composer prints to the console; None: no batch of it tells a throughput."""
    collected = LogLines()
    step: int | None = None
    for number, line in enumerate(lines, start=1):
        if (batch := _COMPOSER_STEP.search(line)) is not None:
            step = int(batch[1])
        elif step is not None and (rate := _COMPOSER_RATE.search(line)) is not None and "device" not in line:
            per_second = positive(rate[1])
            if per_second is None:
                collected.skip(number)
                continue
            collected.add(LoggedIteration(step, number, 1 / per_second), None)
        elif step is not None and (memory := _COMPOSER_MEMORY.search(line)) is not None:
            size = positive(memory[1])
            if size is not None:
                collected.add_memory(None, LoggedMemory.MAX_ALLOCATED, size * 1e9)
    return collected.log(LogFormat.COMPOSER, {})


def _scaled(match: re.Match[str] | None) -> float | None:
    """A number with K, M or B behind it; None: there is none."""
    number = None if match is None else positive(match[1].replace(",", ""))
    return None if number is None or match is None else number * _SCALES[match[2]]
