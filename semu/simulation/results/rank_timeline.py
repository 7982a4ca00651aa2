"""The timeline of one replica: every rank's stages and outer operators, expanded and with memory on demand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import ROLES
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
from semu.graph.operator import Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import OpKind, Port, Provenance
from semu.parallel.own_gpus import rank_weights
from semu.simulation.context import ParameterGather, TimedJob
from semu.simulation.data_parallel.step import RankTail
from semu.simulation.iteration import Iteration
from semu.simulation.memory.ranks import RankMemory
from semu.simulation.replica_costs import ReplicaCosts
from semu.simulation.transfers import splitting_group

_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT, Phase.WEIGHT_GRADIENT)
"""Phases of stages by their code."""
_LETTERS = [phase.value for phase in _PHASES]


def build_timeline(
    iteration: Iteration, memories: list[RankMemory], replica: int, costs: ReplicaCosts, time_s: float
) -> IterationTimeline:
    """The iteration as one distinct replica lives it, all pipeline ranks; ``time_s``: how long it is shown [s]."""
    tails, gathers = iteration.tails, iteration.gathers
    tables: dict[int, OperatorTable] = {}
    ranks = tuple(
        _RankBuilder(iteration, memory, replica, costs, tables).build(tails[rank], gathers.get(rank))
        for rank, memory in enumerate(memories)
    )
    return IterationTimeline(ranks, time_s, float(iteration.run.makespan()[replica]))


def shown_nodes(timed: TimedJob, memory: RankMemory) -> NDArray[np.int64]:
    """Nodes of a rank's stages in their order; parts of backwards in which nothing happens are left out."""
    if not timed.run.problem.splits_backward:
        return memory.nodes
    has_work = [memory.pipeline.program(node).num_ops > 0 for node in memory.nodes.tolist()]
    return memory.nodes[np.array(has_work, dtype=np.bool_)]


def stage_parts(timed: TimedJob, memory: RankMemory) -> list[tuple[int, Phase]]:
    """Chunk and phase of each stage of a rank, in their order, as its timeline has them."""
    problem, nodes = timed.run.problem, shown_nodes(timed, memory)
    phases = [_PHASES[code] for code in problem.phase[nodes].tolist()]
    return [*zip(problem.chunk[nodes].tolist(), phases, strict=True)]


class _RankBuilder:
    """One rank of one replica as a ``RankTimeline``."""

    def __init__(
        self,
        timed: TimedJob,
        memory: RankMemory,
        replica: int,
        costs: ReplicaCosts,
        tables: dict[int, OperatorTable],
    ) -> None:
        self.layout, self.evaluation, self.run = timed.layout, timed.evaluation, timed.run
        self.memory, self.replica, self.costs, self.tables = memory, replica, costs, tables
        self.nodes = shown_nodes(timed, memory)

    def build(self, tail: RankTail, gather: ParameterGather | None) -> RankTimeline:
        """Stages, gathers and the optimizer of the rank, in the order of time [s]."""
        run, problem, rank = self.run, self.run.problem, self.memory.rank
        nodes = self.nodes
        columns = (problem.chunk[nodes], problem.phase[nodes], problem.microbatch[nodes], self._microbatches(nodes))
        spans = (run.start[self.replica, nodes], run.end[self.replica, nodes])
        stages = tuple(
            [
                StageSlice(
                    rank=rank,
                    label=f"{chunk}{_LETTERS[phase]}{part}",
                    module=self.layout.chunks[chunk].module,
                    chunk=chunk,
                    microbatch=microbatch,
                    phase=_PHASES[phase],
                    start_s=start,
                    end_s=end,
                )
                for chunk, phase, part, microbatch, start, end in zip(
                    *(c.tolist() for c in (*columns, *spans)), strict=True
                )
            ]
        )
        outer = [
            *(gather.slices if gather is not None else ()),
            *self._sends(),
            *tail.reductions,
            *tail.gathers,
            *tail.steps,
        ]
        return RankTimeline(
            rank=rank,
            gpu=self.layout.mesh.gpu(pp=rank, dp=int(run.first[self.replica])),
            replica=int(run.first[self.replica]),
            stages=stages,
            outer=tuple(sorted(outer, key=lambda piece: (piece.start_s, piece.end_s, piece.name))),
            find_peak=self._peak,
            expand=self._expand,
            build_memory=self._curve,
            build_highest=self._highest,
            weight=float(rank_weights(self.layout.job.parallel)[rank]),
        )

    def _microbatches(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The microbatch of every stage: int64[n]."""
        problem = self.run.problem
        split = np.array(problem.shape.chunk_split, dtype=np.int64)[problem.chunk[nodes]]
        return problem.microbatch[nodes] // split

    def _sends(self) -> list[OuterSlice]:
        run, problem = self.run, self.run.problem
        ranks, peers = problem.shape.chunk_rank, splitting_group(self.layout)
        sends = []
        for edge in run.sent:
            if ranks[edge.source] != self.memory.rank:
                continue
            target = ranks[edge.consumer]
            provenance, port = self._link(self.memory.rank, target)
            nodes = problem.num_stages + edge.transfers
            spans = run.start[self.replica, nodes].tolist(), run.end[self.replica, nodes].tolist()
            shares = -(-edge.size // (1 if peers is None else peers.num_ranks))
            sizes = shares[run.shape[self.replica, edge.column]].tolist()
            key, to = f"{edge.source}{edge.phase.value}", f"to rank {target}"
            for microbatch, start, end, size in zip(edge.microbatch.tolist(), *spans, sizes, strict=True):
                if size:
                    name = f"send {key}{microbatch} {to}"
                    sends.append(OuterSlice(name, OpKind.P2P, "pp", start, end, size, 2, provenance, port))
        return sends

    def _link(self, source: int, target: int) -> tuple[Provenance, Port]:
        pair = self.layout.mesh.pp_pair(source, target, dp=int(self.run.first[self.replica]))
        return self.evaluation.by_shape.model.outer_provenance(OpKind.P2P, pair), pair.port

    def _expand(self, number: int) -> StageOperators:
        node = int(self.nodes[number])
        stage = self.memory.pipeline.expand(self.replica, node)
        rows = self.memory.pipeline.program(node).rows
        columns, shape = self.costs.columns, self.costs.column[self.run.column[node]]
        begin = self.run.start[self.replica, node]
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
        key = int(self.run.kind[node]) * len(_PHASES) + int(problem.phase[node])
        if key not in self.tables:
            program = self.memory.pipeline.program(node)
            blocks = self.layout.kinds[self.run.kind[node]].blocks
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
                blocks=tuple(blocks[b].path for b in program.block),
            )
        return self.tables[key]

    def _curve(self) -> MemoryCurve:
        return self._with_static(*self.memory.curve(self.replica))

    def _highest(self, edges: NDArray[np.float64]) -> MemoryCurve:
        return self._with_static(*self.memory.highest(self.replica, edges))

    def _with_static(self, times: NDArray[np.float64], dynamic: NDArray[np.int64]) -> MemoryCurve:
        """What is allocated all the time added."""
        static = self.memory.static
        by_role = dynamic.copy()
        for role, size in (
            (Role.PARAMETER, static.parameters),
            (Role.GRADIENT, static.gradients),
            (Role.OPTIMIZER_STATE, static.optimizer),
            (Role.WORKSPACE, self.memory.workspace),
        ):
            by_role[ROLES.index(role)] += size
        return MemoryCurve(times, by_role, ROLES, int(self.layout.job.profile.memory_bytes.value))

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
        start, end = run.start[self.replica, self.nodes], run.end[self.replica, self.nodes]
        running = np.flatnonzero((start <= time) & (time < end))
        if not len(running):
            return "", ""
        operators = self._expand(int(running[0]))
        started = np.flatnonzero(operators.start_s <= time)
        path = operators.table.paths[int(started[-1])] if len(started) else ""
        return str(run.problem.stages[self.nodes[running[0]]]), path
