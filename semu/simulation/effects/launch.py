"""CPU launch: a kernel cannot start before its host has issued it, which shows only where the GPU runs dry.

Every GPU has a host (DESIGN §3.1) that issues the operators of its stages one after another, collectives and copies
too, ``host.launch_s`` each; an operator that takes no time has no kernel. Where modules run operator by operator
(``Training.is_eager``), an operator is as many launches as eager mode has (``semu.nn.trace.eager``), of
``host.eager_launch_s`` each; so it is for mixtures of experts under Megatron-LM (``TrainingJob.has_bound_mixture``,
``semu.nn.trace.mixture_launches``), whose hosts read counts of tokens back in every forward and so begin each one
afresh. Stage by stage the host is one more unit on a
stream of its own: it begins a stage when it has issued everything before, and its i-th launch ends
(i + 1) ``launch_s`` later, which bounds the i-th operator and nothing else. How far the host is ahead of the device
carries over from stage to stage by itself; the queue between them is not bounded (CUDA's holds about a thousand
launches, after which the GPU has work for longer than the host could fall behind).

The host begins at time 0, having seen the end of the iteration before (the loss is printed, the gradient norm read).
Where transfers between pipeline ranks do not overlap, it also waits for the device at each of them (Megatron-LM
synchronises after ``batch_isend_irecv``): it issues nothing of the next stage before that stage can begin. Collectives
outside stages, transfers, optimizer and clipping are issued at no cost, and what kernels lose to collectives that they
hide inside stages (``interference``) is counted as without launches. CUDA graphs and compiled modules launch next to
nothing: ``training.launch = false``.

Some networks need a thread of the host to move messages (libfabric polls AWS's adapters). On ranks whose pipeline
transfers cross nodes that thread takes time from the one that launches, as receives are posted early and polled for.
A collective of a tensor group begins when the last host of the group has issued it, so that what single hosts lose adds
up over the group: launches of an eager framework take 1 + ``host.transfer_stall`` (tp - 1) times as long (DECISIONS
108).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.distinct import sorted_distinct
from semu.engine.unit_graph import Edges, UnitGraph
from semu.graph.operator import Operator, OpKind, Phase
from semu.job import TrainingJob
from semu.nn.trace.eager import launches_of
from semu.nn.trace.mixture_launches import launches_of_mixture
from semu.records import dataclass
from semu.simulation.bindings import Binding, Inside, StageInsides
from semu.simulation.effects.graphs import graphed_calls
from semu.units import quantize_time


@dataclass(frozen=True)
class Hosts:
    """The hosts of all ranks as units behind all others.

    Attributes:
        latency: float64[num_replicas, num_stages] [s], issuing each stage, rank after rank. rank: int32[num_stages].
        edges: what a host's units come after. bindings: launches bound the operators of the stages.
    """

    latency: NDArray[np.float64]
    rank: NDArray[np.int32]
    edges: Edges
    bindings: tuple[Binding, ...]

    def joined(self, nodes: UnitGraph) -> UnitGraph:
        """All other units, and these."""
        count = self.latency.shape[1]
        first = nodes.num_units

        def _name(unit: int) -> str:
            return nodes.name(unit) if unit < first else f"launch {unit - first}"

        return replace(
            nodes,
            latency=np.concatenate((nodes.latency, self.latency), axis=1),
            hold_ptr=np.concatenate((nodes.hold_ptr, nodes.hold_ptr[-1] + 1 + np.arange(count, dtype=np.int32))),
            hold=np.concatenate((nodes.hold, nodes.num_streams + self.rank)).astype(np.int32),
            num_streams=nodes.num_streams + int(self.rank.max(initial=-1)) + 1,
            edge_ptr=np.concatenate((nodes.edge_ptr, np.full(count, nodes.edge_ptr[-1], dtype=np.int32))),
            name=_name,
        )


def launching_hosts(
    insides: StageInsides, nodes: UnitGraph, orders: Sequence[NDArray[np.int32]], between: NDArray[np.int32]
) -> Hosts:
    """The hosts of a job under a schedule.

    Args:
        insides: the stages of the job. nodes: all other units. orders: units of the stages of each rank, in order.
        between: int32[k, 2], the schedule's edges.
    """
    layout = insides.layout
    blocks = layout.job.training.launch_blocking
    launch = layout.job.launch[1].value
    launch_s = [quantize_time(launch * slower) for slower in launch_slowdowns(layout)]
    count = _counting(layout.job)
    calls = np.array([count(operator) for operator in layout.library.operators], dtype=np.float64)
    calls = graphed_calls(layout, calls)
    hidden = np.zeros(
        len(calls), dtype=np.bool_
    )  # exchanges that take no time beside compute are launched all the same
    for layer in layout.library.hidden:
        hidden[layer.hidden : layer.hidden + layer.count] = True
    stages = np.concatenate(orders)
    host = np.full(nodes.num_units, -1, dtype=np.int64)
    host[stages] = nodes.num_units + np.arange(len(stages))
    latency = np.zeros((len(nodes.latency), len(stages)))
    bindings: list[Binding] = []
    rank = np.repeat(np.arange(len(orders), dtype=np.int32), [len(order) for order in orders])
    found, which = insides.of_each(stages)
    distinct = sorted_distinct(np.array(launch_s))
    kind = which * len(distinct) + distinct.searchsorted(launch_s)[rank]  # stages that are issued alike
    by_kind = np.argsort(kind, kind="stable")
    for mine in np.split(by_kind, np.flatnonzero(np.diff(kind[by_kind])) + 1) if len(stages) else ():
        number, slow = divmod(int(kind[mine[0]]), len(distinct))
        inside = found[number]
        issued = (inside.latency > 0) | hidden.take(inside.program.rows)
        launches = np.where(issued, calls.take(inside.program.rows), 0)
        bound, lag, lasts = _issued(inside, launches, float(distinct[slow]), blocks=blocks)
        latency[:, mine] = lasts[:, np.newaxis]
        if len(bound):
            units = stages[mine].astype(np.int64)
            bindings.append(Binding(units, host[units][:, np.newaxis], bound, lag))
    chain = [np.stack((host[order[:-1]], host[order[1:]]), axis=1) for order in orders]
    pairs = np.concatenate([*chain, _synchronising(insides, nodes, host, between)]).astype(np.int32)
    return Hosts(latency, rank, Edges.between(pairs, len(latency)), tuple(bindings))


def waits_for_hosts(layout: Layout) -> bool:
    """Whether the stages of a job wait for their hosts. Microbatches in parts and chunks in variants, which launches
    are not modelled with, are refused where a run asks for both; where launches are on by themselves they are left
    out."""
    plan = layout.recipe.plan
    is_varied = plan is not None and (bool(plan.parts) or any(plan.variants))
    return layout.job.training.launches or (layout.job.launches and not is_varied)


def _counting(job: TrainingJob) -> Callable[[Operator], float]:
    """How many launches an operator is like for the host."""
    if job.training.is_eager or job.training.launch_blocking:
        return launches_of
    return launches_of_mixture if job.has_bound_mixture else lambda operator: 1


def launch_slowdowns(layout: Layout) -> list[float]:
    """How many times as long as elsewhere launches take, per pipeline rank."""
    parallel, mesh = layout.job.parallel, layout.mesh
    stall = layout.job.profile.host.transfer_stall.value if layout.job.training.is_eager else 0.0
    crosses = [stall > 0 and mesh.pp_pair(rank, rank + 1).num_nodes > 1 for rank in range(parallel.pp - 1)]
    beside = zip([False, *crosses], [*crosses, False], strict=True)
    peers = [mesh.of_module(layout.chunks_of(rank)[0].module).parallel.tp for rank in range(parallel.pp)]
    if not parallel.has_own_gpus:
        peers = [parallel.tp] * parallel.pp
    return [1 + stall * (tp - 1) if any(pair) else 1.0 for tp, pair in zip(peers, beside, strict=True)]


def _issued(
    inside: Inside, calls: NDArray[np.float64], launch_s: float, *, blocks: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Operators that a host which begins with their stage would issue late, when it has issued each after its begin,
    and everything: int64[k], float64[num_replicas, k], float64[num_replicas] [s].

    The others are never late: a host begins a stage no later than the device.

    Args:
        calls: float64[num_replicas, num_ops], launches. blocks: a kernel is launched when the one before it has ended,
            and the host has issued everything when the last one has.
    """
    issued: NDArray[np.float64] = launch_s * np.cumsum(calls, axis=1)
    if blocks:
        ends = issued + np.cumsum(inside.latency, axis=1)
        issued = ends - inside.latency
        bound = np.flatnonzero((issued > inside.start).any(axis=0)).astype(np.int64)
        return bound, issued[:, bound], ends.max(axis=1, initial=0.0)
    bound = np.flatnonzero((issued > inside.start).any(axis=0)).astype(np.int64)
    return bound, issued[:, bound], issued.max(axis=1, initial=0.0)


def _synchronising(
    insides: StageInsides, nodes: UnitGraph, host: NDArray[np.int64], between: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Edges to a host from everything that a stage waits for which is behind a transfer or reads counts of tokens back:
    int64[k, 2]."""
    units, job = insides.units, insides.layout.job
    waits_for_sends = not job.overlaps_sends or job.training.launch_blocking
    waits = np.zeros(nodes.num_units, dtype=np.bool_)
    if job.has_bound_mixture:
        passes = (Phase.FORWARD, Phase.RECOMPUTE)
        every = insides.layout.library.operators
        is_routing = np.array([op.kind is OpKind.TOP_K and op.phase in passes for op in every], dtype=np.bool_)
        launched = np.flatnonzero(host >= 0)
        found, which = insides.of_each(launched)
        reads = np.array([is_routing[inside.program.rows].any() for inside in found], dtype=np.bool_)
        waits[launched[reads[which]]] = True  # the host reads how many tokens go where before it launches what follows
    elif not waits_for_sends:
        return np.zeros((0, 2), dtype=np.int64)
    given = np.stack((nodes.edges.source, nodes.edges.target), axis=1)
    edges = np.concatenate((given, between)).astype(np.int64)
    edges = edges[host[edges[:, 1]] >= 0]
    if waits_for_sends:
        is_transfer = (edges[:, 0] < units.num_units) & (edges[:, 0] % units.size >= units.num_stages)
        waits[edges[is_transfer, 1]] = True
    mine = edges[waits[edges[:, 1]]]
    return np.stack((mine[:, 0], host[mine[:, 1]]), axis=1)
