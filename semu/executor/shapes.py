"""``StageShapes``: shapes of a stage's outputs before they are made, so that receives start early.

Nothing is exchanged between ranks: shapes are the user's function, or every rank runs the chunks before its own on
torch's meta device, where tensors have no numbers, once for every new combination of input shapes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from semu import memo
from semu.errors import ExecutorError
from semu.executor.chunk import as_tuple, run_chunk
from semu.executor.edges import Edge, Stage
from semu.executor.model import PipelineModel, Shape
from semu.plan.plan import ExecutionPlan

KNOWN = memo.ScopedTable[tuple[Shape, ...]]("shapes of a chunk's outputs, by chunk and inputs", 1 << 16)
"""Of every ``PipelineModel``."""
_ON_META = threading.Lock()
"""torch imports much of itself at the first meta operations, which several threads must not do together."""


class StageShapes:
    """Shapes of the stages of one plan on one replica.

    Args:
        plan: the plan. model: the user's. stages: all pairs.
    """

    def __init__(self, plan: ExecutionPlan, model: PipelineModel, stages: Sequence[Stage]) -> None:
        self._plan, self._model, self._stages = plan, model, stages
        self._found: dict[int, tuple[Shape, ...]] = {}

    def of_edge(self, edge: Edge) -> tuple[Shape, ...]:
        """Shapes of what an edge carries forward.

        Raises:
            ExecutorError: neither a function nor layers give them.
        """
        return tuple(self.of_rows(self.of_stage(self._stages[edge.source]), edge))

    def of_rows(self, shapes: Sequence[Shape], edge: Edge) -> Sequence[Shape]:
        """Shapes of the rows that an edge carries of tensors of ``shapes``."""
        rows = self.rows(edge)
        if rows is None:
            return shapes
        return [((rows[1] - rows[0], *size[1:]), dtype) for size, dtype in shapes]

    def rows(self, edge: Edge) -> tuple[int, int] | None:
        """Rows of the source's outputs that an edge carries; None: all."""
        if edge.items is None:
            return None
        source, target = self._stages[edge.source], self._stages[edge.target]
        find = self._model.modules[self._plan.chunks[source.chunk].module].rows
        reader, microbatch = self._plan.chunks[target.chunk].module, source.microbatch
        begin = find(reader, microbatch, source.items[0])
        return find(reader, microbatch, edge.items[0]) - begin, find(reader, microbatch, edge.items[1]) - begin

    def of_stage(self, stage: Stage) -> tuple[Shape, ...]:
        """Shapes of a stage's outputs.

        Raises:
            ExecutorError: neither a function nor layers give them.
        """
        known = self._found.get(stage.pair)
        if known is None:
            if self._model.shapes is not None:
                told = self._model.shapes(stage.chunk, stage.microbatch, *stage.items)
                known = tuple((tuple(size), dtype) for size, dtype in told)
            else:
                known = self._run(stage)
            self._found[stage.pair] = known
        return known

    def _run(self, stage: Stage) -> tuple[Shape, ...]:
        chunk = self._plan.chunks[stage.chunk]
        skeleton = self._model.skeletons.get(stage.chunk)
        if skeleton is None:
            raise ExecutorError(
                "nobody knows what shapes a chunk's outputs have",
                where=f"chunk {stage.chunk} ({chunk.module})",
                expected="PipelineModel(shapes=...), or a model of split_model",
            )
        values: list[Any] = []
        module = self._model.modules[chunk.module]
        if stage.is_first and module.load is not None:
            values += as_tuple(module.load(stage.microbatch, *stage.items))
        for group in stage.reads:
            parts = [self.of_edge(edge) for edge in group if not edge.is_empty]
            values += joined_shapes(parts) if parts else [None]
        key = (stage.chunk, *(_key(value) for value in values))
        return KNOWN.get(self._model, key, lambda: _shapes_on_meta(skeleton, values))


def _shapes_on_meta(skeleton: torch.nn.Module, values: Sequence[Any]) -> tuple[Shape, ...]:
    """Shapes of a chunk's outputs. ``values``: its inputs, of which those from other chunks are shapes too."""
    meta = tuple(_on_meta(value) for value in values)
    with _ON_META, torch.no_grad():
        return tuple((tuple(one.shape), one.dtype) for one in as_tuple(run_chunk(skeleton, meta, None)))


def joined_shapes(parts: Sequence[Sequence[Shape]]) -> list[Shape]:
    """Shapes of parts that are joined along the first dimension."""
    first = parts[0]
    return [
        ((sum(part[number][0][0] for part in parts), *size[1:]) if len(parts) > 1 else size, dtype)
        for number, (size, dtype) in enumerate(first)
    ]


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return value


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("meta")
    if isinstance(value, tuple):
        return torch.empty(value[0], dtype=value[1], device="meta")
    return value
