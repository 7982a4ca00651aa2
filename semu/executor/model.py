"""``PipelineModel``: the user's side of a plan: modules, how they are fed and joined, and a rank's chunks of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

import torch

from semu.errors import ExecutorError
from semu.executor.chunk import LayerChunk
from semu.executor.edges import chains_of, groups_of
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

Load = Callable[[int, int, int], Any]
"""(microbatch, first item, one past the last) -> tensors of the data loader, a tuple or one."""
Loss = Callable[[Any, int, int, int], torch.Tensor]
"""(output of the last chunk, microbatch, first item, one past the last) -> a number; numbers are summed."""
Rows = Callable[[str, int, int], int]
"""(module that reads, microbatch, item) -> row of the first dimension of the output where the item begins."""
Shape = tuple[tuple[int, ...], torch.dtype]
"""Of a tensor."""
Shapes = Callable[[int, int, int, int], Sequence[Shape]]
"""(chunk, microbatch, first item, one past the last) -> shapes of the chunk's outputs on this replica."""


def _item_is_row(_reader: str, _microbatch: int, item: int) -> int:
    return item


@dataclass(frozen=True)
class ModuleStages:
    """How a modality module is run.

    Its first chunk is called with the loader's tensors and then, module by module, with the outputs of its sources: the
    parts that it needs joined along the first dimension, or None where there is nothing to read. Other chunks are
    called with the outputs of the chunk before. Outputs that are no floating-point tensors get no gradient.

    Attributes:
        stem, head: of a gang (``parallel.vocabulary = "pipeline"``) this rank's part, which exchanges what it needs by
            a ``RankGroup``; its loss is the same on all ranks.
        sources: modules that it reads, in order. load: its data; None: it has none of its own.
        loss: on its last chunk; None: it has none, and readers instead.
        rows: where its reader cuts items finer than it does, where they begin in its output; as it stands, an item is
            a row.
        layers, stem, head: the whole module for ``split_model``. selective: as ``LayerChunk``.
    """

    sources: tuple[str, ...] = ()
    load: Load | None = None
    loss: Loss | None = None
    rows: Rows = _item_is_row
    layers: Sequence[torch.nn.Module] = ()
    stem: torch.nn.Module | None = None
    head: torch.nn.Module | None = None
    selective: tuple[str, ...] = ()


@dataclass(eq=False)
class PipelineModel:
    """A rank's part of a model.

    Attributes:
        modules: all modality modules by name. chunks: chunk number -> its module, those of this rank.
        shapes: shapes of what chunks hand on, for receive buffers; only asked for chunks of other ranks; None: found
            with ``skeletons``.
        model_hash: of the plan that it was split by; None: any plan with the same chunks.
        skeletons: all chunks of the model on torch's meta device, by number.
        checked: chunks whose outputs were seen to have the shapes that the skeletons give.
    """

    modules: Mapping[str, ModuleStages]
    chunks: Mapping[int, torch.nn.Module]
    shapes: Shapes | None = None
    model_hash: str | None = None
    skeletons: Mapping[int, torch.nn.Module] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set, repr=False)
    sources: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.sources = {name: tuple(module.sources) for name, module in self.modules.items()}

    def parameters(self) -> list[torch.nn.Parameter]:
        """All parameters of the rank's chunks, each once, in order."""
        found = {id(p): p for number in sorted(self.chunks) for p in self.chunks[number].parameters()}
        return list(found.values())

    def outputs(self, module: str) -> list[str]:
        """Modules that read one."""
        return [name for name, sources in self.sources.items() if module in sources]


def split_model(
    plan: ExecutionPlan,
    modules: Mapping[str, ModuleStages],
    rank: int,
    *,
    device: torch.device | str = "cpu",
    shapes: Shapes | None = None,
) -> PipelineModel:
    """A rank's chunks of modules that are sequences of layers.

    The chunk with a module's first layer gets its stem, the last chunk its head. Layers of several copies of the model
    (bidirectional pipelines) are copied; what is on the device already is not.

    Args:
        plan: says which layers. modules: with ``layers``. rank: pipeline rank. device: where its chunks go.
        shapes: as ``PipelineModel``; None: found with the layers on torch's meta device, for which all ranks need
            ``load`` for all modules' data, of the right shapes at least.
    Raises:
        ExecutorError: a module that is missing, or has another number of layers than the plan's chunks; a trained
            parameter of several chunks that do not lie on one rank.
    """
    made: dict[int, torch.nn.Module] = {}
    parts: list[tuple[ModuleStages, int, int, bool, bool]] = []
    chains = chains_of(plan, modules)
    for (name, _), chain in chains.items():
        last = plan.chunks[chain[-1]]
        planned = [plan.chunks[number].first_layer for number in chain] + [last.first_layer + last.num_layers]
        steps = [plan.chunks[number].num_layers for number in chain]
        if planned[-1] != len(modules[name].layers) or [b - a for a, b in pairwise(planned)] != steps:
            raise ExecutorError(
                "a module with another number of layers than the plan's chunks",
                where=f"modules.{name}.layers",
                expected=f"{planned[-1]} layers",
                got=len(modules[name].layers),
            )
    for number, chunk in enumerate(plan.chunks):
        groups = [[number]] if chunk.repeats else groups_of(plan, chains[chunk.module, chunk.flow])
        module = modules[chunk.module]
        is_first, is_last = number in groups[0], number in groups[-1]
        parts.append((module, chunk.first_layer, chunk.num_layers, is_first, is_last))
        if chunk.rank == rank:
            own = layers_of(*parts[-1])
            made[number] = (copy.deepcopy(own) if chunk.flow or chunk.repeats else own).to(device)
            if chunk.repeats:
                made[number].requires_grad_(False)
    _check_shared(plan, parts, rank)
    skeletons = {number: _skeleton(layers_of(*part)) for number, part in enumerate(parts)} if shapes is None else {}
    return PipelineModel(modules, made, shapes, plan.model_hash, skeletons)


def _check_shared(plan: ExecutionPlan, parts: Sequence[tuple[ModuleStages, int, int, bool, bool]], rank: int) -> None:
    """Nobody adds up gradients of a parameter that two ranks have, or that copies of the model have twice each."""
    flows = {chunk.flow for chunk in plan.chunks}
    owner: dict[int, int] = {}
    for number, chunk in enumerate(plan.chunks):
        is_other = chunk.flow != min(flows) or (chunk.gang >= 0 and chunk.rank != rank)
        if is_other or chunk.repeats:  # others have parts of their own, repetitions no gradients
            continue
        for name, parameter in layers_of(*parts[number]).named_parameters():
            other = owner.setdefault(id(parameter), number)
            is_apart = plan.chunks[other].rank != chunk.rank or len(flows) > 1
            if other != number and is_apart and parameter.requires_grad:
                raise ExecutorError(
                    f"chunks {other} and {number} share a parameter",
                    where=f"modules.{chunk.module}, chunk {number}: {name}",
                    expected="shared parameters in one chunk, or frozen, or chunks of one rank",
                    got=f"ranks {plan.chunks[other].rank} and {chunk.rank}",
                )


def layers_of(module: ModuleStages, first: int, count: int, is_first: bool, is_last: bool) -> LayerChunk:
    """``count`` layers of a module from the ``first`` on, with its stem and head at its ends."""
    return LayerChunk(
        module.layers[first : first + count],
        module.stem if is_first else None,
        module.head if is_last else None,
        module.selective,
    )


def _skeleton(chunk: torch.nn.Module) -> torch.nn.Module:
    """A chunk on the meta device, where tensors have shapes only."""
    memo: dict[int, Any] = {}
    for tensor in (*chunk.parameters(), *chunk.buffers()):
        away = tensor.detach().to("meta")
        memo[id(tensor)] = torch.nn.Parameter(away, False) if isinstance(tensor, torch.nn.Parameter) else away
    return copy.deepcopy(chunk, memo)
