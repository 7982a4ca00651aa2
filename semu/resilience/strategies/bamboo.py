"""Bamboo: every node also computes the forward of the next stage, whose state it holds too.

A failure loses the iteration in flight: the node before has the state, pipelines are made whole from nodes that are
idle, or there is one fewer. Two neighbours of a pipeline that go before that is done take it back to the last
checkpoint. Nothing is recomputed, and the state of two stages must fit; redundant forwards take their share of every
iteration. Source: Bamboo (NSDI 2023, 2204.12013); as in Oobleck's comparison, it does not recompute activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.baselines.costs_of_layers import NO_RECOMPUTE
from semu.errors import SemuError
from semu.job import Recompute, TrainingJob
from semu.present.report import Report
from semu.records import dataclass
from semu.resilience.events import NodeChange, NodeEvents, to_us
from semu.resilience.machine import Conduct, Machine, Tier
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart
from semu.simulation import simulate


@dataclass(frozen=True)
class _Redundant:
    """The job without recomputation. ``share``: of forward and backward, the forward."""

    report: Report
    share: float


class Bamboo(CheckpointRestart):
    """Redundant computation, and saves to fall back on."""

    name, title = "bamboo", "the next stage computed redundantly"

    def tiers(self) -> Sequence[Tier]:
        """Storage, written beside training."""
        return (self.storage(is_async=True),)

    @cached_property
    def _found(self) -> _Redundant | str:
        job = self.situation.job
        if job.cluster.num_gpus % job.parallel.pp or self._nodes_of_a_pipeline * job.parallel.dp != job.cluster.nodes:
            return "pipelines that share nodes do not fail one by one (bamboo)"
        if job.parallel.pp == 1:
            return "a pipeline of one stage has no next stage to compute (bamboo)"
        try:
            training = replace(job.training, **NO_RECOMPUTE, recompute=Recompute.NONE)  # type: ignore[arg-type]
            report = simulate(replace(job, training=training))
        except SemuError as error:
            return str(error)
        need = max(
            peak + static for peak, static in zip(report.peak_memory_bytes, report.static_memory_bytes, strict=True)
        )
        if need > report.room.usable_bytes:
            return (
                f"the state of two stages and activations that are kept take {need / 2**30:.1f} of "
                f"{report.room.usable_bytes / 2**30:.1f} GiB (bamboo)"
            )
        forward = sum(row.layers * row.forward_s for row in report.layer_times)
        return _Redundant(
            report, forward / sum(row.layers * (row.forward_s + row.backward_s) for row in report.layer_times)
        )

    @property
    def _nodes_of_a_pipeline(self) -> int:
        return max(1, self.situation.job.cluster.nodes // self.situation.job.parallel.dp)

    @property
    def refusal(self) -> str | None:
        """Why it cannot run this job."""
        return self._found if isinstance(self._found, str) else None

    def conduct(self, alive: int) -> Conduct:
        """As many whole pipelines as the nodes hold."""
        return self._conduct(alive, keeps=True)

    def _conduct(self, alive: int, *, keeps: bool) -> Conduct:
        job, found, size = self.situation.job, self._found, self._nodes_of_a_pipeline
        assert not isinstance(found, str)
        count = min(alive // size, job.parallel.dp)
        if count == 0:
            return replace(self.stopped(), keeps_progress=keeps)
        each = count * job.training.micro_batch
        batch = -(-job.training.global_batch // each) * each
        training = {**NO_RECOMPUTE, "recompute": Recompute.NONE, "global_batch": batch}
        time: float | None = found.report.iteration_time_s
        if count < job.parallel.dp:
            fewer = self.situation.varied(count * size, {"dp": count}, training)
            time = self.situation.iteration_of(fewer) if isinstance(fewer, TrainingJob) else None
        if time is None:
            return replace(self.stopped(), keeps_progress=keeps)
        options, figures = self.situation.options, self.situation.figures
        return Conduct(
            time * (1.0 + found.share),
            count * size,
            redundant_s=time * found.share,
            detect_s=options.checkpoint.seconds("detect_s") or 0.0,
            reconfigure_s=float(options.reconfigure_s) if keeps else figures.restart_s(options.checkpoint),
            copy_s=figures.peer_copy_s(figures.loaded_bytes) if keeps else 0.0,
            keeps_progress=keeps,
        )

    def run(self, machine: Machine, table: NDArray[np.int64], events: NodeEvents, end_us: int) -> None:
        """Run a machine; a failure next to one that is not yet mended goes back to the checkpoint.

        Neighbours are nodes with numbers next to each other in a pipeline of consecutive nodes."""
        size = self._nodes_of_a_pipeline
        mended: dict[int, int] = {}
        for row in events.rows:
            time, node, change = int(row[0]), int(row[1]), NodeChange(int(row[2]))
            if change is NodeChange.FAIL and machine.alive[node]:
                left = int(machine.alive.sum()) - 1
                start = node // size * size
                beside = (start + (node - start + step) % size for step in (-1, 1))
                keeps = not any(mended.get(one, -1) > time for one in beside if one != node)
                conduct = self._conduct(left, keeps=keeps)
                mended[node] = time + to_us(conduct.detect_s + conduct.reconfigure_s + conduct.copy_s)
                own = table.copy()
                own[left] = conduct.row()
                machine.run(own, NodeEvents(row[None, :]), time)
            else:
                machine.run(table, NodeEvents(row[None, :]), time)
        machine.run(table, NodeEvents(events.rows[:0]), end_us)
