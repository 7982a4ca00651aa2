"""``StageTable``: a schedule with its times and memory, a line per stage; as CSV that reads back as a schedule.

    schedule,rank,position,chunk,phase,microbatch,start_s,end_s,bytes
    1f1b,0,0,0,F,0,0.0,0.0125,1073741824

schedule: name. rank: pipeline rank. position: of the stage in the rank's order, from 0. chunk: of the model, in order
of data flow. phase: F, B (whole backward), I (input gradient), W (weight gradient). microbatch: from 0. start_s, end_s:
[s] from the beginning of the iteration, every digit. bytes: the most that the rank has allocated while the stage runs,
parameters included. ``read_table`` needs rank, position, chunk, phase and microbatch, columns and lines in any order.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu.errors import ScheduleError
from semu.records import dataclass
from semu.schedule.graph import PipelineGraph, graph_of
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import StudyResult

COLUMNS = ("schedule", "rank", "position", "chunk", "phase", "microbatch", "start_s", "end_s", "bytes")
"""Heads of the columns."""
NEEDED = COLUMNS[1:6]
"""Columns that make a schedule."""


@dataclass(frozen=True, eq=False)
class StageTable:
    """Stages of a schedule, rank after rank, in order.

    Attributes:
        schedule: the order. shape: its pipeline. start_s, end_s: float64[num_stages] [s].
        bubble_ratio: of the pipeline, DESIGN §2. find_bytes: makes ``size_bytes``.
    """

    schedule: Schedule
    shape: PipelineShape
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    bubble_ratio: float
    find_bytes: Callable[[], NDArray[np.int64]] = field(repr=False)

    @cached_property
    def size_bytes(self) -> NDArray[np.int64]:
        """int64[num_stages], the most that the rank has allocated during each stage [bytes]; found when asked for."""
        return self.find_bytes()

    @property
    def arrays(self) -> PipelineGraph:
        """Structure of the pipeline's stages."""
        return graph_of(self.shape)

    def evaluation(self, name: str | None = None) -> StudyResult:
        """The times for pictures and grids; ``peak_bytes`` stays 0.

        Args:
            name: another than the schedule's.
        """
        ptr = self.schedule.columns.ptr
        busy = [float((self.end_s[a:b] - self.start_s[a:b]).sum()) for a, b in pairwise(ptr)]
        return StudyResult(
            name if name is not None else self.schedule.name,
            float(self.end_s.max(initial=0.0)),
            self.bubble_ratio,
            np.array(busy),
            np.zeros(len(busy), dtype=np.int64),
            ptr,
            self.arrays.numbers(self.schedule),
            self.start_s,
            self.end_s,
        )

    def rows(self, name: str | None = None) -> Iterator[tuple[object, ...]]:
        """Cells of every line, as ``COLUMNS``.

        Args:
            name: for the first column, where it is not the schedule's own.
        """
        told = name if name is not None else self.schedule.name
        spans = zip(self.start_s.tolist(), self.end_s.tolist(), self.size_bytes.tolist(), strict=True)
        for rank, order in enumerate(self.schedule.orders):
            for position, stage in enumerate(order):
                start, end, size = next(spans)
                yield told, rank, position, stage.chunk, stage.phase.value, stage.microbatch, start, end, size


def table_csv(tables: Iterable[tuple[str, StageTable]]) -> str:
    """Stage tables below one another as CSV, under names."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, table in tables:
        writer.writerows(table.rows(name))
    return buffer.getvalue()


def is_table(text: str) -> bool:
    """Whether a CSV text is a stage table, by its heads."""
    heads = [cell.strip() for cell in text.lstrip("\ufeff").split("\n", 1)[0].split(",")]
    return "rank" in heads and "position" in heads


def read_table(text: str, name: str) -> Schedule:
    """The schedule of a stage table; times and memory are not read.

    Args:
        text: CSV. name: of the file.
    Raises:
        ScheduleError: a column is missing, a cell is no number, two stages at one position of a rank, or several
            schedules in one file.
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    heads = [head.strip() for head in reader.fieldnames or ()]
    reader.fieldnames = heads
    missing = [column for column in NEEDED if column not in heads]
    if missing:
        raise ScheduleError(
            "a stage table without a column", where=f"{name}: line 1", expected=", ".join(missing), got=", ".join(heads)
        )
    orders: dict[int, dict[int, StageKey]] = {}
    names: dict[str, None] = {}
    for line in reader:
        where = f"{name}: line {reader.line_num}"
        rank, position = (_count(line[column], column, where) for column in ("rank", "position"))
        stage = StageKey.parse(f"{line['chunk']}{line['phase']}{line['microbatch']}".replace(" ", ""), where)
        names.setdefault(line.get("schedule") or "")
        if position in orders.setdefault(rank, {}) and len(names) == 1:
            raise ScheduleError(
                f"two stages at position {position} of rank {rank}",
                where=where,
                expected=f"one, {orders[rank][position]} is there",
                got=stage,
            )
        orders[rank][position] = stage
    if len(names) > 1:
        raise ScheduleError(
            "several schedules in one file", where=name, expected="the stages of one", got=", ".join(names)
        )
    by_rank = (orders.get(rank, {}) for rank in range(max(orders, default=-1) + 1))
    return Schedule.build(name, ([stages[position] for position in sorted(stages)] for stages in by_rank))


def _count(text: str | None, column: str, where: str) -> int:
    if text is None or not text.strip().isdecimal():
        raise ScheduleError(f"not a {column}", where=where, expected="an integer >= 0", got=text)
    return int(text)
