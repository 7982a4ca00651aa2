"""From a job to its chunks: trace every distinct block once, cut the model into chunks, join chunks into stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semu.engine.stage import StageProgram, build_stages
from semu.engine.template import Template, TemplateLibrary, compile_template, stream_names
from semu.job import Recompute, TrainingJob
from semu.nn.block import CarrySpec, TracedBlock, trace_block
from semu.nn.model import InputSpec, ModalityModule
from semu.nn.module import Module, Parameter
from semu.nn.tensor import Sequences
from semu.nn.tracing import TraceOptions
from semu.parallel.mesh import Mesh
from semu.parallel.pipeline import Chunk, place_chunks
from semu.parallel.tensor import megatron_plan
from semu.schedule.schedule import PipelineShape

if TYPE_CHECKING:
    from collections.abc import Callable


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
class ChunkStages:
    """A chunk with its two stages.

    Attributes:
        chunk: where it is. blocks: its blocks. forward, backward: its stages; backward None: nothing to do.
        arrivals: per arriving tensor, the chunk that makes it, or -1 for the data loader.
    """

    chunk: Chunk
    module: str
    blocks: tuple[Block, ...]
    forward: StageProgram
    backward: StageProgram | None
    arrivals: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """A job's model, cut and compiled.

    Attributes:
        job: the job. mesh: where ranks live. library: templates with their cost rows. streams: stream names.
        chunks: in order of data flow.
    """

    job: TrainingJob
    mesh: Mesh
    library: TemplateLibrary
    streams: tuple[str, ...]
    chunks: tuple[ChunkStages, ...]

    def pipeline_shape(self, num_microbatches: int) -> PipelineShape:
        """What the schedule must order."""
        return PipelineShape(
            num_ranks=self.job.parallel.pp,
            num_microbatches=num_microbatches,
            chunk_rank=tuple(c.chunk.rank for c in self.chunks),
            sources=tuple(tuple(dict.fromkeys(a for a in c.arrivals if a >= 0)) for c in self.chunks),
            has_backward=tuple(c.backward is not None for c in self.chunks),
        )

    def chunks_of(self, rank: int) -> list[ChunkStages]:
        """Chunks of a pipeline rank in order of data flow."""
        return [c for c in self.chunks if c.chunk.rank == rank]


def build_layout(job: TrainingJob, weigh: Callable[[TemplateLibrary], Sequence[float]]) -> Layout:
    """Trace, cut and compile a job's model.

    Args:
        job: the job.
        weigh: weight of each template for balancing by latency; called only where ``parallel.partition`` asks.
    """
    tracer = _Tracer(job)
    blocks = tracer.trace_model()
    library = TemplateLibrary(tracer.templates)
    flat = [block for group in blocks for block in group]
    if job.parallel.partition == "latency":
        by_template = weigh(library)
        weights = [by_template[block.template] for block in flat]
    else:
        weights = [float(sum(p.parameter.numel for p in block.parameters)) for block in flat]
    chunks = place_chunks([len(group) for group in blocks], weights, job.parallel.pp)
    streams = stream_names(library)
    return Layout(
        job=job,
        mesh=tracer.mesh,
        library=library,
        streams=streams,
        chunks=tuple(_join(job, library, streams, blocks, chunks)),
    )


def _join(
    job: TrainingJob,
    library: TemplateLibrary,
    streams: Sequence[str],
    blocks: Sequence[Sequence[Block]],
    chunks: Sequence[Chunk],
) -> list[ChunkStages]:
    last_chunk = {job.model.modules[chunk.module].name: chunk.index for chunk in chunks}
    consumed = {source for module in job.model.modules for source in module.sources}
    known: dict[object, tuple[StageProgram, StageProgram | None]] = {}
    result: list[ChunkStages] = []
    for chunk in chunks:
        module = job.model.modules[chunk.module]
        own = tuple(blocks[chunk.module][chunk.first : chunk.last])
        numbers = tuple(block.template for block in own)
        num_arriving = len(library.templates[numbers[0]].carry_in)
        if chunk.first:
            arrivals = (chunk.index - 1,) * num_arriving
        else:
            arrivals = _module_arrivals(module, last_chunk, library, blocks, job)
        has_consumer = chunk.index != last_chunk[module.name] or module.name in consumed
        borrowed = _borrowed(arrivals, chunk, result)
        key = (numbers, has_consumer, borrowed)
        if key not in known:
            known[key] = build_stages(
                library,
                numbers,
                streams,
                serial=not job.training.overlap.tensor_parallel,
                has_consumer=has_consumer,
                borrowed=borrowed,
            )
        forward, backward = known[key]
        result.append(ChunkStages(chunk, module.name, own, forward, backward, arrivals))
    return result


def _borrowed(arrivals: Sequence[int], chunk: Chunk, earlier: Sequence[ChunkStages]) -> tuple[bool, ...]:
    """Per arriving tensor: it comes from a chunk of the same rank that keeps it for its own backward."""
    result = []
    for k, source in enumerate(arrivals):
        if source < 0 or earlier[source].chunk.rank != chunk.rank:
            result.append(False)
        else:
            position = sum(1 for other in arrivals[:k] if other == source)
            result.append(earlier[source].forward.leaving_kept[position])
    return tuple(result)


def _module_arrivals(
    module: ModalityModule,
    last_chunk: dict[str, int],
    library: TemplateLibrary,
    blocks: Sequence[Sequence[Block]],
    job: TrainingJob,
) -> tuple[int, ...]:
    arrivals = [-1] * len(module.inputs)
    names = [m.name for m in job.model.modules]
    for source in module.sources:
        last_block = blocks[names.index(source)][-1]
        arrivals += [last_chunk[source]] * len(library.templates[last_block.template].carry_out)
    return tuple(arrivals)


@dataclass(frozen=True)
class _Placed:
    """A block that has been traced forward: where, what, from what."""

    path: str
    body: Module
    specs: tuple[CarrySpec, ...]


class _Tracer:
    """Traces blocks in order of data flow; equal structures with equal inputs are traced once.

    A second walk, against the data flow, finds for which outputs a gradient really arrives (none does for a carry that
    nobody after this block uses), and traces again where that differs.
    """

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.mesh = Mesh(job.parallel, job.cluster)
        self.templates: list[Template] = []
        self._number: dict[int, int] = {}
        self._known: dict[object, TracedBlock] = {}
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
                group.append(_Placed(path, body, tuple(specs)))
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

    def _trace(self, place: _Placed, gradients: Sequence[bool] | None) -> TracedBlock:
        full = self.job.training.recompute is Recompute.FULL
        plan = self.options.plan
        styles: tuple[object, ...] = ()
        if plan.tp > 1:
            names = [name for name, _ in place.body.named_modules()]
            styles = tuple(plan.style(f"{place.path}.{name}" if name else place.path) for name in names)
        key = (place.body.fingerprint(), place.specs, styles)
        default = self._known.get(key)
        if default is None:
            default = trace_block(place.body, place.specs, self.options, root=place.path, full_recompute=full)
            self._known[key] = default
        if gradients is None or all(
            flag or tensor is None for flag, tensor in zip(gradients, default.output_gradients, strict=True)
        ):
            return default
        precise = (key, tuple(gradients))
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
        backward = traced.graph.operators[traced.num_forward :]
        writer = {tensor: op.index - traced.num_forward for op in backward for tensor in op.outputs}
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
