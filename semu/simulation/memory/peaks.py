"""Dynamic memory of all pipeline ranks: how high it is at most, exactly, over all replicas.

At the pipeline level a rank's memory changes when a transfer begins on its receiver (the buffer), when it ends on its
sender (the sent tensor goes, unless it is saved) and at the end of each stage; inside a stage the stage's own curve is
on top. The peak is bounded by the stages' summits; only where memory outside changes during a stage, and the stage
could hold the peak, is the stage expanded operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.stage import ExpandedStage, StageProgram, later_of
from semu.costs.phases import CODES, costs_of, program_of
from semu.distinct import sorted_distinct
from semu.records import dataclass
from semu.schedule.phases import BACKWARD, FORWARD
from semu.simulation.context import TimedJob
from semu.simulation.memory.boundary import PipelineMemoryEvents, boundary_events
from semu.simulation.memory.unsharded import UnshardedMemory

_AHEAD = 16
"""So many doubtful stages are looked up together."""

_STAGE_MEMORY = memo.ScopedTable["tuple[NDArray[np.int64], NDArray[np.int64]]"](
    "memory of stages of costed chunks, by codes of stages", 2, is_large=True
)


@dataclass(frozen=True)
class RankPeak:
    """The highest allocation of a pipeline rank over all replicas.

    Attributes:
        size_bytes: how much; of a whole rank, static and dynamic together. replica: the distinct replica that reaches
            it. node: the stage during which it is reached, -1: between stages.
    """

    size_bytes: int
    replica: int
    node: int


@dataclass(frozen=True, eq=False)
class Summits:
    """Bounds of the highest dynamic allocation of every rank.

    Attributes:
        net: int64[num_replicas, num_stages] [bytes], change by each stage. low, high: the same, bounds of the highest
            allocation during each stage. between: int64[num_replicas, num_ranks] [bytes], the highest between stages.
        best: int64[num_ranks, 3], as ``pipeline_summits``.
    """

    net: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    between: NDArray[np.int64]
    best: NDArray[np.int64]


class PipelineMemory:
    """Dynamic memory of all pipeline ranks.

    Args:
        timed: the job under a schedule.
        held: per rank, parameters and gradients that it holds unsharded outside stages; empty: no rank holds any.
    """

    def __init__(self, timed: TimedJob, held: Sequence[UnshardedMemory | None] = ()) -> None:
        self.timed, self.held = timed, held
        self.layout, self.evaluation, self.run = timed.layout, timed.evaluation, timed.run
        self._known: set[int] = set()
        self._expanded: dict[tuple[int, int, int, bytes], ExpandedStage] = {}

    @cached_property
    def boundary_events(self) -> PipelineMemoryEvents:
        """Changes outside stages, for all ranks and replicas, but for what is held unsharded."""
        return boundary_events(self.timed)

    @cached_property
    def outside_events(self) -> PipelineMemoryEvents:
        """All changes outside stages, for all ranks and replicas."""
        if not any(self.held):
            return self.boundary_events
        return self.boundary_events.joined([own.events if own is not None else None for own in self.held])

    def held_by(self, rank: int) -> UnshardedMemory | None:
        """What a rank holds unsharded outside stages."""
        return self.held[rank] if self.held else None

    # -- single stages -------------------------------------------------------------------------------------------
    def program(self, node: int) -> StageProgram:
        """The stage program of a node."""
        problem = self.run.problem
        return program_of(self.layout, int(self.run.kind[node]), int(problem.phase[node]))

    def expand(self, replica: int, node: int) -> ExpandedStage:
        """Operators and memory events of a stage, relative to its beginning; cached by all that it depends on."""
        problem = self.run.problem
        shape = int(self.run.shape[replica, self.run.column[node]])
        touched = self.run.inside.get((replica, node))
        by_shape, only = self.evaluation.by_shape, np.array([shape])
        if touched is not None:
            return self.program(node).expand_at(touched.start, touched.end, by_shape.sizes_of(only)[0])
        release = self.run.release.get((replica, node))
        kind, phase = int(self.run.kind[node]), int(problem.phase[node])
        key = kind, phase, shape, release.tobytes() if release is not None else b""
        stage = self._expanded.get(key)
        if stage is None:
            program = program_of(self.layout, kind, phase)
            if release is None:
                stage = by_shape.expanded(program, shape)
            else:
                waits = later_of(release, by_shape.waits(program, shape))
                stage = program.expand(by_shape.latencies_of(only)[0], by_shape.sizes_of(only)[0], waits)
            self._expanded[key] = stage
        return stage

    def expanded(self, replica: int, nodes: NDArray[np.int64]) -> tuple[list[ExpandedStage], NDArray[np.int64]]:
        """Stages of a replica, alike ones once: they, and which of them each node is, int64[num_nodes]."""
        run, problem = self.run, self.run.problem
        shape = run.shape[replica, run.column[nodes]]
        self.load(sorted_distinct(shape).tolist())
        code = (len(CODES) * run.kind[nodes] + problem.phase[nodes]) * self.evaluation.num_shapes + shape
        moved = {node for row, node in (*run.release, *run.inside) if row == replica}
        if moved:  # no other is like them
            own = np.isin(nodes, np.fromiter(moved, dtype=np.int64))
            code[own] = -1 - nodes[own]
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        return [self.expand(replica, node) for node in nodes[first].tolist()], which.reshape(-1)

    def load(self, shapes: Iterable[int]) -> None:
        """Look up the costs of shapes that will be expanded; many at once are cheaper than one by one."""
        missing = sorted(set(shapes) - self._known)
        if missing:
            self.evaluation.by_shape.latencies_of(np.array(missing))
            self.evaluation.by_shape.sizes_of(np.array(missing))
            self._known.update(missing)

    # -- peaks ---------------------------------------------------------------------------------------------------
    @cached_property
    def peaks(self) -> list[RankPeak]:
        """The exact highest dynamic allocation of every rank over all replicas."""
        summits, rank_of = self.summits, self.run.problem.node_rank
        best = summits.best.copy()
        replica, node = np.nonzero((summits.high > summits.low) & (summits.high > best[:, 0][rank_of]))
        if len(node):
            bounds, ranks = summits.high[replica, node], rank_of[node]
            order = np.lexsort((node, replica, -bounds, ranks))
            stages = np.stack((replica, node), axis=1)[order]
            resident = np.zeros(len(best), dtype=np.int64)
            if self._is_plain(stages).all():
                self._raise(best, stages, ranks[order], bounds[order], resident)
            else:
                self._raise_one_by_one(best, stages, ranks[order], bounds[order], resident)
        return [RankPeak(*each) for each in best.tolist()]

    def fullest(self, resident: NDArray[np.int64]) -> int:
        """The exact highest allocation of the fullest rank over all replicas [bytes].

        Args:
            resident: int64[num_ranks] [bytes], what every rank holds all the time.
        """
        summits = self.summits
        above = resident[self.run.problem.node_rank]
        best = np.array([[(summits.best[:, 0] + resident).max(), 0, 0]])
        bounds = summits.high + above
        replica, node = np.nonzero((summits.high > summits.low) & (bounds > best[0, 0]))
        bounds = bounds[replica, node]
        order = np.argsort(-bounds, kind="stable")
        stages, bounds = np.stack((replica, node), axis=1)[order], bounds[order]
        together, is_plain = np.zeros(len(stages), dtype=np.int64), self._is_plain(stages)
        self._raise(best, stages[is_plain], together[is_plain], bounds[is_plain], resident)
        self._raise_one_by_one(best, stages[~is_plain], together[~is_plain], bounds[~is_plain], resident)
        return int(best[0, 0])

    def _is_plain(self, stages: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which stages (replica, node) run as their costs say, and are few enough in kind to look up at once."""
        if not self.evaluation.by_shape.is_few:
            return np.zeros(len(stages), dtype=np.bool_)
        if not (self.run.release or self.run.inside):
            return np.ones(len(stages), dtype=np.bool_)
        moved = self.run.release.keys() | self.run.inside.keys()
        return np.array([key not in moved for key in map(tuple, stages.tolist())], dtype=np.bool_)

    def _raise(
        self,
        best: NDArray[np.int64],
        stages: NDArray[np.int64],
        groups: NDArray[np.integer],
        bounds: NDArray[np.int64],
        resident: NDArray[np.int64],
    ) -> None:
        """Raise the highest known allocations to those during some stages that run as their costs say.

        Args:
            best: int64[num_groups, 3], written: the highest allocation [bytes], its replica, its node.
            stages: int64[n, 2] (replica, node). groups: int64[n], which of ``best`` each raises.
            bounds: int64[n] [bytes], at least the allocation during each stage. resident: as ``fullest``.
        """
        from semu.engine.kernels.pipeline_memory import raise_to_summits

        if not len(stages):
            return
        run, problem, shapes = self.run, self.run.problem, self.evaluation.num_shapes
        replica, node = stages.T
        code = (len(CODES) * run.kind[node] + problem.phase[node]) * shapes + run.shape[replica, run.column[node]]
        _, first, kind = np.unique(code, return_index=True, return_inverse=True)
        changes = [self.expand(*stages[number].tolist()).changes for number in first.tolist()]
        raise_to_summits(
            best,
            np.column_stack((stages, problem.node_rank[node], kind, groups)),
            bounds,
            resident,
            problem.stream_ptr,
            run.start,
            run.end,
            self.summits.net,
            self.outside_events.ptr,
            self.outside_events.time,
            self.outside_events.size,
            np.cumsum([0, *[len(times) for times, _ in changes]]),
            np.concatenate([times for times, _ in changes]),
            np.concatenate([sizes for _, sizes in changes]),
        )

    def _raise_one_by_one(
        self,
        best: NDArray[np.int64],
        stages: NDArray[np.int64],
        groups: NDArray[np.integer],
        bounds: NDArray[np.int64],
        resident: NDArray[np.int64],
    ) -> None:
        """As ``_raise``, for stages of any kind; costs of stages that need not be looked at are not looked up."""
        rank_of, is_few = self.run.problem.node_rank, self.evaluation.by_shape.is_few
        columns = groups.tolist(), bounds.tolist(), stages.tolist()
        for number, (group, bound, (replica, node)) in enumerate(zip(*columns, strict=True)):
            if bound <= best[group, 0]:
                continue
            if not is_few:
                self._look_ahead(stages[number : number + _AHEAD])
            highest = self.exact_summit(replica, node) + resident[rank_of[node]]
            if highest > best[group, 0]:
                best[group] = highest, replica, node

    def _look_ahead(self, stages: NDArray[np.int64]) -> None:
        """Look up the first of some stages (replica, node), and if it is new the others with it."""
        shapes = self.run.shape[stages[:, 0], self.run.column[stages[:, 1]]].tolist()
        if shapes[0] not in self._known:
            self.load(shapes)

    @cached_property
    def summits(self) -> Summits:
        """Bounds of the highest dynamic allocation during each stage, and the highest one between stages."""
        from semu.engine.kernels.pipeline_memory import pipeline_summits

        run, problem, outside = self.run, self.run.problem, self.outside_events
        n, num_ranks = problem.num_stages, problem.shape.num_ranks
        net, peak = self._stage_memory()
        waiting = [
            (replica, node)
            for replica, node in run.release
            if not self.program(node).is_serial  # one after another: late or not, the same memory
        ]
        waiting += list(run.inside)
        self.load(int(run.shape[replica, run.column[node]]) for replica, node in waiting)
        for replica, node in waiting:
            level = np.cumsum(self.expand(replica, node).event_bytes.sum(axis=0))
            net[replica, node], peak[replica, node] = level[-1], max(int(level.max()), 0)
        low, high = np.empty_like(net), np.empty_like(net)
        between = np.empty((len(net), num_ranks), dtype=np.int64)
        best = np.empty((num_ranks, 3), dtype=np.int64)
        stage_ptr = problem.stream_ptr[: num_ranks + 1]
        pipeline_summits(
            stage_ptr, run.start, run.end, net, peak, outside.ptr, outside.time, outside.size, low, high, between, best
        )
        assert n == stage_ptr[-1]
        return Summits(net, low, high, between, best)

    def _stage_memory(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Change by every stage, and its summit above its beginning, if no operator inside waits: int64[num_replicas,
        num_stages] [bytes]."""
        problem, shape = self.run.problem, self.run.shape
        codes = CODES if problem.splits_backward else (FORWARD, BACKWARD)
        nets, peaks = _STAGE_MEMORY.get(self.evaluation.by_shape, codes, lambda: self._memory_of_kinds(codes))
        kind = len(codes) * self.run.kind + problem.phase
        if nets.shape[1] == len(shape) == 1:
            return nets.take(kind, axis=0).reshape(1, -1), peaks.take(kind, axis=0).reshape(1, -1)
        shapes = shape[:, self.run.column]
        return np.ascontiguousarray(nets[kind, shapes]), np.ascontiguousarray(peaks[kind, shapes])

    def _memory_of_kinds(self, codes: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same of every kind of chunk, code by code, for every shape: int64[num_kinds x num_codes, num_shapes]."""
        nothing = np.zeros(self.evaluation.num_shapes, dtype=np.int64)
        stages = [
            costs_of(self.timed, number, code) if code == FORWARD or costs.backward is not None else None
            for number, costs in enumerate(self.evaluation.chunks)
            for code in codes
        ]
        return (
            np.stack([nothing if stage is None else stage.net for stage in stages]),
            np.stack([nothing if stage is None else stage.peak for stage in stages]),
        )

    def exact_summit(self, replica: int, node: int, *, with_end: bool = True) -> int:
        """Highest dynamic allocation of a rank during a stage, as ``RankMemory.curve`` has it [bytes].

        Args:
            replica, node: the stage. with_end: what others allocate just as it ends counts too.
        """
        from semu.engine.kernels.pipeline_memory import exact_summit

        run, rank = self.run, int(self.run.problem.node_rank[node])
        first, stop = run.problem.stream_ptr[rank : rank + 2].tolist()
        a, b = self.outside_events.ptr[rank : rank + 2].tolist()
        time, size = self.expand(replica, node).changes
        stop_s = float(run.end[replica, node])
        return int(
            exact_summit(
                float(run.start[replica, node]),
                stop_s if with_end else float(np.nextafter(stop_s, 0.0)),
                node - first,
                run.end[replica, first:stop],
                self.summits.net[replica, first:stop],
                self.outside_events.time[replica, a:b],
                self.outside_events.size[replica, a:b],
                time,
                size,
            )
        )
