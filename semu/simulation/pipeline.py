"""The pipeline of every distinct replica: its stages and transfers as consolidated units, timed under a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.costs.evaluation import CostedJob
from semu.costs.phases import CODES, costs_of
from semu.engine.timeline import OuterSlice
from semu.engine.unit_graph import Edges, Slots, UnitGraph
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.records import dataclass
from semu.schedule.problem import PipelineProblem
from semu.schedule.units import PipelineUnits
from semu.simulation.bindings import Binding, Releases, StageInsides
from semu.simulation.context import ParameterGather, PipelineRun, Replicas, SimulatedJob, TimedJob
from semu.simulation.data_parallel.gathers_before_forwards import first_forward_bindings, parameter_waits
from semu.simulation.effects.launch import launching_hosts, waits_for_hosts
from semu.simulation.transfers import chunk_transfers, edge_bytes, edge_link, splitting_group
from semu.simulation.unit_programs import programs_of

_LINKS = memo.ScopedTable["tuple[list[tuple[CommGroup, ...]], dict[tuple[CommGroup, ...], int]]"](
    "links of all replicas in a place, by pairs of ranks", 64
)
_GRAPHS = memo.ScopedTable[UnitGraph](
    "units of a pipeline as a graph, by number of replicas and gathers", 64, is_large=True
)
_UNIT_LATENCIES = memo.ScopedTable["tuple[NDArray[np.float64], NDArray[np.int64]]"](
    "latencies of a pipeline's distinct units for a batch's shapes, by what the units run and links", 512, is_large=True
)
_PHASES = (Phase.FORWARD, Phase.BACKWARD)
_SENDS = memo.ScopedTable["NDArray[np.float64]"]("latencies of transfers for a batch's shapes, by link and bytes", 1024)
_ADDED = memo.ScopedTable["_Added"](
    "edges of a lowered schedule, by whether sends overlap and number of replicas", 64, is_large=True
)
_ADDED_WITH_GATHERS = memo.ScopedTable["_Added"](
    "edges of schedules of costed chunks, by lowered schedule, gathers and shapes", 64, is_large=True
)


def distinct_replicas(costed: CostedJob, pairs: Sequence[tuple[int, int]]) -> Replicas:
    """Find equal replicas: the same microbatches in the same order over links of the same kind."""
    layout, evaluation = costed.layout, costed.evaluation
    links, kinds = _LINKS.get(layout.place, tuple(pairs), lambda: _replica_links(layout, pairs))
    index = evaluation.shapes.index
    if len(kinds) == 1 and (index == index[0]).all():  # all are equal
        every = np.array([len(links)], dtype=np.int64)
        alike = np.zeros(len(links), dtype=np.int64)
        return Replicas(np.ascontiguousarray(index[:1]), every, np.zeros(1, dtype=np.int64), alike, (links[0],))
    rows = np.concatenate((evaluation.shapes.index, [[kinds[placement]] for placement in links]), axis=1)
    distinct, first, inverse, count = np.unique(
        rows, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first, kind="stable")
    first = first[order]
    of = np.argsort(order)[inverse.ravel()]
    shape = np.ascontiguousarray(distinct[order, :-1])
    return Replicas(shape, count[order], first, of, tuple(links[r] for r in first))


def _replica_links(
    layout: Layout, pairs: Sequence[tuple[int, int]]
) -> tuple[list[tuple[CommGroup, ...]], dict[tuple[CommGroup, ...], int]]:
    """Of every replica the links of all pairs of ranks, and the numbers of those that differ."""
    parallel, node = layout.job.parallel, layout.job.cluster.period_gpus
    distinct: dict[CommGroup, CommGroup] = {}
    by_place: dict[int, tuple[CommGroup, ...]] = {}  # replicas at the same place of a node have the same links
    links = []
    for dp in range(parallel.replicas):
        place = dp if layout.mesh.is_reordered else layout.mesh.rank(dp=dp) % node
        if place not in by_place:
            pair_links = (layout.mesh.pp_pair(*pair, dp=dp) for pair in pairs)
            by_place[place] = tuple([distinct.setdefault(link, link) for link in pair_links])
        links.append(by_place[place])
    return links, {placement: number for number, placement in enumerate(dict.fromkeys(links))}


def consolidated_units(
    costed: CostedJob, units: PipelineUnits, replicas: Replicas, gathers: Mapping[int, ParameterGather]
) -> UnitGraph:
    """Every microbatch of every distinct replica simulated alone: stages, transfers and parameter gathers as nodes."""
    slices = [piece for _, gather in sorted(gathers.items()) for piece in gather.slices]
    num_gathers = tuple([len(gather.slices) for _, gather in sorted(gathers.items())])
    latency = np.empty((len(replicas.count), units.num_units + len(slices)))
    column = programs_of(costed.layout.recipe, units).column
    for links in {id(links): links for links in replicas.links}.values():
        alike = [number for number, other in enumerate(replicas.links) if other is links]
        by_row, row = distinct_latencies(costed, units, links)
        place = row * by_row.shape[1] + replicas.shape[alike].take(column, axis=1)
        latency[alike, : units.num_units] = by_row.ravel().take(place)
    latency[:, units.num_units :] = [piece.end_s - piece.start_s for piece in slices]
    graph = _GRAPHS.get(units, (len(latency), num_gathers), lambda: unit_graph(units, num_gathers, latency.shape))
    return replace(graph, latency=latency, name=partial(_name, units, slices))


def _name(units: PipelineUnits, gathers: Sequence[OuterSlice], unit: int) -> str:
    """Name of a unit, or of a parameter gather behind them."""
    return units.name(unit) if unit < units.num_units else gathers[unit - units.num_units].name


def unit_graph(units: PipelineUnits, num_gathers: Sequence[int], size: tuple[int, ...]) -> UnitGraph:
    """A graph of ``units`` followed by ``num_gathers[rank]`` gathers of each rank, without latencies or names. The
    gathers of a rank run one after another."""
    gather_rank = np.repeat(np.arange(len(num_gathers)), num_gathers)
    gather = units.num_units + np.arange(len(gather_rank), dtype=np.int32)
    in_turn = np.stack((gather[:-1], gather[1:]), axis=1)[gather_rank[1:] == gather_rank[:-1]]
    return UnitGraph.build(
        np.broadcast_to(np.zeros(1), size),
        (
            np.arange(size[1] + 1, dtype=np.int32),
            np.concatenate((units.stream, units.num_streams + gather_rank)).astype(np.int32),
        ),
        units.num_streams + len(num_gathers),
        Edges.between(np.concatenate((units.edges, in_turn)), size[0]),
        str,
    )


def distinct_latencies(
    costed: CostedJob, units: PipelineUnits, links: tuple[CommGroup, ...]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Latencies of all distinct stages and transfers for every shape: float64[num_distinct, num_shapes] [s]; and
    which of them each unit is: int64[num_units]."""
    programs = programs_of(costed.layout.recipe, units)
    every = programs.edges
    linked, job = links, costed.job
    if job.parallel.has_own_gpus and job.cluster.shares_cards:  # else an edge has the link of its pair of ranks
        linked = tuple([edge_link(costed.layout, s, t, _PHASES[back], links[pair]) for s, t, back, pair in every])

    def _find() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        latency: list[NDArray[np.float64]] = []
        row = np.empty((units.repeats, units.size), dtype=np.int64)
        stage = len(CODES) * programs.kind.reshape(row.shape)[:, : units.num_stages] + units.codes
        distinct = np.flatnonzero(np.bincount(stage.ravel()))
        stages = [costs_of(costed, *divmod(number, len(CODES))) for number in distinct.tolist()]
        rows: dict[int, int] = {}
        for costs in stages:
            if id(costs) not in rows:
                rows[id(costs)] = len(latency)
                latency.append(costs.latency)
        row_of_stage = np.empty(distinct[-1] + 1, dtype=np.int64)
        row_of_stage[distinct] = [rows[id(costs)] for costs in stages]
        row[:, : units.num_stages] = row_of_stage[stage]
        of_edge = [links[pair] for *_, pair in every] if linked is links else linked
        number_of = {link: number for number, link in enumerate(of_edge)}
        sends: dict[tuple[int, bytes], int] = {}
        row_of_edge = []
        for (source, target, back, _), link in zip(every, of_edge, strict=True):
            sizes = edge_bytes(costed, source, target, _PHASES[back])
            key = number_of[link], sizes.tobytes()
            if key not in sends:
                sends[key] = len(latency)
                latency.append(send_latency(costed, link, sizes))
            row_of_edge.append(sends[key])
        row[:, units.num_stages :] = np.array(row_of_edge, dtype=np.int64)[programs.edge[units.copy]]
        return np.stack(latency), row.ravel()

    return _UNIT_LATENCIES.get(costed.evaluation.by_shape, (programs, linked is links, linked), _find)


def send_latency(costed: CostedJob, link: CommGroup, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Latency of a transfer for every shape: float64[num_shapes] [s]; equal ones are costed once. A transfer that is
    split over tensor-parallel ranks ends when its receivers have gathered it."""
    by_shape, peers = costed.evaluation.by_shape, splitting_group(costed.layout)

    def _find() -> NDArray[np.float64]:
        send = partial(by_shape.model.outer_latency, OpKind.P2P, "send", group=link)
        if peers is None:
            return send(net_bytes=sizes)
        share = -(-sizes // peers.num_ranks)
        gather = by_shape.model.outer_latency(OpKind.ALL_GATHER, "gather", group=peers, net_bytes=sizes - share)
        return send(net_bytes=share) + np.where(sizes > 0, gather, 0.0)

    return _SENDS.get(by_shape, (link, peers, sizes.tobytes()), _find)


def run_pipeline(sim: SimulatedJob, problem: PipelineProblem, *, has_hosts: bool = True) -> TimedJob:
    """Time every distinct replica under a schedule: the schedule's edges on the consolidated units; ``has_hosts``:
    false: without launches."""
    layout, evaluation, replicas, nodes, gathers = sim.layout, sim.evaluation, sim.replicas, sim.nodes, sim.gathers
    launches = has_hosts and waits_for_hosts(layout)
    insides = StageInsides(sim)
    first = problem.first_forwards if gathers else ()
    overlapped = layout.job.overlaps_sends
    everything = nodes

    def _make() -> _Added:
        new = Edges.between(problem.unit_edges(overlapped_sends=overlapped), len(nodes.latency))
        return _added(new, first_forward_bindings(insides, gathers, first), insides, nodes)

    if launches:
        between = problem.unit_edges(overlapped_sends=overlapped)
        hosts = launching_hosts(insides, nodes, problem.unit_orders, between)
        everything, new = hosts.joined(nodes), Edges.between(between, len(replicas.count)).followed_by(hosts.edges)
        added = _added(new, [*first_forward_bindings(insides, gathers, first), *hosts.bindings], insides, everything)
    elif not gathers:
        added = _ADDED.get(problem, (overlapped, len(replicas.count)), _make)
    else:
        key = problem, overlapped, tuple(gathers.values()), replicas.shape.shape, replicas.shape.tobytes()
        added = _ADDED_WITH_GATHERS.get(evaluation.by_shape, key, _make)
    times = everything.resume(added.edges, slots=added.slots, forced=added.order)
    unit = problem.unit_of_nodes
    programs = programs_of(layout.recipe, sim.units)
    kind = programs.kind.take(unit[: problem.num_stages])
    start, end = times.start.take(unit, axis=1), times.end.take(unit, axis=1)
    launched = None
    if launches:
        by_unit = times.end - times.start
        by_unit[:, : nodes.num_units] -= nodes.latency
        for stage, lasts in parameter_waits(insides, gathers, first, times.start).items():
            by_unit[:, stage] -= lasts
        launched = by_unit[:, unit[: problem.num_stages]]
    run = PipelineRun(
        problem=problem,
        shape=replicas.shape,
        count=replicas.count,
        first=replicas.first,
        plain=nodes.latency.take(unit, axis=1),
        latency=end - start,
        start=start,
        end=end,
        sent=chunk_transfers(sim, problem),
        release=Releases.of(layout, times, unit[: problem.num_stages], problem.phase, kind),
        launched=launched,
        kind=kind,
        column=programs.column.take(unit[: problem.num_stages]),
    )
    return sim.under(run)


@dataclass(frozen=True, eq=False)
class _Added:
    """What a schedule adds to the units of a pipeline.

    Attributes:
        edges: of the schedule, and from units to operators inside stages. slots: these operators.
        order: as ``UnitGraph.forced_order``.
    """

    edges: Edges
    slots: Slots | None
    order: NDArray[np.int32] | None


def _added(new: Edges, bindings: Sequence[Binding], insides: StageInsides, nodes: UnitGraph) -> _Added:
    slots = None
    if bindings:
        waits, slots = insides.bind(bindings, nodes.num_units)
        new = new.followed_by(waits)
    return _Added(new, slots, nodes.forced_order(new))
