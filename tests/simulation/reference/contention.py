"""What the slow reference says of a job whose transfers share ports: every operator of every replica at once.

Only groups whose bytes cross one port of a GPU: all ranks on one node, or one rank of the group on each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from engine.contention_reference import Mover, share
from simulation.reference.costs import on_grid, symbols_of
from simulation.reference.expansion import HOST, Expansion, Key, Replica, StageName, attribute, expand
from simulation.reference.held import Whole, gather, reduce, sharing, spans
from simulation.reference.memory import memory_of
from simulation.reference.model import holds_all
from simulation.reference.modules import (
    block_of,
    busiest_port,
    card_of,
    card_parts,
    card_slowdown,
    gpu_shares,
    group_of,
    has_own,
    link_across,
    module_symbols,
    shares_cards,
)
from simulation.reference.network import latency_seconds
from simulation.reference.sharding import REPLICATE, Sharding
from simulation.reference.tail import Slice, collective, gather_times, parts_of, shared_buckets, trainable, worst_group

from semu.hardware.kinds import OpKind, Port, Provenance
from semu.hardware.network import CommGroup
from semu.job import TrainingJob

GRID = 2**40


@dataclass
class Reduced:
    """A gradient collective: ranks that take part, start and end [s]."""

    ranks: Sequence[int]
    start_s: float = 0.0
    end_s: float = 0.0


def contended(job: TrainingJob, orders: list[list[StageName]] | None = None) -> tuple[Expansion, list[Reduced]]:
    """A job written out, all of it timed together. ``orders``: as ``expand``."""
    return _Crowd(job, orders).time()


class _Crowd:
    """All operators of a job as movers."""

    def __init__(self, job: TrainingJob, orders: list[list[StageName]] | None) -> None:
        self.job, self.expansion = job, expand(job, orders=orders)
        peers = job.parallel.dp * job.parallel.cp
        self.gathers = job.training.overlap.param_gather and job.parallel.zero in (1, 2) and peers > 1
        if self.gathers:
            self.expansion = expand(job, gather_times(self.expansion), orders)
        self.model = self.expansion.model
        self.sharding = Sharding(self.model)
        self.movers: list[Mover] = []
        self.number: dict[tuple[int, Key], int] = {}
        self.wholes: list[list[Whole]] = gather(self.expansion) if holds_all(job) else []
        self.whole_numbers: list[tuple[Whole, OpKind, int]] = []

    def time(self) -> tuple[Expansion, list[Reduced]]:
        for r, replica in enumerate(self.expansion.replicas):
            for key in replica.nodes:
                self.number[r, key] = len(self.number)
        for r, replica in enumerate(self.expansion.replicas):
            for key, node in replica.nodes.items():
                after = [(self.number[r, other], None) for other in node.after]
                self._add(node.latency_s, *self._way(r, key), after)
        reductions = self._reductions()
        if self.gathers:
            self._gather()
        self._gather_wholes()
        times = [(start / GRID, end / GRID) for start, end in share(self.movers)]
        for (r, key), number in self.number.items():
            node = self.expansion.replicas[r].nodes[key]
            node.start_s, node.end_s = times[number]
            if node.latency_s and (key[0] == "send" or self._way(r, key)[0]):
                node.latency_s = node.end_s - node.start_s
        for item, (start, end) in zip(reductions, times[len(self.number) :], strict=False):
            item.start_s, item.end_s = start, end
        for whole, kind, number in self.whole_numbers:
            piece = Slice(kind, *times[number])
            if kind is OpKind.ALL_GATHER:
                whole.gather = piece
            elif kind is OpKind.REDUCE_SCATTER:
                whole.scatter = piece
        for r, replica in enumerate(self.expansion.replicas):
            self._look_again(r, replica)
        return self.expansion, reductions

    def _look_again(self, number: int, replica: Replica) -> None:
        """Memory and attribution at the new times."""
        job = self.job
        items = job.batch.microbatches(
            job.num_microbatches * job.parallel.dp, job.training.micro_batch, job.training.seq_len
        )
        mine = items[number :: job.parallel.dp]
        own = [symbols_of(item, job.parallel.tp, job.parallel.cp) | module_symbols(job, item) for item in mine]
        held = self.sharding.held(replica)
        if self.wholes:
            held = spans(self.expansion, replica, self.wholes)
        replica.memory = memory_of(self.model, replica, own, held)
        if replica.exposed_s:
            inside = next(name for name in replica.exposed_s if name != "pp")
            replica.compute_s = 0.0
            attribute(replica, inside, gpu_shares(job))

    def _add(
        self,
        latency_s: float,
        kind: OpKind | None,
        group: CommGroup | None,
        ports: Sequence[object] | dict[object, Fraction],
        after: list[tuple[int, int | None]],
    ) -> int:
        steps, fixed = round(latency_s * GRID), 0
        if kind is None or group is None:
            self.movers.append(Mover(steps, 0, {}, after))
        else:
            fixed = min(round(on_grid(latency_seconds(self.job.profile, kind, group)) * GRID), steps)
            work = steps - fixed
            part = _part(self.job, kind, group)
            parts = ports if isinstance(ports, dict) else dict.fromkeys(ports, Fraction(1))
            used = {port: min(part * own, Fraction(1)) for port, own in parts.items()}
            self.movers.append(Mover(fixed, work, used if work else {}, after))
        return len(self.movers) - 1

    # -- ports -----------------------------------------------------------------------------------------------------
    def _way(self, r: int, key: Key) -> tuple[OpKind | None, CommGroup | None, list[object] | dict[object, Fraction]]:
        """Kind, communicator and ports of a node; nothing for what computes."""
        job, model = self.job, self.model
        if key[0] == "send":
            source, target = (model.chunk(chunk)[0].rank for chunk in key[1:3])  # type: ignore[arg-type]
            if has_own(job):
                return self._across(r, key, (source, target))
            group = job.cluster.place_group("pp", [model.gpu(rank, r) for rank in (source, target)])
            port = _port(group)
            return OpKind.P2P, group, [(r, source, port, "out"), (r, target, port, "in")]
        if key[0] not in ("operator", "link"):
            return None, None, []
        stage, place = key[1:4], key[4]
        entry = self.expansion.replicas[r].operators[stage][place]  # type: ignore[index]
        operator, rank = entry.operator, model.chunk(stage[0])[0].rank  # type: ignore[arg-type]
        if not operator.kind.is_communication:
            return None, None, []
        name = operator.stream.name
        if name in HOST:
            group = CommGroup(name, 2, local_port=Port.PCIE)
            return operator.kind, group, [(r, rank, Port.PCIE, "out" if name == HOST[0] else "in")]
        if entry.block is None:
            unit = self.sharding.units[key[6]]  # type: ignore[index]
            group = self.sharding.group(key[5] == REPLICATE, unit.routed, rank)
        else:
            group = model.groups_for(entry.block)[name]
        if group.num_ranks == 1:
            return None, None, []
        sides = ("out", "in") if operator.kind is OpKind.P2P else ("out",)
        return operator.kind, group, self._sides([(r, rank)], _port(group), sides)

    def _sides(
        self, places: Sequence[tuple[int, int]], port: Port, sides: Sequence[str]
    ) -> list[object] | dict[object, Fraction]:
        """Ports of collectives of some (replica, rank), of which every GPU of the rank takes part in one."""
        if port is not Port.NIC or not shares_cards(self.job):
            return [(r, rank, port, side) for r, rank in places for side in sides]
        cluster, found = self.job.cluster, dict[object, Fraction]()
        for r, rank in places:
            for gpu in block_of(self.job, rank, r):
                for side in sides:
                    key = card_of(self.job, gpu), side
                    found[key] = found.get(key, Fraction(0)) + Fraction(cluster.nics_per_node, cluster.gpus_per_node)
        return found

    def _across(
        self, r: int, key: Key, ranks: tuple[int, int]
    ) -> tuple[OpKind | None, CommGroup | None, list[object] | dict[object, Fraction]]:
        """The same of a transfer between ranks that have GPUs of their own."""
        job, sides, phase = self.job, ("out", "in"), str(key[3])
        group = link_across(job, *ranks, r)
        port = _port(group)
        if port is not Port.NIC or not shares_cards(job):
            return OpKind.P2P, group, [(r, rank, port, side) for rank, side in zip(ranks, sides, strict=True)]
        ends = [self.model.sizes[self.model.chunk(chunk)[0].module] for chunk in key[1:3]]  # type: ignore[arg-type]
        giver, taker = ends if phase == "F" else ends[::-1]
        counts = card_parts(job, giver, taker, phase, ranks)
        fullest = max(sum(c.get(card, 0) for c in counts) for own in counts for card in own)
        share = card_slowdown(job, fullest, busiest_port(giver, taker, phase)[0])[1]
        return OpKind.P2P, group, {card: Fraction(share) * n / fullest for card, n in counts[r].items()}

    def _gather(self) -> None:
        """Parameters, bucket by bucket in the order of the forward pass; the blocks' forward operators wait."""
        for rank in range(self.job.parallel.pp):
            peers = self.job.parallel.dp * self.job.parallel.cp
            held = trainable(self.expansion, rank)
            for item in held:
                item.ready_s = 0.0
            before: dict[int, int] = {}
            for bucket in shared_buckets(self.model, held, several=True):
                size = 2 * sum(item.elements for item in bucket)
                tp = bucket[0].tp
                own = worst_group(self.model, rank, 1, peers * (self.job.parallel.tp // tp), tp)
                if bucket[0].is_routed:
                    own = self.model.experts.groups("edp", 0, rank)
                self._reduce([rank], OpKind.ALL_GATHER, own, size, [], before, [])
                parameters = {id(item.parameter) for item in bucket}
                for (r, key), number in self.number.items():
                    if key[0] != "operator" or key[2] != "F":
                        continue
                    block = self.expansion.replicas[r].operators[key[1:4]][key[4]].block  # type: ignore[index]
                    if block is None or block.rank != rank:
                        continue
                    if parameters & {id(use.parameter) for use in block.trace.parameters}:
                        self.movers[number].after = [*self.movers[number].after, (before[rank], None)]

    def _gather_wholes(self) -> None:
        """ZeRO-3 that gathers once: unit by unit; the forward operators of its block, or of all blocks, wait."""
        training = self.job.training
        for rank, mine in enumerate(self.wholes):
            before: dict[int, int] = {}
            for whole in mine:
                if whole.gather is None:
                    continue
                size = sum(use.numel for use in whole.uses) * training.precision.tensor_dtype.size_bytes
                group = sharing(self.expansion, rank, whole.routed)
                self._reduce([rank], OpKind.ALL_GATHER, group, size, [], before, [])
                self.whole_numbers.append((whole, OpKind.ALL_GATHER, before[rank]))
                for (r, key), number in self.number.items():
                    if key[0] == "operator" and key[2] == "F" and training.overlap.param_gather:
                        entry = self.expansion.replicas[r].operators[key[1:4]][key[4]]  # type: ignore[index]
                        if entry.block is whole.block:
                            self.movers[number].after = [*self.movers[number].after, (before[rank], None)]
            for (_, key), number in self.number.items() if before and not training.overlap.param_gather else ():
                if key[0] == "operator" and key[2] == "F" and self.model.chunk(key[1])[0].rank == rank:  # type: ignore[arg-type]
                    self.movers[number].after = [*self.movers[number].after, (before[rank], None)]

    # -- gradients -------------------------------------------------------------------------------------------------
    def _reductions(self) -> list[Reduced]:
        """Buckets as they are without sharing, each after the operators that complete its gradients."""
        job, parallel = self.job, self.job.parallel
        peers = parallel.dp * parallel.cp
        result: list[Reduced] = []
        before: dict[int, int] = {}
        held = [trainable(self.expansion, rank) for rank in range(parallel.pp)]
        for rank in range(parallel.pp):
            for whole, kind, group, size, _ in reduce(self.expansion, rank, self.wholes[rank]) if self.wholes else ():
                waits = self._writers(rank, whole.keys) if job.training.overlap.grad_reduce else self._ends(rank)
                self._reduce([rank], kind, group, size, waits, before, result)
                self.whole_numbers.append((whole, kind, before[rank]))
            if parallel.zero <= 1:
                kind = OpKind.REDUCE_SCATTER if parallel.zero else OpKind.ALL_REDUCE
                for bucket in shared_buckets(self.model, held[rank], job.training.overlap.grad_reduce):
                    tp = bucket[0].tp
                    group = worst_group(self.model, rank, 1, peers * (parallel.tp // tp), tp)
                    if bucket[0].is_routed:
                        group = self.model.experts.groups("edp", 0, rank)
                    waits = self._ends(rank)
                    if job.training.overlap.grad_reduce:
                        waits = self._writers(rank, {id(item.parameter) for item in bucket})
                    size = sum(item.elements for item in bucket) * job.training.grad_dtype.size_bytes
                    self._reduce([rank], kind, group, size, waits, before, result)
            for tp, items in parts_of(held[rank]):
                whole = sum(i.elements for i in items if not i.is_sharded and i.is_sp and not i.is_routed)
                if parallel.zero >= 2:
                    whole = -(-whole // peers)
                if tp > 1 and whole:
                    sizes = next(sizes for sizes in self.model.sizes if sizes.tp == tp)
                    if has_own(job):
                        mine = {block.module for block in self.model.blocks if block.rank == rank}
                        sizes = next(own for n, own in enumerate(self.model.sizes) if own.tp == tp and n in mine)
                    is_own = tp != parallel.tp or has_own(job)
                    group = group_of(job, "tp", sizes) if is_own else self.model.tp_group
                    size = whole * job.training.grad_dtype.size_bytes
                    self._reduce([rank], OpKind.ALL_REDUCE, group, size, self._ends(rank), before, result)
        for item in {id(item.parameter): item for items in held for item in items}.values():
            ranks = [r for r, items in enumerate(held) if any(other.parameter is item.parameter for other in items)]
            if len(ranks) > 1:
                group = job.cluster.place_group("pp", [self.model.gpu(rank, 0) for rank in ranks])
                elements = -(-item.elements // peers) if parallel.zero >= 2 else item.elements
                size = elements * job.training.grad_dtype.size_bytes
                ends = [end for rank in ranks for end in self._ends(rank)]
                self._reduce(ranks, OpKind.ALL_REDUCE, group, size, ends, before, result)
        return result

    def _reduce(
        self,
        ranks: Sequence[int],
        kind: OpKind,
        group: CommGroup,
        size: int,
        waits: Sequence[int],
        before: dict[int, int],
        result: list[Reduced],
    ) -> None:
        if group.num_ranks == 1:
            return
        piece = collective(self.expansion, kind, group, size, 0.0)
        replicas = range(len(self.expansion.replicas))
        ports = self._sides([(r, rank) for r in replicas for rank in ranks], _port(group), ("out",))
        earlier = [before[rank] for rank in ranks if rank in before]
        after: list[tuple[int, int | None]] = [(number, None) for number in (*waits, *earlier)]
        number = self._add(piece.end_s, kind, group, ports, after)
        before.update(dict.fromkeys(ranks, number))
        result.append(Reduced(ranks))

    def _ends(self, rank: int) -> list[int]:
        """Every stage of a rank."""
        replicas = enumerate(self.expansion.replicas)
        return [self.number[r, ("end", *stage)] for r, replica in replicas for stage in replica.orders[rank]]

    def _writers(self, rank: int, parameters: set[int]) -> list[int]:
        """Operators that write the gradients of some parameters."""
        found = []
        for r, replica in enumerate(self.expansion.replicas):
            for operators in replica.operators.values():
                for entry in operators:
                    if entry.block is None or entry.block.rank != rank:
                        continue
                    written = {u.gradient for u in entry.block.trace.parameters if id(u.parameter) in parameters}
                    if written & set(entry.operator.outputs):
                        found.append(self.number[r, entry.key])
        return found


def _port(group: CommGroup) -> Port:
    """The one port that a group's bytes cross."""
    assert group.num_nodes in (1, group.num_ranks)
    return group.local_port if group.num_nodes == 1 else Port.NIC


def _part(job: TrainingJob, kind: OpKind, group: CommGroup) -> Fraction:
    """What the operator reaches on its port over the best that anything reaches there and somebody has looked at."""
    link = job.profile.links[_port(group)]
    kinds = [link.of(other) for other in OpKind if other.is_communication]
    seen = [entry.net for entry in kinds if entry.provenance is not Provenance.DEFAULT]
    own = link.of(kind)
    reached = own.net
    if group.num_nodes == 1 and kind is not OpKind.P2P:
        is_whole = _port(group) is Port.NVLINK and group.num_ranks == job.profile.nvlink_gpus.value
        if kind is OpKind.ALL_REDUCE and is_whole and group.num_ranks > 2 and own.switch > 1:
            reached *= own.switch
        else:
            reached *= 1.0 / (1.0 + own.few_ranks / (group.num_ranks - 1))
    return min(Fraction(reached / max(seen or [entry.net for entry in kinds])), Fraction(1))
