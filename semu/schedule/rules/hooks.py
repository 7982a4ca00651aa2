"""Check functions and priorities in Python, which the rule machine asks (FlexPipe Fig. 7): slow, some 10 us a question
beside some 0.1 us for an instruction of the machine itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.records import dataclass
from semu.schedule.graph import PipelineGraph
from semu.schedule.shape import StageKey


@dataclass(frozen=True)
class Step:
    """What a function of Python knows of the step that it is asked about.

    Attributes:
        rank: that chooses. time_s: now [s]. in_flight: chunk of the rank -> microbatches in flight.
        ready: stages that the rank could run. find_done: makes ``done``.
    """

    rank: int
    time_s: float
    in_flight: dict[int, int]
    ready: tuple[StageKey, ...]
    find_done: Callable[[], tuple[StageKey, ...]] = field(repr=False)

    @cached_property
    def done(self) -> tuple[StageKey, ...]:
        """Every stage that has started, on all ranks, in order; found when it is asked for."""
        return self.find_done()


Check = Callable[[Step, StageKey], bool]
"""Whether a stage may start now (FlexPipe: ``register_new_checkfunc``)."""
Choose = Callable[[Step], StageKey | None]
"""Which of the stages that are ready starts; None: the rank waits (FlexPipe: ``register_new_priority``)."""


@dataclass
class Hooks:
    """The functions that a rule asks.

    Attributes:
        checks: all must agree to a stage. choose: takes the place of both priorities; limits do not count then.
        refused: rank -> the stage that a check refused last, and the check's name.
    """

    checks: tuple[Check, ...]
    choose: Choose | None
    refused: dict[int, tuple[StageKey, str]] = field(default_factory=dict)

    @property
    def asks(self) -> int:
        """What the machine comes back for."""
        from semu.schedule.rules.kernels.machine import ASKS_CHECKS, ASKS_CHOICE

        return ASKS_CHECKS if self.choose is None else ASKS_CHOICE

    def answer(
        self,
        graph: PipelineGraph,
        number: NDArray[np.int64],
        chunks: tuple[Any, ...],
        state: tuple[Any, ...],
        rules: NDArray[np.int64],
        order: NDArray[np.int32],
    ) -> None:
        """Ask the functions about the stage or the rank that the machine has come back for, and write the answer.

        Raises:
            ConfigError: a function raises, or chooses a stage that is not ready.
        """
        from semu.schedule.rules.kernels.machine import ALLOWED, ASKED, IS_LAST, NOTHING_READY, RANK, RUN_WAITS

        queue, flight, *_, at, _winner, _ptr, rank_state, progress = state
        rank, asked = int(progress[RANK]), int(progress[ASKED])
        head, tail, waiting = queue[:3]
        own = sorted({int(chunk) for chunk in chunks[1][chunks[0][2 * rank] : chunks[0][2 * rank + 2]]})
        ready = {}
        for kind in (0, 1):
            for chunk in own:
                if head[chunk, kind] < tail[chunk, kind]:
                    place = tail[chunk, kind] - 1 if rules[rank, IS_LAST + kind] else head[chunk, kind]
                    stage = int(waiting[kind, place])
                    ready[graph.key(int(number[stage]))] = stage

        def _done() -> tuple[StageKey, ...]:
            return tuple(graph.key(int(number[stage])) for stage in order.tolist())

        step = Step(rank, float(at[rank]), {chunk: int(flight[1][chunk]) for chunk in own}, tuple(ready), _done)
        if self.choose is not None:
            chosen = _called(self.choose, f"rank {rank}", step)
            if chosen is not None and chosen not in ready:
                expected = f"None or one of {', '.join(map(str, ready))}"
                raise ConfigError(
                    "not a stage that is ready", where=f"choose, rank {rank}", expected=expected, got=chosen
                )
            progress[ALLOWED] = RUN_WAITS if chosen is None else ready[chosen]
            return
        key = graph.key(int(number[asked]))
        for check in self.checks:
            if not _called(check, f"rank {rank}, stage {key}", step, key):
                self.refused[rank] = key, getattr(check, "__name__", str(check))
                rank_state[4][rank, asked & 1] |= np.uint64(1) << np.uint64(chunks[2][key.chunk, asked & 1])
                progress[ALLOWED] = NOTHING_READY
                return
        self.refused.pop(rank, None)
        progress[ALLOWED] = asked


def _called(function: Callable[..., Any], where: str, *given: object) -> Any:
    name = getattr(function, "__name__", str(function))
    try:
        return function(*given)
    except Exception as error:
        raise ConfigError(
            f"the function {name} failed: {type(error).__name__}: {error}", where=where, expected="an answer"
        ) from error
