"""``Arranger``: pipelines of templates for the nodes of a drill, composed anew with the least copied bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from semu.errors import ConfigError
from semu.resilience.templates.holding import reassign
from semu.resilience.templates.planned import compile_pipelines
from semu.resilience.templates.template_set import PipelineSet, TemplateSet

if TYPE_CHECKING:
    from semu.executor.drill import Arrangement
    from semu.executor.drill.orders import Key
    from semu.plan.plan import ExecutionPlan


class Arranger:
    """Composes nodes, as ``run_drill`` asks it to.

    Plans for all numbers of nodes that are foreseen are made before anything fails, as templates are.

    Args:
        templates: whose stages are on a node each. fewest: nodes that may be left. progress: called with what is done.
    Raises:
        ConfigError: nodes of several GPUs, fewer nodes than templates allow.
    """

    def __init__(self, templates: TemplateSet, fewest: int, *, progress: Callable[[str], None] | None = None) -> None:
        if any(len(one.stages) != one.nodes for one in templates.templates):
            raise ConfigError(
                "a drill has a process for each node",
                where="cluster.gpus_per_node",
                expected="1: a stage of every pipeline on each node",
                got=templates.job.cluster.gpus_per_node,
                nearest=1,
            )
        self.templates = templates
        names = [module.name for module in templates.job.model.modules]
        self._keys: list[tuple[Key, ...]] = []
        owners = [names[number] for number in templates.module_of.tolist()]
        for layer, module in enumerate(owners):
            number, count = owners[:layer].count(module), owners.count(module)
            ends = ([(module, -1)] if number == 0 else []) + ([(module, count)] if number == count - 1 else [])
            self._keys.append(((module, number), *ends))
        self._progress = progress
        self._composed: dict[int, tuple[PipelineSet, ExecutionPlan]] = {}
        for nodes in range(max(fewest, templates.fewest_nodes), templates.nodes + 1):
            self._pipelines(nodes)
        nobody = dict.fromkeys(range(fewest), frozenset[int]())
        reassign(nobody, [frozenset()] * fewest, templates.layer_bytes)  # loads what it needs before anything fails

    def _pipelines(self, nodes: int) -> tuple[PipelineSet, ExecutionPlan]:
        """Those of a number of nodes; more may fail than was foreseen, so that a plan may have to be made now.

        Raises:
            ConfigError: too few nodes.
        """
        if nodes not in self._composed:
            pipelines = self.templates.compose(nodes)
            plan = compile_pipelines(self.templates, pipelines, progress=self._progress)
            self._composed[nodes] = pipelines, plan
        return self._composed[nodes]

    def first(self) -> Arrangement:
        """All nodes, one after another."""
        from semu.executor.drill import Arrangement

        nodes = self.templates.nodes
        return Arrangement(self._pipelines(nodes)[1], tuple(range(nodes)), ())

    def __call__(self, held: Mapping[int, frozenset[Key]]) -> Arrangement:
        """Pipelines on all of some nodes.

        Args:
            held: node -> layers that it holds; every layer is held.
        Raises:
            ConfigError: too few nodes.
        """
        from semu.executor.drill import Arrangement, Move

        whole = {
            node: frozenset(layer for layer, keys in enumerate(self._keys) if keys[0] in own)
            for node, own in held.items()
        }
        pipelines, plan = self._pipelines(len(held))
        chosen, copies = reassign(whole, pipelines.places(1), self.templates.layer_bytes)
        moves = tuple(Move(self._keys[layer], source, target) for layer, source, target in copies.moves)
        return Arrangement(plan, tuple(chosen), moves)
