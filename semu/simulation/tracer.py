"""``ModelTracer``: the blocks of a job's model, every distinct structure traced and compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semu.engine.template import Template, compile_template
from semu.job import Recompute, TrainingJob
from semu.nn.block import CarrySpec, TracedBlock, trace_block
from semu.nn.model import InputSpec
from semu.nn.module import Module, Parameter
from semu.nn.tensor import Sequences
from semu.nn.tracing import TraceOptions
from semu.parallel.mesh import Mesh
from semu.parallel.tensor import megatron_plan


@dataclass(frozen=True)
class HeldParameter:
    """A parameter as one rank holds it.

    Attributes:
        parameter: the model's. elements: local elements. is_sharded: split over the tensor-parallel group.
        writer: position, in the block's backward half, of the operator that completes its gradient; -1: frozen.
        path: dotted path in the model.
    """

    parameter: Parameter
    elements: int
    is_sharded: bool
    writer: int
    path: str


@dataclass(frozen=True)
class Block:
    """A block of the model: where it is, which template it uses, what it holds."""

    path: str
    template: int
    parameters: tuple[HeldParameter, ...]


@dataclass(frozen=True)
class _Placed:
    """A block in its place: where, what, from what; blocks of equal ``key`` trace alike."""

    path: str
    body: Module
    specs: tuple[CarrySpec, ...]
    key: object


class ModelTracer:
    """Traces blocks in order of data flow; equal structures with equal inputs are traced once.

    A second walk, against the data flow, finds for which outputs a gradient really arrives (none does for a carry that
    nobody after this block uses), and traces again where that differs.
    """

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.mesh = Mesh(job.parallel, job.cluster)
        self.templates: list[Template] = []
        self._number: dict[int, int] = {}
        self._keys: dict[object, int] = {}
        self._known: dict[object, TracedBlock] = {}
        self._writers: dict[int, dict[int, int]] = {}
        training = job.training
        self.options = TraceOptions(
            plan=megatron_plan(job.model, job.parallel),
            tp_group=self.mesh.worst_tp_group,
            compute_dtype=training.precision.compute_dtype,
            tensor_dtype=training.precision.tensor_dtype,
            grad_dtype=training.grad_dtype,
            overlap_tp=training.overlap.tensor_parallel,
        )

    def trace_model(self) -> list[list[Block]]:
        """The blocks of every modality module, in order."""
        outputs: dict[str, tuple[CarrySpec, ...]] = {}
        placed: list[list[_Placed]] = []
        for module in self.job.model.modules:
            specs = [self._input_spec(spec) for spec in module.inputs]
            for source in module.sources:
                specs += outputs[source]
            group = []
            for path, body in module.blocks():
                group.append(self._place(path, body, tuple(specs)))
                specs = list(self._trace(group[-1], None).output_specs)
            outputs[module.name] = tuple(specs)
            placed.append(group)
        return self._walk_back(placed, {name: len(specs) for name, specs in outputs.items()})

    def _walk_back(self, placed: Sequence[Sequence[_Placed]], num_outputs: dict[str, int]) -> list[list[Block]]:
        wanted: dict[str, list[bool]] = {}
        result: list[list[Block]] = []
        for module, group in zip(reversed(self.job.model.modules), reversed(placed), strict=True):
            gradients: Sequence[bool] | None = wanted.get(module.name)
            blocks: list[Block] = []
            for place in reversed(group):
                traced = self._trace(place, gradients)
                blocks.append(Block(place.path, self._template(traced), self._held(place.body, traced, place.path)))
                gradients = [gradient is not None for gradient in traced.input_gradients]
            offset = len(module.inputs)
            for source in module.sources:
                flags = list(gradients or ())[offset : offset + num_outputs[source]]
                before = wanted.get(source, [False] * len(flags))
                wanted[source] = [a or b for a, b in zip(before, flags, strict=True)]
                offset += num_outputs[source]
            result.append(blocks[::-1])
        return result[::-1]

    def _input_spec(self, spec: InputSpec) -> CarrySpec:
        sequences = Sequences.of_stream(spec.stream, self.job.parallel.token_divisor)
        rows = sequences.count if spec.per_sequence else sequences.tokens
        shape = (rows,) if spec.features is None else (rows, spec.features)
        packing = None if spec.per_sequence else sequences
        return CarrySpec(shape, (1,) * len(shape), spec.dtype(self.options.tensor_dtype), False, packing)

    def _place(self, path: str, body: Module, specs: tuple[CarrySpec, ...]) -> _Placed:
        plan = self.options.plan
        styles: tuple[object, ...] = ()
        if plan.tp > 1:
            styles = tuple(plan.style(name) for name, _ in body.named_modules(path))
        key = (body.fingerprint(), specs, styles)
        return _Placed(path, body, specs, self._keys.setdefault(key, len(self._keys)))

    def _trace(self, place: _Placed, gradients: Sequence[bool] | None) -> TracedBlock:
        full = self.job.training.recompute is Recompute.FULL
        default = self._known.get(place.key)
        if default is None:
            default = trace_block(place.body, place.specs, self.options, root=place.path, full_recompute=full)
            self._known[place.key] = default
        if gradients is None or all(
            flag or tensor is None for flag, tensor in zip(gradients, default.output_gradients, strict=True)
        ):
            return default
        precise = (place.key, tuple(gradients))
        if precise not in self._known:
            self._known[precise] = trace_block(
                place.body, place.specs, self.options, root=place.path, full_recompute=full, gradients=gradients
            )
        return self._known[precise]

    def _template(self, traced: TracedBlock) -> int:
        """Number of a traced block's template, compiled on first use."""
        number = self._number.get(id(traced))
        if number is None:
            number = self._number[id(traced)] = len(self.templates)
            self.templates.append(
                compile_template(
                    traced.graph,
                    traced.num_forward,
                    inputs=traced.inputs,
                    outputs=traced.outputs,
                    output_gradients=traced.output_gradients,
                    input_gradients=traced.input_gradients,
                    groups=traced.groups,
                )
            )
        return number

    def _held(self, body: Module, traced: TracedBlock, path: str) -> tuple[HeldParameter, ...]:
        """The block's own parameters, matched with the traced twin's by position."""
        writer = self._writers.get(id(traced))
        if writer is None:
            backward = traced.graph.operators[traced.num_forward :]
            writer = {tensor: op.index - traced.num_forward for op in backward for tensor in op.outputs}
            self._writers[id(traced)] = writer
        by_path = dict(body.named_parameters())
        return tuple(
            HeldParameter(
                parameter=by_path[use.path],
                elements=use.numel,
                is_sharded=use.is_sharded,
                writer=writer.get(use.gradient, -1) if use.gradient is not None else -1,
                path=f"{path}.{use.path}",
            )
            for use in traced.parameters
        )
