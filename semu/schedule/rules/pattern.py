"""``Pattern``: a rank's order as words like ``F0 I1 W1``, repeated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

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
            if any. Stages of more microbatches than the pipeline has are left out.
        at_least: m in the expressions is at least that: fewer microbatches run as the first of so many.
    """

    steps: tuple[tuple[Number, str], ...]
    at_least: Number = 0

    def __post_init__(self) -> None:
        for number, (_, words) in enumerate(self.steps):
            for word in words.split():
                if word[0] not in _PHASE or not (word[1:].isdecimal() or word == "W"):
                    expected = "F, B, I or W with a virtual stage, like F0, or W alone"
                    raise ConfigError("not a word of a pattern", where=f"steps[{number}]", expected=expected, got=word)

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return any(word[0] in "IW" for _, words in self.steps for word in words.split())

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``.

        Raises:
            ConfigError: also a virtual stage that a rank does not have.
        """
        m = max(one_value(self.at_least, shape, "at_least"), shape.num_microbatches)
        sizes = (Size(shape.num_ranks, rank, shape.num_slots, m) for rank in range(shape.num_ranks))
        return columns_of(self._play(shape, size) for size in sizes)

    def _play(self, shape: PipelineShape, size: Size) -> Iterator[StageKey]:
        chunk = shape.chunks_of(size.r)
        following: dict[str, int] = {}
        due: deque[tuple[int, int]] = deque()
        for number, (times, pattern) in enumerate(self.steps):
            where = f"steps[{number}]"
            words = [(word[0], int(word[1:]) if len(word) > 1 else -1) for word in pattern.split()]
            if any(slot >= len(chunk) for _, slot in words):
                expected = f"virtual stages below {len(chunk)} on rank {size.r}"
                raise ConfigError("no such virtual stage", where=where, expected=expected, got=pattern)
            for _ in range(value_of(times, size, where)):
                for letter, slot in words:
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
                        yield StageKey(chunk[slot], _PHASE[letter], microbatch)
