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
        is_linked: the gradients of arriving tensors that leave the backward stage, by position.
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
    blocks = [tracer.module_blocks(module) for module in job.model.modules]
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
    known: dict[tuple[int, ...], tuple[StageProgram, StageProgram | None]] = {}
    result = []
    for chunk in chunks:
        module = job.model.modules[chunk.module]
        own = tuple(blocks[chunk.module][chunk.first : chunk.last])
        numbers = tuple(block.template for block in own)
        if numbers not in known:
            known[numbers] = build_stages(library, numbers, streams, serial=not job.training.overlap.tensor_parallel)
        forward, backward = known[numbers]
        if chunk.first:
            arrivals = (chunk.index - 1,) * len(forward.arriving)
        else:
            arrivals = _module_arrivals(module, len(forward.arriving), last_chunk, library, blocks, job)
        result.append(ChunkStages(chunk, module.name, own, forward, backward, arrivals))
    return result


def _module_arrivals(
    module: ModalityModule,
    count: int,
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
    return tuple(arrivals[:count])


class _Tracer:
    """Traces blocks in order of data flow; equal structures with equal inputs are traced once."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.mesh = Mesh(job.parallel, job.cluster)
        self.templates: list[Template] = []
        self._traced: list[TracedBlock] = []
        self._known: dict[object, int] = {}
        self._outputs: dict[str, tuple[CarrySpec, ...]] = {}
        training = job.training
        self.options = TraceOptions(
            plan=megatron_plan(job.model, job.parallel),
            tp_group=self.mesh.worst_tp_group(),
            compute_dtype=training.precision.compute_dtype,
            tensor_dtype=training.precision.tensor_dtype,
            grad_dtype=training.grad_dtype,
            overlap_tp=training.overlap.tensor_parallel,
        )

    def module_blocks(self, module: ModalityModule) -> list[Block]:
        specs = [self._input_spec(spec) for spec in module.inputs]
        for source in module.sources:
            specs += self._outputs[source]
        blocks = []
        for path, body in module.blocks():
            number = self._template(body, specs, path)
            traced = self._traced[number]
            blocks.append(Block(path, number, self._held(body, traced, path)))
            specs = list(traced.output_specs)
        self._outputs[module.name] = tuple(specs)
        return blocks

    def _input_spec(self, spec: InputSpec) -> CarrySpec:
        sequences = Sequences.of_stream(spec.stream, self.job.parallel.token_divisor)
        rows = sequences.count if spec.per_sequence else sequences.tokens
        shape = (rows,) if spec.features is None else (rows, spec.features)
        packing = None if spec.per_sequence else sequences
        return CarrySpec(shape, (1,) * len(shape), spec.dtype(self.options.tensor_dtype), False, packing)

    def _template(self, body: Module, specs: Sequence[CarrySpec], path: str) -> int:
        full = self.job.training.recompute is Recompute.FULL
        plan = self.options.plan
        styles: tuple[object, ...] = ()
        if plan.tp > 1:
            styles = tuple(plan.style(f"{path}.{name}" if name else path) for name, _ in body.named_modules())
        key = (body.fingerprint(), tuple(specs), styles, full)
        number = self._known.get(key)
        if number is None:
            traced = trace_block(body, specs, self.options, root=path, full_recompute=full)
            number = self._known[key] = len(self.templates)
            self._traced.append(traced)
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
