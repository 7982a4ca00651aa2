"""``Trace``: runs a module's ``forward`` on symbolic tensors and writes down the graph and the autograd tape.

There is no global state: every tensor knows its trace. Rules (``semu.nn.rules``) call ``emit`` for each kernel or
collective and ``record`` for each differentiable step; ``semu.nn.trace.autograd`` walks the tape backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TypeAlias

from semu.errors import GraphError
from semu.graph.dim import Dim, as_int, symbols_of
from semu.graph.graph import Graph
from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.device import HOST_COPIES, Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn.masked_kernel import MARK
from semu.nn.module import Module, Parameter
from semu.nn.trace.early_stop import SecondRuns
from semu.nn.trace.keep import Ledger
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.recompute_plan import OUTPUT_KINDS
from semu.nn.trace.sharding import ShardingStyle
from semu.nn.trace.tensor import Sequences, Tensor, local_shape
from semu.records import dataclass

Backward: TypeAlias = Callable[[Sequence["Tensor | None"]], Sequence["Tensor | None"]]
"""Gradients of a step's outputs -> gradients of its inputs (None where none is needed or none arrives)."""

COMPUTE = Stream(Device(DeviceKind.COMPUTE), "compute")
"""The compute stream of the traced rank."""


@dataclass(frozen=True)
class TapeStep:
    """One differentiable step: inputs, outputs, how gradients flow back, and the module whose forward ran it."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    backward: Backward
    path: str
    in_fp8_region: bool = False


class Trace:
    """One tracing of one module.

    Args:
        options: sharding, precision, overlap.
        module: the module that will be traced; gives the paths of the modules below it.
        root: the module's path in the model; sharding plans name ``root.path``.
        run_lengths: operators of each recomputation, see ``semu.nn.trace.early_stop``; empty: all.
    """

    def __init__(
        self, options: TraceOptions, module: Module | None = None, root: str = "", run_lengths: Sequence[int] = ()
    ) -> None:
        self.options = options
        self.root = root
        self.graph = Graph()
        self.tape: list[TapeStep] = []
        self.phase = Phase.FORWARD
        self.parameters: dict[int, ParameterUse] = {}
        self.groups: dict[Stream, CommGroup] = {}
        self._path = ""
        self._module_paths = {id(child): path for path, child in module.named_modules()} if module is not None else {}
        self._parameter_paths = {id(p): path for path, p in module.named_parameters()} if module is not None else {}
        self._grad_enabled = True
        self._in_fp8_region = False
        self._touched_trainable = False
        self._dropped: dict[int, Callable[[], Tensor]] = {}
        self._made_again: dict[int, Tensor] = {}
        self._last_in_turn = -1
        self.last_kernel = -1
        self.reloaded: dict[int, int] = {}
        self.ledger: Ledger | None = None
        self.companions: dict[int, int] = {}
        self.second_runs = SecondRuns(run_lengths)
        self._sides: list[int] = []

    # -- the running module ---------------------------------------------------------------------------------------
    @property
    def path(self) -> str:
        """Dotted path, below the traced module, of the module whose forward is running."""
        return self._path

    @property
    def where(self) -> str:
        """Path from the model's root, for messages and sharding plans."""
        return ".".join(part for part in (self.root, self._path) if part)

    @property
    def style(self) -> ShardingStyle:
        """Sharding style of the module whose forward is running."""
        return self.options.plan.style(self.where)

    @property
    def is_fp8(self) -> bool:
        """Whether linears of the module whose forward is running run in fp8."""
        return self._in_fp8_region and self.options.compute_dtype is DType.FP8

    def packs(self, weight: Parameter) -> bool:
        """Whether a linear's weight is stored as ``frozen_weights`` says."""
        return self._in_fp8_region and not weight.requires_grad and self.options.frozen_weights is not None

    @property
    def grad_enabled(self) -> bool:
        """Whether steps are recorded."""
        return self._grad_enabled

    @contextmanager
    def scope(self, module: Module) -> Iterator[None]:
        """Enter a module: its operators form a subgraph."""
        outer = self._path
        path = self._module_paths.get(id(module))
        if path is None:
            path = f"{outer}.{type(module).__name__.lower()}" if outer else type(module).__name__.lower()
        self._path = path
        outside = self._in_fp8_region
        if module.fp8_region is not None:
            self._in_fp8_region = module.fp8_region
        name = path.removeprefix(f"{outer}.") if outer else path
        try:
            with self.graph.subgraph(name) if name else nullcontext():
                yield
        finally:
            self._path, self._in_fp8_region = outer, outside

    @contextmanager
    def at(self, path: str, phase: Phase, *, in_fp8_region: bool = False) -> Iterator[None]:
        """Emit for another place and phase (the backward pass)."""
        old_path, old_phase, old_region = self._path, self.phase, self._in_fp8_region
        self._path, self.phase, self._in_fp8_region = path, phase, in_fp8_region
        try:
            yield
        finally:
            self._path, self.phase, self._in_fp8_region = old_path, old_phase, old_region

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Record nothing on the tape."""
        enabled, self._grad_enabled = self._grad_enabled, False
        try:
            yield
        finally:
            self._grad_enabled = enabled

    @contextmanager
    def watch_trainable(self) -> Iterator[Callable[[], bool]]:
        """Tell whether a trainable parameter was used inside the block."""
        before, self._touched_trainable = self._touched_trainable, False
        try:
            yield lambda: self._touched_trainable
        finally:
            self._touched_trainable = before or self._touched_trainable

    # -- recomputation -------------------------------------------------------------------------------------------
    def recomputes(self, module: Module) -> bool:
        """Whether a module is computed again from its inputs."""
        plan = self.options.recompute
        if module.recompute_kind in OUTPUT_KINDS or not (plan.kinds or plan.patterns):
            return False
        path = self._module_paths.get(id(module)) if plan.patterns else None
        where = ".".join(part for part in (self.root, path) if part) if path is not None else ""
        return plan.names(module.recompute_kind, where)

    def drop_output(self, kind: str, output: Tensor, again: Callable[[], Tensor]) -> None:
        """Drop a kernel's output after the forward pass, where its kind is to be recomputed.

        Args:
            kind: one of ``OUTPUT_KINDS``. output: what the kernel made.
            again: appends the kernel once more; called before the first backward operator that reads the output.
        """
        plan = self.options.recompute
        if kind in plan.kinds or (kind == "layernorm" and plan.matches(self.where)):
            path = self._path

            def _make() -> Tensor:
                with self.at(path, Phase.RECOMPUTE), self.no_grad():
                    return again()

            self._dropped[self.graph.tensors[output.node].storage] = _make

    def _read(self, tensor: Tensor, phase: Phase) -> int:
        """The node that an operator reads; the backward pass reads a dropped tensor where it was made again."""
        storage = self.graph.tensors[tensor.node].storage
        if storage in self.reloaded:
            node = self.reloaded[storage]
            is_same = self.graph.tensors[node].shape == tuple(tensor.local_shape)
            return node if is_same else self.graph.add_view(node, tensor.local_shape)
        if storage not in self._dropped or phase not in (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT):
            return tensor.node
        if storage not in self._made_again:
            self._made_again[storage] = self._dropped[storage]()
        again = self._made_again[storage]
        return again.node if again.shape == tensor.shape else self.graph.add_view(again.node, tensor.local_shape)

    # -- tensors -------------------------------------------------------------------------------------------------
    def input(
        self,
        shape: Sequence[Dim],
        dtype: DType,
        name: str,
        shards: Sequence[int],
        sequences: Sequences | None = None,
        *,
        requires_grad: bool = False,
    ) -> Tensor:
        """A tensor that arrives from outside; ``shape`` is global."""
        node = self.graph.add_input(local_shape(shape, shards, name), dtype, name=name)
        return Tensor(self, node, tuple(shape), tuple(shards), dtype, requires_grad, sequences)

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
        """The local part of a parameter; the first use registers it."""
        self._touched_trainable |= parameter.requires_grad
        use = self.parameters.get(id(parameter))
        if use is None:
            cut = tuple(shards) if shards is not None else (1,) * len(parameter.shape)
            path = self._parameter_paths.get(id(parameter), f"{self.path}.{parameter.name}")
            self._check_split(parameter, cut)
            shape = local_shape(parameter.shape, cut, path)
            dtype = self.options.tensor_dtype
            tensor = self.graph.add_tensor(shape, dtype, Role.PARAMETER, name=path)
            gradient = None
            if parameter.requires_grad:
                gradient = self.graph.add_tensor(shape, self.options.grad_dtype, Role.GRADIENT, name=f"{path}.grad")
            sizes = tuple(as_int(dim, "a parameter's size", path) for dim in shape)
            is_split, widths, n = any(n > 1 for n in cut), tuple(parts or ()), math.prod(sizes)
            use = ParameterUse(
                path, parameter, n, is_split, tensor, gradient, is_fp8, is_expert, sizes, widths, is_packed
            )
            self.parameters[id(parameter)] = use
        return use

    def _check_split(self, parameter: Parameter, shards: Sequence[int]) -> None:
        for dim, parts in zip(parameter.shape, shards, strict=True):
            if dim % parts:
                raise GraphError(
                    f"{parameter.name} {list(parameter.shape)} cannot be split over a tensor-parallel group of {parts}",
                    where=self.where,
                    expected=f"a divisor of {dim}",
                    got=f"tp = {parts}",
                    nearest=max(n for n in range(1, parts + 1) if dim % n == 0),
                )

    # -- operators -----------------------------------------------------------------------------------------------
    def emit(
        self,
        kind: OpKind,
        inputs: Sequence[Tensor | ParameterUse],
        shape: Sequence[Dim] | None = None,
        *,
        like: Tensor | None = None,
        shards: Sequence[int] | None = None,
        dtype: DType | None = None,
        sequences: Sequences | None = None,
        gradients: Sequence[ParameterUse] = (),
        updates: Sequence[Tensor] = (),
        flop: Dim = 0,
        recomputed_flop: Dim = 0,
        causal_flop: Dim = 0,
        mem_bytes: Dim = 0,
        net_bytes: Dim = 0,
        key: Sequence[Dim] = (),
        phase: Phase | None = None,
        stream: Stream = COMPUTE,
        role: Role = Role.ACTIVATION,
        name: str = "",
        extra_outputs: Sequence[tuple[Sequence[Dim], DType]] = (),
        arithmetic: DType | None = None,
        beside: Sequence[int] | None = None,
    ) -> Tensor:
        """Append one operator and return its output.

        Args:
            kind, flop, recomputed_flop, causal_flop, mem_bytes, net_bytes, key, stream: as ``Graph.add_operator``;
                local to one rank.
            inputs: tensors and parameters read.
            shape, shards, dtype, sequences, role: the output's.
            like: what the output looks like where these are None; its elements are the key where there is no other.
                Without ``shape`` and ``like`` there is no output tensor, and the first input comes back.
            gradients: parameters whose gradient buffers it writes.
            updates: tensors changed in place.
            phase: default: the trace's current phase.
            name: appended to the module's path.
            extra_outputs: local shapes and dtypes of side outputs (statistics); reach them by ``side_outputs``.
            arithmetic: precision of the computation; default: the options' plain one.
            beside: of a transfer that overlaps with its surroundings even without ``overlap_tp``: the operators that it
                waits for, besides the producers of its inputs; -1: none.
        """
        if like is not None:
            shape = like.shape if shape is None else shape
            shards = like.shards if shards is None else shards
            dtype = like.dtype if dtype is None else dtype
            sequences = like.sequences if sequences is None else sequences
            key = key or (like.numel,)
        path = ".".join(part for part in (self.path, name) if part)
        now = phase if phase is not None else self.phase
        reads = [self._read(item, now) if isinstance(item, Tensor) else item.tensor for item in inputs]
        if self.companions:
            storages = dict.fromkeys(self.graph.tensors[node].storage for node in reads)
            reads += [self.companions[storage] for storage in storages if storage in self.companions]
        writes = [use.gradient for use in gradients if use.gradient is not None]
        writes += [tensor.node for tensor in updates]
        result: Tensor | None = None
        if shape is not None:
            cut = tuple(shards) if shards is not None else (1,) * len(shape)
            element = dtype if dtype is not None else self.options.tensor_dtype
            node = self.graph.add_tensor(local_shape(shape, cut, path), element, role, name=path)
            needs = self._grad_enabled and self.any_trainable(inputs) and self.phase is not Phase.INPUT_GRADIENT
            result = Tensor(self, node, tuple(shape), cut, element, needs, sequences)
            writes.append(node)
        sides = [self.graph.add_tensor(s, d, role, name=f"{path}.side") for s, d in extra_outputs]
        self._sides = sides
        if not self.second_runs.is_over(self.graph):
            self.graph.add_operator(
                kind,
                stream,
                inputs=reads,
                outputs=[*writes, *sides],
                flop=flop,
                recomputed_flop=recomputed_flop,
                causal_flop=causal_flop,
                mem_bytes=mem_bytes,
                net_bytes=net_bytes,
                dtype=arithmetic if arithmetic is not None else self.options.plain_dtype,
                key=key,
                path=path,
                phase=now,
                after=self._waits(stream, beside),
                copies=self._copies(inputs, result) * self._context_copies(flop),
            )
        returned = result if result is not None else inputs[0]
        if not isinstance(returned, Tensor):
            raise GraphError("an operator without output needs a tensor input", where=path)
        return returned

    def _waits(self, stream: Stream, beside: Sequence[int] | None) -> list[int]:
        """Operators that the next one waits for, besides the producers of its inputs; ``beside`` as in ``emit``."""
        after = [operator for operator in beside or () if operator >= 0]
        if beside is None and stream.name not in HOST_COPIES:
            last, self._last_in_turn = self._last_in_turn, len(self.graph.operators)
            if last >= 0 and not self.options.overlap_tp and self.graph.operators[last].stream != stream:
                after.append(last)
            if stream == COMPUTE:
                self.last_kernel = self._last_in_turn
        return after

    def side_outputs(self, count: int) -> list[Tensor]:
        """The last operator's ``extra_outputs`` as tensors, for the rule's backward to read."""
        nodes = [self.graph.tensors[side] for side in self._sides[-count:]]
        return [Tensor(self, node.index, node.shape, (1,) * len(node.shape), node.dtype) for node in nodes]

    def _copies(self, inputs: Sequence[Tensor | ParameterUse], result: Tensor | None) -> int:
        """Tensor-parallel ranks that do the same work: all where neither operands nor result are split, else 1."""
        is_split = any(
            item.is_sharded if isinstance(item, ParameterUse) else any(n > 1 for n in item.shards) for item in inputs
        ) or (result is not None and any(n > 1 for n in result.shards))
        return 1 if is_split else self.options.plan.tp

    def _context_copies(self, flop: Dim) -> int:
        """Context ranks that do the same work: all where the work does not depend on a rank's tokens, else 1."""
        ranks = self.options.cp_group.num_ranks
        if ranks == 1 or any(MARK in name or name.endswith((".shard", ".pairs")) for name in symbols_of(flop)):
            return 1
        return ranks

    @staticmethod
    def any_trainable(inputs: Sequence[Tensor | ParameterUse]) -> bool:
        """Whether an input needs a gradient."""
        return any(item.requires_grad if isinstance(item, Tensor) else item.parameter.requires_grad for item in inputs)

    def view(self, tensor: Tensor, shape: Sequence[Dim], shards: Sequence[int]) -> Tensor:
        """Another global shape over the same storage; free."""
        node = self.graph.add_view(tensor.node, local_shape(shape, shards, self.path))
        return replace(tensor, node=node, shape=tuple(shape), shards=tuple(shards))

    def communication_stream(self, group: CommGroup) -> Stream:
        """The stream of a group, on the outgoing link that the group's placement uses."""
        device = Device(DeviceKind.LINK, port=group.port, direction=Direction.OUT)
        stream = Stream(device, group.name)
        self.groups[stream] = group
        return stream

    def record(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], backward: Backward) -> None:
        """Put a step on the tape, unless no gradient flows through it."""
        if self._grad_enabled and any(output.requires_grad for output in outputs):
            self.tape.append(TapeStep(tuple(inputs), tuple(outputs), backward, self._path, self._in_fp8_region))

    def recorded(
        self, inputs: Sequence[Tensor], output: Tensor, backward: Callable[[Tensor], Sequence[Tensor | None]]
    ) -> Tensor:
        """Put a step with one output on the tape; ``backward`` takes that output's gradient. Returns the output."""

        def _of_one(gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
            (grad,) = gradients
            assert grad is not None
            return backward(grad)

        self.record(inputs, [output], _of_one)
        return output
