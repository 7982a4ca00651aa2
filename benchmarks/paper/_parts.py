"""Small parts of worked examples: a batch of one given microbatch, and a 1F1B pipeline of plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semu.costs.kernels import fixed_order_times
from semu.schedule import SCHEDULES, PipelineShape
from semu.schedule.problem import lower
from semu.workload.batch import AbstractBatch, Microbatch


@dataclass(frozen=True)
class OneMicrobatch(AbstractBatch):
    """A batch of one given microbatch."""

    only: Microbatch

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        return [self.only] * count

    @property
    def default_seq_len(self) -> int | None:
        return None

    def describe(self) -> dict[str, object]:
        return {"kind": "one microbatch"}


def one_f_one_b_makespan(stages: list[float], num_microbatches: int) -> float:
    """End of a 1F1B pipeline without transfers; a third of each stage's time is forward."""
    shape = PipelineShape.chain(len(stages), num_microbatches)
    problem = lower(SCHEDULES["1f1b"](shape), shape, overlapped_sends=True)
    latency = np.zeros(problem.num_nodes)
    share = np.where(problem.phase == 0, 1 / 3, 2 / 3)
    latency[: problem.num_stages] = np.array(stages)[problem.chunk] * share
    start, end = np.zeros_like(latency), np.zeros_like(latency)
    cursor = np.zeros(len(problem.stream_ptr) - 1, dtype=np.int64)
    fixed_order_times(problem.stream_ptr, problem.pred_ptr, problem.pred, latency, np.zeros(0), start, end, cursor)
    return float(end.max())
