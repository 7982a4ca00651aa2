"""``Pattern``: a rank's order as words like ``F0 I1 W1``, repeated; ``F0+B1`` is a forward and a backward that may run
as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.records import dataclass
from semu.schedule.phases import PHASES
from semu.schedule.rules.expressions import Number, Size, value_of
from semu.schedule.rules.rule import Rule, one_value
from semu.schedule.schedule import StageColumns, columns_of
from semu.schedule.shape import PipelineShape, StageKey

_PHASE = {phase.value: phase for phase in PHASES}


@dataclass(frozen=True)
class Pattern(Rule):
    """Patterns one after another; one chunk per virtual stage.

    Attributes:
        steps: how often, and words of phase and virtual stage: ``F0 I1 W1``. Each phase of a virtual stage takes the
            microbatches in order, B those of I and W together; ``W`` alone is the oldest weight gradient that is due,
            if any. Stages of more microbatches than the pipeline has are left out. ``F0+B1``: the two run one after
            the other, and as one where exchanges of experts' tokens hide (``semu.schedule.rules.combined``).
        at_least: m in the expressions is at least that: fewer microbatches run as the first of so many.
    """

    steps: tuple[tuple[Number, str], ...]
    at_least: Number = 0

    def __post_init__(self) -> None:
        for number, (_, words) in enumerate(self.steps):
            for word in words.split():
                parts = word.split("+")
                is_known = all(part[:1] in _PHASE and (part[1:].isdecimal() or part == "W") for part in parts)
                if not is_known or (len(parts) > 1 and [part[0] for part in parts] != ["F", "B"]):
                    expected = "F, B, I or W with a virtual stage, like F0, or W alone, or F0+B1"
                    raise ConfigError("not a word of a pattern", where=f"steps[{number}]", expected=expected, got=word)

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return any(word[0] in "IW" for _, words in self.steps for word in _words(words))

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``.

        Raises:
            ConfigError: also a virtual stage that a rank does not have.
        """
        return columns_of((stage for stage, _ in order) for order in self._orders(shape))

    def pairs(self, shape: PipelineShape) -> tuple[StageColumns, NDArray[np.int64]]:
        """The stages, and where in them the forwards stand that may run as one with the backward behind them: int64[n].

        Raises:
            ConfigError: as for the call.
        """
        orders = [[*order] for order in self._orders(shape)]
        before, place = 0, []
        for order in orders:
            turns = enumerate(pairwise(joined for _, joined in order))
            place += [before + n for n, (first, second) in turns if first == second >= 0]
            before += len(order)
        return columns_of((stage for stage, _ in order) for order in orders), np.array(place, dtype=np.int64)

    def _orders(self, shape: PipelineShape) -> Iterator[Iterator[tuple[StageKey, int]]]:
        m = max(one_value(self.at_least, shape, "at_least"), shape.num_microbatches)
        sizes = (Size(shape.num_ranks, rank, shape.num_slots, m) for rank in range(shape.num_ranks))
        return (self._play(shape, size) for size in sizes)

    def _play(self, shape: PipelineShape, size: Size) -> Iterator[tuple[StageKey, int]]:
        """Stages in order, each with the number of its ``+`` word; -1: it is in none."""
        chunk = shape.chunks_of(size.r)
        following: dict[str, int] = {}
        due: deque[tuple[int, int]] = deque()
        joined = -1
        for number, (times, pattern) in enumerate(self.steps):
            where = f"steps[{number}]"
            words = [
                (part[0], int(part[1:]) if len(part) > 1 else -1, "+" in word)
                for word in pattern.split()
                for part in word.split("+")
            ]
            if any(slot >= len(chunk) for _, slot, _ in words):
                expected = f"virtual stages below {len(chunk)} on rank {size.r}"
                raise ConfigError("no such virtual stage", where=where, expected=expected, got=pattern)
            for _ in range(value_of(times, size, where)):
                for letter, slot, is_joined in words:
                    joined += is_joined and letter == "F"
                    if slot < 0:
                        if not due:
                            continue
                        slot, microbatch = due.popleft()
                    else:
                        counter = f"{'I' if letter == 'B' else letter}{slot}"
                        microbatch = following.get(counter, 0)
                        following[counter] = microbatch + 1
                        if letter == "I":
                            due.append((slot, microbatch))
                    if microbatch < shape.num_microbatches:
                        yield StageKey(chunk[slot], _PHASE[letter], microbatch), joined if is_joined else -1


def _words(pattern: str) -> list[str]:
    """Words of phase and virtual stage, those that ``+`` joins one by one."""
    return pattern.replace("+", " ").split()
