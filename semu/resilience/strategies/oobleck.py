"""Oobleck: pipelines of several sizes, for the nodes that are left, from templates.

Every node's state is in at least f + 1 pipelines, so a failure loses the iteration in flight; what a new pipeline lacks
is copied from nodes that have it. Pipelines are composed anew and nodes get their places with the least copied bytes;
``resilience.reconfiguration = "paper"`` takes Oobleck's own three steps instead, which can end with fewer than f + 1
pipelines (the report counts how often). Where failures take racks, no rack holds all copies of a layer if that can be.
Below (f + 1) n0 nodes it waits. Source: Oobleck (SOSP 2023, 2309.08125).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, SemuError
from semu.records import dataclass
from semu.resilience.events import NodeChange, NodeEvents, to_us
from semu.resilience.machine import Conduct, Machine, Tier, table_of
from semu.resilience.options import Reconfiguration
from semu.resilience.strategies.strategy import Situation, Strategy
from semu.resilience.templates.holding import Copies, layers_in_one_rack, lost_layers, reassign
from semu.resilience.templates.reinstantiating import Group, three_steps
from semu.resilience.templates.template_set import PipelineSet, TemplateSet


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Pipelines on nodes.

    Attributes:
        pipelines: of templates; None: too few nodes. groups: nodes of each. held: node -> layers that it is to hold.
        copies: until it does.
    """

    pipelines: PipelineSet | None
    groups: tuple[Group, ...]
    held: dict[int, frozenset[int]]
    copies: Copies


class Oobleck(Strategy):
    """Pipeline templates; no checkpoints."""

    name, title = "oobleck", "pipelines composed anew, layers copied from peers"

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self._sets: dict[int, PipelineSet | None] = {}
        self._runs = self._broken = 0

    @property
    def templates(self) -> TemplateSet:
        """Of the job.

        Raises:
            SemuError: as ``pipeline_templates``.
        """
        found = self.situation.templates_of()
        if isinstance(found, SemuError):
            raise found
        return found

    @property
    def refusal(self) -> str | None:
        """Why there are no templates, or none that all nodes are composed into."""
        try:
            self.templates.compose(self.nodes)
        except SemuError as error:
            return str(error)
        return None

    @property
    def _is_paper(self) -> bool:
        return Reconfiguration(self.situation.options.reconfiguration) is Reconfiguration.PAPER

    @property
    def _rack_nodes(self) -> int:
        return self.situation.options.failures.rack_nodes

    def tiers(self) -> Sequence[Tier]:
        """None."""
        return ()

    def settings(self) -> dict[str, float]:
        """With the templates' sizes; where failures take racks, layers of all nodes' pipelines that one rack holds all
        copies of; with Oobleck's three steps how often, in a run, they left fewer than f + 1 pipelines."""
        sizes = [one.nodes for one in self.templates.templates]
        found: dict[str, float] = {"smallest_template_nodes": sizes[0], "largest_template_nodes": sizes[-1]}
        if self._rack_nodes:
            found["layers_in_one_rack"] = len(layers_in_one_rack(self.first().held, self._rack_nodes))
        if self._is_paper:
            found["guarantee_broken"] = self._broken / max(1, self._runs)
        return {**found, **super().settings()}

    def pipelines(self, alive: int) -> PipelineSet | None:
        """What so many nodes are composed into; None: they are too few, or the microbatches for them."""
        if alive not in self._sets:
            try:
                self._sets[alive] = self.templates.compose(alive)
            except ConfigError:
                self._sets[alive] = None
        return self._sets[alive]

    def conduct(self, alive: int) -> Conduct:
        """Without what is copied, which depends on the nodes that are left."""
        return self._conduct(self.pipelines(alive), 0.0, keeps=True)

    def _conduct(self, pipelines: PipelineSet | None, copy_s: float, *, keeps: bool) -> Conduct:
        options = self.situation.options
        detect = options.checkpoint.seconds("detect_s") or 0.0
        if pipelines is None:
            return Conduct(0.0, 0, detect_s=detect, keeps_progress=keeps)
        return Conduct(
            self.situation.together_s(pipelines),
            pipelines.nodes,
            detect_s=detect,
            reconfigure_s=float(options.reconfigure_s),
            copy_s=copy_s,
            keeps_progress=keeps,
        )

    def table(self) -> NDArray[np.int64]:
        """Of all nodes only; the others are asked for one by one."""
        return table_of([Conduct(0.0, 0)] * self.nodes + [self.conduct(self.nodes)])

    def first(self) -> Arrangement:
        """Pipelines of all nodes, before anything fails: one after another, but for racks."""
        pipelines = self.pipelines(self.nodes)
        assert pipelines is not None
        return self._composed(dict(enumerate(pipelines.places(self.situation.figures.gpus_per_node))))

    def _composed(self, held: dict[int, frozenset[int]]) -> Arrangement:
        """All nodes composed anew."""
        pipelines = self.pipelines(len(held))
        if pipelines is None:
            return Arrangement(None, (), held, Copies(0.0, 0.0))
        wanted = pipelines.places(self.situation.figures.gpus_per_node)
        layer_bytes = self.templates.layer_bytes
        chosen, copies = reassign(held, wanted, layer_bytes, rack_nodes=self._rack_nodes)
        ends = np.cumsum([one.nodes for one in pipelines.pipelines])[:-1]
        groups = tuple(tuple(group.tolist()) for group in np.split(np.array(chosen), ends))
        return Arrangement(pipelines, groups, dict(zip(chosen, wanted, strict=True)), copies)

    def _stepped(self, held: dict[int, frozenset[int]], groups: tuple[Group, ...]) -> Arrangement:
        """Oobleck's three steps."""
        sizes = [one.nodes for one in self.templates.templates]
        if len(held) < self.templates.fewest_nodes:
            return Arrangement(None, groups, held, Copies(0.0, 0.0))
        found = three_steps(groups, held, sizes[0], sizes[-1])
        self._broken += len(found) <= self.templates.faults
        if not 0 < len(found) <= self.templates.num_microbatches:
            return Arrangement(None, groups, held, Copies(0.0, 0.0))
        pipelines = self.templates.of_sizes([len(group) for group in found])
        wanted = pipelines.places(self.situation.figures.gpus_per_node)
        chosen, copies = reassign(held, wanted, self.templates.layer_bytes, groups=found)
        holds = dict.fromkeys(held, frozenset[int]()) | dict(zip(chosen, wanted, strict=True))
        return Arrangement(pipelines, tuple(found), holds, copies)

    def run(self, machine: Machine, table: NDArray[np.int64], events: NodeEvents, end_us: int) -> None:
        """Run a machine, planning anew before each event.

        Until a reconfiguration has ended, nodes hold what they held before it: a failure in it finds no more copies.
        """
        table = table.copy()
        self._runs += 1
        per_node, num_layers = self.situation.figures.gpus_per_node, len(self.templates.layer_bytes)
        now = self.first()
        held, ready_us = now.held, 0
        for row in events.rows:
            time, node, change = int(row[0]), int(row[1]), NodeChange(int(row[2]))
            if time >= ready_us:
                held = now.held
            if (change is NodeChange.FAIL) is not (node in held):
                continue  # it is down already, or there already
            held = {one: layers for one, layers in held.items() if one != node}
            if change is NodeChange.JOIN:
                held[node] = frozenset()
            is_lost = bool(lost_layers(held, num_layers))
            now = self._stepped(held, now.groups) if self._is_paper else self._composed(held)
            copy_s = 0.0
            if now.pipelines is not None and not is_lost:
                copy_s = self.situation.figures.peer_copy_s(int(now.copies.largest_bytes / per_node))
            conduct = self._conduct(now.pipelines, copy_s, keeps=not is_lost)
            table[len(held)] = conduct.row()
            waits = conduct.detect_s + conduct.reconfigure_s + copy_s
            if change is NodeChange.JOIN:
                waits += conduct.iteration_s
            if is_lost and now.pipelines is not None:
                held = now.held  # all of it is loaded anew
            ready_us = time + to_us(waits)
            machine.run(table, NodeEvents(row[None, :]), time)
        machine.run(table, NodeEvents(events.rows[:0]), end_us)
