"""Varuna: a rigid grid of pipelines, chosen anew for the nodes that are left, from the last checkpoint.

For each number of replicas the longest pipelines that the nodes hold are tried, and the fastest grid that fits is
taken; nodes that no grid uses are idle. Nodes that join are taken in after a save, by a restart. A node that gives
notice is saved for, if the save ends in time. Source: Varuna (EuroSys 2022, 2111.04007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.job import TrainingJob
from semu.resilience.events import NodeEvents
from semu.resilience.machine import Conduct, Machine, Tier, table_of
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart


class Varuna(CheckpointRestart):
    """The fastest grid of the nodes that are left, and saves for which training waits."""

    name, title = "varuna", "a grid chosen anew, restart from storage"

    def tiers(self) -> Sequence[Tier]:
        """Storage, for which training waits."""
        return (self.storage(),)

    def conduct(self, alive: int) -> Conduct:
        """The fastest grid."""
        best: tuple[float, int] | None = None
        for job in self._grids(alive):
            time = self.situation.iteration_of(job)
            if time is not None and (best is None or time < best[0]):
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

    def _grids(self, alive: int) -> list[TrainingJob]:
        """For each number of replicas the longest pipelines, over whole nodes; batches are rounded up."""
        job = self.situation.job
        parallel, per_node = job.parallel, job.cluster.gpus_per_node
        shards = parallel.tp * parallel.cp
        found: dict[tuple[int, int], TrainingJob] = {}
        for replicas in range(1, alive * per_node // shards + 1):
            stages = alive * per_node // (shards * replicas)
            while stages and stages * shards * replicas % per_node:
                stages -= 1
            if not stages or any(pp == stages and dp > replicas for dp, pp in found):
                continue
            each = replicas * job.training.micro_batch
            found[replicas, stages] = replace(
                job,
                cluster=replace(job.cluster, nodes=stages * shards * replicas // per_node),
                parallel=replace(parallel, dp=replicas, pp=stages, vpp=1, layout=None),
                training=replace(job.training, global_batch=-(-job.training.global_batch // each) * each),
            )
        return list(found.values())

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
