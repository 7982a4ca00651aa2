"""The timeline of one replica: every rank's stages and outer operators, expanded and with memory on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import ROLES
from semu.engine.critical_paths import RankPieces
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
from semu.simulation.data_parallel.timed_operators import TimedOperators
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


def rank_pieces(
    iteration: Iteration, memories: list[RankMemory], replica: int, costs: ReplicaCosts
) -> list[RankPieces]:
    """When the pieces of ``build_timeline`` begin and end; none is made."""
    tails, gathers = iteration.tails, iteration.gathers
    return [
        _RankBuilder(iteration, memory, replica, costs, {}).pieces(tails[rank], gathers.get(rank))
        for rank, memory in enumerate(memories)
    ]


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


class _Sends(Sequence[OuterSlice]):
    """The transfers that a rank sends, but for empty ones; each is made when it is looked at.

    Attributes:
        start_s, end_s: of each [s].
    """

    def __init__(self) -> None:
        self.start_s: list[float] = []
        self.end_s: list[float] = []
        self._sizes: list[int] = []
        self._microbatches: list[int] = []
        self._edges: list[tuple[str, str, tuple[Provenance, Port]]] = []
        self._edge_of: list[int] = []

    def add(
        self,
        key: str,
        to: str,
        link: tuple[Provenance, Port],
        microbatch: NDArray[np.integer],
        spans: tuple[NDArray[np.float64], NDArray[np.float64]],
        size: NDArray[np.int64],
    ) -> None:
        """Those between two chunks. key, to: of their names. spans: their starts and ends [s]. size: [bytes]."""
        moved = np.flatnonzero(size)
        self.start_s += spans[0][moved].tolist()
        self.end_s += spans[1][moved].tolist()
        self._sizes += size[moved].tolist()
        self._microbatches += microbatch[moved].tolist()
        self._edge_of += [len(self._edges)] * len(moved)
        self._edges.append((key, to, link))

    def __len__(self) -> int:
        return len(self.start_s)

    @overload
    def __getitem__(self, number: int) -> OuterSlice: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[OuterSlice]: ...

    def __getitem__(self, number: int | slice) -> OuterSlice | Sequence[OuterSlice]:
        if isinstance(number, slice):
            return [self[position] for position in range(*number.indices(len(self)))]
        key, to, (provenance, port) = self._edges[self._edge_of[number]]
        name, start, end = f"send {key}{self._microbatches[number]} {to}", self.start_s[number], self.end_s[number]
        return OuterSlice(name, OpKind.P2P, "pp", start, end, self._sizes[number], 2, provenance, port)


def _in_order(parts: Sequence[TimedOperators | _Sends]) -> list[int]:
    """Numbers of the operators of all parts, in order of start, end and name."""
    start = np.array([time for part in parts for time in part.start_s])
    end = np.array([time for part in parts for time in part.end_s])
    order = np.lexsort((end, start))
    result: list[int] = order.tolist()
    here = start[order], end[order]
    is_new = np.ones(len(order) + 1, dtype=np.bool_)
    is_new[1:-1] = (here[0][1:] != here[0][:-1]) | (here[1][1:] != here[1][:-1])
    firsts = [*accumulate(map(len, parts), initial=0)]

    def _name(number: int) -> str:
        part = bisect_right(firsts, number) - 1
        return parts[part][number - firsts[part]].name

    begins = np.flatnonzero(is_new)
    for group in np.flatnonzero(np.diff(begins) > 1).tolist():  # at the same time: by name
        together = slice(int(begins[group]), int(begins[group + 1]))
        result[together] = sorted(result[together], key=_name)
    return result


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
        run, rank = self.run, self.memory.rank
        parts = self._outside(tail, gather)
        every = [piece for part in parts for piece in part]
        return RankTimeline(
            rank=rank,
            gpu=self.layout.mesh.gpu(pp=rank, dp=int(run.first[self.replica])),
            replica=int(run.first[self.replica]),
            stages=tuple([self._stage(*stage) for stage in zip(*self._columns(), strict=True)]),
            outer=tuple([every[number] for number in _in_order(parts)]),
            find_peak=self._peak,
            expand=self._expand,
            build_memory=self._curve,
            build_highest=self._highest,
            weight=float(rank_weights(self.layout.job.parallel)[rank]),
        )

    def pieces(self, tail: RankTail, gather: ParameterGather | None) -> RankPieces:
        """When the stages and other operators of ``build`` begin and end."""
        stages, parts = self._columns(), self._outside(tail, gather)
        order = _in_order(parts)
        starts = [time for part in parts for time in part.start_s]
        ends = [time for part in parts for time in part.end_s]
        places = [(part, position) for part in parts for position in range(len(part))]

        def _outer(number: int) -> OuterSlice:
            part, position = places[order[number]]
            return part[position]

        return RankPieces(
            stages[3],
            stages[4],
            lambda number: self._stage(*[column[number] for column in stages]),
            [starts[number] for number in order],
            [ends[number] for number in order],
            _outer,
        )

    def _columns(self) -> tuple[list[Any], ...]:
        """Arguments of ``_stage``, for all stages."""
        run, problem, nodes = self.run, self.run.problem, self.nodes
        places = problem.chunk[nodes].tolist(), problem.phase[nodes].tolist(), problem.microbatch[nodes].tolist()
        return *places, run.start[self.replica, nodes].tolist(), run.end[self.replica, nodes].tolist()

    def _stage(self, chunk: int, phase: int, part: int, start_s: float, end_s: float) -> StageSlice:
        """A stage of the rank; ``part``: its number among those of its chunk and phase."""
        return StageSlice(
            rank=self.memory.rank,
            label=f"{chunk}{_LETTERS[phase]}{part}",
            module=self.layout.chunks[chunk].module,
            chunk=chunk,
            microbatch=part // self.run.problem.shape.chunk_split[chunk],
            phase=_PHASES[phase],
            start_s=start_s,
            end_s=end_s,
        )

    def _outside(self, tail: RankTail, gather: ParameterGather | None) -> list[TimedOperators | _Sends]:
        """What the rank does outside stages."""
        before = TimedOperators.of(gather.slices if gather is not None else ())
        after = TimedOperators.of((*tail.gathers, *tail.steps))
        return [before, self._sends(), tail.reductions, after]

    def _sends(self) -> _Sends:
        run, problem = self.run, self.run.problem
        ranks, peers = problem.shape.chunk_rank, splitting_group(self.layout)
        sends = _Sends()
        for edge in run.sent:
            if ranks[edge.source] != self.memory.rank:
                continue
            target = ranks[edge.consumer]
            nodes = problem.num_stages + edge.transfers
            shares = -(-edge.size // (1 if peers is None else peers.num_ranks))
            size = shares[run.shape[self.replica, edge.column]]
            spans = run.start[self.replica, nodes], run.end[self.replica, nodes]
            link = self._link(self.memory.rank, target)
            sends.add(f"{edge.source}{edge.phase.value}", f"to rank {target}", link, edge.microbatch, spans, size)
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
