"""``Strategy``: how a job goes on after a failure; ``Situation``: what it knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import SemuError
from semu.job import TrainingJob
from semu.records import dataclass
from semu.resilience.closed_forms import best_interval
from semu.resilience.events import NodeEvents
from semu.resilience.job_figures import JobFigures
from semu.resilience.machine import STOPPED, Conduct, Machine, Tier, table_of
from semu.resilience.options import Resilience
from semu.resilience.templates.template_set import PipelineSet, TemplateSet


@dataclass(frozen=True)
class Situation:
    """What a strategy knows.

    Attributes:
        job: what is trained. figures: of it. options: what is asked. mtbf_s: mean time between failures of the nodes
            that the job uses, together [s]; infinity: nothing fails.
        iteration_of: the iteration time [s] of a job, remembered.
        templates_of: pipeline templates of the job, or why it has none, remembered.
        together_s: the iteration time of pipelines simulated together [s], remembered.
    """

    job: TrainingJob
    figures: JobFigures
    options: Resilience
    mtbf_s: float
    iteration_of: Callable[[TrainingJob], float | None] = field(repr=False, compare=False)
    templates_of: Callable[[], TemplateSet | SemuError] = field(repr=False, compare=False)
    together_s: Callable[[PipelineSet], float] = field(repr=False, compare=False)

    def varied(self, nodes: int, parallel: Mapping[str, Any], training: Mapping[str, Any]) -> TrainingJob | SemuError:
        """The job on other nodes, with other values of its layout and training; or why it cannot be so."""
        job = self.job
        try:
            return replace(
                job,
                cluster=replace(job.cluster, nodes=nodes),
                parallel=replace(job.parallel, **parallel),
                training=replace(job.training, **training),
            )
        except SemuError as error:
            return error

    def every_s(self, given: float | str, stall_s: float, at_least_s: float = 0.0) -> float:
        """An interval between saves: as given, else the best for what training waits for a save; ``at_least_s``: a
        save does not begin before the last one has ended."""
        if isinstance(given, int | float):
            return float(given)
        longest = self.options.days * 86400.0
        best = best_interval(stall_s, self.mtbf_s) if self.mtbf_s < longest * 1e3 else longest
        return max(best, at_least_s, self.figures.iteration_s)


class Strategy(ABC):
    """How a job goes on after a failure.

    A strategy is what a job does with every number of nodes alive; one for which that does not say enough is asked
    before every event (``run``).

    Attributes:
        name: for people and options. title: what it does, in a few words.
    """

    name: str
    title: str

    def __init__(self, situation: Situation) -> None:
        self.situation = situation

    @property
    def nodes(self) -> int:
        """Nodes of the cluster, spares too."""
        return self.situation.figures.nodes

    @property
    def refusal(self) -> str | None:
        """Why it cannot run this job; None: it can."""
        return None

    @abstractmethod
    def tiers(self) -> Sequence[Tier]:
        """Places for training checkpoints, the fastest to load first."""

    @abstractmethod
    def conduct(self, alive: int) -> Conduct:
        """What it does with so many nodes alive."""

    def settings(self) -> dict[str, float]:
        """What was chosen, for the report: names with units -> values."""
        found: dict[str, float] = {}
        for tier in self.tiers():
            where = "memory" if tier.is_memory else "storage"
            found |= {
                f"{where}_every_s": tier.every_s,
                f"{where}_stall_s": tier.stall_s,
                f"{where}_load_s": tier.load_s,
            }
        return found

    def table(self) -> NDArray[np.int64]:
        """``conduct`` of all numbers of nodes."""
        return table_of([self.conduct(alive) for alive in range(self.nodes + 1)])

    def run(self, machine: Machine, table: NDArray[np.int64], events: NodeEvents, end_us: int) -> None:
        """Run a machine through events."""
        machine.run(table, events, end_us)

    def fixed(self, alive: int, used: int) -> Conduct:
        """The job as it is on ``used`` nodes, which must be alive; after a failure it restarts from a checkpoint."""
        if alive < used:
            return self.stopped()
        options, figures = self.situation.options.checkpoint, self.situation.figures
        return Conduct(
            figures.iteration_s,
            used,
            detect_s=options.seconds("detect_s") or 0.0,
            reconfigure_s=figures.restart_s(options),
        )

    def stopped(self) -> Conduct:
        """Too few nodes: the failure is noticed, then it waits."""
        detect = self.situation.options.checkpoint.seconds("detect_s") or 0.0
        return Conduct(STOPPED.iteration_s, STOPPED.nodes, detect_s=detect)
