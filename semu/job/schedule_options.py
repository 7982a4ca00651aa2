"""What ``Training`` says of its schedule beside the name: a file, a limit of activations."""

from __future__ import annotations

import math
import re

from semu.errors import ConfigError

_LIMIT = re.compile(r"(\d+(?:\.\d+)?)?\s*p")


def read_limit(value: object) -> float | None:
    """A limit of activations in multiples of p microbatches: ``"p"``, ``"1.5p"``, or the number.

    Raises:
        ConfigError: neither, or none that a microbatch fits in.
    """
    if value is None:
        return None
    times = math.nan
    if isinstance(value, str) and (match := _LIMIT.fullmatch(value.strip())) is not None:
        times = float(match[1] or 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        times = float(value)
    if not 0 < times < math.inf:
        raise ConfigError(
            "not a limit of activations",
            where="training.activation_limit",
            expected="multiples of p microbatches on each rank, like 'p', '1.5p' or '2p'",
            got=value,
            nearest="2p",
        )
    return times


def check_file(value: object) -> str | None:
    """The path of a schedule.

    Raises:
        ConfigError: not a path.
    """
    if value is None or (isinstance(value, str) and value):
        return value
    raise ConfigError("not a path", where="training.schedule_file", expected="a file, text or .csv", got=value)
