"""What a training log says, whichever framework wrote it: ``TrainingLog``; ``read_log`` finds out which one it was."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from semu.errors import ConfigError
from semu.fitting.source_text import read_source


class LogFormat(Enum):
    """Who wrote the log."""

    MEGATRON = "Megatron-LM"
    TORCHTITAN = "torchtitan"


class LoggedMemory(Enum):
    """What a logged number of bytes is; the value is its name in the log."""

    MAX_ALLOCATED = "max allocated"
    MAX_RESERVED = "max reserved"
    ALLOCATED = "allocated"


@dataclass(frozen=True)
class LoggedIteration:
    """One iteration line, the mean over the iterations since the line before.

    Attributes:
        number: iteration or step. line: of the file, from 1.
        time_s: of an iteration [s], None where the log tells tokens_per_s instead.
        tokens_per_s: per GPU. global_batch: sequences. tflop_per_s: per GPU, as the framework counts FLOP.
    """

    number: int
    line: int
    time_s: float | None = None
    tokens_per_s: float | None = None
    global_batch: int | None = None
    tflop_per_s: float | None = None


@dataclass(frozen=True)
class TrainingLog:
    """The last run that a log holds.

    Attributes:
        format: who wrote it. iterations: in order, one per iteration number.
        memory: (global rank, what) -> most bytes that any line tells; rank None: the lines tell none.
        settings: of the run as far as the log tells them: gpus, global_batch, micro_batch, seq_len, dp, tp, pp, cp, ep.
        notes: what was left out, a sentence each.
    """

    format: LogFormat
    iterations: tuple[LoggedIteration, ...]
    memory: Mapping[tuple[int | None, LoggedMemory], float] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


EXPECTED = (
    'a Megatron-LM log, lines with "iteration 1/ 10 | ... elapsed time per iteration (ms): ...", or a torchtitan log, '
    'lines with "step: 1 ... tps: ..."'
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def read_log(path: str | os.PathLike[str]) -> TrainingLog:
    """Read a log of Megatron-LM or torchtitan.

    Raises:
        ConfigError: it cannot be read, or holds no iteration lines of either, or of both.
    """
    from semu.validation.logs.megatron_log import parse_megatron
    from semu.validation.logs.torchtitan_log import parse_torchtitan

    place = os.fspath(path)
    text = _COLORS.sub("", read_source(path, EXPECTED).decode("utf-8", errors="replace"))
    lines = text.splitlines()
    found = [log for parse in (parse_megatron, parse_torchtitan) if (log := parse(lines)) is not None]
    if len(found) == 2:
        raise ConfigError(
            "iteration lines of two frameworks in one log",
            where=place,
            expected="a log of Megatron-LM or of torchtitan",
            got=" and ".join(
                f'"{lines[log.iterations[0].line - 1].strip()[:60]}" on line {log.iterations[0].line}' for log in found
            ),
        )
    if not found:
        hint = "a JSON file: a trace goes with --trace" if text.lstrip()[:1] in ("{", "[") else None
        first = next(line for line in lines if line.strip()).strip()[:60]
        raise ConfigError(
            "no iteration lines in the log",
            where=place,
            expected=EXPECTED,
            got=hint or f'{len(lines)} lines, the first is "{first}"',
        )
    return found[0]
