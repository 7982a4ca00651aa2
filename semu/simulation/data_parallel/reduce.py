"""When gradients are reduced: the collectives of every pipeline rank in turn, then those of tied parameters.

Data-parallel collectives start when the slowest replica is ready.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from semu import memo
from semu.compile.layout import Layout
from semu.engine.timeline import OuterSlice
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.nn.module import Parameter
from semu.records import dataclass
from semu.simulation.context import PipelineRun, TimedJob
from semu.simulation.data_parallel.collectives import ReductionPlan, has_reductions, reduction_plan
from semu.simulation.data_parallel.gradient_times import Gradients, last_nodes, pipeline_gradients
from semu.simulation.data_parallel.timed_operators import TimedOperators
from semu.simulation.transfers import collective, timed_operator


@dataclass(frozen=True)
class Reduction:
    """A gradient collective and what it waits for.

    Attributes:
        piece: as timed for the slowest replica. ranks: pipeline ranks that take part. group: its communicator.
        nodes: stages whose ends it waits for on every replica, beside what its ranks reduced before.
        operators: (stage, operator) whose ends it waits for.
    """

    piece: OuterSlice
    ranks: tuple[int, ...]
    group: CommGroup
    nodes: tuple[int, ...] = ()
    operators: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class Reductions:
    """All gradient collectives of a pipeline.

    Attributes:
        run: what they follow. plan: the collectives but those of tied parameters.
        gradients: whose they are; None: no gradients are reduced behind the stages.
        start_s, end_s: of the plan's [s]. tied: of parameters that several pipeline ranks hold.
    """

    run: PipelineRun
    plan: ReductionPlan
    gradients: Gradients | None
    start_s: list[float]
    end_s: list[float]
    tied: tuple[Reduction, ...]

    @cached_property
    def by_rank(self) -> list[TimedOperators]:
        """The collectives of every pipeline rank, in order."""
        start, end = self.start_s, self.end_s
        result = [TimedOperators(pieces, start[a:b], end[a:b], streams) for pieces, a, b, streams in self.plan.by_rank]
        for item in self.tied:
            for rank in item.ranks:
                result[rank] = result[rank].followed_by([item.piece])
        return result

    @cached_property
    def listed(self) -> list[Reduction]:
        """Every collective with what it waits for, those of each rank in order."""
        plan, problem, gradients = self.plan, self.run.problem, self.gradients
        completing = gradients.trained.completing(problem) if gradients is not None else []
        order, first = (gradients.order.tolist(), gradients.trained.ptr) if gradients is not None else ([], [])
        ranks = np.repeat(np.arange(len(plan.ptr) - 1), np.diff(plan.ptr)).tolist()
        times = zip(self.start_s, self.end_s, strict=True)
        reductions = []
        for piece, group, members, rank, (start, end) in zip(
            plan.pieces, plan.groups, plan.members, ranks, times, strict=True
        ):
            writers = [completing[order[first[rank] + member]] for member in members or ()]
            nodes = () if writers and all(writers) else last_nodes(self.run, rank)
            reductions.append(
                Reduction(timed_operator(piece, start, end), (rank,), group, nodes, tuple(chain.from_iterable(writers)))
            )
        return [*reductions, *self.tied]


def plan_reductions(timed: TimedJob) -> Reductions:
    """All gradient collectives under a schedule."""
    layout, run = timed.layout, timed.run
    gradients = pipeline_gradients(timed) if has_reductions(layout) else None
    trained, order = (gradients.trained, gradients.order) if gradients is not None else (None, None)
    plan = reduction_plan(timed, trained, order)
    ready = gradients.ready_s if gradients is not None else np.zeros(0)
    ends = np.array(run.rank_ends)
    if layout.cut.copies > 1:  # ranks r and p - 1 - r reduce together
        ends = np.maximum(ends, ends[::-1])
    gates = np.concatenate((ready, ends, (0.0,)))[plan.gate].tolist()
    start_s: list[float] = []
    end_s: list[float] = []
    begin, end = start_s.append, end_s.append  # hundreds of buckets an evaluation
    for _, first, stop, _ in plan.by_rank:
        now = 0.0
        for gate, length in zip(gates[first:stop], plan.length[first:stop], strict=True):
            if gate > now:
                now = gate
            begin(now)
            now += length
            end(now)
    return Reductions(run, plan, gradients, start_s, end_s, tied_reductions(timed, plan, end_s))


def by_rank(layout: Layout, collectives: Reductions | Sequence[Reduction]) -> list[TimedOperators]:
    """The collectives of every pipeline rank."""
    if isinstance(collectives, Reductions):
        return collectives.by_rank
    return [
        TimedOperators.of([item.piece for item in collectives if rank in item.ranks])
        for rank in range(layout.job.parallel.pp)
    ]


def tied_reductions(timed: TimedJob, plan: ReductionPlan, end_s: list[float]) -> tuple[Reduction, ...]:
    """Parameters held by several pipeline ranks (tied embeddings): their gradients are summed over those ranks. Where
    the model is there twice, rank p - 1 - r is none other than r."""
    layout, job, run = timed.layout, timed.job, timed.run
    shared = _SHARED.get(layout.cut, (), lambda: _shared(layout))
    if not shared:
        return ()
    ends = [max([run.rank_ends[rank], *end_s[a:b]]) for rank, (_, a, b, _) in enumerate(plan.by_rank)]
    result = []
    for elements, ranks in shared:
        group = _TIED_GROUPS.get(
            layout.place,
            tuple(ranks),
            lambda: job.cluster.place_group("pp", [layout.mesh.gpu(pp=rank) for rank in ranks]),  # noqa: B023
        )
        begin = max(ends[rank] for rank in ranks)
        if job.parallel.zero >= 2:
            elements = -(-elements // job.parallel.shard_ranks)
        buffer_bytes = elements * job.training.grad_dtype.size_bytes
        piece = collective(timed.cost_model, "tied gradients", OpKind.ALL_REDUCE, group, buffer_bytes, begin)
        nodes = tuple(node for rank in ranks for node in last_nodes(run, rank))
        result.append(Reduction(piece, tuple(ranks), group, nodes))
        for rank in ranks:
            ends[rank] = max(ends[rank], piece.end_s)
    return tuple(result)


_SHARED = memo.ScopedTable[list[tuple[int, list[int]]]]("trained parameters of a cut on several pipeline ranks", 1)
_TIED_GROUPS = memo.ScopedTable[CommGroup]("groups of pipeline ranks in a place, by ranks", 64)


def _shared(layout: Layout) -> list[tuple[int, list[int]]]:
    """Elements of every trained parameter that several pipeline ranks hold, and these ranks. What a gang holds is split
    or has one gradient on all its ranks."""
    num_ranks = layout.job.parallel.pp // layout.cut.copies
    every = [(chunk, held.parameter) for rank in range(num_ranks) for chunk, _, held in layout.held_by(rank)]
    if len({parameter for _, parameter in every}) == len(every):  # no rank holds what another does
        return []
    times = Counter([parameter for _, parameter in every])
    together = {parameter for chunk, parameter in every if layout.chunks[chunk].chunk.gang >= 0}
    several = {key for key, count in times.items() if count > 1} - together
    holders: dict[Parameter, list[int]] = {}
    elements: dict[Parameter, int] = {}
    for rank in range(num_ranks) if several else ():
        for _, _, held in layout.held_by(rank):
            if held.parameter in several and held.parameter.requires_grad:
                holders.setdefault(held.parameter, []).append(rank)
                elements[held.parameter] = held.elements
    shared = [(elements[key], ranks) for key, ranks in holders.items() if len(ranks) > 1]
    if layout.cut.copies > 1:
        shared += [(count, [layout.job.parallel.pp - 1 - rank for rank in ranks]) for count, ranks in shared]
    return shared
