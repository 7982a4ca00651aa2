"""``Schedule``: for each pipeline rank, the order of its stages. Data only; generators live one per file.

Text form, one line per rank: ``0F0 0F1 0B0 0B1`` (chunk, phase, microbatch). Files: ``semu.schedule.files``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu.frames import html_table
from semu.records import dataclass
from semu.schedule.phases import INPUT, PHASES
from semu.schedule.shape import PipelineShape, StageKey

__all__ = ["PipelineShape", "Schedule", "StageColumns", "StageKey"]

_MOST_RANKS, _MOST_STAGES = 16, 24
"""What notebooks show of a schedule."""
_CODE_OF_LETTER = {phase.value: code for code, phase in enumerate(PHASES)}


@dataclass(frozen=True, eq=False)
class StageColumns:
    """The stages of a schedule as arrays, rank after rank.

    Attributes:
        ptr: int64[num_ranks + 1], first stage of each rank.
        chunk, phase, microbatch: int64[num_stages]; phase is a code of ``semu.schedule.phases``, -1 for any
            other phase.
    """

    ptr: NDArray[np.int64]
    chunk: NDArray[np.int64]
    phase: NDArray[np.int64]
    microbatch: NDArray[np.int64]

    def __iter__(self) -> Iterator[tuple[StageKey, ...]]:
        """Per rank, its stages in order."""
        stages = stage_keys(self.chunk, self.phase, self.microbatch)
        return (tuple(stages[first:last]) for first, last in pairwise(self.ptr.tolist()))


def columns_of(orders: Iterable[Iterable[StageKey]]) -> StageColumns:
    """Stages per rank as arrays."""
    listed = [[*order] for order in orders]
    stages = [stage for order in listed for stage in order]
    return StageColumns(
        np.cumsum([0, *map(len, listed)], dtype=np.int64),
        np.array([stage.chunk for stage in stages], dtype=np.int64),
        np.array([_CODE_OF_LETTER.get(stage.phase._value_, -1) for stage in stages], dtype=np.int64),
        np.array([stage.microbatch for stage in stages], dtype=np.int64),
    )


class Schedule:
    """An order of stages for each rank; nothing in it changes.

    Stages as objects and stages as arrays are two forms of one order; the form that was not given is made when somebody
    asks for it.

    Args:
        name: of the generator, or of the file.
        orders: per rank, its stages in order; or the same as arrays.
    """

    def __init__(self, name: str, orders: Iterable[Iterable[StageKey]] | StageColumns) -> None:
        self.name = name
        if isinstance(orders, StageColumns):
            self.__dict__["columns"] = orders
        else:
            self.__dict__["orders"] = tuple(tuple(order) for order in orders)

    @classmethod
    def build(cls, name: str, orders: Iterable[Iterable[StageKey]]) -> Schedule:
        """From any iterables of stages, one per rank."""
        return cls(name, orders)

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
    def orders(self) -> tuple[tuple[StageKey, ...], ...]:
        """Per rank, its stages in order."""
        return tuple(self.columns)

    @cached_property
    def columns(self) -> StageColumns:
        """The same stages as arrays."""
        return columns_of(self.orders)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        pairs = zip(vars(self.columns).values(), vars(other.columns).values(), strict=True)
        return self.name == other.name and all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    def __hash__(self) -> int:
        return hash((self.name, *(column.tobytes() for column in vars(self.columns).values())))

    def __repr__(self) -> str:
        return f"Schedule({self.name!r}, {len(self.columns.chunk)} stages on {len(self.columns.ptr) - 1} ranks)"

    def _repr_html_(self) -> str:
        """For notebooks: the first stages of the first ranks."""
        rows = []
        for rank, (first, last) in enumerate(pairwise(self.columns.ptr[: _MOST_RANKS + 1].tolist())):
            end = min(last, first + _MOST_STAGES)
            keys = stage_keys(*(own[first:end] for own in list(vars(self.columns).values())[1:]))
            more = f" ... ({last - end:,} more)" if last > end else ""
            rows.append((str(rank), f"{last - first:,}", " ".join(map(str, keys)) + more))
        left = len(self.columns.ptr) - 1 - len(rows)
        more = f"; {left:,} further ranks" if left > 0 else ""
        return html_table(("rank", "stages", "order"), rows, f"{self.name}{more}")

    @property
    def splits_backward(self) -> bool:
        """Whether input and weight gradients are stages of their own anywhere."""
        return bool(np.any(self.columns.phase >= INPUT))

    def validate(self, shape: PipelineShape) -> None:
        """Check that every stage runs once, on its rank, and that the order cannot deadlock.

        Raises:
            ScheduleError: what is wrong and where; a deadlock is shown as a grid with an arrow at each stuck rank,
                followed by the cycle.
        """
        from semu.schedule.check import check_schedule  # circle: a schedule offers its check as a method

        check_schedule(self, shape)


def stage_keys(chunk: NDArray[np.integer], phase: NDArray[np.integer], part: NDArray[np.integer]) -> list[StageKey]:
    """Stages of arrays as objects. ``chunk``, ``phase``, ``part``: int[n], as ``StageColumns``."""
    stages = np.stack((chunk, phase, part), axis=1).tolist()
    return [StageKey(chunk, PHASES[code], part) for chunk, code, part in stages]
