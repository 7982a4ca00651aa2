"""``Schedule``: for each pipeline rank, the order of its stages. Data only; generators live one per file.

Text form, one line per rank: ``0F0 0F1 0B0 0B1`` (chunk, phase, microbatch). Files: ``semu.schedule.files``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.graph.operator import Phase
from semu.schedule.shape import PipelineShape, StageKey

__all__ = ["PHASES", "PipelineShape", "Schedule", "StageColumns", "StageKey"]

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
"""Phases of stages, by the number that arrays use."""
_NUMBER = {phase.value: number for number, phase in enumerate(PHASES)}


@dataclass(frozen=True, eq=False)
class StageColumns:
    """The stages of a schedule as arrays, rank after rank.

    Attributes:
        ptr: int64[num_ranks + 1], first stage of each rank.
        chunk, phase, microbatch: int64[num_stages]; phase is a position in ``PHASES``.
    """

    ptr: NDArray[np.int64]
    chunk: NDArray[np.int64]
    phase: NDArray[np.int64]
    microbatch: NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """An order of stages for each rank.

    Attributes:
        name: of the generator, or of the file.
        orders: per rank, its stages in order.
    """

    name: str
    orders: tuple[tuple[StageKey, ...], ...]

    @classmethod
    def build(cls, name: str, orders: Iterable[Iterable[StageKey]]) -> Schedule:
        """From any iterables of stages, one per rank."""
        return cls(name, tuple(tuple(order) for order in orders))

    def to_text(self) -> str:
        """Text form, one line per rank; ``-`` for a rank without stages."""
        return "\n".join(" ".join(str(stage) for stage in order) or "-" for order in self.orders)

    @classmethod
    def from_text(cls, text: str, name: str = "text") -> Schedule:
        """Read the text form; blank lines are skipped.

        Raises:
            ScheduleError: a word that is not a stage (rank and position are named).
        """
        lines = [[] if line.strip() == "-" else line.split() for line in text.splitlines() if line.strip()]
        return cls.build(
            name,
            (
                [StageKey.parse(word, f"{name}: rank {rank}, position {i}") for i, word in enumerate(words)]
                for rank, words in enumerate(lines)
            ),
        )

    @cached_property
    def columns(self) -> StageColumns:
        """The same stages as arrays."""
        stages = [stage for order in self.orders for stage in order]
        return StageColumns(
            np.cumsum([0, *map(len, self.orders)], dtype=np.int64),
            np.array([stage.chunk for stage in stages], dtype=np.int64),
            np.array([_NUMBER.get(stage.phase._value_, -1) for stage in stages], dtype=np.int64),
            np.array([stage.microbatch for stage in stages], dtype=np.int64),
        )

    @property
    def splits_backward(self) -> bool:
        """Whether input and weight gradients are stages of their own anywhere."""
        return bool(np.any(self.columns.phase >= 2))

    def validate(self, shape: PipelineShape) -> None:
        """Check that every stage runs once, on its rank, and that the order cannot deadlock.

        Raises:
            ScheduleError: what is wrong and where; a deadlock is shown as a grid with an arrow at each stuck rank,
                followed by the cycle.
        """
        from semu.schedule.check import check_schedule

        check_schedule(self, shape)
