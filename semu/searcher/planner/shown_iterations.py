"""``ShownIterations``: which iterations of a loop its page shows stage by stage, and their timelines."""

from __future__ import annotations

from semu.engine.timeline import IterationTimeline
from semu.errors import SemuError
from semu.records import dataclass
from semu.searcher.planner.planned_iteration import Outcome, PlannedIteration
from semu.searcher.planner.training_loop import IterationRow, megatron_of
from semu.simulation import prepare


@dataclass(frozen=True, eq=False)
class ShownIteration:
    """An iteration under its plan and under Megatron-LM's schedule.

    Attributes:
        index: of the iteration. why: it is shown. runs: name and timeline of those schedules that can run.
    """

    index: int
    why: str
    runs: tuple[tuple[str, IterationTimeline], ...]


class ShownIterations:
    """The first iteration of a loop, and those whose plans gain most and least over Megatron-LM; only their plans are
    kept."""

    def __init__(self) -> None:
        self._first: tuple[IterationRow, PlannedIteration] | None = None
        self._most: tuple[IterationRow, PlannedIteration] | None = None
        self._least: tuple[IterationRow, PlannedIteration] | None = None

    def add(self, row: IterationRow, step: PlannedIteration) -> None:
        """An iteration as it was trained, and its plan."""
        own = row, step
        self._first = self._first or own
        if row.gain is None:
            return
        if self._most is None or row.gain > (self._most[0].gain or 0.0):
            self._most = own
        if self._least is None or row.gain < (self._least[0].gain or 0.0):
            self._least = own

    def found(self) -> tuple[ShownIteration, ...]:
        """Them in order, each once, simulated again."""
        whys: dict[int, list[str]] = {}
        kept: dict[int, PlannedIteration] = {}
        for why, own in (("first", self._first), ("largest gain", self._most), ("smallest gain", self._least)):
            if own is not None:
                whys.setdefault(own[0].index, []).append(why)
                kept[own[0].index] = own[1]
        return tuple(ShownIteration(index, ", ".join(whys[index]), _runs(kept[index])) for index in sorted(kept))


def _runs(step: PlannedIteration) -> tuple[tuple[str, IterationTimeline], ...]:
    baseline, _ = megatron_of(step.given)
    found = [] if baseline is None else [("Megatron-LM", baseline.checkpoint.lived(baseline.order).timeline)]
    try:
        if step.problem is not None and step.outcome is not Outcome.FALLBACK:
            planned = step.problem.simulated(step.plan).lived()
        else:
            planned = prepare(step.job, plan=step.plan).lived()
    except SemuError:  # told by the loop
        return tuple(found)
    return (*found, ("plan", planned.timeline))
