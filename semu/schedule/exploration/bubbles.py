"""``find_bubbles``: where ranks idle, for which stage they wait, and which stage elsewhere caused it."""

from __future__ import annotations

import numpy as np

from semu.records import dataclass
from semu.schedule.phases import BACKWARD, INPUT
from semu.schedule.shape import StageKey
from semu.schedule.study import PipelineStudy, StudyResult


@dataclass(frozen=True)
class Bubble:
    """A gap between two stages of a rank.

    Attributes:
        rank: that idles. start_s, end_s: of the gap [s]. before: the stage that the rank waits to run.
        awaited: the stage whose result comes last; of ``awaited_rank``.
        cause: what ``awaited_rank`` ran in the way of it, last before it; None: it started as soon as it could.
    """

    rank: int
    start_s: float
    end_s: float
    before: StageKey
    awaited: StageKey
    awaited_rank: int
    cause: StageKey | None

    @property
    def lasts_s(self) -> float:
        """How long the rank idles [s]."""
        return self.end_s - self.start_s

    def __str__(self) -> str:
        why = f"which rank {self.awaited_rank} runs after {self.cause}" if self.cause else "on its way"
        return f"rank {self.rank} waits to run {self.before} for {self.awaited}, {why}"


def find_bubbles(study: PipelineStudy, result: StudyResult) -> list[Bubble]:
    """The gaps inside a schedule, the longest first; not the wait before a rank's first stage.

    Args:
        study: the pipeline. result: its evaluation under a schedule.
    """
    graph, delay = study.arrays, study.delay_s
    place = np.full(graph.num_stages, -1, dtype=np.int64)
    place[result.stages] = np.arange(len(result.stages))
    found = []
    for rank in range(study.shape.num_ranks):
        for at in range(int(result.ptr[rank]) + 1, int(result.ptr[rank + 1])):
            if result.start_s[at] <= result.end_s[at - 1]:
                continue
            stage = int(result.stages[at])
            arrivals = []
            for e in range(graph.pred_ptr[stage], graph.pred_ptr[stage + 1]):
                before = int(graph.pred[e])
                before += INPUT - BACKWARD if before % 4 == BACKWARD and place[before] < 0 else 0
                arrivals.append((float(result.end_s[place[before]] + delay[e]), before))
            awaited = max(arrivals)[1]
            there = int(place[awaited])
            is_first = there == result.ptr[graph.rank[awaited // 4]]
            waited = is_first or result.start_s[there] > result.end_s[there - 1]
            found.append(
                Bubble(
                    rank,
                    float(result.end_s[at - 1]),
                    float(result.start_s[at]),
                    graph.key(stage),
                    graph.key(awaited),
                    int(graph.rank[awaited // 4]),
                    None if waited else graph.key(int(result.stages[there - 1])),
                )
            )
    return sorted(found, key=lambda bubble: (-bubble.lasts_s, bubble.start_s, bubble.rank))
