"""A tracer of its own for the slow reference: runs a block's ``forward`` on symbolic tensors and writes down operators.

It stands in for ``semu.nn.trace``'s ``tracing``, ``autograd`` and ``block``. What is taken from semu is the code of
the modules and of each operator (the costs of one kernel, and which kernels its gradient takes), the shapes of
tensors, and the records that are handed on. Recomputation is that of a whole block, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from semu.graph.dim import Dim, Poly, product
from semu.graph.operator import Operator, OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn.module import Module, Parameter
from semu.nn.rules.reshard import reshard_tokens
from semu.nn.trace.block import CarrySpec, TracedBlock
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Sequences, Tensor

ON_GPU = Stream(Device(DeviceKind.COMPUTE), "compute")


@dataclass
class Bytes:
    """A storage: its number, its size and what it is for."""

    index: int
    size_bytes: Dim
    role: Role


@dataclass
class View:
    """A tensor node: a shape of a storage."""

    storage: int
    shape: tuple[Dim, ...]
    dtype: DType


@dataclass
class Written:
    """Operators, tensors and storages in the order of their making."""

    operators: list[Operator] = field(default_factory=list)
    tensors: list[View] = field(default_factory=list)
    storages: list[Bytes] = field(default_factory=list)

    def new(self, shape: Sequence[Dim], dtype: DType, role: Role = Role.ACTIVATION) -> int:
        """A tensor with a storage of its own."""
        size: Dim = dtype.size_bytes
        for dim in shape:
            size = size * dim
        self.storages.append(Bytes(len(self.storages), size, role))
        self.tensors.append(View(len(self.storages) - 1, tuple(shape), dtype))
        return len(self.tensors) - 1


@dataclass
class Step:
    """Something that was computed, and how to differentiate it."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    differentiate: Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]
    in_fp8: bool


def can_trace(options: TraceOptions, offload: bool, again: bool) -> bool:
    """Whether this tracer knows what is asked for: no selective recomputation, nothing that stays, stops or leaves."""
    is_selective = bool(options.recompute.kinds or options.recompute.patterns)
    return not (offload or is_selective or (again and (options.keep_products or options.stop_early)))


class Notebook:
    """What modules and operators take for their trace."""

    def __init__(self, options: TraceOptions, block: Module, root: str) -> None:
        self.options, self.root = options, root
        self.graph = Written()
        self.parameters: dict[int, ParameterUse] = {}
        self.groups: dict[Stream, CommGroup] = {}
        self.steps: list[Step] = []
        self.phase = Phase.FORWARD
        self.is_recording = True
        self.last_kernel = -1
        self.ledger = None
        self._names = {id(module): name for name, module in block.named_modules()}
        self._parameter_names = {id(parameter): name for name, parameter in block.named_parameters()}
        self._modules: list[Module] = []
        self._in_fp8 = False
        self._sides: list[Tensor] = []

    # -- where we are ----------------------------------------------------------------------------------------------
    @property
    def path(self) -> str:
        return self._names.get(id(self._modules[-1]), "?") if self._modules else ""

    @property
    def where(self) -> str:
        return f"{self.root}.{self.path}".strip(".")

    @property
    def style(self) -> object:
        return self.options.plan.style(self.where)

    def packs(self, weight: Parameter) -> bool:
        return self.options.frozen_weights is not None and self._in_fp8 and not weight.requires_grad

    @property
    def is_fp8(self) -> bool:
        return self._in_fp8 and self.options.compute_dtype is DType.FP8

    @property
    def grad_enabled(self) -> bool:
        return self.is_recording

    def recomputes(self, _: Module) -> bool:
        return False

    def drop_output(self, *_: object) -> None:
        """Nothing is recomputed by kinds."""

    @contextmanager
    def scope(self, module: Module) -> Iterator[None]:
        outside = self._in_fp8
        self._in_fp8 = outside if module.fp8_region is None else module.fp8_region
        self._modules.append(module)
        yield
        self._modules.pop()
        self._in_fp8 = outside

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self.is_recording = self.is_recording, False
        yield
        self.is_recording = before

    @contextmanager
    def at(self, _: str, phase: Phase, *, in_fp8_region: bool = False) -> Iterator[None]:
        before = self.phase, self._in_fp8
        self.phase, self._in_fp8 = phase, in_fp8_region
        yield
        self.phase, self._in_fp8 = before

    # -- tensors ---------------------------------------------------------------------------------------------------
    def arrive(self, shape: Sequence[Dim], shards: Sequence[int], dtype: DType, seqs: Sequences | None) -> Tensor:
        """A tensor from outside."""
        cut = Tensor(self, -1, tuple(shape), tuple(shards), dtype, False, seqs)  # type: ignore[arg-type]
        return replace(cut, node=self.graph.new(cut.local_shape, dtype))

    def parameter(
        self,
        parameter: Parameter,
        shards: Sequence[int] | None = None,
        *,
        is_fp8: bool = False,
        is_expert: bool = False,
        parts: Sequence[int] | None = None,
        is_packed: bool = False,
    ) -> ParameterUse:
        del parts
        if id(parameter) not in self.parameters:
            cuts = list(shards or [1] * len(parameter.shape))
            shape = [size // n for size, n in zip(parameter.shape, cuts, strict=True)]
            assert [size * n for size, n in zip(shape, cuts, strict=True)] == list(parameter.shape)
            weight = self.graph.new(shape, self.options.tensor_dtype, Role.PARAMETER)
            gradient = None
            if parameter.requires_grad:
                gradient = self.graph.new(shape, self.options.grad_dtype, Role.GRADIENT)
            count = 1
            for size in shape:
                count *= size
            use = ParameterUse(
                self._parameter_names[id(parameter)],
                parameter,
                count,
                max(cuts, default=1) > 1,
                weight,
                gradient,
                is_fp8,
                is_expert,
                is_packed=is_packed,
            )
            self.parameters[id(parameter)] = use
        return self.parameters[id(parameter)]

    def view(self, tensor: Tensor, shape: Sequence[Dim], shards: Sequence[int]) -> Tensor:
        seen = replace(tensor, shape=tuple(shape), shards=tuple(shards))
        self.graph.tensors.append(View(self.graph.tensors[tensor.node].storage, seen.local_shape, tensor.dtype))
        return replace(seen, node=len(self.graph.tensors) - 1)

    def side_outputs(self, count: int) -> list[Tensor]:
        return self._sides[-count:]

    @staticmethod
    def any_trainable(items: Sequence[Tensor | ParameterUse]) -> bool:
        return any(i.requires_grad if isinstance(i, Tensor) else i.parameter.requires_grad for i in items)

    # -- operators -------------------------------------------------------------------------------------------------
    def communication_stream(self, group: CommGroup) -> Stream:
        stream = Stream(Device(DeviceKind.LINK, port=group.port, direction=Direction.OUT), group.name)
        self.groups[stream] = group
        return stream

    def emit(
        self,
        kind: OpKind,
        inputs: Sequence[Tensor | ParameterUse],
        shape: Sequence[Dim] | None = None,
        *,
        shards: Sequence[int] | None = None,
        dtype: DType | None = None,
        sequences: Sequences | None = None,
        gradients: Sequence[ParameterUse] = (),
        updates: Sequence[Tensor] = (),
        phase: Phase | None = None,
        stream: Stream = ON_GPU,
        role: Role = Role.ACTIVATION,
        extra_outputs: Sequence[tuple[Sequence[Dim], DType]] = (),
        arithmetic: DType | None = None,
        name: str = "",
        beside: object = None,
        key: Sequence[Dim] = (),
        like: Tensor | None = None,
        **costs: Any,
    ) -> Tensor:
        if like is not None:
            shape = like.shape if shape is None else shape
            shards = like.shards if shards is None else shards
            dtype = like.dtype if dtype is None else dtype
            sequences = like.sequences if sequences is None else sequences
            key = key or (like.numel,)
        del beside  # the reference knows by itself what a transfer of a ring waits for
        reads = [item.node if isinstance(item, Tensor) else item.tensor for item in inputs]
        writes = [use.gradient for use in gradients if use.gradient is not None] + [t.node for t in updates]
        made: Tensor | None = None
        if shape is not None:
            made = self.arrive(shape, shards or [1] * len(shape), dtype or self.options.tensor_dtype, sequences)
            self.graph.storages[-1].role = role
            flows = self.is_recording and self.phase is not Phase.INPUT_GRADIENT and self.any_trainable(inputs)
            made = replace(made, requires_grad=flows)
            writes.append(made.node)
        self._sides = []
        for size, element in extra_outputs:
            self._sides.append(self.arrive(size, [1] * len(size), element, None))
            self.graph.storages[-1].role = role
            writes.append(self._sides[-1].node)
        amounts = {"flop": 0, "mem_bytes": 0, "net_bytes": 0, "recomputed_flop": 0, "causal_flop": 0, **costs}
        number = len(self.graph.operators)
        plain = self.options.compute_dtype
        if plain is DType.FP8:
            plain = self.options.tensor_dtype
        self.graph.operators.append(
            Operator(
                index=number,
                path=f"{self.path}.{name}".strip("."),
                kind=kind,
                phase=phase or self.phase,
                stream=stream,
                dtype=arithmetic or plain,
                key=tuple(key),
                inputs=tuple(reads),
                outputs=tuple(writes),
                after=(),
                copies=self._same_work(inputs, made, amounts["flop"]),
                **amounts,
            )
        )
        if stream == ON_GPU:
            self.last_kernel = number
        return made if made is not None else inputs[0]  # type: ignore[return-value]

    def _same_work(self, inputs: Sequence[Tensor | ParameterUse], made: Tensor | None, flop: Dim) -> int:
        """Ranks of the tensor- and context-parallel groups that compute the very same."""
        tensors = [item for item in (*inputs, made) if isinstance(item, Tensor)]
        parts = [part for tensor in tensors for part in tensor.shards]
        parts += [2 for item in inputs if isinstance(item, ParameterUse) and item.is_sharded]
        same = self.options.plan.tp if max(parts, default=1) == 1 else 1
        names = [name for monomial in flop.terms for name in monomial] if isinstance(flop, Poly) else []
        of_tokens = [name for name in names if name.split(".")[-1] in ("shard", "pairs")]
        return same if of_tokens else same * self.options.cp_group.num_ranks

    # -- gradients -------------------------------------------------------------------------------------------------
    def record(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], backward: Callable[..., Any]) -> None:
        if self.is_recording and any(tensor.requires_grad for tensor in outputs):
            self.steps.append(Step(inputs, outputs, backward, self._in_fp8))

    def recorded(self, inputs: Sequence[Tensor], output: Tensor, backward: Callable[..., Any]) -> Tensor:
        self.record(inputs, [output], lambda gradients: backward(gradients[0]))
        return output

    def differentiate(
        self, given: Sequence[tuple[Tensor, Tensor | None]], wanted: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Walk back over the steps; gradients of one tensor are added as they arrive.

        Args:
            given: outputs with their gradients; None: of a loss. wanted: tensors.
        """
        steps, self.steps = self.steps, []
        before, self.phase = self.phase, Phase.INPUT_GRADIENT
        arrived: dict[int, Tensor | None] = {}

        def add(tensor: Tensor, gradient: Tensor | None) -> None:
            old = arrived.get(id(tensor))
            if old is None:
                arrived[id(tensor)] = gradient
            elif gradient is not None:
                arrived[id(tensor)] = self.emit(
                    OpKind.ADD,
                    [old, gradient],
                    gradient.shape,
                    shards=gradient.shards,
                    dtype=gradient.dtype,
                    sequences=gradient.sequences,
                    mem_bytes=3
                    * gradient.dtype.size_bytes
                    * product(gradient.local_shape),  # two are read, one written
                    key=(product(gradient.local_shape),),
                    name="accumulate_grad",
                )

        for output, gradient in given:
            add(output, gradient)
        while steps:
            step = steps.pop()
            if all(id(output) not in arrived for output in step.outputs):
                continue
            region, self._in_fp8 = self._in_fp8, step.in_fp8
            found = step.differentiate([arrived.get(id(output)) for output in step.outputs])
            for tensor, gradient in zip(step.inputs, found, strict=True):
                if tensor.requires_grad and gradient is not None:
                    add(tensor, gradient)
            self._in_fp8 = region
        self.phase = before
        return [arrived.get(id(tensor)) for tensor in wanted]


def trace_slowly(
    body: Module,
    specs: Sequence[CarrySpec],
    options: TraceOptions,
    *,
    root: str,
    full_recompute: bool,
    gradients: Sequence[bool] | None,
) -> TracedBlock:
    """Operators of a block's forward and backward pass, as ``trace_block``.

    Args:
        body: the block. specs: what arrives. root: its path. full_recompute: run the forward pass again in the backward
            pass, unless it begins with data or ends in a loss. gradients: per output, whether its gradient arrives.
    """
    if full_recompute:
        first = _run(Notebook(options, body, root), body, specs)[1]
        is_data = specs[0].dtype in (DType.INT64, DType.UINT8)
        full_recompute = not is_data and not (len(first) == 1 and first[0].shape == ())
    book = Notebook(options, body, root)
    if not full_recompute:
        inputs, outputs, _ = _run(book, body, specs)
    else:
        with book.no_grad():
            inputs, outputs, spread = _run(book, body, specs)
        trains = any(t.requires_grad for t in inputs) or any(
            use.parameter.requires_grad for use in book.parameters.values()
        )
        passed = {tensor.node: tensor.requires_grad for tensor in spread}
        outputs = [replace(t, requires_grad=passed.get(t.node, trains)) for t in outputs]
    num_forward = len(book.graph.operators)
    arriving: list[Tensor | None] = []
    for number, output in enumerate(outputs):
        is_wanted = output.requires_grad and output.shape != () and (gradients is None or gradients[number])
        arriving.append(book.arrive(output.shape, output.shards, output.dtype, output.sequences) if is_wanted else None)
    begin = [
        (number, output, gradient)
        for number, (output, gradient) in enumerate(zip(outputs, arriving, strict=True))
        if gradient is not None or (output.requires_grad and output.shape == ())
    ]
    leaving: list[Tensor | None] = [None] * len(inputs)
    if begin and full_recompute:
        # What is recomputed begins behind a change of layout, whose own gradient follows.
        layout_steps, book.steps = book.steps, []
        leaves = [replace(tensor) for tensor in spread]
        book.phase = Phase.RECOMPUTE
        again = _call(body, leaves)
        inner = book.differentiate([(again[n], gradient) for n, _, gradient in begin], leaves)
        book.phase, book.steps = Phase.FORWARD, layout_steps
        leaving = book.differentiate(
            [(t, g) for t, g in zip(spread, inner, strict=True) if g is not None and t.requires_grad], inputs
        )
    elif begin:
        leaving = book.differentiate([(output, gradient) for _, output, gradient in begin], inputs)
    return TracedBlock(
        graph=book.graph,  # type: ignore[arg-type]
        num_forward=num_forward,
        inputs=tuple(tensor.node for tensor in inputs),
        outputs=tuple(tensor.node for tensor in outputs),
        output_specs=tuple(CarrySpec(t.shape, t.shards, t.dtype, t.requires_grad, t.sequences) for t in outputs),
        output_gradients=tuple(None if g is None else g.node for g in arriving),
        input_gradients=tuple(
            g.node if g is not None and t.requires_grad else None for t, g in zip(inputs, leaving, strict=True)
        ),
        parameters=tuple(book.parameters.values()),
        groups=book.groups,
    )


def _run(book: Notebook, body: Module, specs: Sequence[CarrySpec]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The block's inputs, its outputs, and its inputs as the block's module gets them."""
    inputs = []
    for spec in specs:
        tensor = book.arrive(spec.shape, spec.shards, spec.dtype, spec.sequences)
        inputs.append(replace(tensor, requires_grad=spec.requires_grad))
    recording, book.is_recording = book.is_recording, True
    spread = [
        tensor if spec.reshard is None else reshard_tokens(tensor, spec.reshard)
        for tensor, spec in zip(inputs, specs, strict=True)
    ]
    book.is_recording = recording
    return inputs, _call(body, spread), spread


def _call(body: Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    returned = body(*inputs)
    return list(returned) if isinstance(returned, tuple) else [returned]
