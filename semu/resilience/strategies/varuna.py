"""Varuna: a rigid grid of pipelines, chosen anew for the nodes that are left, from the last checkpoint.

For each length of pipelines as many replicas as the nodes hold are tried, and the fastest grid that fits is taken;
nodes that no grid uses are idle. What pipelines of that length took with as many microbatches on other numbers of nodes
leaves out grids that are slower by more than ``MARGIN``. Nodes that join are taken in after a save, by a restart. A
node that gives notice is saved for, if the save ends in time. Source: Varuna (EuroSys 2022, 2111.04007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.errors import SemuError
from semu.job import TrainingJob
from semu.resilience.events import NodeEvents
from semu.resilience.machine import Conduct, Machine, Tier, table_of
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart
from semu.resilience.strategies.strategy import Situation

MARGIN = 0.05
"""By how much the time of other replicas of the same pipelines may be off (their all-reduce differs)."""


class Varuna(CheckpointRestart):
    """The fastest grid of the nodes that are left, and saves for which training waits."""

    name, title = "varuna", "a grid chosen anew, restart from storage"

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self._known: dict[tuple[int, int], float] = {}

    def tiers(self) -> Sequence[Tier]:
        """Storage, for which training waits."""
        return (self.storage(),)

    def conduct(self, alive: int) -> Conduct:
        """The fastest grid."""
        best: tuple[float, int] | None = None
        grids = sorted(self._grids(alive), key=lambda grid: self._known.get((grid[1], grid[2]), 0.0))
        for replicas, stages, microbatches in grids:
            likely = self._known.get((stages, microbatches), 0.0)
            if best is not None and likely > best[0] * (1.0 + MARGIN):
                break
            job = self._grid(replicas, stages, microbatches)
            time = self.situation.iteration_of(job) if isinstance(job, TrainingJob) else None
            self._known[stages, microbatches] = math.inf if time is None else time
            if isinstance(job, TrainingJob) and time is not None and (best is None or time < best[0]):
                best = (time, job.cluster.nodes)
        if best is None:
            return self.stopped()
        options, figures = self.situation.options.checkpoint, self.situation.figures
        return replace(
            self.fixed(self.nodes, best[1]),
            iteration_s=best[0],
            planned_save_s=figures.save_s(options),
            planned_load_s=figures.load_s(options),
        )

    def _grids(self, alive: int) -> list[tuple[int, int, int]]:
        """(replicas, stages, microbatches of a replica) for every length of pipelines, over whole nodes: as many
        replicas as there are nodes for, and as few as need no more microbatches."""
        job = self.situation.job
        parallel, per_node = job.parallel, job.cluster.gpus_per_node
        shards, count = parallel.tp * parallel.cp, job.training.global_batch // job.training.micro_batch
        blocks = sum(len(module.blocks()) for module in job.model.modules)
        found = []
        for stages in range(1, min(alive * per_node // shards, blocks) + 1):
            whole = per_node // math.gcd(stages * shards, per_node)  # replicas come in multiples that fill nodes
            most = alive * per_node // (shards * stages) // whole * whole
            if most == 0:
                continue
            microbatches = -(-count // most)
            fewest = math.ceil(math.ceil(count / microbatches) / whole) * whole
            found += [(replicas, stages, microbatches) for replicas in sorted({min(fewest, most), most})]
        return found

    def _grid(self, replicas: int, stages: int, microbatches: int) -> TrainingJob | SemuError:
        """The job on a grid, or why it cannot be on it; the batch is rounded up."""
        job = self.situation.job
        parallel = job.parallel
        return self.situation.varied(
            stages * parallel.tp * parallel.cp * replicas // job.cluster.gpus_per_node,
            {"dp": replicas, "pp": stages, "vpp": 1, "layout": None},
            {"global_batch": microbatches * replicas * job.training.micro_batch},
        )

    @property
    def refusal(self) -> str | None:
        """Why it cannot run this job: it cannot be on any grid of all nodes."""
        refused: SemuError | None = None
        for grid in self._grids(self.nodes):
            made = self._grid(*grid)
            if isinstance(made, TrainingJob):
                return None
            refused = refused or made
        return f"{refused} (varuna)" if refused is not None else None

    def table(self) -> NDArray[np.int64]:
        """Of all nodes only; the others are asked for one by one."""
        return table_of([self.stopped()] * self.nodes + [self.conduct(self.nodes)])

    def run(self, machine: Machine, table: NDArray[np.int64], events: NodeEvents, end_us: int) -> None:
        """Run a machine, choosing a grid before each event for the nodes that it leaves."""
        table, known = table.copy(), {self.nodes}
        for row in events.rows:
            alive = machine.alive
            left = int(alive.sum()) + (1 if row[2] else -1) * (bool(alive[row[1]]) is not bool(row[2]))
            if left not in known:
                known.add(left)
                table[left] = self.conduct(left).row()
            machine.run(table, NodeEvents(row[None, :]), int(row[0]))
        machine.run(table, NodeEvents(events.rows[:0]), end_us)
