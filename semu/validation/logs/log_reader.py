"""``read_log``: finds out which framework wrote a training log, and reads it."""

from __future__ import annotations

import os
import re

from semu.errors import ConfigError
from semu.fitting.source_text import read_source
from semu.validation.logs.megatron_log import parse_megatron
from semu.validation.logs.torchtitan_log import parse_torchtitan
from semu.validation.logs.training_log import TrainingLog

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
