"""``cost_stage``: costs of a stage, cut into segments (``split_stage``) of which equal ones are run once.

Where operators run one after another, a segment is what one block contributes to the stage: its operators, and what is
allocated and freed beside them. Identical layers are equal segments. Where communication overlaps, blocks are not apart
in time and the whole stage is one segment. (A pass over all ranks, DIP's segment, is another thing.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.stage import StageCosts, StageProgram
from semu.records import dataclass

Numbers = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Segment:
    """Operators that run one after another.

    Attributes:
        rows: int32[num_ops], cost rows in the library. stream: int32[num_ops]. num_streams: of the stage.
        size_rows: int32[num_events], size rows of what is allocated or freed, in order of time.
        come, gone: int32[num_ops], see ``kernels.run_segment``.
    """

    rows: Numbers
    stream: Numbers
    num_streams: int
    size_rows: Numbers
    come: Numbers
    gone: Numbers

    @cached_property
    def content(self) -> tuple[bytes, ...]:
        """Everything, equal for equal segments of a library."""
        return self.structure, self.rows.tobytes(), self.size_rows.tobytes()

    @cached_property
    def structure(self) -> bytes:
        """Everything but the costs of ``rows`` and ``size_rows``."""
        return _structure("serial", self.num_streams, self.stream, self.come, self.gone)

    def run(
        self,
        latency: NDArray[np.float64],
        size: NDArray[np.int64],
        row_place: Numbers | None = None,
        size_place: Numbers | None = None,
    ) -> StageCosts:
        """Costs of the segment alone for many shapes; ``peak`` is the highest allocation while an operator runs.

        Args:
            latency: float64[num_rows, num_shapes] [s]. size: int64[num_size_rows, num_shapes] [bytes].
            row_place, size_place: where ``latency`` and ``size`` hold a row of the library; None: at its number.
        """
        from semu.compile.kernels import run_segment

        n = latency.shape[1]
        exposed = np.zeros((self.num_streams, n))
        costs = StageCosts(
            np.zeros(n), exposed.T, np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, dtype=np.int32)
        )
        run_segment(
            latency,
            self.rows if row_place is None else row_place[self.rows],
            self.stream,
            size,
            self.size_rows if size_place is None else size_place[self.size_rows],
            self.come,
            self.gone,
            costs.latency,
            exposed,
            costs.peak,
            costs.net,
            costs.peak_op,
        )
        return costs


@dataclass(frozen=True, eq=False)
class WholeStage:
    """A stage whose communication overlaps, as one segment."""

    program: StageProgram

    @property
    def rows(self) -> Numbers:
        """int32[num_ops], cost rows in the library."""
        return self.program.rows

    @property
    def size_rows(self) -> Numbers:
        """int32[num_storages], size rows in the library."""
        return self.program.size_row

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return self.program.num_streams

    @cached_property
    def content(self) -> tuple[bytes, ...]:
        """Everything, equal for equal stages of a library."""
        return self.structure, self.rows.tobytes(), self.size_rows.tobytes()

    @cached_property
    def structure(self) -> bytes:
        """Everything but the costs of ``rows`` and ``size_rows``."""
        p = self.program
        arrays = (p.pred_ptr, p.pred, p.stream, p.touch_ptr, p.touch, p.alive_before, p.alive_after)
        return _structure("overlapped", p.num_streams, *arrays)

    def run(
        self,
        latency: NDArray[np.float64],
        size: NDArray[np.int64],
        row_place: Numbers | None = None,
        size_place: Numbers | None = None,
    ) -> StageCosts:
        """Costs for many shapes; arguments as ``Segment.run``, but ``peak`` is 0 where none is above the beginning."""
        from semu.compile.kernels import run_stage

        p, n = self.program, latency.shape[1]
        costs = StageCosts(
            latency=np.zeros(n),
            exposed=np.zeros((n, p.num_streams)),
            peak=np.zeros(n, dtype=np.int64),
            net=np.zeros(n, dtype=np.int64),
            peak_op=np.zeros(n, dtype=np.int32),
        )
        run_stage(
            np.ascontiguousarray(latency.T),
            p.rows if row_place is None else row_place[p.rows],
            p.graph,
            p.storages,
            np.ascontiguousarray(size.T),
            p.size_row if size_place is None else size_place[p.size_row],
            (costs.latency, costs.exposed, costs.peak, costs.net, costs.peak_op),
        )
        return costs


@dataclass(frozen=True)
class SegmentRun:
    """The same segment several times in a row.

    Attributes:
        segment: index into ``StageSegments.distinct``. count: how often. first: position of its first operator.
    """

    segment: int
    count: int
    first: int


@dataclass(frozen=True)
class StageSegments:
    """A stage as a sequence of segments.

    Attributes:
        distinct: the segments, each once. runs: their order.
        unread: size rows of what exists before, is touched by nobody and goes at the end.
        num_streams: of the stage.
    """

    distinct: tuple[Segment | WholeStage, ...]
    runs: tuple[SegmentRun, ...]
    unread: Numbers
    num_streams: int

    def compose(self, costs: Sequence[StageCosts], unread_bytes: NDArray[np.int64]) -> StageCosts:
        """Costs of the stage; a run of equal segments is composed at once, whatever its length.

        Times are exact sums below 2^13 s. Of a run, the first segment reaches highest where segments leave nothing
        behind, else the last.

        Args:
            costs: of each distinct segment. unread_bytes: int64[num_shapes], size of ``unread`` together.
        """
        n = len(unread_bytes)
        latency, exposed = np.zeros(n), np.zeros((n, self.num_streams))
        peak, live = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        peak_op = np.full(n, -1, dtype=np.int32)
        for run in self.runs:
            own, length = costs[run.segment], len(self.distinct[run.segment].rows)
            latency += run.count * own.latency
            exposed += run.count * own.exposed
            before = np.where(own.net > 0, run.count - 1, 0)
            summit = live + before * own.net + own.peak
            higher = np.flatnonzero(summit > peak)
            peak[higher] = summit[higher]
            peak_op[higher] = run.first + before[higher] * length + own.peak_op[higher]
            live += run.count * own.net
        return StageCosts(latency, exposed, peak, live - unread_bytes, peak_op)


def cost_stage(program: StageProgram, latency: NDArray[np.float64], size: NDArray[np.int64]) -> StageCosts:
    """Costs of a stage for many shapes.

    Args:
        latency: float64[num_shapes, num_rows] [s], all rows of the library.
        size: int64[num_shapes, num_size_rows] [bytes].
    """
    plan = split_stage(program)
    by_row = np.ascontiguousarray(latency.T), np.ascontiguousarray(size.T)
    return plan.compose([segment.run(*by_row) for segment in plan.distinct], by_row[1][plan.unread].sum(axis=0))


@memo.remembered(512)
def split_stage(program: StageProgram) -> StageSegments:
    """Cut a stage into segments, at the borders of its blocks where operators run one after another."""
    if not program.is_serial:
        none = np.zeros(0, dtype=np.int32)
        return StageSegments((WholeStage(program),), (SegmentRun(0, 1, 0),), none, program.num_streams)
    event_row, come, gone = _events(program)
    before = np.concatenate((np.zeros(1, dtype=np.int32), gone[:-1]))  # events before each operator
    by_operator = [array.tobytes() for array in (program.rows, program.stream, come - before, gone - come)]
    by_event = event_row.tobytes()
    borders = np.flatnonzero(np.diff(program.block)) + 1
    number: dict[tuple[bytes, ...], int] = {}
    distinct: list[Segment] = []
    runs: list[SegmentRun] = []
    for first, last in itertools.pairwise([0, *borders.tolist(), program.num_ops]):
        start, stop = int(before[first]), int(gone[last - 1])
        content = (*[array[4 * first : 4 * last] for array in by_operator], by_event[4 * start : 4 * stop])
        if content not in number:
            number[content] = len(distinct)
            distinct.append(
                Segment(
                    rows=program.rows[first:last],
                    stream=program.stream[first:last],
                    num_streams=program.num_streams,
                    size_rows=event_row[start:stop],
                    come=come[first:last] - np.int32(start),
                    gone=gone[first:last] - np.int32(start),
                )
            )
        if runs and runs[-1].segment == number[content]:
            runs[-1] = SegmentRun(runs[-1].segment, runs[-1].count + 1, runs[-1].first)
        else:
            runs.append(SegmentRun(number[content], 1, first))
    gone_unread = program.alive_before & ~program.alive_after & (program.touches == 0)
    return StageSegments(tuple(distinct), tuple(runs), program.size_row[gone_unread], program.num_streams)


def _events(program: StageProgram) -> tuple[Numbers, Numbers, Numbers]:
    """What a serial stage allocates and frees: size rows in order, and how many by each operator (come, gone)."""
    touch = program.touch
    operator = np.repeat(np.arange(program.num_ops), np.diff(program.touch_ptr))
    turn = np.arange(len(touch))
    latest = np.full(len(program.size_row), -1)
    latest[touch] = turn  # of several numbers for one place the last one stays
    last = latest[latest >= 0]
    latest[touch[::-1]] = turn[::-1]
    first = latest[latest >= 0]
    made = np.sort(first[~program.alive_before[touch[first]]])
    freed = np.sort(last[~program.alive_after[touch[last]]])
    at = np.concatenate((2 * operator[made], 2 * operator[freed] + 1))
    order = np.argsort(at, kind="stable")
    counts = np.cumsum(np.bincount(at, minlength=2 * program.num_ops)).astype(np.int32)
    storages = touch[np.concatenate((made, freed))[order]]
    return program.size_row[storages], np.ascontiguousarray(counts[::2]), np.ascontiguousarray(counts[1::2])


def _structure(kind: str, num_streams: int, *arrays: NDArray[np.int32] | NDArray[np.bool_]) -> bytes:
    """Arrays as bytes that differ where the arrays do."""
    head = f"{kind} {num_streams} {[len(array) for array in arrays]};".encode()
    return head + b"".join(array.astype("<i4").tobytes() for array in arrays)
