"""A job's iteration as units that share ports: which operator uses which port of which GPU, and what waits for what.

Every pipeline rank of every distinct replica is one GPU with three ports (NVLink, NIC, PCIe), each out and in. A P2P
send holds the sender's out and the receiver's in, a collective each simulated rank's out (DESIGN §3.1); a data-parallel
collective is one unit on the ports of all replicas and moves as fast as the slowest of them lets it. Where modules have
GPUs of their own and GPUs share network cards, the cards are the ports (``shared_cards``).

A stage in which something moves over a port that others use too, or in which something waits for parameters, is written
out operator by operator between a beginning and an end; the others are one unit each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.compile.stage import StageProgram
from semu.costs.phases import program_of, stages_of_chunk
from semu.hardware.device import Direction
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_cost, port_shares
from semu.nn.trace.offload import HOST_LINK
from semu.simulation.context import TimedJob
from semu.simulation.data_parallel.gathers_before_forwards import needed_gathers
from semu.simulation.data_parallel.reduce import Reduction
from semu.simulation.effects.port_units import JobUnits, WrittenStages
from semu.simulation.effects.shared_cards import SharedCards
from semu.simulation.module_transfers import Card
from semu.simulation.unit_programs import programs_of
from semu.units import TIME_GRID_PER_S

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

Side = tuple[Port, Direction]
"""One of the two devices of a port."""
PORTS = tuple(Port)
NUM_SIDES = 2 * len(PORTS)


class UnitWriter:
    """Writes the units of a job that was timed without contention, and of its gradient collectives."""

    def __init__(self, timed: TimedJob, reductions: Sequence[Reduction]) -> None:
        run, units = timed.run, timed.units
        self.layout, self.evaluation, self.units, self.replicas = timed.layout, timed.evaluation, units, timed.replicas
        self.nodes, self.gathers, self.run, self.reductions = timed.nodes, timed.gathers, run, reductions
        self.unit_of = run.problem.unit_of_nodes
        self.node_of = {int(u): node for node, u in enumerate(self.unit_of[: run.problem.num_stages])}
        self.num_replicas, self.n = run.num_replicas, units.num_units
        self.every = np.arange(self.num_replicas)
        self.cards = SharedCards(timed)
        self.out = JobUnits()

    @property
    def num_ports(self) -> int:
        """Ports of all GPUs, out and in apart."""
        return self._first_card + self.cards.count

    @property
    def _first_card(self) -> int:
        """Number of the first shared card's port, behind those of GPUs."""
        return self.num_replicas * self.layout.job.parallel.pp * NUM_SIDES

    def write(self) -> JobUnits:
        """All units, edges and uses."""
        self._pipeline()
        self._gathers()
        self._reductions()
        self._stages()
        self._pipeline_edges()
        self._gather_edges()
        self._reduction_edges()
        return self.out

    # -- ports -------------------------------------------------------------------------------------------------------
    def _port(self, replica: object, rank: object, side: Side) -> I64:
        """Numbers of a port's device on the GPUs of some replicas and ranks."""
        gpu = np.asarray(replica) * self.layout.job.parallel.pp + np.asarray(rank)
        number: I64 = gpu * NUM_SIDES + 2 * PORTS.index(side[0]) + (side[1] is Direction.IN)
        return number

    def _is_card(self, port: Port) -> bool:
        """Whether GPUs share the devices of a port."""
        return self.cards.count > 0 and port is Port.NIC

    def _use_cards(self, unit: object, parts: Mapping[Card, float], share: float) -> None:
        """Units use some cards; ``share``: what of a card they take where they have it for themselves."""
        for card, part in parts.items():
            self.out.use(unit, self._first_card + self.cards.port(card), min(share * part, 1.0))

    def _split(self, latency: F64, kind: OpKind, group: CommGroup) -> tuple[F64, F64]:
        """Latencies as fixed part and work [s]; what uses no port is fixed."""
        cost = collective_cost(self.evaluation.by_shape.model.profile, kind, group)
        if math.isinf(cost.bytes_per_s):
            return latency, np.zeros_like(latency)
        return _split(latency, cost.latency_s)

    def _collective(self, unit: int, ranks: Sequence[int], kind: OpKind, group: CommGroup) -> None:
        """A collective of all replicas uses the out of each rank that takes part."""
        for port, share in port_shares(self.evaluation.by_shape.model.profile, kind, group).items():
            if self._is_card(port):
                parts: dict[Card, float] = {}
                for replica, rank in product(self.every.tolist(), ranks):
                    for card, part in self.cards.of_rank(replica, rank, Direction.OUT).items():
                        parts[card] = parts.get(card, 0.0) + part
                self._use_cards(unit, parts, share)
                continue
            for rank in ranks:
                self.out.use(unit, self._port(self.every, rank, (port, Direction.OUT)), share)

    # -- units -------------------------------------------------------------------------------------------------------
    def _pipeline(self) -> None:
        units, out, programs = self.units, self.out, programs_of(self.layout.recipe, self.units)
        fixed = self.nodes.latency[:, : self.n].copy()
        work = np.zeros_like(fixed)
        shift = units.size * np.arange(units.shape.num_microbatches)
        for number, copy in np.ndindex(units.num_transfers, len(units.chunk)):
            source, target = units.pairs[units.pair[copy, number]]
            mine = units.num_stages + number + shift[units.copy == copy]
            edge = programs.edges[programs.edge[copy, number]]
            for replica in range(self.num_replicas):
                link = self.replicas.links[replica][units.pair[copy, number]]
                fixed[replica, mine], work[replica, mine] = self._split(fixed[replica, mine], OpKind.P2P, link)
                for port, share in port_shares(self.evaluation.by_shape.model.profile, OpKind.P2P, link).items():
                    if self._is_card(port):
                        parts = self.cards.of_transfer(replica, edge[0], edge[1], is_gradient=bool(edge[2]))
                        self._use_cards(replica * self.n + mine, parts, share)
                        continue
                    for rank, way in ((source, Direction.OUT), (target, Direction.IN)):
                        out.use(replica * self.n + mine, self._port(replica, rank, (port, way)), share)
        out.add(fixed, work)
        out.tail = np.arange(fixed.size).reshape(fixed.shape)

    def _gathers(self) -> None:
        self.out.gathers = self.out.count
        for rank, gather in sorted(self.gathers.items()):
            for piece, group in zip(gather.slices, gather.groups, strict=True):
                parts = self._split(np.array([piece.end_s - piece.start_s]), piece.kind, group)
                self._collective(self.out.add(*parts), [rank], piece.kind, group)

    def _reductions(self) -> None:
        self.out.reductions = self.out.count
        for item in self.reductions:
            parts = self._split(np.array([item.piece.end_s - item.piece.start_s]), item.piece.kind, item.group)
            self._collective(self.out.add(*parts), item.ranks, item.piece.kind, item.group)

    # -- stages ------------------------------------------------------------------------------------------------------
    def _outside(self) -> list[tuple[int, Side, int, int]]:
        """What operators outside stages use while a stage may run: (rank, port device, first stage, last stage).

        Sends that the sender's compute waits for run beside none of its stages. A gather ends before the last of the
        stages that wait for it; a reduction begins after the first of the stages that it waits for has begun, and where
        it waits for the rank's last stage it meets none.
        """
        profile, problem = self.evaluation.by_shape.model.profile, self.run.problem
        last = problem.num_stages
        result: list[tuple[int, Side, int, int]] = []
        for links in self.replicas.links:
            for (source, target), link in zip(self.units.pairs, links, strict=True):
                if self.layout.job.overlaps_sends:
                    result.append((source, (link.port, Direction.OUT), 0, last))
                result.append((target, (link.port, Direction.IN), 0, last))
        for rank, gather in self.gathers.items():
            waiting = [self.node_of[unit] for unit in problem.first_forwards[rank]]
            for group in dict.fromkeys(gather.groups):
                for port in port_shares(profile, OpKind.ALL_GATHER, group):
                    result.append((rank, (port, Direction.OUT), 0, max(waiting)))
        for item in self.reductions:
            if item.operators and not item.nodes:
                for port in port_shares(profile, item.piece.kind, item.group):
                    begun = min(node for node, _ in item.operators)
                    result += [(rank, (port, Direction.OUT), begun, last) for rank in item.ranks]
        return list(dict.fromkeys(result))

    def _inside(self, program: StageProgram) -> list[tuple[int, Side, float]]:
        """(operator, port device, share) of everything that moves inside a stage."""
        model, library = self.evaluation.by_shape.model, self.layout.library
        uses: dict[int, list[tuple[Side, float]]] = {}
        for row in dict.fromkeys(program.rows.tolist()):
            group, operator = model.link_of(row), library.operators[row]
            uses[row] = []
            if group is None:
                continue
            both = operator.kind is OpKind.P2P and operator.stream not in HOST_LINK
            way = operator.stream.device.direction or Direction.OUT
            for port, share in port_shares(model.profile, operator.kind, group).items():
                uses[row] += [((port, side), share) for side in (tuple(Direction) if both else (way,))]
        return [(op, *use) for op, row in enumerate(program.rows.tolist()) for use in uses[row]]

    def _stages(self) -> None:
        """Write out the stages that must be."""
        problem, outside = self.run.problem, self._outside()
        waiting = {unit for rank in self.gathers for unit in problem.first_forwards[rank]}
        waits = np.isin(self.unit_of[: problem.num_stages], sorted(waiting))
        for chunk in self.layout.chunks:
            for phase, program in stages_of_chunk(
                self.layout, chunk.chunk.index, splits=self.run.problem.splits_backward
            ):
                inside = self._inside(program)
                streams: dict[Side, set[int]] = {}
                for op, side, _ in inside:
                    streams.setdefault(side, set()).add(int(program.stream[op]))
                mine = np.flatnonzero((problem.chunk == chunk.chunk.index) & (problem.phase == phase))
                shared = waits[mine] | any(len(own) > 1 for own in streams.values())
                shared |= any(self._is_card(port) for port, _ in streams)  # whatever else the node sends
                for rank, side, first, last in outside:
                    if rank == chunk.chunk.rank and side in streams:
                        shared |= (mine >= first) & (mine <= last)
                if shared.any():
                    self._write_stages(chunk, program, mine[shared], inside)

    def _write_stages(
        self, chunk: ChunkStages, program: StageProgram, mine: I64, inside: Sequence[tuple[int, Side, float]]
    ) -> None:
        """Write out some stages of a chunk on all replicas."""
        out, num_ops = self.out, program.num_ops
        replica, node = np.repeat(self.every, len(mine)), np.tile(mine, self.num_replicas)
        shape = self.run.shape[replica, self.run.problem.microbatch[node]]
        different, place = np.unique(shape, return_inverse=True)
        latency = self.evaluation.by_shape.latencies_of(different)[:, program.rows]
        fixed, work = latency.copy(), np.zeros_like(latency)
        moves = np.zeros(num_ops, dtype=np.bool_)
        moves[[op for op, _, _ in inside]] = True
        alone = self.evaluation.by_shape.model.numbers[program.rows[moves], 3]
        fixed[:, moves], work[:, moves] = _split(latency[:, moves], alone)
        edge = np.zeros((len(different), 1))  # the end, which takes no time
        first = out.add(np.hstack((fixed, edge))[place], np.hstack((work, edge))[place])
        firsts = first + (num_ops + 1) * np.arange(len(node))
        begins = replica * self.n + self.unit_of[node]
        heads, pairs, ends = _structure(program)
        out.join(begins[:, None], firsts[:, None] + heads[None, :])
        out.join(firsts[:, None] + pairs[None, :, 0], firsts[:, None] + pairs[None, :, 1])
        out.join(firsts[:, None] + ends[None, :], firsts[:, None] + num_ops)
        if not num_ops:
            out.join(begins, firsts)
        for op, side, share in inside:
            if not self._is_card(side[0]):
                out.use(firsts + op, self._port(replica, chunk.chunk.rank, side), share)
                continue
            for number in self.every.tolist():
                parts = self.cards.of_rank(number, chunk.chunk.rank, side[1])
                self._use_cards((firsts + op)[replica == number], parts, share)
        out.fixed[0][begins] = 0.0
        out.tail[replica, self.unit_of[node]] = firsts + num_ops
        out.written.append(WrittenStages(program, replica, node, firsts, latency[place], shape, moves))

    # -- edges -------------------------------------------------------------------------------------------------------
    def _pipeline_edges(self) -> None:
        new = self.run.problem.unit_edges(overlapped_sends=self.layout.job.overlaps_sends)
        pairs = np.concatenate((self.units.edges, new))
        self.out.join(self.out.tail[:, pairs[:, 0]], self.every[:, None] * self.n + pairs[None, :, 1])

    def _first_operators(self) -> dict[tuple[int, int], int]:
        """(replica, node) of every stage written out -> unit of its first operator."""
        return {
            (replica, node): first
            for stages in self.out.written
            for replica, node, first in zip(
                stages.replica.tolist(), stages.node.tolist(), stages.first.tolist(), strict=True
            )
        }

    def _gather_edges(self) -> None:
        unit, written = self.out.gathers, self._first_operators()
        for rank, gather in sorted(self.gathers.items()):
            gathers = unit + np.arange(len(gather.slices))
            self.out.join(gathers[:-1], gathers[1:])
            for first in self.run.problem.first_forwards[rank]:
                waits = needed_gathers(self.layout.chunks[int(self.units.chunks_of(first))], gather)
                bound = np.flatnonzero(waits >= 0)
                for replica in range(self.num_replicas):
                    self.out.join(unit + waits[bound], written[replica, self.node_of[first]] + bound)
            unit += len(gather.slices)

    def _reduction_edges(self) -> None:
        out, problem, written = self.out, self.run.problem, self._first_operators()
        before: dict[int, int] = {}
        lags: dict[tuple[int, int], F64] = {}
        for number, item in enumerate(self.reductions):
            unit = out.reductions + number
            out.join([before[rank] for rank in item.ranks if rank in before], unit)
            before.update(dict.fromkeys(item.ranks, unit))
            for node in item.nodes:
                out.join(out.tail[:, self.unit_of[node]], unit)
            for node in dict.fromkeys(node for node, _ in item.operators):
                ops = np.array(sorted({op for other, op in item.operators if other == node}))
                program = program_of(self.layout, int(problem.chunk[node]), int(problem.phase[node]))
                for replica in range(self.num_replicas):
                    if (replica, node) in written:
                        out.join(written[replica, node] + ops, unit)
                        continue
                    shape = int(self.run.shape[replica, problem.microbatch[node]])
                    if (node, shape) not in lags:
                        lags[node, shape] = program.times(self.evaluation.by_shape.latencies_of(np.array([shape]))[0])[
                            1
                        ]
                    begin = replica * self.n + self.unit_of[node]
                    out.join(begin, unit, float(lags[node, shape][ops].max()))


def _split(latency: F64, alone: F64 | float) -> tuple[F64, F64]:
    """Latencies as fixed part and work, both on the time grid.

    Args:
        latency: [s]. alone: the fixed part before rounding [s].
    """
    fixed = np.minimum(np.rint(np.asarray(alone) * TIME_GRID_PER_S) / TIME_GRID_PER_S, latency)
    return fixed, latency - fixed


def _structure(program: StageProgram) -> tuple[I64, I64, I64]:
    """Operators that nothing precedes; (before, after) of the others, streams in issue order; those at the end."""
    number = np.arange(program.num_ops)
    depends = np.stack((program.pred, np.repeat(number, np.diff(program.pred_ptr))), axis=1).astype(np.int64)
    order = np.argsort(program.stream, kind="stable")
    same = program.stream[order][1:] == program.stream[order][:-1]
    in_turn = np.stack((order[:-1], order[1:]), axis=1)[same]
    pairs = np.unique(np.concatenate((depends, in_turn)), axis=0)
    return np.setdiff1d(number, pairs[:, 1]), pairs, np.setdiff1d(number, pairs[:, 0])
