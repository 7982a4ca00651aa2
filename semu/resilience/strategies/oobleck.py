"""Oobleck: pipelines of several sizes, composed anew from templates for the nodes that are left.

Every node's state is in at least f + 1 pipelines, so a failure loses the iteration in flight; what a new pipeline lacks
is copied from nodes that have it. Nodes get the places of the new pipelines with the least copied bytes. Below
(f + 1) n0 nodes it waits. Source: Oobleck (SOSP 2023, 2309.08125); its own three steps of reconfiguration are not
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.errors import SemuError
from semu.resilience.events import NodeChange, NodeEvents, to_us
from semu.resilience.machine import Conduct, Machine, Tier, table_of
from semu.resilience.strategies.strategy import Situation, Strategy
from semu.resilience.templates.holding import lost_layers, reassign
from semu.resilience.templates.template_set import PipelineSet, TemplateSet, pipeline_templates


class Oobleck(Strategy):
    """Pipeline templates; no checkpoints."""

    name, title = "oobleck", "pipelines composed anew, layers copied from peers"

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self._sets: dict[int, PipelineSet] = {}

    @cached_property
    def _planned(self) -> TemplateSet | SemuError:
        try:
            return pipeline_templates(self.situation.job, self.situation.options.faults)
        except SemuError as error:
            return error

    @property
    def templates(self) -> TemplateSet:
        """Of the job.

        Raises:
            SemuError: as ``pipeline_templates``.
        """
        if isinstance(self._planned, SemuError):
            raise self._planned
        return self._planned

    @property
    def refusal(self) -> str | None:
        """Why there are no templates."""
        return str(self._planned) if isinstance(self._planned, SemuError) else None

    def tiers(self) -> Sequence[Tier]:
        """None."""
        return ()

    def settings(self) -> dict[str, float]:
        """With the templates' sizes."""
        sizes = [one.nodes for one in self.templates.templates]
        found = {"smallest_template_nodes": sizes[0], "largest_template_nodes": sizes[-1]}
        return {**found, **super().settings()}

    def pipelines(self, alive: int) -> PipelineSet | None:
        """What so many nodes are composed into; None: they are too few."""
        if alive < self.templates.fewest_nodes:
            return None
        if alive not in self._sets:
            self._sets[alive] = self.templates.compose(alive)
        return self._sets[alive]

    def conduct(self, alive: int) -> Conduct:
        """Without what is copied, which depends on the nodes that are left."""
        return self._conduct(alive, 0.0, keeps=True)

    def _conduct(self, alive: int, copy_s: float, *, keeps: bool) -> Conduct:
        options, pipelines = self.situation.options, self.pipelines(alive)
        detect = options.checkpoint.seconds("detect_s") or 0.0
        if pipelines is None:
            return Conduct(0.0, 0, detect_s=detect, keeps_progress=keeps)
        return Conduct(
            pipelines.iteration_s,
            alive,
            detect_s=detect,
            reconfigure_s=float(options.reconfigure_s),
            copy_s=copy_s,
            keeps_progress=keeps,
        )

    def table(self) -> NDArray[np.int64]:
        """Of all nodes only; the others are asked for one by one."""
        return table_of([Conduct(0.0, 0)] * self.nodes + [self.conduct(self.nodes)])

    def run(self, machine: Machine, table: NDArray[np.int64], events: NodeEvents, end_us: int) -> None:
        """Run a machine, planning anew before each event.

        Until a reconfiguration has ended, nodes hold what they held before it: a failure in it finds no more copies.
        """
        table = table.copy()
        per_node, layer_bytes = self.situation.figures.gpus_per_node, self.templates.layer_bytes
        first = self.pipelines(self.nodes)
        assert first is not None
        held = dict(enumerate(first.places(per_node)))
        next_held, ready_us = held, 0
        for row in events.rows:
            time, node, change = int(row[0]), int(row[1]), NodeChange(int(row[2]))
            if time >= ready_us:
                held = next_held
            if (change is NodeChange.FAIL) is not (node in held):
                continue  # it is down already, or there already
            held = {one: layers for one, layers in held.items() if one != node}
            if change is NodeChange.JOIN:
                held[node] = frozenset()
            is_lost = bool(lost_layers(held, len(layer_bytes)))
            pipelines = self.pipelines(len(held))
            next_held, copy_s = held, 0.0
            if pipelines is not None:
                chosen, copies = reassign(held, pipelines.places(per_node), layer_bytes)
                next_held = dict(zip(chosen, pipelines.places(per_node), strict=True))
                if not is_lost:
                    copy_s = self.situation.figures.peer_copy_s(int(copies.largest_bytes / per_node))
            conduct = self._conduct(len(held), copy_s, keeps=not is_lost)
            table[len(held)] = conduct.row()
            waits = conduct.detect_s + conduct.reconfigure_s + copy_s
            if change is NodeChange.JOIN:
                waits += pipelines.iteration_s if pipelines is not None else 0.0
            if is_lost and pipelines is not None:
                held = next_held  # all of it is loaded anew
            ready_us = time + to_us(waits)
            machine.run(table, NodeEvents(row[None, :]), time)
        machine.run(table, NodeEvents(events.rows[:0]), end_us)
