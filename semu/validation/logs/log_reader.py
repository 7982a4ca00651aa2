"""``read_log``: finds out which framework wrote a training log, and reads it."""

from __future__ import annotations

import os
import re

from semu.errors import ConfigError
from semu.files import read_source
from semu.validation.logs.megatron_log import parse_megatron
from semu.validation.logs.other_logs import (
    parse_composer,
    parse_deepspeed,
    parse_nanotron,
    parse_nemo,
    parse_trainer,
)
from semu.validation.logs.torchtitan_log import parse_torchtitan
from semu.validation.logs.training_log import TrainingLog

PARSERS = (
    parse_megatron,
    parse_torchtitan,
    parse_nanotron,
    parse_nemo,
    parse_deepspeed,
    parse_composer,
    parse_trainer,
)
"""In the order in which they are tried; the last takes progress bars, which logs of others may have too."""
EXPECTED = (
    'a Megatron-LM log, lines with "iteration 1/ 10 | ... elapsed time per iteration (ms): ...", a torchtitan log, '
    'lines with "step: 1 ... tps: ...", or one of nanotron, NeMo, DeepSpeed, Composer or HuggingFace\'s Trainer'
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def read_log(path: str | os.PathLike[str]) -> TrainingLog:
    """Read a log of Megatron-LM, torchtitan, nanotron, NeMo, DeepSpeed, Composer or HuggingFace's Trainer.

    Raises:
        ConfigError: it cannot be read, or holds no iteration lines of any, or of two of them.
    """
    place = os.fspath(path)
    text = _COLORS.sub("", read_source(path, EXPECTED).decode("utf-8", errors="replace"))
    lines = text.splitlines()
    found = [log for parse in PARSERS[:-1] if (log := parse(lines)) is not None]
    if not found and (log := PARSERS[-1](lines)) is not None:
        found = [log]
    if len(found) > 1:
        raise ConfigError(
            "iteration lines of two frameworks in one log",
            where=place,
            expected="a log of one of them",
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
