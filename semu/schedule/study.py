"""``PipelineStudy``: a pipeline on plain numbers, on which any schedule is evaluated."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu.errors import MemoryLimitError, ScheduleError
from semu.frames import Tabular
from semu.records import dataclass
from semu.schedule.costs import StudyCosts, idle_share
from semu.schedule.gangs.barriers import with_barriers
from semu.schedule.graph import PipelineGraph, Wait, waiting_graph
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.units import format_bytes

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StudyResult(Tabular):
    """What a schedule makes of a pipeline.

    Attributes:
        name: of the schedule. makespan_s: end of the last stage [s].
        bubble_ratio: 1 - (sum of stage times) / (ranks x makespan), DESIGN §2.
        busy_s: float64[num_ranks] [s]. peak_bytes: int64[num_ranks] [bytes].
        ptr: int64[num_ranks + 1], first stage of each rank. stages: int32[n], stage numbers, rank after rank.
        start_s, end_s: float64[n] [s].
    """

    name: str
    makespan_s: float
    bubble_ratio: float
    busy_s: F64
    peak_bytes: I64
    ptr: I64
    stages: NDArray[np.int32]
    start_s: F64
    end_s: F64

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each stage, rank after rank in the order in which they run."""
        ranks = np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))
        columns = ranks.tolist(), self.stages.tolist(), self.start_s.tolist(), self.end_s.tolist()
        names = ("rank", "stage", "start_s", "end_s")
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    @property
    def span_s(self) -> float:
        """Longest time from a rank's first start to its last end [s]: the cost per iteration where ranks need not
        wait for one another at its end (2401.10241 §2.3 and §4)."""
        used = np.flatnonzero(np.diff(self.ptr))
        if not len(used):
            return 0.0
        return float(np.max(self.end_s[self.ptr[used + 1] - 1] - self.start_s[self.ptr[used]]))

    @property
    def span_bubble_ratio(self) -> float:
        """1 - (sum of stage times) / (ranks x ``span_s``)."""
        return 1 - float(self.busy_s.sum()) / (len(self.busy_s) * self.span_s) if self.span_s > 0 else 0.0

    def check_memory(self, limit_bytes: ArrayLike) -> None:
        """Refuse a schedule that does not fit.

        Args:
            limit_bytes: one number, or one per rank [bytes].
        Raises:
            MemoryLimitError: the rank that exceeds its limit most.
        """
        limit = np.broadcast_to(np.asarray(limit_bytes, dtype=np.int64), self.peak_bytes.shape)
        excess = self.peak_bytes - limit
        if len(excess) and excess.max() > 0:
            rank = int(excess.argmax())
            raise MemoryLimitError(
                f"the schedule does not fit in the memory of rank {rank}",
                where=f"{self.name}: rank {rank}",
                expected=f"at most {format_bytes(int(limit[rank]))}",
                got=format_bytes(int(self.peak_bytes[rank])),
            )


@dataclass(frozen=True, eq=False)
class PipelineStudy:
    """A pipeline's structure with its costs.

    Attributes:
        shape: ranks, chunks, microbatches. costs: times and memory of its stages.
        waits: what stages wait for beside the flow of data (``semu.schedule.rules.instructions``).
    """

    shape: PipelineShape
    costs: StudyCosts
    waits: tuple[Wait, ...] = ()

    @classmethod
    def of(cls, shape: PipelineShape, **costs: ArrayLike) -> PipelineStudy:
        """With the costs that ``StudyCosts.of`` takes; without any, every F, I and W takes a second and every forward
        holds a byte."""
        return cls(shape, StudyCosts.of(shape, **costs))  # type: ignore[arg-type]

    @property
    def arrays(self) -> PipelineGraph:
        """Structure of the stages."""
        return waiting_graph(self.shape, self.waits)

    @cached_property
    def delay_s(self) -> F64:
        """float64[num_preds] [s], how long each predecessor's result is on its way; none within a rank."""
        arrays = self.arrays
        after = np.repeat(np.arange(arrays.num_stages), np.diff(arrays.pred_ptr))
        crosses = arrays.rank[after // 4] != arrays.rank[arrays.pred // 4]
        return np.where(crosses, self.costs.transfer_s[arrays.pred], 0.0)

    @cached_property
    def held_bytes(self) -> I64:
        """int64[num_microbatches, num_ranks] [bytes], what each microbatch leaves on each rank before its backward."""
        arrays, shape = self.arrays, self.shape
        pairs = np.flatnonzero(arrays.exists)
        where = arrays.microbatch[pairs].astype(np.int64) * shape.num_ranks + arrays.rank[pairs]
        held = np.zeros(shape.num_microbatches * shape.num_ranks, dtype=np.int64)
        np.add.at(held, where, self.costs.delta_bytes[4 * pairs])
        return held.reshape(shape.num_microbatches, shape.num_ranks)

    def evaluate(self, schedule: Schedule) -> StudyResult:
        """Times and memory under a legal schedule.

        Raises:
            ScheduleError: it deadlocks.
        """
        return self.evaluate_orders(schedule.columns.ptr, self.arrays.numbers(schedule), schedule.name)

    def evaluate_orders(self, ptr: I64, stages: NDArray[np.int32], name: str = "orders") -> StudyResult:
        """The same for stage numbers.

        Args:
            ptr: int64[num_ranks + 1], first stage of each rank. stages: int32[n], rank after rank.
        """
        from semu.schedule.kernels import memory_of_orders, run_orders

        arrays, costs, num_ranks = self.arrays, self.costs, self.shape.num_ranks
        start, end = np.empty(len(stages)), np.empty(len(stages))
        done, cursor = np.full(arrays.num_stages, np.nan), np.zeros(num_ranks, dtype=np.int64)
        peak = np.zeros(num_ranks, dtype=np.int64)
        pred_ptr, pred, delay_s = arrays.pred_ptr, arrays.pred, self.delay_s
        if self.shape.chunk_gang:
            pred_ptr, pred, place = with_barriers(arrays, ptr, stages)
            delay_s = np.where(place >= 0, delay_s[place], 0.0)
        ran = run_orders(ptr, stages, pred_ptr, pred, costs.latency_s, delay_s, done, start, end, cursor)
        if ran < len(stages):
            raise ScheduleError("the schedule deadlocks", where=name, expected="a schedule that has passed validate()")
        memory_of_orders(ptr, stages, costs.delta_bytes, costs.internal_bytes, peak)
        total = np.concatenate(([0.0], np.cumsum(costs.latency_s[stages])))
        busy = total[ptr[1:]] - total[ptr[:-1]]
        makespan = float(end.max(initial=0.0))
        bubble = idle_share(float(total[-1]), num_ranks, makespan)
        return StudyResult(name, makespan, bubble, busy, peak, ptr, stages, start, end)

    def lower_bound_s(self, *, split: bool = True) -> float:
        """No schedule ends before [s]: for every rank, the shortest way to its first stage, its work, and the
        shortest way from its last stage to the end; and every microbatch's own longest way.

        Args:
            split: whether backwards may be split; then only weight gradients need nothing after them.
        """
        from semu.schedule.bounds import lower_bound  # circle: a study offers its lower bound as a method

        return lower_bound(self, split=split)
