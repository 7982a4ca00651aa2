"""``Iteration``: a job under a schedule with everything of its iteration timed."""

from __future__ import annotations

from collections.abc import Sequence

from semu.records import dataclass
from semu.simulation.context import TimedJob
from semu.simulation.data_parallel.reduce import Reduction, Reductions, plan_reductions
from semu.simulation.data_parallel.step import RankTail, rank_tails
from semu.units import TIME_GRID_PER_S


@dataclass(frozen=True)
class Iteration(TimedJob):
    """A job whose whole iteration is timed: pipeline, gradient reduction, optimizer step.

    Attributes:
        tails: per pipeline rank, what it does after its last stage.
    """

    tails: Sequence[RankTail]

    @property
    def overhead_s(self) -> float:
        """Time outside the model (``training.overhead_s``) [s], on the time grid."""
        return round(self.job.training.overhead_s * TIME_GRID_PER_S) / TIME_GRID_PER_S

    @property
    def time_s(self) -> float:
        """End of everything on every rank, and the time outside the model [s], on the time grid.

        Where ranks step apart, the longest time of a rank from its first stage to its last end: moved by that, all
        stages of the next iteration find their ranks free and what they wait for done (2401.10241 §4).
        """
        run, tails = self.run, self.tails
        if self.job.training.optimizer_post_validation:
            busy = [max(run.rank_ends[rank], tail.end_s) - run.first_start(rank) for rank, tail in enumerate(tails)]
            return max(busy) + self.overhead_s
        return max(float(run.makespan().max()), *(tail.end_s for tail in tails)) + self.overhead_s


def time_iteration(timed: TimedJob, reductions: Reductions | Sequence[Reduction] | None = None) -> Iteration:
    """Time what follows the pipeline.

    Args:
        timed: the job under a schedule. reductions: its gradient collectives; None: as ``plan_reductions`` times them.
    """
    tails = rank_tails(timed, reductions if reductions is not None else plan_reductions(timed))
    of = timed.layout, timed.evaluation, timed.units, timed.replicas, timed.nodes, timed.gathers, timed.run
    return Iteration(*of, tails)
