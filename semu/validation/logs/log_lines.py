"""``LogLines``: collects iteration lines; of several runs in a log the last one counts, of several ranks the median."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from semu.validation.logs.training_log import LogFormat, LoggedIteration, LoggedMemory, TrainingLog


def positive(text: str) -> float | None:
    """A positive finite number; None: the text is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


class LogLines:
    """Grows line by line.

    A smaller iteration number than the one before, on the same rank, begins another run (a restart from a checkpoint):
    what came before is forgotten.
    """

    def __init__(self) -> None:
        self._iterations: dict[int, list[LoggedIteration]] = {}
        self._last: dict[int | None, int] = {}
        self._restarts: list[int] = []
        self._broken: list[int] = []
        self._memory: dict[tuple[int | None, LoggedMemory], float] = {}

    def add(self, iteration: LoggedIteration, rank: int | None) -> None:
        """One line of one rank."""
        if rank in self._last and min(self._last.values()) > iteration.number:
            self._restarts.append(iteration.line)
            self._iterations, self._memory, self._last = {}, {}, {}
        self._last[rank] = iteration.number
        self._iterations.setdefault(iteration.number, []).append(iteration)

    def add_memory(self, rank: int | None, what: LoggedMemory, size_bytes: float) -> None:
        """A number of bytes; the most of a rank counts."""
        key = (rank, what)
        self._memory[key] = max(size_bytes, self._memory.get(key, 0.0))

    def skip(self, line: int) -> None:
        """A line that begins like an iteration but holds no positive time."""
        self._broken.append(line)

    def log(self, format_: LogFormat, settings: Mapping[str, int]) -> TrainingLog | None:
        """All of it; None: no iteration lines."""
        if not self._iterations:
            return None
        notes = []
        if self._restarts:
            where = ", ".join(str(line) for line in self._restarts)
            notes.append(
                f"the log holds {len(self._restarts) + 1} runs (restarts on line {where}): the last one counts"
            )
        if self._broken:
            where = ", ".join(str(line) for line in self._broken[:5]) + (", ..." if len(self._broken) > 5 else "")
            notes.append(f"{len(self._broken)} iteration lines without a time left out (line {where})")
        iterations = tuple(_middle(self._iterations[number]) for number in sorted(self._iterations))
        return TrainingLog(format_, iterations, dict(self._memory), dict(settings), tuple(notes))


def _middle(lines: list[LoggedIteration]) -> LoggedIteration:
    """One iteration of what several ranks say: the median of each rate."""

    def _median(name: str) -> float | None:
        values = [value for line in lines if (value := getattr(line, name)) is not None]
        return float(np.median(values)) if values else None

    if len(lines) == 1:
        return lines[0]
    return replace(
        lines[0], time_s=_median("time_s"), tokens_per_s=_median("tokens_per_s"), tflop_per_s=_median("tflop_per_s")
    )
