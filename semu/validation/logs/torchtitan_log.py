"""``parse_torchtitan``: step lines of torchtitan (``torchtitan/components/metrics.py``), old and new.

    [rank0]:[titan] ... - INFO - step: 10  loss:  7.1  memory: 45.67GiB(48.1%)  tps: 5,726  tflops: 350.1  mfu: 35.4%

``tps`` (older: ``wps``) are tokens per second and GPU; ``memory`` is the highest reserved memory since the line before
(``max_reserved_gib``). It logs no iteration time, which follows from the tokens of an iteration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from semu.units import GIB
from semu.validation.logs.log_lines import LogLines, positive
from semu.validation.logs.training_log import LogFormat, LoggedIteration, LoggedMemory, TrainingLog

_STEP = re.compile(r"\bstep:\s*(\d+)\s+.*\b(?:loss|memory|[tw]ps):")
_RATE = re.compile(r"\b[tw]ps:\s*([\d,]+(?:\.\d+)?)")
_TFLOPS = re.compile(r"\btflops:\s*([\d,]+(?:\.\d+)?)")
_MEMORY = re.compile(r"\bmemory:\s*([\d.]+)\s*GiB")
_RANK = re.compile(r"\[(?:rank|default)(\d+)\]")
_BATCH = re.compile(r"global batch size:? (\d+)")
_LENGTH = re.compile(r"sequence length:? (\d+)")
_MESH = re.compile(r"Building \d+-D device mesh with \[([^\]]*)\], \[([\d, ]+)\]")


def parse_torchtitan(lines: Sequence[str]) -> TrainingLog | None:
    """Read a log; None: no line of it is a step of torchtitan."""
    collected = LogLines()
    settings: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        step = _STEP.search(line)
        if step is None:
            settings.update(_settings(line))
            continue
        rank_match = _RANK.search(line)
        rank = None if rank_match is None else int(rank_match[1])
        rate = _number(_RATE.search(line))
        if rate is None:
            collected.skip(number)
            continue
        collected.add(LoggedIteration(int(step[1]), number, None, rate, None, _number(_TFLOPS.search(line))), rank)
        size = _number(_MEMORY.search(line))
        if size is not None:
            collected.add_memory(rank, LoggedMemory.MAX_RESERVED, size * GIB)
    return collected.log(LogFormat.TORCHTITAN, settings)


def _settings(line: str) -> dict[str, int]:
    found = {}
    for name, pattern in (("global_batch", _BATCH), ("seq_len", _LENGTH)):
        if (match := pattern.search(line)) is not None:
            found[name] = int(match[1])
    if (match := _MESH.search(line)) is not None:
        names = [name.strip(" '\"") for name in match[1].split(",")]
        sizes = [int(size) for size in match[2].split(",") if size.strip()]
        found["gpus"] = math.prod(sizes)
        if len(names) == len(sizes):
            found |= {name: size for name, size in zip(names, sizes, strict=True) if name in ("tp", "pp", "cp")}
    return found


def _number(match: re.Match[str] | None) -> float | None:
    """A positive number with thousands separated by commas; None: there is none."""
    return None if match is None else positive(match[1].replace(",", ""))
