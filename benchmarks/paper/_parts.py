"""Small parts of worked examples: a batch of one given microbatch, and a 1F1B pipeline of plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semu.schedule import SCHEDULES, PipelineShape
from semu.schedule.study import PipelineStudy
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
    times = np.array(stages)
    study = PipelineStudy.of(shape, forward_s=times / 3, backward_s=times * 2 / 3)
    return study.evaluate(SCHEDULES["1f1b"](shape)).makespan_s
