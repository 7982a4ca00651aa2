"""A job's pipeline without reuse: every operator of every stage of every microbatch as a node of its own.

A stage becomes a zero-latency begin node, its operators and a zero-latency end node: begin waits for what the stage
waits for, operators follow their predecessors and the order of their stream, end waits for every operator that nobody
follows. That keeps stages atomic (DESIGN §3.8). Transfers are nodes as before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.compile.template import TemplateLibrary, compile_template
from semu.costs.roofline import CostModel
from semu.engine.kernels.dispatch import replay_units
from semu.engine.kernels.orders import forced_order
from semu.engine.unit_graph import Edges, UnitGraph, UnitTimes
from semu.job import Attention, Recompute, TrainingJob
from semu.nn.model import InputSpec
from semu.nn.trace.block import CarrySpec, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.tensor import Sequences
from semu.parallel.mesh import Mesh
from semu.parallel.tensor import megatron_plan
from semu.simulation import JobCheckpoint
from semu.workload.batch import shape_columns

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class StageTemplate:
    """One stage written out once.

    Attributes:
        rows: int32[num_ops], cost rows of its operators.
        edges: int64[k, 2], each once; node 0 begins the stage, node 1 + i is operator i, the last one ends it.
    """

    rows: I32
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, program: StageProgram) -> StageTemplate:
        """What its operators wait for: predecessors, and whatever is before them on their stream."""
        n = program.num_ops
        if n == 0:
            return cls(program.rows, np.array([[0, 1]]))
        by_need = np.stack((program.pred, np.repeat(np.arange(n), np.diff(program.pred_ptr))), axis=1)
        order = np.argsort(program.stream, kind="stable")
        same = program.stream[order[:-1]] == program.stream[order[1:]]
        by_stream = np.stack((order[:-1], order[1:]), axis=1)[same]
        edges = np.unique(np.concatenate((by_need, by_stream)), axis=0)
        first = np.setdiff1d(np.arange(n), edges[:, 1])
        last = np.setdiff1d(np.arange(n), edges[:, 0])
        to_first = np.stack((np.zeros_like(first), first + 1), axis=1)
        to_end = np.stack((last + 1, np.full_like(last, n + 1)), axis=1)
        return cls(program.rows, np.concatenate((edges + 1, to_first, to_end)))


@dataclass(frozen=True)
class Expanded:
    """The written out graph under one schedule.

    Attributes:
        nodes: all nodes with all edges, the schedule's too; these give every stream its order, so nobody holds one.
        begin, end: int32[num_units], first and last node of every unit of the checkpoint; a transfer's only one.
    """

    nodes: UnitGraph
    begin: I32
    end: I32

    def spans(self, times: UnitTimes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and end of every unit of the checkpoint: float64[num_units] [s]."""
        return times.start[0, self.begin], times.end[0, self.end]


def stage_templates(job: JobCheckpoint) -> list[StageTemplate]:
    """The stages of one microbatch written out, in the order of the units; stages that are built alike share one."""
    assert len(job.units.chunk) == 1, "a model that is held twice is not written out"
    known: dict[int, StageTemplate] = {}
    result = []
    for chunk, phase in zip(job.units.chunk[0].tolist(), job.units.phase.tolist(), strict=True):
        stages = job.layout.chunks[chunk]
        program = stages.backward if phase else stages.forward
        assert program is not None
        if id(program) not in known:
            known[id(program)] = StageTemplate.of(program)
        result.append(known[id(program)])
    return result


def expand(
    job: JobCheckpoint, stages: list[StageTemplate], latency: NDArray[np.float64], pairs: NDArray[np.integer]
) -> Expanded:
    """Write out the first distinct replica of a job whose parameter gathers do not overlap.

    Args:
        job: the checkpoint. stages: of one microbatch.
        latency: float64[num_shapes, num_rows] [s], of every operator for every shape.
        pairs: int[k, 2], a schedule's edges between units.
    """
    assert not job.gathers, "gathers are not written out"
    units = job.units
    count, num_stages = units.shape.num_microbatches, units.num_stages
    sizes = np.array([len(stage.rows) + 2 for stage in stages] + [1] * units.num_transfers)
    first = np.concatenate(([0], np.cumsum(sizes)))
    size, begin, end = int(first[-1]), first[:-1], first[1:] - 1
    shift = size * np.arange(count, dtype=np.int32)
    begins, ends = ((nodes[None, :] + shift[:, None]).ravel().astype(np.int32) for nodes in (begin, end))

    one = units.edges[: len(units.edges) // count]
    inside = [stage.edges + at for stage, at in zip(stages, first, strict=False)]
    inside.append(np.stack((end[one[:, 0]], begin[one[:, 1]]), axis=1))
    inner = (np.concatenate(inside).astype(np.int32)[None, :, :] + shift[:, None, None]).reshape(-1, 2)
    outer = np.stack((ends[pairs[:, 0]], begins[pairs[:, 1]]), axis=1)

    operators = np.concatenate([np.arange(at + 1, at + 1 + len(s.rows)) for s, at in zip(stages, first, strict=False)])
    rows = np.concatenate([stage.rows for stage in stages])
    costs = np.zeros((count, size))
    costs[:, operators] = latency[job.replicas.shape[0]][:, rows]
    costs[:, size - units.num_transfers :] = job.nodes.latency[0].reshape(count, -1)[:, num_stages:]
    nobody = np.zeros(count * size + 1, dtype=np.int32), np.zeros(0, dtype=np.int32)
    edges = Edges.between(np.concatenate((inner, outer)))
    return Expanded(UnitGraph.build(costs.reshape(1, -1), nobody, 0, edges, str), begins, ends)


def trace_anew(job: TrainingJob) -> NDArray[np.float64]:
    """Trace every block of a model, equal ones too, compile them and cost their operators for the first microbatch.

    Returns:
        float64[num_ops] [s], latencies of all operators, forward and backward.
    """
    parallel, training = job.parallel, job.training
    mesh = Mesh(parallel, job.cluster)
    options = TraceOptions(
        plan=megatron_plan(job.model, parallel),
        tp_group=mesh.worst_tp_group,
        compute_dtype=training.precision.compute_dtype,
        tensor_dtype=training.precision.tensor_dtype,
        grad_dtype=training.grad_dtype,
        overlap_tp=training.overlap.tensor_parallel,
        fused_attention=training.attention is Attention.FUSED,
        recompute=training.recompute_plan,
    )
    is_full = training.recompute is Recompute.FULL
    outputs: dict[str, tuple[CarrySpec, ...]] = {}
    templates = []
    for module in job.model.modules:
        specs = tuple(_arriving(spec, parallel.token_divisor, options) for spec in module.inputs)
        for source in module.sources:
            specs += outputs[source]
        for path, body in module.blocks():
            block = trace_block(body, specs, options, root=path, full_recompute=is_full)
            templates.append(
                compile_template(
                    block.graph,
                    block.num_forward,
                    inputs=block.inputs,
                    outputs=block.outputs,
                    output_gradients=block.output_gradients,
                    input_gradients=block.input_gradients,
                    groups=block.groups,
                )
            )
            specs = block.output_specs
        outputs[module.name] = specs
    library = TemplateLibrary(templates)
    first = job.batch.microbatches(1, training.micro_batch, training.seq_len)
    columns = library.evaluate(shape_columns(first, parallel.token_divisor))
    latency: NDArray[np.float64] = CostModel(library, job.profile).latencies(columns)[:, 0]
    return latency


def _arriving(spec: InputSpec, token_divisor: int, options: TraceOptions) -> CarrySpec:
    """What a module gets from the data loader."""
    sequences = Sequences.of_stream(spec.stream, token_divisor)
    rows = sequences.count if spec.per_sequence else sequences.tokens
    shape = (rows,) if spec.features is None else (rows, spec.features)
    packing = None if spec.per_sequence else sequences
    return CarrySpec(shape, (1,) * len(shape), spec.dtype(options.tensor_dtype), False, packing)


def bare_kernel(nodes: UnitGraph, new: Edges | None = None) -> Callable[[], object]:
    """The kernels behind ``resume`` with all their arguments ready, without any Python around them.

    Args:
        nodes: whose edges, with the new ones, leave only one order on every stream. new: further edges.
    """
    added, n = new if new is not None else Edges.between([]), nodes.num_units
    order, streams = np.empty(n, dtype=np.int32), (nodes.hold_ptr, nodes.hold, nodes.num_streams)
    edges, slots = (nodes.edge_ptr, *nodes.edges.columns[1:]), nodes.slots.columns
    times = (*np.empty((2, 1, n)), np.zeros((1, len(nodes.slots.op))), np.zeros((1, n), dtype=np.bool_))
    find = partial(forced_order, streams, edges, added.columns, order)
    replay = partial(replay_units, order, streams, nodes.latency, edges, added.columns, slots, times)

    def call() -> None:
        assert find() == (n, True), "the edges close a cycle or leave a choice"
        replay()

    return call
