"""``parse_megatron``: iteration, memory and argument lines of Megatron-LM (``megatron/training/training.py``,
``training_log`` and ``report_memory``; ``arguments.py``), also of its forks that print seconds.

    iteration       20/     100 | consumed samples:  2560 | elapsed time per iteration (ms): 1234.5 | ... |
    [Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 | max reserved: 3.0

Its MB are 2^20 bytes (``mega_bytes = 1024.0 * 1024.0``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from semu.units import MIB
from semu.validation.logs.log_lines import LogLines, positive
from semu.validation.logs.training_log import LogFormat, LoggedIteration, LoggedMemory, TrainingLog

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
_FIELD = re.compile(r"([A-Za-z][^|:]*?)\s*:\s*([-+0-9.eE]+|nan|inf)\s*(?=\||$)")
_MEMORY = re.compile(r"\[Rank\s+(\d+)\].*?memory \(MB\)\s*\|(.*)")
_ARGUMENT = re.compile(r"\b(\w+) \.{2,} (\d+)\s*$")
_SIZES = {
    "world": "gpus",
    "data-parallel": "dp",
    "context-parallel": "cp",
    "tensor-model-parallel": "tp",
    "pipeline-model-parallel": "pp",
}
"""Its words for sizes -> those of a run file."""
_SIZE = re.compile(rf"({'|'.join(_SIZES)})[ -]size: (\d+)")
_TIMES = {"elapsed time per iteration (ms)": 1e-3, "elapsed time per iteration (s)": 1.0}
_RATES = ("throughput per GPU (TFLOP/s/GPU)", "TFLOPs")
_SETTINGS = {
    "global_batch_size": "global_batch",
    "micro_batch_size": "micro_batch",
    "seq_length": "seq_len",
    "expert_model_parallel_size": "ep",
    **_SIZES,
    **{f"{words.replace('-', '_')}_size": name for words, name in _SIZES.items()},
}
"""Its words and the names of its arguments -> words of a run file."""


def parse_megatron(lines: Sequence[str]) -> TrainingLog | None:
    """Read a log; None: no line of it is an iteration of Megatron-LM."""
    collected = LogLines()
    settings: dict[str, int] = {}
    before: tuple[int, int] | None = None
    for number, line in enumerate(lines, start=1):
        if (match := _ITERATION.search(line)) is not None:
            fields = dict(_FIELD.findall(match[2]))
            time_s = _time(fields)
            if time_s is None:
                collected.skip(number)
                continue
            iteration, samples = int(match[1]), _integer(fields, "consumed samples")
            batch = _integer(fields, "global batch size")
            if batch is None and samples is not None and before is not None and iteration > before[0]:
                batch = round((samples - before[1]) / (iteration - before[0]))
            if samples is not None:
                before = (iteration, samples)
            rate = next((positive(fields[name]) for name in _RATES if name in fields), None)
            collected.add(LoggedIteration(iteration, number, time_s, None, batch, rate), None)
        elif (match := _MEMORY.search(line)) is not None:
            fields = dict(_FIELD.findall(match[2]))
            for what in LoggedMemory:
                size = positive(fields[what.value]) if what.value in fields else None
                if size is not None:
                    collected.add_memory(int(match[1]), what, size * MIB)
        else:
            found = [*_ARGUMENT.findall(line), *_SIZE.findall(line)]
            settings.update({_SETTINGS[name]: int(value) for name, value in found if name in _SETTINGS})
    return collected.log(LogFormat.MEGATRON, settings)


def _time(fields: dict[str, str]) -> float | None:
    """Seconds of an iteration; None: none, or not a positive number."""
    for name, factor in _TIMES.items():
        if name in fields and (value := positive(fields[name])) is not None:
            return value * factor
    return None


def _integer(fields: dict[str, str], name: str) -> int | None:
    text = fields.get(name)
    return int(text) if text is not None and text.isdigit() else None
