"""``LivedIteration``: an iteration as its slowest replica lives it, and how far coefficients move its time."""

from __future__ import annotations

from functools import cached_property

from semu.engine.timeline import IterationTimeline
from semu.graph.operator import Phase
from semu.present.uncertainty import Uncertainty
from semu.records import dataclass
from semu.simulation.effects.uncertainty import time_uncertainty
from semu.simulation.iteration import Iteration
from semu.simulation.replica_costs import ReplicaCosts
from semu.simulation.results.estimated import EstimatedIteration
from semu.simulation.results.rank_timeline import build_timeline, rank_pieces, stage_parts
from semu.simulation.results.time_breakdown import stage_weights


@dataclass(frozen=True)
class LivedIteration:
    """An iteration with its metrics; what needs the timeline is worked out when it is asked for.

    Attributes:
        iteration, head: both of one job.
    """

    iteration: Iteration
    head: EstimatedIteration

    @cached_property
    def costs(self) -> ReplicaCosts:
        """What the slowest replica's stages cost."""
        return ReplicaCosts.of(self.iteration, self.head.slowest)

    @cached_property
    def timeline(self) -> IterationTimeline:
        """The slowest replica, shown until the iteration ends, or until its last rank does where ranks step apart."""
        time_s = self.head.estimate.iteration_time_s
        if self.iteration.job.training.optimizer_post_validation:
            time_s = max(time_s, *(tail.end_s for tail in self.iteration.tails))
        return build_timeline(self.iteration, self.head.memories, self.head.slowest, self.costs, time_s)

    def parts_of(self, rank: int) -> list[tuple[int, Phase]]:
        """Chunk and phase of each stage of a pipeline rank, in their order."""
        return stage_parts(self.iteration, self.head.memories[rank])

    @property
    def launched_s(self) -> float:
        """Time that the replica's stages wait for their hosts, over all ranks, weighted by their GPUs [s]."""
        launched = self.iteration.run.launched
        return 0.0 if launched is None else float((launched[self.head.slowest] * stage_weights(self.iteration)).sum())

    def uncertainty(self) -> Uncertainty:
        """How far the errors of the coefficients move the iteration time."""
        run, launched = self.iteration.run, self.launched_s
        computed = float((run.plain[self.head.slowest, : run.problem.num_stages] * stage_weights(self.iteration)).sum())
        return time_uncertainty(
            self.costs,
            rank_pieces(self.iteration, self.head.memories, self.head.slowest, self.costs),
            iteration_time_s=self.head.estimate.iteration_time_s,
            overhead_s=self.iteration.overhead_s,
            launch_share=launched / (launched + computed or 1.0),
        )
