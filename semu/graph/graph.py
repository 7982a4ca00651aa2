"""``Graph``: an append-only DAG of operators and tensors with nested subgraphs.

Operators may depend only on operators appended before them, so the order of appending is a topological order and the
issue order of every stream; nothing is ever changed or removed. Sizes may be symbolic (``semu.graph.dim``): then the
graph is a template for many shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from semu.errors import GraphError
from semu.graph.costs import check_costs
from semu.graph.dim import Dim, product
from semu.graph.lint import check_graph
from semu.graph.operator import Operator, Phase
from semu.graph.subgraph import Subgraph
from semu.graph.tensor import Role, Storage, TensorNode
from semu.hardware.device import Stream
from semu.hardware.kinds import DType, OpKind

if TYPE_CHECKING:
    import networkx

HBM = "hbm"
"""Name of a GPU's memory pool."""


class Graph:
    """Append-only builder and container of operators, tensors, storages and subgraphs.

    Attributes:
        operators, tensors, storages, subgraphs: nodes by index, in order of creation.
        inputs: tensors that exist before the first operator.
        outputs: tensors that must survive the last operator.
    """

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.tensors: list[TensorNode] = []
        self.storages: list[Storage] = []
        self.subgraphs: list[Subgraph] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self._writer: dict[int, int] = {}
        self._open: list[int] = []

    # -- building ------------------------------------------------------------------------------------------------
    def add_tensor(
        self,
        shape: Sequence[Dim],
        dtype: DType,
        role: Role = Role.ACTIVATION,
        *,
        name: str = "",
        pool: str = HBM,
    ) -> int:
        """Add a tensor with a storage of its own; returns its index. ``shape`` is local to one rank."""
        self._check_shape(shape, name)
        storage = Storage(len(self.storages), name, product(shape) * dtype.size_bytes, role, pool)
        self.storages.append(storage)
        return self._append_tensor(storage.index, shape, dtype, name)

    def add_input(self, shape: Sequence[Dim], dtype: DType, *, name: str, role: Role = Role.ACTIVATION) -> int:
        """Add a tensor that exists before the first operator; returns its index."""
        tensor = self.add_tensor(shape, dtype, role, name=name)
        self.inputs.append(tensor)
        return tensor

    def add_view(self, tensor: int, shape: Sequence[Dim]) -> int:
        """Add another shape of a tensor over the same storage; costs nothing. Returns the new tensor's index."""
        base = self.tensors[self._known_tensor(tensor, "view")]
        self._check_shape(shape, base.name)
        return self._append_tensor(base.storage, shape, base.dtype, base.name)

    def add_operator(
        self,
        kind: OpKind,
        stream: Stream,
        *,
        inputs: Iterable[int] = (),
        outputs: Iterable[int] = (),
        flop: Dim = 0,
        mem_bytes: Dim = 0,
        net_bytes: Dim = 0,
        dtype: DType = DType.BF16,
        key: Sequence[Dim] = (),
        path: str = "",
        phase: Phase = Phase.FORWARD,
        after: Iterable[int] = (),
        recomputed_flop: Dim = 0,
        causal_flop: Dim = 0,
        copies: int = 1,
    ) -> int:
        """Append an operator; it depends on the producers of its inputs and on ``after``. Returns its index.

        Raises:
            GraphError: costs that the stream's device cannot serve, a negative cost, an unknown tensor or operator.
        """
        index = len(self.operators)
        where = path or f"operator {index} ({kind.value})"
        check_costs(stream, flop, mem_bytes, net_bytes, where)
        reads = tuple(self._known_tensor(tensor, where) for tensor in inputs)
        writes = tuple(self._known_tensor(tensor, where) for tensor in outputs)
        before = set(after)
        for operator in before:
            if not 0 <= operator < index:
                raise GraphError(
                    "an operator can only follow operators that exist", where=where, expected=f"< {index}", got=operator
                )
        before.update(writer for writer in map(self.producer, reads) if writer is not None)
        self.operators.append(
            Operator(
                index=index,
                path=path,
                kind=kind,
                phase=phase,
                stream=stream,
                flop=flop,
                mem_bytes=mem_bytes,
                net_bytes=net_bytes,
                dtype=dtype,
                key=tuple(key),
                inputs=reads,
                outputs=writes,
                after=tuple(sorted(before)),
                recomputed_flop=recomputed_flop,
                causal_flop=causal_flop,
                copies=copies,
            )
        )
        for tensor in writes:
            self._writer[self.tensors[tensor].storage] = index
        return index

    def mark_output(self, tensor: int) -> None:
        """Keep a tensor alive beyond the last operator."""
        self.outputs.append(self._known_tensor(tensor, "output"))

    def producer(self, tensor: int) -> int | None:
        """The operator that last wrote the tensor's storage, under whichever name, or None for an input."""
        return self._writer.get(self.tensors[tensor].storage)

    @contextmanager
    def subgraph(self, name: str) -> Iterator[Subgraph]:
        """Open a named subgraph: operators appended inside belong to it; may be nested."""
        parent = self._open[-1] if self._open else None
        path = name if parent is None else f"{self.subgraphs[parent].path}.{name}"
        index = len(self.subgraphs)
        opened = Subgraph(index, name, path, parent, len(self.operators), None)
        self.subgraphs.append(opened)
        self._open.append(index)
        try:
            yield opened
        finally:
            self._open.pop()
            self.subgraphs[index] = Subgraph(index, name, path, parent, opened.first, len(self.operators))

    def _append_tensor(self, storage: int, shape: Sequence[Dim], dtype: DType, name: str) -> int:
        node = TensorNode(len(self.tensors), storage, tuple(shape), dtype, name)
        self.tensors.append(node)
        return node.index

    def _known_tensor(self, tensor: int, where: str) -> int:
        if not 0 <= tensor < len(self.tensors):
            raise GraphError("unknown tensor", where=where, expected=f"0 to {len(self.tensors) - 1}", got=tensor)
        return tensor

    @staticmethod
    def _check_shape(shape: Sequence[Dim], where: str) -> None:
        for dim in shape:
            if isinstance(dim, int) and dim < 0:
                raise GraphError("negative size", where=where, expected=">= 0", got=dim, nearest=0)

    # -- reading -------------------------------------------------------------------------------------------------
    def streams(self) -> list[Stream]:
        """The streams in use, in order of first use."""
        return list(dict.fromkeys(operator.stream for operator in self.operators))

    def lint(self) -> None:
        """Check the invariants that building keeps; for tests and for graphs made by other tools.

        Raises:
            GraphError: a dangling reference, a dependency that does not point back, a tensor read before it is
                written, subgraphs that overlap without nesting.
        """
        check_graph(self)

    def to_text(self) -> str:
        """Readable form: one line per operator, indented by subgraph."""
        openings: dict[int, list[Subgraph]] = {}
        for group in self.subgraphs:
            openings.setdefault(group.first, []).append(group)
        change = [0] * (len(self.operators) + 1)
        for group in self.subgraphs:
            change[group.first] += 1
            change[group.last if group.last is not None else len(self.operators)] -= 1
        depths = list(itertools.accumulate(change))
        lines = []
        for operator in self.operators:
            depth = depths[operator.index]
            for group in openings.get(operator.index, ()):
                if group.holds(operator.index):
                    lines.append("  " * self._depth(group) + f"{group.name}:")
            reads = ", ".join(self._tensor_text(tensor) for tensor in operator.inputs)
            writes = ", ".join(self._tensor_text(tensor) for tensor in operator.outputs)
            costs = [
                f"{name} {cost}"
                for name, cost in (
                    ("flop", operator.flop),
                    ("mem", operator.mem_bytes),
                    ("net", operator.net_bytes),
                )
                if cost != 0
            ]
            lines.append(
                "  " * depth + f"%{operator.index} {operator.phase.name.lower()} {operator.kind.value}"
                f"({reads}) -> {writes or 'nothing'} on {operator.stream.device.name}/{operator.stream.name}"
                f" [{'; '.join(costs)}]" + (f" after {list(operator.after)}" if operator.after else "")
            )
        return "\n".join(lines)

    def _depth(self, group: Subgraph) -> int:
        depth, parent = 0, group.parent
        while parent is not None:
            depth, parent = depth + 1, self.subgraphs[parent].parent
        return depth

    def _tensor_text(self, tensor: int) -> str:
        node = self.tensors[tensor]
        shape = " x ".join(str(dim) for dim in node.shape) or "scalar"
        return f"{node.name or f't{tensor}'}:{node.dtype.value}[{shape}]"

    def to_networkx(self) -> networkx.DiGraph:
        """Operators and tensors as a ``networkx.DiGraph``: nodes ``("operator", i)`` and ``("tensor", j)``.

        Edges: tensor -> operator that reads it, operator -> tensor that it writes, operator -> operator where the
        order is not implied by such a path. Only a tensor's first writer has an edge to it, so
        that writing in place makes no cycle. Node attribute ``data`` holds the semu object.
        """
        import networkx

        result = networkx.DiGraph()
        for tensor in self.tensors:
            result.add_node(("tensor", tensor.index), data=tensor)
        made: dict[int, int] = {}
        touched: set[int] = set()
        for operator in self.operators:
            node = ("operator", operator.index)
            result.add_node(node, data=operator)
            result.add_edges_from((("tensor", tensor), node) for tensor in operator.inputs)
            implied = {made[tensor] for tensor in operator.inputs if tensor in made}
            result.add_edges_from((("operator", b), node) for b in operator.after if b not in implied)
            touched.update(operator.inputs)
            for output in operator.outputs:
                if output not in touched:
                    result.add_edge(node, ("tensor", output))
                    made[output] = operator.index
            touched.update(operator.outputs)
        return result
