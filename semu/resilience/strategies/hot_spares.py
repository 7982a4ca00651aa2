"""Hot spares: nodes beside the job's take the place of those that go; the state comes from storage.

With ``resilience.spares`` open, there are as many as keep the job from waiting for a repair in 99 of 100 moments.
"""

from __future__ import annotations

import math

from semu.resilience.machine import Conduct
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart

ENOUGH = 0.99


class HotSpares(CheckpointRestart):
    """Spare nodes, and saves to storage."""

    name, title = "spares", "spare nodes, restart from storage"

    @property
    def nodes(self) -> int:
        """The job's, and the spares."""
        return self.situation.figures.nodes + self.spares

    @property
    def spares(self) -> int:
        """Spare nodes: as told, else by the failures that are under repair at once, which are Poisson's."""
        options = self.situation.options
        if options.spares is not None:
            return options.spares
        repair = options.failures.repair_s
        time = options.days * 86400.0 if repair is None else repair
        mean = time / self.situation.mtbf_s
        count, term, total = 0, math.exp(-mean), math.exp(-mean)
        if term == 0.0:  # too many for the sum: Poisson's distribution is normal
            return math.ceil(mean + 2.33 * math.sqrt(mean))
        while total < ENOUGH:
            count += 1
            term *= mean / count
            total += term
        return max(1, count)

    def conduct(self, alive: int) -> Conduct:
        """The job as it is, while as many nodes as it needs are alive."""
        return self.fixed(alive, self.situation.figures.nodes)

    def settings(self) -> dict[str, float]:
        """With the number of spares."""
        return {"spare_nodes": self.spares, **super().settings()}
