"""``Graph``: an append-only DAG of operators and tensors with nested subgraphs.

Operators may depend only on operators appended before them, so the order of appending is a topological order and the
issue order of every stream; nothing is ever changed or removed. Sizes may be symbolic (``semu.graph.dim``): then the
graph is a template for many shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from semu.errors import GraphError
from semu.graph.costs import check_costs
from semu.graph.dim import Dim, product
from semu.graph.export import to_networkx, to_text
from semu.graph.lint import check_graph
from semu.graph.nesting import check_closing, check_feed, check_opening
from semu.graph.nodes import GraphNodes
from semu.graph.operator import Operator, Phase
from semu.graph.subgraph import Level, Replication, Subgraph
from semu.graph.tensor import Role, Storage, TensorNode
from semu.hardware.device import Stream
from semu.hardware.kinds import DType, OpKind

if TYPE_CHECKING:
    import networkx

HBM = "hbm"
"""Name of a GPU's memory pool."""


class Graph(GraphNodes):
    """Append-only builder and container of operators, tensors, storages and subgraphs."""

    def __init__(self) -> None:
        super().__init__()
        self._writer: dict[int, int] = {}
        self._open: list[int] = []
        self._feeds: dict[int, list[tuple[int, int]]] = {}
        self._keys: dict[str, int] = {}

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
        """Add a tensor and its storage; returns the tensor's index. ``shape`` is local to one rank."""
        self._check_shape(shape, name)
        storage = Storage(len(self.storages), name, product(shape) * dtype.size_bytes, role, pool)
        self.storages.append(storage)
        return self._append_tensor(storage.index, shape, dtype, name)

    def add_input(
        self, shape: Sequence[Dim], dtype: DType, *, name: str, role: Role = Role.ACTIVATION, pool: str = HBM
    ) -> int:
        """Add a tensor that exists before the first operator; returns its index."""
        tensor = self.add_tensor(shape, dtype, role, name=name, pool=pool)
        self.inputs.append(tensor)
        return tensor

    def add_view(self, tensor: int, shape: Sequence[Dim]) -> int:
        """Add another shape of a tensor over the same storage; costs nothing. Returns the new tensor's index."""
        base = self.tensors[self._known_tensor(tensor, "view")]
        self._check_shape(shape, base.name)
        return self._append_tensor(base.storage, shape, base.dtype, base.name, base.index)

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
        where, reads = path or f"operator {len(self.operators)} ({kind.value})", tuple(inputs)
        operator = Operator(
            index=len(self.operators),
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
            outputs=tuple(outputs),
            after=self._predecessors(reads, after, where),
            recomputed_flop=recomputed_flop,
            causal_flop=causal_flop,
            copies=copies,
        )
        return self._append_operator(operator, where)

    def add_copy(
        self, operator: Operator, stream: Stream, inputs: Iterable[int], outputs: Iterable[int], after: Iterable[int]
    ) -> int:
        """Append an operator like one of another graph, with streams, tensors and predecessors of this one."""
        where, reads = operator.path or operator.kind.value, tuple(inputs)
        before = self._predecessors(reads, after, where)
        copied = replace(
            operator, index=len(self.operators), stream=stream, inputs=reads, outputs=tuple(outputs), after=before
        )
        return self._append_operator(copied, where)

    def _predecessors(self, reads: Sequence[int], after: Iterable[int], where: str) -> tuple[int, ...]:
        """What the next operator follows: ``after`` and the producers of what it reads."""
        before = set(after)
        for operator in before:
            if not 0 <= operator < len(self.operators):
                raise GraphError(
                    "an operator can only follow operators that exist",
                    where=where,
                    expected=f"< {len(self.operators)}",
                    got=operator,
                )
        writers = (self.producer(self._known_tensor(tensor, where)) for tensor in reads)
        before.update(writer for writer in writers if writer is not None)
        return tuple(sorted(before))

    def _append_operator(self, operator: Operator, where: str) -> int:
        check_costs(operator.stream, operator.flop, operator.mem_bytes, operator.net_bytes, where)
        written = [self.tensors[self._known_tensor(tensor, where)].storage for tensor in operator.outputs]
        self._writer.update(dict.fromkeys(written, operator.index))
        self.operators.append(operator)
        return operator.index

    def mark_output(self, tensor: int) -> None:
        """Keep a tensor alive beyond the last operator: of a chain the last copy's, of peers every copy's."""
        self.outputs.append(self._known_tensor(tensor, "output"))

    def producer(self, tensor: int) -> int | None:
        """The operator that last wrote the tensor's storage, under whichever name, or None for an input."""
        return self._writer.get(self.tensors[tensor].storage)

    @contextmanager
    def subgraph(
        self,
        name: str,
        *,
        level: Level | None = None,
        replicas: int = 1,
        replication: Replication = Replication.PEERS,
        key: str = "",
        mirrors: Subgraph | None = None,
    ) -> Iterator[Subgraph]:
        """Open a named subgraph: operators appended inside belong to it; may be nested.

        Args:
            name: last part of its path.
            level: how large a piece it is; a STAGE is simulated as one atomic unit (DESIGN §3.8).
            replicas, replication: how many equal copies it stands for, and where they are (``Replication``).
            key: name of its structure; another structure under the same key is refused when the subgraph closes.
            mirrors: an earlier chain; copy k of this chain reads copy ``replicas - 1 - k`` of it.
        Raises:
            GraphError: see ``semu.graph.nesting``.
        """
        if mirrors is not None and mirrors not in self.subgraphs:
            known = next((g for g in self.subgraphs if (g.index, g.path) == (mirrors.index, mirrors.path)), None)
            if known is None:
                raise GraphError(
                    "a mirrored subgraph of another graph",
                    where=name,
                    expected="a chain of this graph",
                    got=mirrors.path,
                )
        around = [self.subgraphs[index] for index in self._open]
        path = name if not around else f"{around[-1].path}.{name}"
        opened = Subgraph(
            index=len(self.subgraphs),
            name=name,
            path=path,
            parent=self._open[-1] if self._open else None,
            first=len(self.operators),
            last=None,
            level=level,
            replicas=int(replicas) if isinstance(replicas, np.integer) else replicas,
            replication=replication,
            key=key,
            mirrors=mirrors.index if mirrors is not None else None,
            first_tensor=len(self.tensors),
        )
        check_opening(opened, around, self.subgraphs)
        self.subgraphs.append(opened)
        self._open.append(opened.index)
        self._feeds[opened.index] = []
        try:
            yield opened
        finally:
            self._open.pop()
            self.subgraphs[opened.index] = replace(
                opened,
                last=len(self.operators),
                last_tensor=len(self.tensors),
                feeds=tuple(self._feeds.pop(opened.index)),
            )
        check_closing(self, self.subgraphs[opened.index], self._keys)

    def feed(self, output: int, given: int) -> None:
        """In each further copy of the innermost open chain, ``output`` of the copy before takes the place of ``given``.

        Args:
            output: tensor made inside the chain. given: tensor from outside that its first copy reads.
        Raises:
            GraphError: no chain is open, or the tensors do not fit.
        """
        self._known_tensor(output, "feed")
        self._known_tensor(given, "feed")
        chain = next(
            (index for index in reversed(self._open) if self.subgraphs[index].replication is Replication.CHAIN), None
        )
        feeds = self._feeds[chain] if chain is not None else []
        check_feed(self, self.subgraphs[chain] if chain is not None else None, output, feeds, given)
        feeds.append((given, output))

    def _append_tensor(
        self, storage: int, shape: Sequence[Dim], dtype: DType, name: str, base: int | None = None
    ) -> int:
        node = TensorNode(len(self.tensors), storage, tuple(shape), dtype, name, base)
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
    def lint(self) -> None:
        """Check the invariants that building keeps; for tests and for graphs made by other tools.

        Raises:
            GraphError: a dangling reference, a dependency that does not point back, a tensor read before it is
                written, subgraphs that overlap without nesting.
        """
        check_graph(self)

    def to_text(self) -> str:
        """Readable form: one line per operator, indented by subgraph."""
        return to_text(self)

    def to_networkx(self) -> networkx.DiGraph:
        """Operators and tensors as a ``networkx.DiGraph``: see ``semu.graph.export.to_networkx``."""
        return to_networkx(self)
