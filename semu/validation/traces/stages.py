"""``read_stages``: how long every stage of an iteration took, from a trace."""

from __future__ import annotations

import os
import re

from semu.errors import ConfigError
from semu.fitting.trace_events import read_events
from semu.searcher.assignment.measured import MeasuredStage

_NAME = re.compile(r"(\d+)([A-Z])(\d+)(?: |$)")
_CODES = {"F": 0, "B": 1}
_TRACE = "annotations of stages, such as '2B13 llm': chunk, F or B, microbatch"


def read_stages(path: str | os.PathLike[str]) -> list[MeasuredStage]:
    """The stages of an iteration of one replica in a trace of ``torch.profiler`` or of semu, on the GPU if there.

    Raises:
        ConfigError: no trace, no stages in it, a stage twice, a backward in two parts.
    """
    events, _, _ = read_events(path)
    place = os.fspath(path)
    named = [
        (event, _NAME.match(str(event.get("name", "")))) for event in events if "annotation" in str(event.get("cat"))
    ]
    found = [(event, match) for event, match in named if match is not None]
    on_gpu = [pair for pair in found if pair[0].get("cat") == "gpu_user_annotation"]
    stages: dict[tuple[int, int, int], MeasuredStage] = {}
    for event, match in on_gpu or found:
        chunk, letter, microbatch = int(match[1]), match[2], int(match[3])
        if letter not in _CODES:
            raise ConfigError(
                "a backward in two parts", where=place, expected="whole backwards", got=str(event["name"])
            )
        key = chunk, _CODES[letter], microbatch
        if key in stages:
            raise ConfigError(
                "a stage twice", where=place, expected="a trace of one iteration and replica", got=str(event["name"])
            )
        stages[key] = MeasuredStage(*key, float(event["dur"]) * 1e-6)
    if not stages:
        raise ConfigError("no stages in the trace", where=place, expected=_TRACE, got=f"{len(events)} other events")
    return [stages[key] for key in sorted(stages)]
