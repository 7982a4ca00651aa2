"""The report and the timeline, put together from the simulated pieces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np

from semu.engine.stage import ROLES
from semu.engine.timeline import (
    IterationTimeline,
    MemoryCurve,
    OperatorTable,
    OuterSlice,
    PeakMemory,
    RankTimeline,
    StageOperators,
    StageSlice,
)
from semu.graph.tensor import Role
from semu.hardware.kinds import DType, OpKind, Provenance
from semu.job import Precision
from semu.report import RankMemoryRow, Report, TopOperator
from semu.simulation.accounting import breakdown, bubble_ratio, count_work
from semu.simulation.evaluate import Evaluation
from semu.simulation.gather import ParameterGather, held_by_rank
from semu.simulation.layout import Layout
from semu.simulation.memory import RankMemory, RankPeak, rank_static
from semu.simulation.pipeline import PipelineRun
from semu.simulation.reduction import RankTail

NUM_TOP_OPERATORS = 10


def assemble_report(
    layout: Layout,
    evaluation: Evaluation,
    run: PipelineRun,
    tails: list[RankTail],
    gathers: Mapping[int, ParameterGather],
) -> Report:
    """Everything that ``simulate`` returns."""
    job = layout.job
    profile = job.cluster.profile
    makespan = run.makespan()
    slowest = int(np.argmax(makespan))
    iteration = max(float(makespan.max()), *(tail.end_s for tail in tails))
    memories = [RankMemory(layout, evaluation, run, rank) for rank in range(job.parallel.pp)]
    peaks = [memory.peak() for memory in memories]
    work = count_work(layout, evaluation)
    gpus = job.cluster.num_gpus
    peak_rate = profile.peak_flop_per_s(job.training.precision.compute_dtype) * gpus * iteration
    is_fp8 = job.training.precision is Precision.FP8
    capacity = int(profile.memory_bytes.value)
    timeline = _timeline(layout, evaluation, run, tails, gathers, memories, slowest, iteration)
    top, seconds = _operators(layout, evaluation, run, slowest)
    _add_outer(seconds, timeline)
    everything = sum(seconds.values()) or 1.0
    provenance = {name: value / everything for name, value in sorted(seconds.items())}
    return Report(
        title=f"{job.model.name} on {job.cluster.label()}, {job.parallel.label()}, {job.training.schedule}",
        iteration_time_s=iteration,
        makespan_s=float(makespan[slowest]),
        mfu=work.model_flop / peak_rate,
        hfu=work.hardware_flop / peak_rate,
        mfu_full_attention=work.model_flop_full_attention / peak_rate,
        mfu_bf16=work.model_flop / (profile.peak_flop_per_s(DType.BF16) * gpus * iteration) if is_fp8 else None,
        model_flop=work.model_flop,
        hardware_flop=work.hardware_flop,
        model_tflop_per_s_per_gpu=work.model_flop / iteration / gpus / 1e12,
        tokens_per_s_per_gpu=work.tokens / iteration / gpus,
        tokens=work.tokens,
        bubble_ratio=bubble_ratio(run, slowest),
        peak_memory_bytes=tuple(peak.size_bytes for peak in peaks),
        static_memory_bytes=tuple(rank_static(layout, rank).total for rank in range(job.parallel.pp)),
        reserved_memory_bytes=None,
        capacity_bytes=capacity,
        parameters=job.model.num_parameters(),
        breakdown_s=breakdown(layout, evaluation, run, tails, iteration).to_json(),
        ranks=tuple(_rank_row(layout, run, memory, peak) for memory, peak in zip(memories, peaks, strict=True)),
        top_operators=top,
        provenance=provenance,
        num_microbatches=job.num_microbatches,
        num_distinct_replicas=run.num_replicas,
        slowest_replica=int(run.first[slowest]),
        job=describe_job(layout),
        warnings=tuple(_warnings(layout)),
        timeline=timeline,
    )


def describe_job(layout: Layout) -> dict[str, object]:
    """Resolved inputs, for ``result.json``."""
    job = layout.job
    training = job.training
    return {
        "model": {
            "name": job.model.name,
            "modules": [
                {
                    "name": module.name,
                    "role": module.role.value,
                    "parameters": module.body.num_parameters(),
                    "trainable_parameters": module.body.num_parameters(trainable_only=True),
                }
                for module in job.model.modules
            ],
        },
        "cluster": {
            "device": job.cluster.profile.name,
            "nodes": job.cluster.nodes,
            "gpus_per_node": job.cluster.gpus_per_node,
        },
        "parallel": {name: getattr(job.parallel, name) for name in _PARALLEL_KEYS},
        "chunks": [
            {"chunk": c.chunk.index, "rank": c.chunk.rank, "module": c.module, "blocks": [c.chunk.first, c.chunk.last]}
            for c in layout.chunks
        ],
        "training": {
            "micro_batch": training.micro_batch,
            "global_batch": training.global_batch,
            "seq_len": training.seq_len,
            "precision": training.precision.value,
            "grad_dtype": training.grad_dtype.value,
            "optimizer": training.optimizer.value,
            "recompute": training.recompute.value,
            "schedule": training.schedule,
        },
        "overlap": vars(training.overlap).copy(),
        "batch": job.batch.describe(),
    }


_PARALLEL_KEYS = ("dp", "tp", "pp", "vpp", "cp", "ep", "sequence_parallel", "zero", "partition")


def _warnings(layout: Layout) -> list[str]:
    """What a reader should know before trusting the numbers."""
    job = layout.job
    notes = ["reserved memory (allocator fragmentation) is not modelled by this version; peaks are allocated bytes"]
    if job.parallel.tp > 1:
        whole = sum(
            held.elements
            for rank in range(job.parallel.pp)
            for _, _, held in held_by_rank(layout, rank)
            if not held.is_sharded
        )
        share = whole / max(job.model.num_parameters(), 1)
        if share > 0.01:
            notes.append(
                f"{share:.1%} of the parameters are replicated on every tensor-parallel rank: "
                "modules that no sharding plan names (see parallel.plan)"
            )
    return notes


# -- timeline ----------------------------------------------------------------------------------------------------
def _timeline(
    layout: Layout,
    evaluation: Evaluation,
    run: PipelineRun,
    tails: list[RankTail],
    gathers: Mapping[int, ParameterGather],
    memories: list[RankMemory],
    replica: int,
    iteration: float,
) -> IterationTimeline:
    tables: dict[int, OperatorTable] = {}
    ranks = tuple(
        _RankBuilder(layout, evaluation, run, memory, replica, tables).build(tails[rank], gathers.get(rank))
        for rank, memory in enumerate(memories)
    )
    return IterationTimeline(ranks, iteration, float(run.makespan()[replica]))


class _RankBuilder:
    """One rank of one replica as a ``RankTimeline``."""

    def __init__(
        self,
        layout: Layout,
        evaluation: Evaluation,
        run: PipelineRun,
        memory: RankMemory,
        replica: int,
        tables: dict[int, OperatorTable],
    ) -> None:
        self.layout, self.evaluation, self.run = layout, evaluation, run
        self.memory, self.replica, self.tables = memory, replica, tables

    def build(self, tail: RankTail, gather: ParameterGather | None) -> RankTimeline:
        run, problem, rank = self.run, self.run.problem, self.memory.rank
        stages = tuple(
            StageSlice(
                rank=rank,
                label=str(problem.stages[node]),
                module=self.layout.chunks[problem.chunk[node]].module,
                chunk=int(problem.chunk[node]),
                microbatch=int(problem.microbatch[node]),
                phase=problem.stages[node].phase,
                start_s=float(run.start[self.replica, node]),
                end_s=float(run.end[self.replica, node]),
            )
            for node in self.memory.nodes
        )
        outer = [*(gather.slices if gather is not None else ()), *self._sends(), *tail.reductions, *tail.gathers]
        if tail.optimizer is not None:
            outer.append(tail.optimizer)
        return RankTimeline(
            rank=rank,
            gpu=self.layout.mesh.gpu(pp=rank, dp=int(run.first[self.replica])),
            replica=int(run.first[self.replica]),
            stages=stages,
            outer=tuple(sorted(outer, key=lambda piece: (piece.start_s, piece.end_s, piece.name))),
            find_peak=self._peak,
            expand=self._expand,
            build_memory=self._curve,
        )

    def _sends(self) -> list[OuterSlice]:
        run, problem = self.run, self.run.problem
        sends = []
        for j, transfer in enumerate(problem.transfers):
            if transfer.source == self.memory.rank:
                node = problem.num_stages + j
                shape = run.shape[self.replica][transfer.stage.microbatch]
                sends.append(
                    OuterSlice(
                        f"send {transfer.stage} to rank {transfer.target}",
                        OpKind.P2P,
                        "pp",
                        float(run.start[self.replica, node]),
                        float(run.end[self.replica, node]),
                        int(run.sent[j, shape]),
                        2,
                        self._link_provenance(transfer.source, transfer.target),
                    )
                )
        return [send for send in sends if send.net_bytes]

    def _link_provenance(self, source: int, target: int) -> Provenance:
        pair = self.layout.mesh.pp_pair(source, target, dp=int(self.run.first[self.replica]))
        return self.evaluation.cost_model.outer_provenance(OpKind.P2P, pair)

    def _expand(self, number: int) -> StageOperators:
        node = int(self.memory.nodes[number])
        stage = self.memory.expand(self.replica, node)
        rows = self.memory.program(node).rows
        shape = int(self.run.stage_shape(self.replica)[node])
        begin = self.run.start[self.replica, node]
        columns = self.evaluation.columns
        return StageOperators(
            table=self._table(node),
            start_s=begin + stage.start,
            end_s=begin + stage.end,
            flop=columns.flop[rows, shape],
            mem_bytes=columns.mem_bytes[rows, shape],
            net_bytes=columns.net_bytes[rows, shape],
        )

    def _table(self, node: int) -> OperatorTable:
        problem = self.run.problem
        key = int(problem.chunk[node]) * 2 + int(problem.phase[node])
        if key not in self.tables:
            program = self.memory.program(node)
            blocks = self.layout.chunks[problem.chunk[node]].blocks
            library = self.layout.library
            operators = [library.operators[row] for row in program.rows]
            groups = [library.groups[row] for row in program.rows]
            self.tables[key] = OperatorTable(
                paths=tuple(
                    ".".join(part for part in (blocks[b].path, op.path) if part)
                    for b, op in zip(program.block, operators, strict=True)
                ),
                kinds=tuple(op.kind for op in operators),
                phases=tuple(op.phase for op in operators),
                streams=tuple(op.stream.name for op in operators),
                group_ranks=tuple(group.num_ranks if group is not None else 1 for group in groups),
            )
        return self.tables[key]

    def _curve(self) -> MemoryCurve:
        times, dynamic = self.memory.curve(self.replica)
        static = rank_static(self.layout, self.memory.rank)
        by_role = dynamic.copy()
        for role, size in (
            (Role.PARAMETER, static.parameters),
            (Role.GRADIENT, static.gradients),
            (Role.OPTIMIZER_STATE, static.optimizer),
        ):
            by_role[ROLES.index(role)] += size
        return MemoryCurve(times, by_role, ROLES, int(self.layout.job.cluster.profile.memory_bytes.value))

    def _peak(self, curve: MemoryCurve) -> PeakMemory:
        position = int(np.argmax(curve.total))
        time = float(curve.times_s[position])
        stage, operator = self._at(time)
        return PeakMemory(
            time_s=time,
            size_bytes=int(curve.total[position]),
            stage=stage,
            operator=operator,
            by_role={role: int(curve.by_role[i, position]) for i, role in enumerate(ROLES)},
        )

    def _at(self, time: float) -> tuple[str, str]:
        """Stage and operator that run at a time: the last operator to start by then."""
        run = self.run
        for number, node in enumerate(self.memory.nodes):
            if run.start[self.replica, node] <= time < run.end[self.replica, node]:
                operators = self._expand(number)
                started = np.flatnonzero(operators.start_s <= time)
                path = operators.table.paths[int(started[-1])] if len(started) else ""
                return str(run.problem.stages[node]), path
        return "", ""


# -- tables ------------------------------------------------------------------------------------------------------
def _rank_row(layout: Layout, run: PipelineRun, memory: RankMemory, peak: RankPeak) -> RankMemoryRow:
    chunks = layout.chunks_of(memory.rank)
    stage, operator = "", ""
    if peak.node >= 0:
        stage = str(run.problem.stages[peak.node])
        costs = memory.evaluation.chunks[run.problem.chunk[peak.node]]
        part = costs.forward if run.problem.phase[peak.node] == 0 else costs.backward
        assert part is not None
        position = int(part.peak_op[run.stage_shape(peak.replica)[peak.node]])
        program = memory.program(peak.node)
        if position >= 0:
            block = layout.chunks[run.problem.chunk[peak.node]].blocks[program.block[position]]
            operator = ".".join(p for p in (block.path, layout.library.operators[program.rows[position]].path) if p)
    return RankMemoryRow(
        rank=memory.rank,
        chunks=", ".join(f"{c.chunk.index}: {c.module}[{c.chunk.first}:{c.chunk.last}]" for c in chunks),
        parameters=sum(held.elements for _, _, held in held_by_rank(layout, memory.rank)),
        static_bytes=rank_static(layout, memory.rank).total,
        peak_bytes=peak.size_bytes,
        peak_stage=stage,
        peak_operator=operator,
    )


def _operators(
    layout: Layout, evaluation: Evaluation, run: PipelineRun, replica: int
) -> tuple[tuple[TopOperator, ...], dict[str, float]]:
    """The operators that cost most on one replica, and the stage time [s] by provenance of its coefficients."""
    library, model = layout.library, evaluation.cost_model
    uses = np.bincount(run.shape[replica], minlength=evaluation.latency.shape[0]).astype(np.float64)
    per_row = uses @ evaluation.latency
    calls: Counter[int] = Counter()
    where: dict[int, str] = {}
    for chunk in layout.chunks:
        for stage in (chunk.forward, chunk.backward):
            if stage is not None:
                for row, block in zip(stage.rows.tolist(), stage.block.tolist(), strict=True):
                    calls[row] += 1
                    where.setdefault(row, chunk.blocks[block].path)
    time: dict[tuple[str, str, str], list[float]] = {}
    label: dict[tuple[str, str, str], int] = {}
    provenance: dict[str, float] = {}
    for row, count in calls.items():
        operator = library.operators[row]
        total = float(per_row[row]) * count
        path = re.sub(r"\.\d+\b", "", ".".join(p for p in (where[row], operator.path) if p))
        key = (path, operator.kind.value, operator.phase.name.lower())
        entry = time.setdefault(key, [0.0, 0.0])
        entry[0] += total
        entry[1] += count * len(run.shape[replica])
        label.setdefault(key, row)
        source = model.coefficients[row].provenance.value
        provenance[source] = provenance.get(source, 0.0) + total
    everything = sum(provenance.values()) or 1.0
    ranked = sorted(time.items(), key=lambda item: (-item[1][0], item[0]))[:NUM_TOP_OPERATORS]
    top = tuple(
        TopOperator(
            path=key[0],
            kind=key[1],
            phase=key[2],
            time_s=total,
            share=total / everything,
            calls=int(count),
            bound=model.bound(label[key], evaluation.columns, uses),
            provenance=model.coefficients[label[key]].provenance.value,
            source=model.coefficients[label[key]].source,
        )
        for key, (total, count) in ranked
    )
    return top, provenance


def _add_outer(seconds: dict[str, float], timeline: IterationTimeline) -> None:
    """Add transfers, reductions, gathers and the optimizer step to the time by provenance."""
    for rank in timeline.ranks:
        for piece in rank.outer:
            name = piece.provenance.value
            seconds[name] = seconds.get(name, 0.0) + piece.end_s - piece.start_s
