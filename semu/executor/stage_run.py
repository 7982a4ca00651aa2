"""``StageRun``: a stage between its forward and its backward: its graph, its inputs, and what it hands on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from semu.errors import ExecutorError
from semu.executor.backward import Anchor
from semu.executor.chunk import as_tuple, run_chunk
from semu.executor.communicator import Tensors
from semu.executor.edges import Edge, Stage
from semu.executor.model import PipelineModel, Shape

if TYPE_CHECKING:
    from semu.executor.program import Program


class _Read:
    """What came from one source: leaves that need gradients, and how many rows of them each edge brought."""

    __slots__ = ("edges", "leaves", "rows")

    def __init__(self, edges: list[Edge], leaves: list[torch.Tensor], rows: list[list[int]]) -> None:
        self.edges, self.leaves, self.rows = edges, leaves, rows


class StageRun:
    """A stage of one iteration.

    Args:
        program: the rank's. stage: which one. model: the user's.
    """

    __slots__ = ("_anchor", "_made", "_model", "_one", "_program", "_reads", "_wanted", "stage")

    def __init__(self, program: Program, stage: Stage, model: PipelineModel) -> None:
        self.stage = stage
        self._program, self._model = program, model
        self._reads: list[_Read] = []
        self._anchor: Anchor | None = None
        self._made: list[Shape] = []
        self._wanted: list[int] = []
        self._one: torch.Tensor | None = None

    # -- forward -----------------------------------------------------------------------------------------------------
    def forward(self, waiting: dict[Edge, Tensors], device: torch.device) -> torch.Tensor | None:
        """Run the chunk.

        Args:
            waiting: what has been made for it, taken out; what it makes is put in. device: for the loader's tensors.
        Returns:
            the loss, where its module has one.
        Raises:
            ExecutorError: what it reads is not there.
        """
        stage, model = self.stage, self._model
        module = model.modules[self._program.plan.chunks[stage.chunk].module]
        values: list[Any] = []
        if stage.is_first and module.load is not None:
            loaded = as_tuple(module.load(stage.microbatch, *stage.items))
            values += (value.to(device) if isinstance(value, torch.Tensor) else value for value in loaded)
        for group in stage.reads:
            values += self._read(group, waiting)
        with torch.set_grad_enabled(stage.has_backward):
            made = run_chunk(model.chunks[stage.chunk], tuple(values), stage.strategies)
            del values
            outputs = list(as_tuple(made))
            loss = None
            if stage.is_last and module.loss is not None:
                loss = module.loss(made, stage.microbatch, *stage.items)
            del made
        self._hand_on(outputs, waiting)
        if stage.has_backward:
            self._keep(outputs, loss)
        return None if loss is None else loss.detach()

    def _read(self, group: list[Edge], waiting: dict[Edge, Tensors]) -> Sequence[Any]:
        """Inputs from one source."""
        edges = [edge for edge in group if not edge.is_empty]
        if not edges:
            return [None]
        try:
            parts = [waiting.pop(edge) for edge in edges]
        except KeyError:
            raise ExecutorError(
                "what the stage reads is not there", expected="the stages that it reads first"
            ) from None
        joined = parts[0] if len(parts) == 1 else tuple(torch.cat(column) for column in zip(*parts, strict=True))
        if not (edges[0].has_gradient and self.stage.has_backward):
            return joined
        inputs, leaves, rows = [], [], []
        for number, tensor in enumerate(joined):
            if tensor.is_floating_point():
                tensor = tensor.detach().requires_grad_()
                leaves.append(tensor)
                rows.append([part[number].shape[0] for part in parts] if len(parts) > 1 else [])
            inputs.append(tensor)
        self._reads.append(_Read(edges, leaves, rows))
        return inputs

    def _hand_on(self, outputs: list[Any], waiting: dict[Edge, Tensors]) -> None:
        for edge in self.stage.readers:
            if edge.is_empty or edge.is_exchanged:
                continue
            for output in outputs:
                if not isinstance(output, torch.Tensor):
                    raise ExecutorError(
                        "only tensors are handed on", expected="a tensor or a tuple of them", got=type(output).__name__
                    )
            rows = self._program.shapes.rows(edge)
            given = tuple(output.detach() for output in outputs)
            waiting[edge] = given if rows is None else tuple(output[rows[0] : rows[1]] for output in given)

    def _keep(self, outputs: list[Any], loss: torch.Tensor | None) -> None:
        """End the graph; only shapes of the outputs stay."""
        ends = []
        for output in outputs if self.stage.readers else ():
            if output.is_floating_point():
                self._made.append((tuple(output.shape), output.dtype))
                if output.requires_grad:
                    self._wanted.append(len(self._made) - 1)
                    ends.append(output)
        if loss is not None and loss.requires_grad:
            self._wanted.append(-1)
            self._one = torch.ones_like(loss, requires_grad=False)
            ends.append(loss)
        if ends:
            self._anchor = Anchor(ends)

    def gradient_shapes(self, edge: Edge) -> Sequence[Shape]:
        """Shapes of the gradient that comes back along an edge."""
        return self._program.shapes.of_rows(self._made, edge)

    # -- backward ----------------------------------------------------------------------------------------------------
    def backward(self, waiting: dict[Edge, Tensors]) -> None:
        """The whole backward.

        Args:
            waiting: gradients of what was handed on, taken out; gradients of what was read are put in.
        """
        gradients = self._gradients(waiting)
        if self._anchor is not None:
            self._anchor.backward(gradients)
            self._anchor = None
        for read in self._reads:
            self._hand_back(read, [leaf.grad for leaf in read.leaves], waiting)

    def input_backward(self, waiting: dict[Edge, Tensors]) -> None:
        """Gradients of the inputs; arguments as ``backward``."""
        gradients = self._gradients(waiting)
        leaves = [leaf for read in self._reads for leaf in read.leaves]
        found: list[torch.Tensor | None] = [None] * len(leaves)
        if self._anchor is not None:
            found = self._anchor.input_gradients(gradients, leaves)
        at = 0
        for read in self._reads:
            self._hand_back(read, found[at : at + len(read.leaves)], waiting)
            at += len(read.leaves)
        self._reads = []

    def weight_backward(self) -> None:
        """Gradients of the parameters, after ``input_backward``."""
        if self._anchor is not None:
            self._anchor.weight_gradients()
            self._anchor = None

    def _gradients(self, waiting: dict[Edge, Tensors]) -> list[torch.Tensor | None]:
        """Of the outputs that need them, what all readers gave back."""
        edges = [edge for edge in self.stage.readers if edge.has_gradient and not edge.is_empty]
        for edge in edges:
            if edge not in waiting:
                raise ExecutorError("a gradient is not there", expected="the backward of every reader first")
        given = [(self._program.shapes.rows(edge), waiting.pop(edge)) for edge in edges]
        totals: Sequence[torch.Tensor | None] = [None] * len(self._made)
        if len(given) == 1 and given[0][0] is None:
            totals = given[0][1]
        elif given:
            device = given[0][1][0].device if given[0][1] else None
            totals = [torch.zeros(size, dtype=dtype, device=device) for size, dtype in self._made]
            for rows, gradients in given:
                for total, gradient in zip(totals, gradients, strict=True):
                    assert total is not None
                    (total if rows is None else total[rows[0] : rows[1]]).add_(gradient)
        return [totals[number] if number >= 0 else self._one for number in self._wanted]

    def _hand_back(self, read: _Read, gradients: Sequence[torch.Tensor | None], waiting: dict[Edge, Tensors]) -> None:
        """Split gradients of joined inputs as they were joined."""
        columns = []
        for leaf, rows, gradient in zip(read.leaves, read.rows, gradients, strict=True):
            whole = torch.zeros_like(leaf) if gradient is None else gradient
            columns.append(whole.split(rows) if rows else (whole,))
            leaf.grad = None
        for number, edge in enumerate(read.edges):
            if edge.is_exchanged:  # another member of the gang hands it back
                continue
            waiting[edge] = tuple(column[number] for column in columns)
