"""``Template``: a traced graph as arrays, ready to be joined with others into stages.

Two halves, forward and backward, each in issue order. Within a half an operator's predecessors are operators of the
same half or the producer of an arriving tensor (the carry in the forward half, the gradients in the backward half).
Costs stay symbolic rows; ``TemplateLibrary`` stacks the rows of all templates and evaluates them in one go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.combined.hidden_exchanges import HiddenExchanges
from semu.graph.dim import LARGEST, Dim, DimTable, Monomial, check_largest, symbols_of
from semu.graph.graph import Graph
from semu.graph.operator import Operator, Phase
from semu.graph.tensor import Role
from semu.hardware.device import DeviceKind, Stream
from semu.hardware.kinds import DType, OpKind
from semu.hardware.network import CommGroup
from semu.records import dataclass

COMPUTE_STREAM = "compute"
MOST_BYTES = 1 << 50
"""Of a storage: 2^13 of them still make an int64."""


@dataclass(frozen=True)
class HalfTemplate:
    """The forward or the backward operators of a template.

    Attributes:
        operators: in issue order.
        rows: int32[num_ops], the operators' rows in the template's cost tables.
        preds: per operator, the positions of its predecessors in this half (negative: ``-1 - k`` is the producer of
            arriving tensor k).
        touches: per operator, the template's storages that it touches; static ones are left out.
        producers: per leaving tensor, the position of its producer in this half; ``-1 - k``: it is arriving tensor k;
            None: nothing in this half makes it.
    """

    operators: tuple[Operator, ...]
    rows: NDArray[np.int32]
    preds: tuple[tuple[int, ...], ...]
    touches: tuple[tuple[int, ...], ...]
    producers: tuple[int | None, ...]

    @cached_property
    def pairs(self) -> tuple[Pairs, Pairs]:
        """``preds`` and ``touches`` as pairs: int64[num, 2] of an operator and what it waits for or touches."""
        return _pairs(self.preds), _pairs(self.touches)

    @cached_property
    def stream_names(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """Names of the streams in order of first use, and int64[num_ops], which of them each operator is on."""
        names = [operator.stream.name for operator in self.operators]
        number = {name: n for n, name in enumerate(dict.fromkeys(names))}
        return tuple(number), np.array([number[name] for name in names], dtype=np.int64)


Pairs = NDArray[np.int64]


def _pairs(groups: Sequence[Sequence[int]]) -> Pairs:
    flat = [(number, item) for number, group in enumerate(groups) for item in group]
    return np.array(flat, dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True)
class Template:
    """A block's two halves and its storages.

    Attributes:
        forward, backward: the halves.
        sizes: symbolic size of each storage [bytes].
        roles: role of each storage.
        carry_in, carry_out: storages of the tensors that arrive and leave in the forward half.
        gradient_in, gradient_out: storages of the gradients that arrive and leave in the backward half; -1: none.
        groups: communicator of each link stream.
    """

    forward: HalfTemplate
    backward: HalfTemplate
    sizes: tuple[Dim, ...]
    roles: tuple[Role, ...]
    groups: Mapping[Stream, CommGroup]
    carry_in: tuple[int, ...] = ()
    carry_out: tuple[int, ...] = ()
    gradient_in: tuple[int, ...] = ()
    gradient_out: tuple[int, ...] = ()

    @classmethod
    def of_transfers(
        cls,
        operators: Sequence[Operator],
        sizes: tuple[Dim, ...],
        roles: tuple[Role, ...],
        groups: Mapping[Stream, CommGroup],
    ) -> Template:
        """Transfers that ``join`` places inside stages: the first in the forward half, the others in the backward."""

        def _half(first: int, last: int) -> HalfTemplate:
            none: tuple[tuple[int, ...], ...] = ((),) * (last - first)
            return HalfTemplate(tuple(operators[first:last]), np.arange(first, last, dtype=np.int32), none, none, ())

        return cls(_half(0, 1), _half(1, len(operators)), sizes, roles, groups)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Forward, then backward operators."""
        return self.forward.operators + self.backward.operators

    @cached_property
    def role_numbers(self) -> NDArray[np.int64]:
        """int64[num_storages], which of all roles each storage has."""
        number = {role: n for n, role in enumerate(Role)}
        return np.array([number[role] for role in self.roles], dtype=np.int64)


def transfer(name: str, kind: OpKind, phase: Phase, stream: Stream, wire_bytes: int) -> Operator:
    """An operator that moves bytes and reads nothing of the graph."""
    return Operator(0, name, kind, phase, stream, 0, 0, wire_bytes, DType.BF16, (), (), (), (), 0, 0, 1)


def compile_template(
    graph: Graph,
    num_forward: int,
    *,
    inputs: Sequence[int] = (),
    outputs: Sequence[int] = (),
    output_gradients: Sequence[int | None] = (),
    input_gradients: Sequence[int | None] = (),
    groups: Mapping[Stream, CommGroup] | None = None,
) -> Template:
    """Turn a graph into a template.

    Args:
        graph: its first ``num_forward`` operators are the forward half.
        inputs, outputs: tensors of the carry. output_gradients, input_gradients: gradients that arrive and leave.
        groups: communicator of each link stream.
    """

    def _storage(tensor: int | None) -> int:
        return -1 if tensor is None else graph.tensors[tensor].storage

    forward = _half(graph, 0, num_forward, list(inputs), list(outputs))
    backward = _half(graph, num_forward, len(graph.operators), list(output_gradients), list(input_gradients))
    return Template(
        forward=forward,
        backward=backward,
        sizes=tuple(s.size_bytes for s in graph.storages),
        roles=tuple(s.role for s in graph.storages),
        carry_in=tuple(_storage(tensor) for tensor in inputs),
        carry_out=tuple(_storage(tensor) for tensor in outputs),
        gradient_in=tuple(_storage(tensor) for tensor in output_gradients),
        gradient_out=tuple(_storage(tensor) for tensor in input_gradients),
        groups=dict(groups or {}),
    )


def _half(
    graph: Graph, first: int, last: int, arriving: Sequence[int | None], leaving: Sequence[int | None]
) -> HalfTemplate:
    arrival = {graph.tensors[t].storage: -1 - k for k, t in enumerate(arriving) if t is not None}
    static = {s.index for s in graph.storages if s.role.is_static}
    written: dict[int, int] = {}
    preds: list[tuple[int, ...]] = []
    touches: list[tuple[int, ...]] = []
    for operator in graph.operators[first:last]:
        before = {p - first for p in operator.after if p >= first}
        stores = [graph.tensors[t].storage for t in (*operator.inputs, *operator.outputs)]
        for tensor in operator.inputs:
            store = graph.tensors[tensor].storage
            if store in arrival and store not in written:
                before.add(arrival[store])
        written.update((graph.tensors[t].storage, operator.index - first) for t in operator.outputs)
        preds.append(tuple(sorted(before)))
        touches.append(tuple(s for s in dict.fromkeys(stores) if s not in static))
    return HalfTemplate(
        operators=tuple(graph.operators[first:last]),
        rows=np.arange(first, last, dtype=np.int32),
        preds=tuple(preds),
        touches=tuple(touches),
        producers=tuple(_producer(graph, tensor, written, arrival) for tensor in leaving),
    )


def _producer(graph: Graph, tensor: int | None, written: Mapping[int, int], arrival: Mapping[int, int]) -> int | None:
    """Who made a leaving tensor: the half's last writer of its storage, else the arriving tensor over it."""
    if tensor is None:
        return None
    storage = graph.tensors[tensor].storage
    return written.get(storage, arrival.get(storage))


@dataclass(frozen=True)
class CostColumns:
    """Evaluated costs of operators of a library (all of them, or the rows asked for), for many shapes.

    Attributes:
        symbols: symbol -> int64[num_shapes], the shapes.
        flop: float64[num_ops, num_shapes]. mem_bytes, net_bytes: int64[num_ops, num_shapes].
        size_bytes: int64[num_storages, num_shapes].
    """

    symbols: Mapping[str, NDArray[np.int64]]
    flop: NDArray[np.float64]
    mem_bytes: NDArray[np.int64]
    net_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]


class TemplateLibrary:
    """All templates of a job, with their cost rows stacked.

    Args:
        templates: in order; a template's operators and storages get consecutive rows.

    Attributes:
        hidden: rows whose operators take only what other rows leave exposed of them.
    """

    def __init__(self, templates: Sequence[Template]) -> None:
        self.templates = tuple(templates)
        self.hidden: tuple[HiddenExchanges, ...] = ()
        self.operators: list[Operator] = []
        self.sizes: list[Dim] = []
        self.row_offset: list[int] = []
        self.size_offset: list[int] = []
        self.groups: list[CommGroup | None] = []
        for template in self.templates:
            self.row_offset.append(len(self.operators))
            self.size_offset.append(len(self.sizes))
            self.operators.extend(template.operators)
            self.groups.extend(template.groups.get(op.stream) for op in template.operators)
            self.sizes.extend(template.sizes)
        self._flop = DimTable.build([op.flop for op in self.operators])
        self._mem_bytes = DimTable.build([op.mem_bytes for op in self.operators])
        self._net_bytes = DimTable.build([op.net_bytes for op in self.operators])
        self._sizes = DimTable.build(self.sizes)

    @cached_property
    def flop_tables(self) -> tuple[DimTable, DimTable, DimTable]:
        """FLOP of all operators, what of it is recomputed, and what causality leaves out."""
        recomputed = DimTable.build([op.recomputed_flop for op in self.operators])
        return self._flop, recomputed, DimTable.build([op.causal_flop for op in self.operators])

    @cached_property
    def symbols(self) -> frozenset[str]:
        """Every symbol that a cost or a size depends on."""
        tables = (self._flop, self._mem_bytes, self._net_bytes, self._sizes)
        keys = (
            name
            for op in self.operators
            for dim in (*op.key, op.recomputed_flop, op.causal_flop)
            for name in symbols_of(dim)
        )
        return frozenset(name for table in tables for monomial in table.monomials for name in monomial).union(keys)

    def evaluate(
        self,
        symbols: Mapping[str, NDArray[np.int64]],
        rows: NDArray[np.integer] | None = None,
        size_rows: NDArray[np.integer] | None = None,
    ) -> CostColumns:
        """Costs for many shapes, one matrix product per kind of cost.

        Args:
            symbols: symbol -> int64[num_shapes]; those that the rows need.
            rows, size_rows: operators and storages to evaluate, in this order; None: all.
        Raises:
            ConfigError: an operator of the library has more than ``LARGEST`` FLOP or bytes, a storage more than
                ``MOST_BYTES``.
        """
        self.check(symbols)

        def _values(table: DimTable, wanted: NDArray[np.integer] | None) -> NDArray[np.int64]:
            return (table if wanted is None else table.select(wanted)).evaluate(symbols)

        return CostColumns(
            symbols=symbols,
            flop=_values(self._flop, rows).astype(np.float64),
            mem_bytes=_values(self._mem_bytes, rows),
            net_bytes=_values(self._net_bytes, rows),
            size_bytes=_values(self._sizes, size_rows),
        )

    def evaluate_sizes(
        self, symbols: Mapping[str, NDArray[np.int64]], size_rows: NDArray[np.integer], *, is_checked: bool = False
    ) -> NDArray[np.int64]:
        """Sizes of some storages alone: int64[len(size_rows), num_shapes]. Arguments as ``evaluate``; ``is_checked``:
        the symbols have been through ``check``."""
        if not is_checked:
            self.check(symbols)
        return self._sizes.select(size_rows).evaluate(symbols)

    @cached_property
    def _monomials(self) -> tuple[Monomial, ...]:
        tables = (self._flop, self._mem_bytes, self._net_bytes, self._sizes)
        return tuple(dict.fromkeys(monomial for table in tables for monomial in table.monomials))

    def check(self, symbols: Mapping[str, NDArray[np.int64]]) -> None:
        """Costs must stay within 64 bits, also those of operators that are not asked for where symbols tell them."""
        largest = {name: int(column.max()) for name, column in symbols.items() if column.size}
        values = {names: math.prod(largest.get(name, 1) for name in names) for names in self._monomials}
        check_largest(max(t.highest(values) for t in (self._flop, self._mem_bytes, self._net_bytes)), LARGEST)
        check_largest(self._sizes.highest(values), MOST_BYTES)


def stream_names(library: TemplateLibrary) -> tuple[str, ...]:
    """Names of the streams in use, the compute stream first."""
    names = dict.fromkeys([COMPUTE_STREAM])
    names.update(dict.fromkeys(op.stream.name for op in library.operators if op.stream.device.kind is DeviceKind.LINK))
    return tuple(names)
